"""Robust combination of uploads: against NumPy and SciPy, over messages, and its benefit."""

import json

import numpy as np
import pytest
from conftest import ROOT, nested
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fldb_flower.algorithms import run_algorithm
from fldb_flower.algorithms.robust import combine, trimmed_mean
from fldb_flower.environments import max_difference
from fldb_flower.errors import SettingsError
from fldb_flower.federation.exchange import Upload, total
from fldb_flower.federation.history import History
from fldb_flower.federation.plausibility import implausible
from fldb_flower.server_app import play
from fldb_flower.settings import from_nested, to_flat
from robust import Case, LyingAgents, regret
from simulations.engines import vectorized
from simulations.engines.inprocess import InProcessGrid

property_test = settings(deadline=None, derandomize=True, max_examples=100)


def upload(gradient, duels=1, hessian=True):
    gradient = np.asarray(gradient, dtype=float)
    matrix = np.eye(gradient.size) * duels
    return Upload(duels, gradient, matrix, matrix / 4 if hessian else None, None, ())


# --- the trimmed mean ----------------------------------------------------------------------


@property_test
@given(k=st.integers(1, 60), d=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_with_equal_weights_the_result_is_scipys_trimmed_mean(k, d, seed):
    values = np.random.default_rng(seed).standard_normal((k, d))
    weights = np.full(k, 3.0)
    if k % 10 == 0:  # SciPy trims whole values only
        expected = stats.trim_mean(values, 0.1, axis=0)
        np.testing.assert_allclose(trimmed_mean(values, weights, 0.1), expected, rtol=1e-9)
    np.testing.assert_allclose(trimmed_mean(values, weights, 0.0), values.mean(axis=0), rtol=1e-9)


@property_test
@given(
    weights=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    cut=st.sampled_from([0.0, 0.1, 0.25, 0.4]),
    seed=st.integers(0, 10**6),
)
def test_a_weight_is_that_many_equal_values(weights, cut, seed):
    """Each value is repeated 20 times its weight, so that cuts fall between values."""
    values = np.random.default_rng(seed).standard_normal((len(weights), 2))
    repeated = np.sort(np.repeat(values, 20 * np.array(weights), axis=0), axis=0)
    out = round(cut * len(repeated))
    expected = repeated[out : len(repeated) - out].mean(axis=0)
    found = trimmed_mean(values, np.array(weights, dtype=float), cut)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_by_hand():
    gradients = [[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0], [8.0], [9.0], [1000.0]]
    uploads = [upload(gradient) for gradient in gradients]
    assert combine(uploads, "none").gradient == [1045.0]
    assert combine(uploads, "trimmed").gradient == [10 * (2 + 3 + 4 + 5 + 6 + 7 + 8 + 9) / 8]


@pytest.mark.parametrize("how", ["none", "trimmed"])
def test_other_statistics_are_summed_and_nodes_without_duels_are_ignored(how):
    uploads = [upload([1.0, 2.0], 3), upload([3.0, -2.0], 3), upload([-50.0, 2.0], 5)]
    silent = [upload([0.0, 0.0], 0)] * 9
    whole, combined = total(uploads), combine(uploads + silent, how)
    assert combined.num_duels == 11
    np.testing.assert_array_equal(combined.information, whole.information)
    np.testing.assert_array_equal(combined.hessian, whole.hessian)
    np.testing.assert_allclose(combined.gradient, combine(uploads, how).gradient)
    np.testing.assert_array_equal(combine(silent, how).gradient, [0.0, 0.0])
    assert combine([upload([1.0], hessian=False)] * 2, how).hessian is None


@pytest.mark.parametrize("gradient", [-1.0, 1.0])
def test_claiming_many_duels_has_no_effect(gradient):
    """One of 21 nodes has at most 2 / 21 of the weight, less than the trimmed fraction."""
    honest = [upload(row, 4) for row in 4 * np.random.default_rng(1).uniform(-1, 1, (20, 3))]
    small, *found = (
        combine([*honest, upload(np.full(3, gradient * claim), claim)], "trimmed").gradient
        for claim in (4, 5, 10**3, 10**12)
    )
    np.testing.assert_allclose(found, [small] * 3)


@property_test
@given(seed=st.integers(0, 10**6), liars=st.integers(0, 4))
def test_the_result_is_in_the_range_of_honest_nodes(seed, liars):
    """Up to 10 % of the nodes cannot move the mean out of the range of the others."""
    rng = np.random.default_rng(seed)
    nodes = 40
    honest = rng.standard_normal((nodes, 2))
    lies = 1e6 * rng.standard_normal((liars, 2))
    rows = [*honest, *lies]
    found = combine([upload(row) for row in rows], "trimmed").gradient / len(rows)
    assert (honest.min(axis=0) <= found).all()
    assert (found <= honest.max(axis=0)).all()


# --- over messages -------------------------------------------------------------------------


def chosen(**values):
    small = {"num_agents": 11, "horizon": 12, "num_arms": 4, "dimension": 3, "tau": 1}
    return from_nested(nested(**{**small, **values}), "a test")


class LyingGrid(InProcessGrid):
    """The first nodes apply `lie` to their vectors."""

    def __init__(self, num_nodes, run_config, liars, lie):
        super().__init__(num_nodes, run_config)
        self.liars, self.lie = list(self.contexts)[:liars], lie
        self.sent = {}

    def deliver(self, message):
        reply = super().deliver(message)
        node = message.metadata.dst_node_id
        (vector,) = reply.content["arrays"].to_numpy_ndarrays()
        if node in self.liars and vector.size:
            reply.content["arrays"] = ArrayRecord([self.lie(vector.copy())])
        return reply


def over(settings, liars=0, lie=None):
    history = History(settings.horizon)
    grid = LyingGrid(11, to_flat(settings), liars, lie)
    return play(settings, history, grid), history


def turned(vector):
    vector[:3] *= -1
    return vector


@pytest.mark.parametrize("first_round", ["minimise", "step"])
@pytest.mark.parametrize("algorithm", ["fldb_ons", "fldb_ogd"])
def test_over_messages_the_result_is_that_of_each_agents_upload(algorithm, first_round):
    """Compared with uploads of each agent, computed from the group's duels."""
    values = {"algorithm": algorithm, "first_round": first_round, "engine__name": "inprocess"}
    settings = chosen(robust="trimmed", **values)
    theta, history = over(settings)
    by_agent = History(settings.horizon)
    expected = run_algorithm(LyingAgents(settings, by_agent), settings)
    np.testing.assert_allclose(theta, expected, rtol=1e-9)
    np.testing.assert_allclose(history.cumulative_regret, by_agent.cumulative_regret, rtol=1e-9)
    plain, _ = over(chosen(**values))
    assert not np.allclose(theta, plain)


@pytest.mark.parametrize("first_round", ["minimise", "step"])
def test_a_first_step_is_robust_and_the_first_minimiser_uses_the_exact_sum(first_round):
    """Robust exchanges of the same duels may not belong to one loss: Newton could diverge."""
    values = {"algorithm": "fldb_ons", "horizon": 1, "first_round": first_round}
    theta, plain = (
        over(chosen(robust=robust, engine__name="inprocess", **values))[0]
        for robust in ("trimmed", "none")
    )
    assert np.array_equal(theta, plain) is (first_round == "minimise")


def test_an_implausible_node_is_excluded_and_reported():
    settings = chosen(algorithm="fldb_ons", quorum=0.5, node_wait=0.01, engine__name="inprocess")
    _, history = over(settings, 2, lambda vector: np.append(50 * vector[:3], vector[3:]))
    rejected = [line for row in history.participation for line in row.rejected]
    assert rejected
    assert all("gradient is longer than" in line for line in rejected)
    assert {row.replied for row in history.participation if row.rejected} == {9}


@pytest.mark.parametrize("values", [{"robust": "trimmed"}, {"fraction_train": 0.5}])
def test_the_vectorized_engine_refuses_robust_combination(values):
    settings = chosen(algorithm="fldb_ons", **values)
    with pytest.raises(SettingsError, match="needs engine=inprocess or engine=flower") as refused:
        vectorized.run(settings, History(settings.horizon))
    assert "\n" not in str(refused.value)


# --- benefit -------------------------------------------------------------------------------


class PlausibleLies(LyingAgents):
    """Agents whose false uploads are within the bounds for n duels."""

    def uploads(self, broadcast):
        uploads = super().uploads(broadcast)
        assert not any(implausible(uploads, broadcast, max_difference(self._settings)))
        return uploads


def regrets(seeds=8, liars=0, lie="loud", **values):
    found = []
    for seed in range(seeds):
        settings = chosen(
            algorithm="fldb_ons", num_agents=30, dimension=4, horizon=100, seed=seed, **values
        )
        history = History(settings.horizon)
        run_algorithm(PlausibleLies(settings, history, liars, lie), settings)
        found.append(history.regret)
    return np.array(found)


def is_clearly_below(left, right):
    """Paired by seed: the difference is more than three standard errors."""
    differences = right - left
    return differences.mean() > 3 * differences.std(ddof=1) / len(differences) ** 0.5


def test_robust_combination_reduces_the_effect_of_one_liar_of_thirty():
    """Without liars, the robust combination of ten duels each costs almost nothing."""
    honest, attacked = regrets(tau=10), regrets(liars=1, tau=10)
    robust, robust_attacked = (regrets(liars=liars, tau=10, robust="trimmed") for liars in (0, 1))
    assert is_clearly_below(honest, attacked)
    assert is_clearly_below(robust_attacked, attacked)
    assert robust_attacked.mean() < 0.5 * attacked.mean()
    assert robust.mean() < 1.25 * honest.mean()


def test_the_trimmed_mean_of_single_duels_costs_little():
    """The cost in docs/security.md with the width of the theory, for a smaller problem."""
    trimmed, plain = (regrets(12, robust=how, beta_scale=1) for how in ("trimmed", "none"))
    assert trimmed.mean() < 1.25 * plain.mean()


def test_the_documented_table_is_reproducible():
    """A sample of docs/results/robust.json: the cheapest row of each kind of lie."""
    rows = json.loads((ROOT / "docs" / "results" / "robust.json").read_text())["rows"]
    for lie in ("turned", "loud"):
        wanted = {"lie": lie, "tau": 10, "liars": 1}
        row = next(row for row in rows if wanted.items() <= row.items())
        case = Case(**{name: row[name] for name in Case._fields})
        assert regret(case, 0) == pytest.approx(row["regret"][0], rel=1e-5)
