"""The duel log against a plain list of iterations."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fldb_flower.bandit.duels import DuelLog

AGENTS, D = 3, 2
FIVE = np.arange(5.0)

property_test = settings(deadline=None, derandomize=True, max_examples=100)


def numbers_of(t):
    """Return recognisable contents of iteration t: differences, preferences, regret."""
    differences = np.arange(AGENTS * D).reshape(AGENTS, D) + 100.0 * t
    return differences, (np.arange(AGENTS) + t) % 2.0, 10.0 * t


def play(log, t):
    differences, preferences, regret = numbers_of(t)
    rows, answers, outcomes = log.append(1)
    rows[:] = differences
    answers[:] = preferences
    outcomes[:] = regret + FIVE


def played_log(iterations, *, keep=False):
    log = DuelLog(AGENTS, D, keep=keep)
    for t in range(1, iterations + 1):
        play(log, t)
    return log


def assert_contains(log, *, fresh, everything):
    """Check that the log contains exactly these iterations, in order."""
    for (differences, preferences), iterations in (
        (log.fresh(), fresh),
        (log.all(), everything),
    ):
        rows = [numbers_of(t) for t in iterations]
        assert differences.shape == (AGENTS * len(rows), D)
        assert preferences.shape == (AGENTS * len(rows),)
        assert differences.tolist() == [agent.tolist() for row in rows for agent in row[0]]
        assert preferences.tolist() == [answer for row in rows for answer in row[1]]
    assert log.fresh_outcomes().tolist() == [
        [10.0 * t + place for place in range(5)] for t in fresh
    ]


def test_iterations_added_together_equal_those_added_one_by_one():
    log, t = DuelLog(AGENTS, D, keep=True), 0
    for count in (1, 2, 40, 1, 30):
        rows, answers, outcomes = log.append(count)
        assert not outcomes.any()
        parts = [numbers_of(t + place + 1) for place in range(count)]
        rows[:] = np.concatenate([differences for differences, _, _ in parts])
        answers[:] = np.concatenate([preferences for _, preferences, _ in parts])
        outcomes[:] = np.array([[regret] for _, _, regret in parts]) + FIVE
        t += count
        assert_contains(log, fresh=range(1, t + 1), everything=range(1, t + 1))


def test_returned_outcomes_are_copies():
    log = played_log(3)
    before = log.fresh_outcomes()
    log.acknowledge(2)
    play(log, 4)
    assert before[:, 0].tolist() == [10.0, 20.0, 30.0]


def copied(state):
    return {name: np.array(array) for name, array in state.items()}


@property_test
@given(
    steps=st.lists(
        st.one_of(
            st.just("play"),
            st.just("save and restore"),
            st.just("settle"),
            st.integers(0, 9).map(lambda more: ("reserve", more)),
            st.integers(-1, 6).map(lambda ahead: ("acknowledge", ahead)),
        ),
        max_size=40,
    ),
    keep=st.booleans(),
)
def test_any_sequence_of_steps_agrees_with_a_list(steps, keep):
    log = DuelLog(AGENTS, D, keep=keep)
    played, counted = 0, 0  # the model: iterations 1..played, the first `counted` acknowledged
    for step in steps:
        if step == "play":
            played += 1
            play(log, played)
        elif step == "save and restore":
            state = copied(log.state())
            for array in state.values():
                array.flags.writeable = False  # as in a received message
            log = DuelLog(AGENTS, D, keep=keep)
            log.restore(state)
        elif step == "settle":
            log.settle()
            counted = played
        elif step[0] == "reserve":
            log.reserve(step[1])
        else:
            target = counted + step[1]
            log.acknowledge(target)
            counted = max(counted, min(target, played))
        assert (log.played, log.counted) == (played, counted)
        fresh = range(counted + 1, played + 1)
        assert_contains(log, fresh=fresh, everything=range(1, played + 1) if keep else fresh)


def test_a_state_is_not_changed_by_the_log_it_was_restored_into():
    log = played_log(3)
    state = copied(log.state())
    first, second = DuelLog(AGENTS, D, keep=False), DuelLog(AGENTS, D, keep=False)
    first.restore(state)
    first.acknowledge(2)
    play(first, 4)
    second.restore(state)
    assert_contains(second, fresh=[1, 2, 3], everything=[1, 2, 3])
