"""Keyed streams: what the draws depend on, and their distributions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fldb_flower.bandit.streams import AgentStreams, keyed_generator, shared_generator

property_test = settings(deadline=None, derandomize=True, max_examples=30)

KINDS = {
    "normal": lambda streams, count: streams.standard_normal("a", count, 3, 2),
    "random": lambda streams, count: streams.random("b", count, 3),
    "logistic": lambda streams, count: streams.logistic("c", count),
    "permutations": lambda streams, count: streams.permutations("d", count, 7, 4),
}


def every_kind(streams, count):
    return {kind: draw(streams, count) for kind, draw in KINDS.items()}


def assert_same(first, second):
    for kind in first:
        np.testing.assert_array_equal(first[kind], second[kind], err_msg=kind)


def test_agents_seeds_and_names_have_different_draws():
    draws = {
        (seed, agent, name): AgentStreams(seed, range(agent, agent + 1)).random(name, 4).tobytes()
        for seed in (0, 1, 2**31, 2**40)
        for agent in (0, 1, 2, 999)
        for name in ("arms", "preferences", "theta")
    }
    assert len(set(draws.values())) == len(draws) == 48


def test_the_shared_generator_depends_on_seed_and_name_and_differs_from_agents():
    keys = list(itertools.product((0, 1), ("theta", "other")))
    draws = {key: shared_generator(*key).standard_normal(3).tobytes() for key in keys}
    assert len(set(draws.values())) == 4
    for key, drawn in draws.items():
        assert shared_generator(*key).standard_normal(3).tobytes() == drawn
    agents = AgentStreams(0, range(10)).standard_normal("theta", 1, 3)
    assert draws[0, "theta"] not in {row.tobytes() for row in agents}


@property_test
@given(cuts=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_draws_do_not_depend_on_the_blocks_of_iterations(cuts):
    whole = every_kind(AgentStreams(9, range(2)), sum(cuts))
    shapes = [array.shape for array in whole.values()]
    assert shapes == [(2, sum(cuts), *rest) for rest in ((3, 2), (3,), (), (4,))]
    streams = AgentStreams(9, range(2))
    parts = [every_kind(streams, count) for count in cuts]
    for kind, array in whole.items():
        joined = np.concatenate([part[kind] for part in parts], axis=1)
        np.testing.assert_array_equal(joined, array, err_msg=kind)


@property_test
@given(cuts=st.sets(st.integers(1, 69)))
def test_draws_do_not_depend_on_the_partition_of_agents(cuts):
    whole = every_kind(AgentStreams(5, range(70)), 3)
    edges = [0, *sorted(cuts), 70]
    blocks = [
        every_kind(AgentStreams(5, range(start, stop)), 3)
        for start, stop in itertools.pairwise(edges)
    ]
    for kind, array in whole.items():
        joined = np.concatenate([block[kind] for block in blocks])
        np.testing.assert_array_equal(joined, array, err_msg=kind)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((), 32), ((5, 5), 32), ((10, 5), 16), ((10, 8), 8), ((800,), 1), ((50, 384), 1)],
)
def test_draws_equal_the_sequence_of_a_cohorts_generator(shape, size):
    """By iteration and then by agent; a block keeps only the part of its own agents.

    At most 800 numbers: a node with one agent draws those of its whole cohort.
    """
    agents, iterations = range(13, 39), 3
    right = np.empty((len(agents), iterations, *shape))
    for cohort in range(agents.start // size, agents[-1] // size + 1):
        generator = keyed_generator(7, 1, cohort, "arms")
        for iteration in range(iterations):
            for agent in range(cohort * size, (cohort + 1) * size):
                numbers = generator.standard_normal(shape)
                if agent in agents:
                    right[agent - agents.start, iteration] = numbers
    streams = AgentStreams(7, agents)
    np.testing.assert_array_equal(streams.standard_normal("arms", iterations, *shape), right)
    assert len(streams.state()["arms"]) == agents[-1] // size + 1 - agents.start // size


def test_drawing_from_one_name_does_not_advance_others():
    quiet, busy = AgentStreams(1, range(2)), AgentStreams(1, range(2))
    busy.random("noise", 100)
    assert_same(every_kind(quiet, 3), every_kind(busy, 3))


@property_test
@given(
    size=st.integers(1, 12),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_permutations_are_distinct_and_in_range(size, fraction, seed):
    count = max(1, round(size * fraction))
    drawn = AgentStreams(seed, range(3)).permutations("pairs", 4, size, count)
    assert drawn.shape == (3, 4, count)
    assert drawn.min() >= 0
    assert drawn.max() < size
    for row in drawn.reshape(-1, count):
        assert len(set(row.tolist())) == count


@pytest.mark.parametrize(("size", "count"), [(5, 2), (4, 3), (4, 4)])
def test_permutations_are_uniform(size, count):
    """Chi-square over all ordered draws without replacement."""
    drawn = AgentStreams(0, range(10)).permutations("pairs", 3000, size, count).reshape(-1, count)
    codes = drawn @ size ** np.arange(count)
    possible = [
        sum(digit * size**place for place, digit in enumerate(digits))
        for digits in itertools.permutations(range(size), count)
    ]
    observed = [int((codes == code).sum()) for code in possible]
    assert len(possible) == math.perm(size, count)
    assert sum(observed) == len(drawn)
    assert stats.chisquare(observed).pvalue > 1e-3


def test_draws_follow_their_distributions():
    streams = AgentStreams(0, range(20))
    logistic = streams.logistic("preferences", 1000).ravel()
    for drawn, distribution in (
        (logistic, stats.logistic),
        (streams.standard_normal("arms", 100, 5, 2).ravel(), stats.norm),
        (streams.random("user", 1000).ravel(), stats.uniform),
    ):
        assert stats.kstest(drawn, distribution.cdf).pvalue > 1e-3
    # A preference is drawn as: below z with probability mu(z). 4 standard errors of 20000 draws.
    for z in (-2.0, 0.0, 0.7):
        mu = 1 / (1 + math.exp(-z))
        error = 4 * math.sqrt(mu * (1 - mu) / 20000)
        assert (logistic < z).mean() == pytest.approx(mu, abs=error)


def test_logistic_is_finite_at_the_ends_of_the_uniform_draw(monkeypatch):
    # The generator's extreme values are 0 and 1 - 2^-53.
    ends = np.array([[0.0, 1 - 2.0**-53, 0.5]])
    monkeypatch.setattr(AgentStreams, "random", lambda *_: ends)
    low, high, middle = AgentStreams(0, range(1)).logistic("preferences", 3)[0]
    # log(2^-54 / 1) and log(1 / 2^-53)
    assert low == pytest.approx(-54 * math.log(2), rel=1e-12)
    assert high == pytest.approx(53 * math.log(2), rel=1e-12)
    assert middle == pytest.approx(0.0, abs=1e-15)


def test_restored_streams_continue_identically():
    streams = AgentStreams(6, range(30, 70))
    every_kind(streams, 5)
    state = streams.state()
    expected = every_kind(streams, 9)
    assert set(state) == {"a", "b", "c", "d"}
    assert all(rows.shape == (3, 4) and rows.dtype == np.uint64 for rows in state.values())

    fresh = AgentStreams(6, range(30, 70))
    fresh.restore(state)
    assert_same(every_kind(fresh, 9), expected)
    streams.restore(state)  # also restores the same object
    assert_same(every_kind(streams, 9), expected)
    # A stream that is first used after restoring starts at the beginning.
    np.testing.assert_array_equal(
        fresh.random("late", 3), AgentStreams(6, range(30, 70)).random("late", 3)
    )
