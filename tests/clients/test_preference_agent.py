"""Tests of the preference agent: formulas, examples by hand, and several processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import logit

from clients.preference_agent import PreferenceAgent
from clients.store import (
    ConflictingAnswerError,
    DuelExpiredError,
    Synchronization,
    UnknownDuelError,
)
from fldb_flower.catalogue import SELECTIONS
from fldb_flower.errors import DataError, FldbError

WEEK = 7 * 24 * 3600.0
DEFAULTS = {"kappa_mu": 1.0, "delta": 0.1, "beta_scale": 1.0, "lambda_": 1 / 500}


def synchronize(agent, theta, information, *, duels=100, received=50.0, counted=0, **parameters):
    theta, information = np.array(theta, float), np.array(information, float)
    agent.store.synchronize(
        Synchronization(
            received=received,
            round=3,
            counted=counted,
            duels=duels,
            theta=theta,
            information=information[np.triu_indices(len(theta))],
            parameters=parameters,
        )
    )


def random_estimate(rng, d, duels=30):
    """Return a random theta and the W of some duels with the ridge 1 / 500."""
    differences = rng.normal(size=(duels, d))
    return rng.normal(size=d), differences.T @ differences + np.eye(d) / 500


def width(d, duels, chosen=None):
    """Return beta_t / kappa_mu of Lemma 4.2 with t N = duels + 1, scaled."""
    p = {**DEFAULTS, **(chosen or {})}
    growth = d * math.log(1 + (duels + 1) * p["kappa_mu"] / (d * p["lambda_"]))
    beta = math.sqrt(2 * math.log(1 / p["delta"]) + growth)
    return (1.0 if p["beta_scale"] == "auto" else p["beta_scale"]) * beta / p["kappa_mu"]


def scale_for(wanted, d, duels):
    """Return the beta_scale that gives the wanted width."""
    return {"beta_scale": wanted / width(d, duels)}


def slow_ucb(arms, theta, information, width):
    """Select by lines 4 and 5 of Algorithm 1, then replace an equal second arm.

    Returns the first arm, the second, and whether lines 4 and 5 select the same arm twice.
    """

    def reward(arm):
        return sum(t * x for t, x in zip(theta, arms[arm], strict=True))

    def challenge(arm):
        x = arms[arm] - arms[first]
        return reward(arm) - reward(first) + width * math.sqrt(x @ np.linalg.solve(information, x))

    first = max(range(len(arms)), key=reward)
    chosen = max(range(len(arms)), key=challenge)
    second = max((arm for arm in range(len(arms)) if arm != first), key=challenge)
    return first, second, chosen == first


# --- which arms ------------------------------------------------------------------------------

ONS = {"algorithm": "fldb_ons", "beta_scale": "auto"}
OTHER = {"kappa_mu": 0.1, "delta": 0.5, "lambda_": 10.0}


@pytest.mark.parametrize(
    ("chosen", "deviations"),
    [
        ({}, None),
        ({"beta_scale": 0.1}, None),
        ({"beta_scale": 0.0}, None),
        ({"kappa_mu": 0.1, "delta": 0.5}, None),
        ({"lambda_": 10.0, "beta_scale": 0.2}, None),
        # FLDB-ONS: A in place of W, and a number of deviations.
        ({**ONS, "ons_width": 0.3}, 0.3),
        ({**ONS, "ons_width": 3.0, **OTHER}, 3.0),
        # With a numeric beta_scale, or an unknown algorithm, the width of the theory.
        ({**ONS, "beta_scale": 0.1, "ons_width": 7.0}, None),
        ({**ONS, "algorithm": "registered_elsewhere", "ons_width": 7.0}, None),
    ],
)
def test_ucb_equals_brute_force_with_the_width_of_the_algorithm(tmp_path, chosen, deviations):
    seen, others = [], []
    for d in (1, 2, 5):
        rng = np.random.default_rng(d)
        with PreferenceAgent(tmp_path / f"{d}.db") as agent:
            for number in range(6):
                theta, information = random_estimate(rng, d)
                synchronize(agent, theta, information, duels=30, received=number, **chosen)
                for arms in (2, 3, 4, 9, 30):  # K changes between calls
                    features = rng.normal(size=(arms, d))
                    duel = agent.propose(features)
                    theirs = width(d, 30, chosen)
                    right = slow_ucb(features, theta, information, deviations or theirs)
                    assert (duel.first, duel.second) == right[:2]
                    seen.append(right[2])
                    others.append(slow_ucb(features, theta, information, theirs) != right)
    scale = chosen.get("beta_scale", 1.0)
    if scale == 0.0:
        assert all(seen)  # the second arm is always replaced
    elif scale in {0.1, 0.2} and "algorithm" not in chosen:
        assert 5 < sum(seen) < len(seen) - 5
    assert any(others) == (deviations is not None)  # the theory's width selects other pairs


def test_before_the_first_broadcast_the_arms_are_far_apart(agent):
    """With theta = 0 all rewards tie: arm 0 is first. W_0 is isotropic: the farthest is second."""
    rng = np.random.default_rng(0)
    for arms in (2, 7, 3):
        features = rng.normal(size=(arms, 4))
        duel = agent.propose(features)
        distances = [math.dist(features[0], arm) for arm in features]
        assert (duel.first, duel.second) == (0, distances.index(max(distances)))
        assert duel.predicted is None
    agent.record(duel.id, "first")
    agent.store.cut(0, 1)
    assert math.isnan(agent.store.evidence(0, 1).predicted[0])


# Three arms, theta = (1, 0), W = I and width 1, worked by hand:
# ucb        first C (reward 1); challengers A, B: 0 + sqrt 2, C: 1 -> A
# maxpairucb sums A + B: 2, A + C = B + C: 1 + sqrt 2, C + C: 2 -> (A, C)
# maxinp     A, B lose to C by 1 < sqrt 2: all may be best; the widest pair is (A, B)
A, B, C = (0.0, 1.0), (0.0, -1.0), (1.0, 0.0)


def test_rules_by_hand(path):
    unknown = {"temperature": 3.0}  # a setting of a newer server is ignored
    for number, (rule, pair) in enumerate(
        {"ucb": (2, 0), "maxpairucb": (0, 2), "maxinp": (0, 1)}.items()
    ):
        with PreferenceAgent(path.with_name(f"{number}.db")) as agent:
            chosen = {"selection": rule, **scale_for(1.0, 2, 100), **unknown}
            synchronize(agent, [1, 0], np.eye(2), **chosen)
            for _ in range(3):
                duel = agent.propose([A, B, C])
                assert (duel.first, duel.second) == pair


def test_two_agents_do_not_draw_the_same(tmp_path):
    pairs = []
    for name in "ab":
        with PreferenceAgent(tmp_path / name) as agent:
            synchronize(agent, np.zeros(3), np.eye(3), selection="thompson")
            features = np.random.default_rng(0).normal(size=(20, 3))
            duels = [agent.propose(features) for _ in range(20)]
            pairs.append([(duel.first, duel.second) for duel in duels])
    assert pairs[0] != pairs[1]


@pytest.mark.parametrize("selection", SELECTIONS)
def test_the_two_arms_differ(agent, selection):
    """Without exploration, they are the two arms of largest reward; also if all arms are equal."""
    rng = np.random.default_rng(1)
    theta, information = random_estimate(rng, 3)
    for scale in (0.0, 0.05, 1.0):
        chosen = {"selection": selection, "beta_scale": scale, "received": scale}
        synchronize(agent, theta, information, **chosen)
        for arms in (2, 3, 10, 2, 100):
            features = rng.normal(size=(arms, 3))
            duel = agent.propose(features)
            assert duel.first != duel.second
            assert {duel.first, duel.second} <= set(range(arms))
            if scale == 0.0:
                best = np.argsort(-(features @ theta))[:2].tolist()
                assert {duel.first, duel.second} == set(best)
                assert duel.first == best[0]
            equal = agent.propose(np.ones((arms, 3)))
            assert equal.first != equal.second
            assert equal.predicted == 0.5
            assert json.loads(json.dumps(dataclasses.asdict(duel))) == dataclasses.asdict(duel)


@hypothesis_settings(deadline=None, derandomize=True, max_examples=60)
@given(data=st.data())
def test_any_finite_features_make_a_duel(tmp_path_factory, data):
    arms, d = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 4))
    numbers = st.floats(-1e100, 1e100)
    features = data.draw(arrays(np.float64, (arms, d), elements=numbers))
    with PreferenceAgent(tmp_path_factory.mktemp("any") / "duels.db") as agent:
        if data.draw(st.booleans()):
            theta = data.draw(arrays(np.float64, d, elements=st.floats(-5, 5)))
            selection = data.draw(st.sampled_from(list(SELECTIONS)))
            synchronize(agent, theta, np.eye(d) * 0.01, selection=selection)
        duel = agent.propose(features)
        assert duel.first != duel.second
        assert {duel.first, duel.second} <= set(range(arms))
        agent.record(duel.id, "second")
        (kept,) = agent.store.answers().differences
        np.testing.assert_array_equal(kept, features[duel.first] - features[duel.second])
        again = agent.propose(features)  # after the answer was learned
        assert again.first != again.second


# --- what is stored --------------------------------------------------------------------------


def test_predicted_by_hand(agent):
    """Theta = (ln 3, 0): mu(ln 3) = 3 / 4 for C against A, and the first arm is C."""
    synchronize(agent, [math.log(3), 0], np.eye(2), beta_scale=0.0)
    duel = agent.propose([A, C])
    assert (duel.first, duel.second) == (1, 0)
    assert duel.predicted == pytest.approx(0.75, rel=1e-15)
    agent.record(duel.id, "tie")
    agent.store.cut(0, 1)
    evidence = agent.store.evidence(0, 1)
    np.testing.assert_array_equal(evidence.differences, [[1.0, -1.0]])
    assert evidence.preferences.tolist() == [0.5]
    assert evidence.predicted.tolist() == [duel.predicted]


def rows(path, query):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_keys_and_contents_of_the_two_arms_are_stored(agent, path):
    synchronize(agent, [1, 0], np.eye(2), **scale_for(1.0, 2, 100))
    contents = [{"text": "tea"}, {"text": "cocoa"}, {"text": "coffee", "image": "https://c/c.png"}]
    duel = agent.propose([A, B, C], keys=["tea", "cocoa", "coffee"], contents=contents)
    assert (duel.first, duel.second) == (2, 0)
    assert (duel.first_key, duel.second_key) == ("coffee", "tea")
    (shown,) = agent.store.open_proposals()
    assert shown.id == duel.id
    assert shown.contents == [contents[2], contents[0]]
    assert (shown.first_key, shown.second_key) == ("coffee", "tea")
    agent.record(duel.id, "second")
    assert rows(path, "SELECT * FROM proposals") == []
    assert rows(path, "SELECT id FROM answers") == [(duel.id,)]
    plain = agent.propose(np.array([A, B, C]))
    assert (plain.first_key, plain.second_key) == (None, None)


def test_a_duel_expires_after_a_week_or_the_given_time(path):
    now = [1000.0]
    with PreferenceAgent(path, clock=lambda: now[0]) as agent:
        slow = agent.propose([[0.0], [1.0]])
        assert slow.expires == 1000.0 + WEEK
    with PreferenceAgent(path, clock=lambda: now[0], expire_after=60.0) as agent:
        quick = agent.propose([[0.0], [1.0]])
        assert quick.expires == 1060.0
        now[0] = 1061.0
        with pytest.raises(DuelExpiredError, match="expired 1 s ago"):
            agent.record(quick.id, "first")
        now[0] = 1000.0 + WEEK
        assert agent.record(slow.id, "first") == 1
        now[0] += 5 * WEEK
        assert agent.record(slow.id, "first") == 1


def test_answers_their_numbers_and_their_errors(agent):
    duels = [agent.propose([[0.0], [1.0]]).id for _ in range(3)]
    assert agent.record(duels[2], "second") == 1
    results = agent.record_many(
        [(duels[0], "tie"), ("?", "tie"), (duels[1], "first"), (duels[2], "first")]
    )
    assert (results[0], results[2]) == (2, 3)
    assert isinstance(results[1], UnknownDuelError)
    assert isinstance(results[3], ConflictingAnswerError)
    assert agent.record_many(iter([])) == []
    assert agent.record(duels[0], "tie") == 2
    agent.store.cut(0, 1)
    assert agent.store.evidence(0, 3).preferences.tolist() == [0.0, 0.5, 1.0]
    with pytest.raises(UnknownDuelError, match="'nothing' is unknown"):
        agent.record("nothing", "first")
    with pytest.raises(ConflictingAnswerError, match=r"by 1 and not 0\.5") as error:
        agent.record(duels[1], "tie")
    assert len(str(error.value).splitlines()) == 1


def test_what_was_learned_from_an_undone_answer_is_unlearned(agent, path):
    """The same answers without it give the same weights, also in another process."""
    arms = np.random.default_rng(8).normal(size=(6, 3))
    with PreferenceAgent(path.with_name("other.db")) as other, PreferenceAgent(path) as late:
        for one in (agent, other):
            for preferred in ("first", "second", "tie"):
                one.record(one.propose(arms).id, preferred)
        right = other.explain()
        duel = agent.propose(arms).id
        agent.record(duel, "first")
        assert max(np.abs(np.subtract(late.explain().weights, right.weights))) > 0.01
        again = agent.undo(duel)
        assert agent.undo(duel) == again
        for each in (agent, late):
            np.testing.assert_allclose(each.explain().weights, right.weights, rtol=1e-9)
            assert each.rank(arms) == other.rank(arms)
        assert agent.status()["answered"] == 3
        assert agent.record(again, "second") == 4


@pytest.mark.parametrize("purpose", ["suggest", "rank"])
@pytest.mark.parametrize("selection", [None, "ucb", "thompson"])
def test_another_duel_follows_a_skipped_one(path, purpose, selection):
    """Until each challenger of the favourite was skipped; and nothing is learned."""
    arms = [[0.0, 1.0], [1.0, 0.0], [3.0, 2.0], [2.0, 4.0]]
    with PreferenceAgent(path, purpose=purpose) as agent:
        agent.record(agent.propose(arms).id, "first")
        if selection:
            synchronize(agent, [5.0, 0.0], 1e6 * np.eye(2), counted=1, selection=selection)
        weights = agent.explain()
        before, shown = agent.status(), []
        for _ in range(3):
            duel = agent.propose(arms)
            shown.append(frozenset((duel.first, duel.second)))
            agent.skip(duel.id)
        assert len(set(shown)) == 3
        assert agent.explain() == weights
        assert agent.status() == before
        duel = agent.propose(arms[:2])  # these two are the only duel left
        agent.skip(duel.id)
        again = agent.propose(arms[:2])
        assert {again.first, again.second} == {0, 1}
        with pytest.raises(UnknownDuelError):
            agent.skip(duel.id)


def test_weights_of_a_text_column_are_relative_to_its_mean(agent):
    """They compare a colour with the average colour, as ``against_average`` does."""
    colours = np.eye(4)[1:]
    for cheap, dear in [(0, 1), (1, 2), (0, 2), (2, 0), (1, 0)]:
        arms = np.array([colours[cheap], colours[dear]])
        arms[:, 0] = 1.0, 3.0
        agent.record(agent.propose(arms).id, "first")
    plain = agent.explain()
    agent.name_features(["price", "colour=red", "colour=blue", "colour=green"])
    known = agent.explain()
    assert (known.weights[0], known.deviations[0]) == (plain.weights[0], plain.deviations[0])
    weights = np.array(plain.weights[1:])
    np.testing.assert_allclose(known.weights[1:], weights - weights.mean(), atol=1e-12)
    mean, low, high = logit(agent.against_average(colours)).T
    np.testing.assert_allclose(known.weights[1:], mean, rtol=1e-9)
    np.testing.assert_allclose(known.deviations[1:], (high - low) / (2 * 1.96), rtol=1e-9)
    assert max(known.deviations[1:]) < min(plain.deviations[1:])


def test_features_have_names(agent, path):
    agent.name_features(["sweetness", "bitterness"])
    assert agent.explain().names == ["sweetness", "bitterness"]
    agent.propose([A, B])
    with PreferenceAgent(path) as other:
        assert other.explain().names == ["sweetness", "bitterness"]
        other.name_features(np.array(["sweet", "bitter"]))
    assert agent.explain().names == ["sweet", "bitter"]
    agent.name_features(None)
    assert agent.explain().names is None


# --- errors ----------------------------------------------------------------------------------

NAMES = [
    (["a", "a"], "names: name 1, 'a', is also the name of another feature"),
    (["a"], "names: 1 names for 2 features"),
    (["a", ""], "names.1: .* at least 1 character"),
    (["a", "b" * 1001], "names.1: .* at most 1000 characters"),
    (["a", 7], "names.1: .* valid string, not 7"),
    ("ab", "names: .* valid list, not 'ab'"),
    ([], "names: .* at least 1 item"),
]
FEATURES = [
    ([[1.0, 2.0], [3.0]], "features: arm 1 has 1 numbers and arm 0 has 2"),
    ([["1", "2"], ["3", "4"]], "features.0.0: .* valid number, not '1'"),
    ([[True, False], [0, 1]], "features.0.0: .* valid number, not True"),
    ([{}, {}], "features.0: .* valid list, not {}"),
    (np.ones(2), "features.0: .* valid list, not 1.0"),
    (None, "features: .* valid list, not None"),
    ("ab", "features: .* valid list, not 'ab'"),
    ([], "features: .* at least 2 items .* not 0"),
    ([[], []], "features.0: .* at least 1 item .* not 0"),
    (np.ones((2, 2, 2)), r"features.0.0: .* valid number, not \[1.0, 1.0\]"),
    ([[1.0, 2.0]], "features: .* at least 2 items .* not 1"),
    (np.empty((0, 2)), "features: .* at least 2 items .* not 0"),
    ([[1.0, 2.0], [3.0, math.nan]], "features.1.1: .* finite number, not nan"),
    (np.array([[-math.inf, 2.0], [3.0, math.nan]]), "features.0.0: .* finite number, not -inf"),
    ([[1.0, 2.0], [1e160, 4.0]], r"features.1.0: .* 1e\+160"),  # the square overflows
    (np.array([[1.0, -1.7e308], [3.0, 4.0]]), r"features.0.1: .* -1\.7e\+308"),
    (np.zeros((2, 4097)), "features.0: .* at most 4096 items"),
    (np.array([[1j, 0], [0, 0]]), "features.0.0: .* valid number, not 1j"),
    (np.ones((2, 3)), "features of 3 numbers each: this device's have 2"),
    (np.ma.array(np.eye(2), mask=np.eye(2)), "features: entries are masked"),
    ([[np.ma.masked, 2.0], [3.0, 4.0]], "features: entries are masked"),
    (np.array([[b"1", b"2"]] * 2), "features.0.0: .* valid number, not b'1'"),
    ([[10**400, 0], [0, 0]], "features.0.0: .* number"),
    ([[10**5000, 0], [0, 0]], "features.0.0: .* a value of type int"),
]
COUNTED = [
    ({name: [one] * count}, f"{count} {name} for 2 arms: one for each, or none")
    for name, one in (("keys", "x"), ("contents", {"text": "x"}))
    for count in (0, 1, 3)
]


def test_wrong_names_features_keys_and_contents_are_refused(agent):
    with pytest.raises(DataError):
        agent.propose([A, B], contents=[object(), object()])
    assert agent.store.dimension is None  # a failed proposal does not fix it
    agent.propose([A, B])
    calls = [(lambda names=names: agent.name_features(names), f"^{line}") for names, line in NAMES]
    calls += [(lambda arms=arms: agent.propose(arms), line) for arms, line in FEATURES]
    calls += [(lambda more=more: agent.propose([A, B], **more), line) for more, line in COUNTED]
    for call, message in calls:
        with pytest.raises(DataError, match=message) as error:
            call()
        assert len(str(error.value).splitlines()) == 1
    assert agent.explain().names is None
    assert agent.status()["open"] == 1


@pytest.mark.parametrize("preferred", ["First", "", 1, 0.5, None, pytest.param(["first"])])
def test_an_unknown_preference_is_refused(agent, preferred):
    good, other = (agent.propose([A, B]).id for _ in range(2))
    with pytest.raises(DataError, match=r"^preferred: .* 'first', 'second' or 'tie', not") as error:
        agent.record(good, preferred)
    assert str(error.value).endswith(f"not {preferred!r}")
    with pytest.raises(DataError, match=r"^1\.preferred: .* 'first', 'second' or 'tie', not"):
        agent.record_many([(good, "first"), (other, preferred)])
    assert agent.status()["answered"] == 0  # a list with an invalid answer is not stored


DEEP: list = []
for _ in range(100_000):
    DEEP = [DEEP]
LOOP: dict = {}
LOOP["text"] = LOOP


BAD = {
    "number": 5, "none": None, "deep": DEEP, "loop": LOOP, "bytes": b"x", "surrogate": "\ud800",
    "nan": math.nan, "huge": 10**5000, "object": object(),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_invalid_arguments_give_a_one_line_error(agent, name):
    """A single-line error of this package, not AttributeError or RecursionError."""
    bad = BAD[name]
    duel = agent.propose([A, B]).id
    calls = [
        lambda: agent.propose(bad),
        lambda: agent.propose([A, bad]),
        lambda: agent.propose([["x" if bad == 5 else bad, 1.0], B]),
        lambda: agent.propose([A, B], keys=[bad, "b"]),
        lambda: agent.propose([A, B], contents=[bad, {"text": "b"}]),
        lambda: agent.propose([A, B], contents=[{"text": bad, "image": 3}, {"text": "b"}]),
        lambda: agent.propose([A, B], contents=[{bad: 1} if isinstance(bad, str) else [bad], {}]),
        lambda: agent.record(bad, "first"),
        lambda: agent.record(duel, bad),
        lambda: agent.record_many(bad),
        lambda: agent.record_many([bad]),
        lambda: agent.record_many([(duel, "first"), (bad, "first")]),
        lambda: PreferenceAgent(agent.store.path, expire_after=bad if bad != 5 else -5),
        lambda: PreferenceAgent(bad if bad != b"x" else b"\xff"),
    ]
    if bad is not None:
        calls.append(lambda: agent.propose([A, B], keys=bad))
        calls.append(lambda: agent.propose([A, B], contents=bad))
    for number, call in enumerate(calls):
        with pytest.raises(FldbError) as error:
            call()
        assert str(error.value).isprintable(), number
        assert str(error.value).isascii(), number
        assert len(str(error.value)) < 400, number
    assert agent.status()["answered"] == 0
    assert agent.status()["open"] == 1


# --- between agents and processes ------------------------------------------------------------


def test_another_agent_uses_a_broadcast_at_its_next_duel(path):
    with PreferenceAgent(path) as one, PreferenceAgent(path) as two:
        assert (two.propose([A, C]).first, two.propose([A, C]).predicted) == (0, None)
        synchronize(one, [math.log(3), 0], np.eye(2), received=1.0, beta_scale=0.0)
        duel = two.propose([A, C])
        assert duel.first == 1
        assert duel.predicted == pytest.approx(0.75)
        # A restarted server counts its rounds from 1: the same round number at another time.
        synchronize(one, [-math.log(4), 0], np.eye(2), received=2.0, beta_scale=0.0)
        for agent in (one, two):
            duel = agent.propose([A, C])
            assert duel.first == 0
            assert duel.predicted == pytest.approx(0.8)


def test_status_by_hand(path):
    now = [100.0]
    of_broadcast = dict.fromkeys(("theta", "round", "duels", "received"))
    of_device = {"open": 0, "answered": 0, "counted": 0, "sent": 0, "needed": None}
    nothing = {**of_device, "undoable": None, "dimension": None, **of_broadcast}
    with PreferenceAgent(path, clock=lambda: now[0], expire_after=50.0) as agent:
        assert agent.status() == nothing
        duels = [agent.propose([A, B]).id for _ in range(4)]
        agent.record_many([(duels[0], "first"), (duels[1], "tie")])
        now[0] = 120.0
        agent.propose([A, B])
        last = {"undoable": duels[1], "dimension": 2}
        assert agent.status() == {**nothing, "open": 3, "answered": 2, **last}
        synchronize(agent, [0.5, -1], np.eye(2), duels=77, received=119.0, counted=1)
        now[0] = 160.0  # two of the three have expired
        status = agent.status()
        known = {"theta": [0.5, -1.0], "round": 3, "duels": 77, "received": 119.0}
        counts = {"open": 1, "answered": 2, "counted": 1, "sent": 1, "needed": None}
        assert status == {**counts, **last, **known}
        assert json.loads(json.dumps(status)) == status


@pytest.mark.slow
def test_the_agent_imports_no_heavy_module():
    heavy = {"torch", "pandas", "hydra", "omegaconf", "matplotlib", "flwr", "scipy", "fastapi"}
    code = (
        "import sys\n"
        "import clients.preference_agent\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    ).stdout.split()
    assert {"clients", "fldb_flower", "numpy", "sqlite3"} <= set(loaded)
    assert set(loaded) & heavy == set()
