"""Tastes that change: answers lose weight with each later answer of their agent (half_life)."""

import itertools

import numpy as np
import pytest
import scipy.optimize
from conftest import nested
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import fldb_flower as fldb
from fldb_flower.algorithms.ons import FLDBONS
from fldb_flower.algorithms.personal import FLDBPersonal
from fldb_flower.bandit.estimate import VARIANCES, CommonPrior, ShareChange
from fldb_flower.bandit.estimates import OwnEstimates, PersonalEstimates
from fldb_flower.bandit.policies import make_policy
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.errors import SettingsError
from fldb_flower.federation.exchange import Federation, ShareUpload, statistics
from fldb_flower.federation.history import Counts
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.settings import Settings, from_nested

D, AGENTS, VARIANCE = 3, 2, 0.3
property_test = hypothesis_settings(deadline=None, derandomize=True, max_examples=25)
half_lives = st.sampled_from([0.5, 3.0, 20.0])


def chosen(**values):
    base = {"num_agents": 4, "horizon": 30, "dimension": D, "num_arms": 4, "plot": False}
    return from_nested(nested(**{**base, **values}), "a test")


def duels_of(seed, count):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((AGENTS, count, D)), rng.integers(0, 2, (AGENTS, count)) * 1.0


def sums(theta, x, y, weights):
    """Gradient and Hessian of the weighted loss of one agent, duel by duel."""
    gradient, hessian = np.zeros(D), np.zeros((D, D))
    for each, answer, weight in zip(x, y, weights, strict=True):
        p = 1 / (1 + np.exp(-each @ theta))
        gradient += weight * (p - answer) * each
        hessian += weight * p * (1 - p) * np.outer(each, each)
    return gradient, hessian


def minimiser(x, y, weights, precision):
    """SciPy's minimiser of the weighted loss and ``theta^T precision theta / 2``."""

    def objective(theta):
        losses = np.logaddexp(0, x @ theta) - y * (x @ theta)
        return weights @ losses + theta @ precision @ theta / 2

    return scipy.optimize.minimize(objective, np.zeros(D), tol=1e-12).x


@property_test
@given(seed=st.integers(0, 99), count=st.integers(1, 25), half_life=half_lives)
def test_estimates_and_shares_are_those_of_weighted_answers(seed, count, half_life):
    (x, y), weights = duels_of(seed, count), 0.5 ** (np.arange(count)[::-1] / half_life)
    nothing = np.zeros((AGENTS, D, D)), np.zeros((AGENTS, D))
    counted = ShareChange(*nothing, np.zeros(len(VARIANCES)), *[np.zeros(AGENTS)] * 2)
    prior = CommonPrior(np.eye(D), np.zeros(D), VARIANCE, 1.0)
    decay = 0.5 ** (1 / half_life)
    own = OwnEstimates(AGENTS, D, 0.1, decay=decay)
    personal, together = (PersonalEstimates(AGENTS, D, 1.0, decay=decay) for _ in range(2))
    for estimates in (personal, together):
        estimates.receive(prior, counted, np.ones(AGENTS))
    for t in range(count):
        own.add(x[:, t], y[:, t])
        personal.add(x[:, t], y[:, t])
    together.add_many(x[:, : count // 2], y[:, : count // 2])
    together.add_many(x[:, count // 2 :], y[:, count // 2 :])
    np.testing.assert_allclose(together.theta, personal.theta, atol=1e-8)
    precision = np.linalg.inv(np.linalg.inv(2 * np.eye(D)) + VARIANCE * np.eye(D))
    matrices, shifts, _ = personal.shares()
    for agent in range(AGENTS):
        duels = x[agent], y[agent], weights
        best = minimiser(*duels, precision)
        np.testing.assert_allclose(personal.theta[agent], best, rtol=1e-4, atol=1e-5)
        best = minimiser(*duels, 0.1 * np.eye(D))
        np.testing.assert_allclose(own.theta[agent], best, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(
            own.posterior[agent], sums(own.theta[agent], *duels)[1] + 0.1 * np.eye(D), rtol=1e-9
        )
        gradient, hessian = sums(personal.theta[agent], *duels)
        mixed = np.eye(D) + VARIANCE * hessian
        np.testing.assert_allclose(matrices[agent], np.linalg.solve(mixed, hessian), atol=1e-10)
        linear = hessian @ personal.theta[agent] - gradient
        np.testing.assert_allclose(shifts[agent], np.linalg.solve(mixed, linear), atol=1e-10)


def test_recorded_duels_without_an_answer_take_no_weight():
    """They are ties of equal arms; a drawn preference between equal arms is an answer."""
    one, zero = np.ones((1, D)), np.zeros((1, D))
    for between, weight in ((None, 1.0), ((zero, [0.5]), 1.0), ((zero, [1.0]), 0.25)):
        estimates = OwnEstimates(1, D, 1.0, decay=0.25)
        estimates.add(one, np.array([1.0]))
        if between:
            estimates.add(between[0], np.array(between[1]))
        np.testing.assert_allclose(estimates.gram()[0], weight * np.ones((D, D)))


def test_ldb_selects_with_the_weighted_gram_matrix():
    settings, (x, y) = chosen(algorithm="ldb", half_life=4.0), duels_of(3, 9)
    policy = make_policy(settings, AgentStreams(0, range(AGENTS)))
    for t in range(9):
        policy.learn(x[:, t], y[:, t])
    weights, whiteners = 0.5 ** (np.arange(9)[::-1] / 4.0), policy.state()["whiteners"]
    for agent in range(AGENTS):
        w = settings.ridge * np.eye(D) + (x[agent] * weights[:, None]).T @ x[agent]
        whitener = whiteners[agent]
        np.testing.assert_allclose(whitener @ whitener.T, np.linalg.inv(w), rtol=1e-8, atol=1e-10)


class Known(Federation):
    """Rounds of known duels, (x, y)."""

    def __init__(self, rounds, form):
        super().__init__(Counts())
        self.rounds, self.form, self.number = rounds, form, -1

    def collect(self, broadcast):
        self.number += broadcast.play is not None
        x, y = self.rounds[self.number]
        return statistics(broadcast, x, y, x, self.form)

    def mark_counted(self):
        pass


def test_fldb_ons_fades_its_matrices_by_the_answers_per_agent():
    """Rounds of 4 agents with 12 duels: 3 answers each, so 2 ** (-3 / 6) with half_life=6."""
    settings = chosen(algorithm="fldb_ons", half_life=6.0, tau=3, ons_ridge=2.0)
    algorithm, rng = FLDBONS(settings), np.random.default_rng(0)
    rounds = [(rng.standard_normal((n, D)), rng.integers(0, 2, n) * 1.0) for n in (4, 12, 12)]
    federation = Known(rounds, algorithm.form)
    for round_ in itertools.islice(algorithm.rounds(), 3):
        algorithm.round(federation, round_)
    (x, y), *others = rounds
    theta, eye = minimiser(x, y, np.ones(4), 2.0 * np.eye(D)), np.eye(D)
    hessians, grams = sums(theta, x, y, np.ones(4))[1], x.T @ x
    for x, y in others:
        gradient, hessian = sums(theta, x, y, np.ones(12))
        hessians, grams = hessians / np.sqrt(2) + hessian, grams / np.sqrt(2) + x.T @ x
        theta = theta - np.linalg.solve(2.0 * eye + hessians, gradient)
    np.testing.assert_allclose(algorithm.theta_sync, theta, rtol=1e-4)
    np.testing.assert_allclose(algorithm.arrays["curvature"], 2.0 * eye + hessians, rtol=1e-4)
    np.testing.assert_allclose(algorithm.information, settings.ridge * eye + grams, rtol=1e-9)


# --- with noise --------------------------------------------------------------------------------

PRIVATE = {"algorithm": "fldb_personal", "privacy__epsilon": 1.0, "tau": 5}


@pytest.mark.parametrize("algorithm", ["fldb_personal", "fldb_ons"])
def test_the_ledger_is_that_without_half_life(algorithm):
    plans = [
        ReleasePlan(chosen(**{**PRIVATE, "algorithm": algorithm}, half_life=half_life))
        for half_life in ("none", 10.0)
    ]
    assert plans[0].multiplier == plans[1].multiplier
    assert [plan.spent(6) for plan in plans] == [plans[0].spent(6)] * 2


@property_test
@given(old=st.integers(1, 300), new=st.integers(1, 60), half_life=st.floats(2.0, 50.0))
def test_the_server_expects_sums_of_weighted_answers_to_grow(old, new, half_life):
    """The weight of the new answers of an agent, relative to what the old ones have left."""
    algorithm = FLDBPersonal(chosen(**PRIVATE, half_life=half_life))
    algorithm.arrays["offered"] = np.array([0.0, 4.0 * old, 4.0])
    change = ShareUpload(4 * new, np.eye(D), np.zeros(D), np.zeros(len(VARIANCES)), 0.0, 0.0)
    weights = 0.5 ** (np.arange(old + new)[::-1] / half_life)
    expected = weights[old:].sum() / weights[:old].sum()
    assert algorithm.growth(change, 4.0 * old) == pytest.approx(expected)
    assert algorithm.settings.total_weight(old + new) == pytest.approx(weights.sum())
    without = FLDBPersonal(chosen(**PRIVATE))
    assert without.growth(change, 4.0 * old) == pytest.approx(new / old)


# --- settings ------------------------------------------------------------------------------------


def test_an_endless_half_life_is_none_and_a_short_one_is_not():
    for algorithm in ("fldb_personal", "fldb_ons", "ldb", "alone"):
        runs = [
            fldb.run(algorithm=algorithm, num_agents=3, horizon=40, num_arms=4, **values).regret
            for values in ({}, {"half_life": 1e9}, {"half_life": 2})
        ]
        none, endless, short = (run.cumulative_regret.to_numpy() for run in runs)
        np.testing.assert_allclose(endless, none, rtol=1e-6)
        assert abs(short - none)[-1] > 0.1


def test_what_cannot_forget_is_refused():
    for values, message in (
        (
            {"algorithm": "fldb_ogd"},
            r"needs algorithm fldb_ons or fldb_personal or alone or ldb, not fldb_ogd$",
        ),
        ({"algorithm": "fldb_gd"}, r"half_life=5 \(from a test\): needs .*, not fldb_gd$"),
        ({"algorithm": "random"}, r", not random$"),
        (
            {"algorithm": "ldb", "refit_ratio": 1.5},
            r"^refit_ratio=1.5 .*must be 1 with half_life=5",
        ),
        ({"algorithm": "fldb_ons", "half_life": 0}, r"^half_life=0.0 .* from 0.01 to"),
    ):
        with pytest.raises(SettingsError, match=message):
            chosen(**{"half_life": 5, **values})
    with pytest.raises(SettingsError, match=r"^half_life=5 .*; use algorithm=fldb_personal$"):
        Settings(mode="devices", algorithm="fldb_ons", half_life=5)
