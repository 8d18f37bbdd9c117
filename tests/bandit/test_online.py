"""Own duels learned between two fits, against NumPy's solvers and SciPy's minimisers."""

import numpy as np
import pytest
import scipy.optimize
from conftest import scikit_learn_minimiser
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.special import expit

from fldb_flower.bandit import newton
from fldb_flower.bandit.estimate import VARIANCES, CommonPrior, ShareChange
from fldb_flower.bandit.estimates import OwnEstimates, PersonalEstimates
from fldb_flower.bandit.online import learn_duel, next_fit
from fldb_flower.errors import SettingsError
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.linalg.linear import whiten
from fldb_flower.settings import from_nested

AGENTS, D, RATIO = 3, 2, 1.4
FITTED = [*range(1, 17), 23, 33]  # numbers of duels: up to 8 D, and then after n, ceil(1.4 n)
RIDGE, SCALE = 0.7, 1.3


def duels_of(seed, count=26):
    """Yield one duel per agent at a time; one in ten is an arm against itself."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((AGENTS, D))
    for _ in range(count):
        x = rng.standard_normal((AGENTS, D)) * (rng.random((AGENTS, 1)) > 0.1)
        yield x, (rng.random(AGENTS) < expit((theta * x).sum(axis=1))) * 1.0


def exact(precision, linear, x, y):
    """theta and the Hessian of ``theta P theta / 2 - b theta`` plus the loss of a duel.

    theta = P^-1 (b - s x) for one number s, the slope mu(z) - y, which SciPy finds.
    """
    inverse = np.linalg.inv(precision)

    def excess(s):
        return expit(x @ inverse @ (linear - s * x)) - y - s

    slope = scipy.optimize.brentq(excess, -1.0, 1.0, xtol=1e-15, rtol=1e-14)
    theta = inverse @ (linear - slope * x)
    wins = expit(x @ theta)
    return theta, wins * (1 - wins) * np.outer(x, x)


def test_fits_by_the_ratio():
    after = [0]
    while after[-1] < FITTED[-1]:
        after.append(next_fit(after[-1], RATIO, D))
    assert after == [0, *FITTED]
    assert [next_fit(n, 1.2, 1) for n in (4, 7, 8, 10, 12)] == [5, 8, 10, 12, 15]
    assert [next_fit(n, 1.0, 5) for n in (0, 1, 7, 10**6)] == [1, 2, 8, 10**6 + 1]


def test_a_fit_to_one_more_duel_takes_two_passes(monkeypatch):
    """It starts at the minimiser of the former expansions and the new duel's, not at the former."""
    passes, agents, d = [], 20, 5
    residuals = newton.win_residuals
    monkeypatch.setattr(newton, "win_residuals", lambda z: passes.append(len(z)) or residuals(z))
    rng = np.random.default_rng(0)
    theta, estimates = rng.standard_normal((agents, d)), PersonalEstimates(agents, d, RIDGE)
    none, eye = np.zeros((agents, d)), np.eye(d)
    prior = CommonPrior(20.0 * eye, np.ones(d), 0.5, 1.0)
    counted = ShareChange(none[..., None] * eye, none, np.zeros(len(VARIANCES)), 0.0, 0.0)
    for count in range(300):
        estimates.receive(prior, counted, np.ones(agents))
        if count == 150:
            passes.clear()
        x = 0.2 * rng.standard_normal((agents, d))
        estimates.add(x, (rng.random(agents) < expit((theta * x).sum(axis=1))) * 1.0)
    assert sum(passes) <= 2.2 * 150 * agents


@hypothesis_settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([1e-6, 1e-3, 1.0]), st.booleans())
def test_expansions_are_those_at_the_minimisers(seed, distance, many):
    """From any start, and for enough agents that their Hessians are computed in blocks."""
    rng = np.random.default_rng(seed)
    agents, d, count = (3, 4, 30) if not many else (40, 4, 600)
    duels = rng.standard_normal((agents, d, count))
    point = rng.standard_normal((agents, d))
    errors = expit((point[:, None] @ duels)[:, 0]) - 1.0  # all answers are 1
    mean = point + (duels @ errors[..., None])[..., 0]  # with it, the point is the minimiser
    start = point + distance * rng.standard_normal((agents, d))
    found = newton.minimise(start, newton.Loss(duels), np.eye(d), mean)
    np.testing.assert_allclose(found.point, point, rtol=1e-9, atol=1e-9)
    curvatures = -errors * (1.0 + errors)
    hessian = np.einsum("ai,adi,aei->ade", curvatures, duels, duels)
    np.testing.assert_allclose(found.hessian, hessian, rtol=1e-8, atol=1e-9 * hessian.max())
    linear = (hessian @ point[..., None] - duels @ errors[..., None])[..., 0]
    np.testing.assert_allclose(found.linear, linear, rtol=1e-8, atol=1e-9 * abs(linear).max())


@hypothesis_settings(deadline=None, derandomize=True, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    ridge=st.sampled_from([1e-6, 2e-3, 1.0, 1e4]),
    far=st.sampled_from([0.0, 1.0, 30.0]),
    size=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
    answer=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
def test_a_duel_moves_theta_to_the_minimiser(seed, ridge, far, size, answer):
    """Of the quadratic and the loss of the duel: by SciPy, with explicit inverses."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((D, 1))  # without the ridge, the quadratic is singular
    precision = root @ root.T + ridge * np.eye(D)
    start, x = far * rng.standard_normal(D), size * rng.standard_normal(D)
    expected, curvature = exact(precision, precision @ start, x, answer)
    theta, whiteners = start[None].copy(), whiten(precision[None])
    learn_duel(theta, whiteners, x[None], np.array([answer]))
    # The direction of the step is exact; its length is within SciPy's tolerance of the slope.
    length = np.linalg.norm(np.linalg.solve(precision, x))
    np.testing.assert_allclose(theta[0], expected, rtol=1e-6, atol=1e-6 + 1e-13 * length)
    gradient = precision @ (theta[0] - start) + (expit(x @ theta[0]) - answer) * x
    assert np.abs(gradient).max() <= 1e-7 * (1 + np.abs(precision @ (theta[0] - start)).max())
    wins = expit(x @ theta[0])
    total = precision + wins * (1 - wins) * np.outer(x, x)
    np.testing.assert_allclose(
        whiteners[0].T @ total @ whiteners[0], np.eye(D), atol=1e-6 * max(1.0, 1e-2 / ridge)
    )
    assert np.all(curvature <= 0.25 * np.abs(np.outer(x, x)) + 1e-15)


@pytest.mark.parametrize("before", [-5.0, 0.0, 5.0, 1e4])
@pytest.mark.parametrize("variance", [1e3, 1e14, 1e20, 1e60, 1e200])
@pytest.mark.parametrize("answer", [0.0, 1.0])
def test_a_duel_in_a_direction_that_is_almost_unknown(before, variance, answer):
    """x = 1 with P = 1 / variance; by SciPy, from the equation's logarithm.

    For the answer 0, ``log(before - z) - log(variance) = log(mu(z))``. It is symmetric.
    """
    sign = 1.0 if answer == 0.0 else -1.0

    def excess(z):
        return np.log(variance) - np.log(before - z) - np.logaddexp(0.0, -z)

    least = min(before, -np.log(variance)) - 1e3
    expected = scipy.optimize.brentq(excess, least, before - 1e-9, xtol=1e-12)
    theta, whiteners = np.array([[sign * before]]), np.array([[[np.sqrt(variance)]]])
    learn_duel(theta, whiteners, np.ones((1, 1)), np.array([answer]))
    np.testing.assert_allclose(theta[0, 0], sign * expected, rtol=1e-7, atol=1e-7)
    # The curvature is mu (1 - mu), with mu = (before - z) / variance.
    wins = (before - expected) / variance
    total = 1.0 / variance + wins * (1.0 - wins)
    np.testing.assert_allclose(whiteners[0, 0, 0], total**-0.5, rtol=1e-6)


@pytest.mark.parametrize("ridge", [2e-3, 1.0])
def test_local_estimates_between_two_fits(ridge):
    """Fits equal scikit-learn's; each duel between is added to an explicit quadratic."""
    estimates, own = OwnEstimates(AGENTS, D, ridge, refit_ratio=RATIO), []
    quadratics = [None] * AGENTS
    for count, (x, y) in enumerate(duels_of(1), start=1):
        estimates.add(x, y)
        own.append((x, y))
        for agent, theta in enumerate(estimates.theta):
            if count in FITTED:
                seen, answers = (np.array([each[k][agent] for each in own]) for k in (0, 1))
                expected = scikit_learn_minimiser(seen, answers, ridge)
                wins = expit(seen @ expected)
                hessian = (seen.T * wins * (1 - wins)) @ seen + ridge * np.eye(D)
            else:
                hessian, linear = quadratics[agent]
                expected, curvature = exact(hessian, linear, x[agent], y[agent])
                hessian = hessian + curvature
            quadratics[agent] = hessian, hessian @ expected
            np.testing.assert_allclose(theta, expected, rtol=1e-4, atol=1e-5)


def some_prior(d=D):
    rng = np.random.default_rng(3)
    roots = rng.standard_normal((AGENTS, d, 2 * d))
    precision, shift = roots @ roots.swapaxes(1, 2) / d, rng.standard_normal((AGENTS, d))
    none = np.zeros(AGENTS)
    counted = ShareChange(precision, shift, np.zeros(len(VARIANCES)), none, none)
    prior = CommonPrior(precision.sum(axis=0) + np.eye(d), shift.sum(axis=0), 0.3, SCALE)
    return prior, counted


def personal(ratio, d=D):
    estimates = PersonalEstimates(AGENTS, d, RIDGE, refit_ratio=ratio)
    estimates.receive(*some_prior(d), np.full(AGENTS, SCALE))
    return estimates


def test_personal_estimates_between_two_fits():
    """Fits equal those after each duel; each duel between is added to an explicit quadratic."""
    estimates, after_each = personal(RATIO), personal(1.0)
    for count, (x, y) in enumerate(duels_of(2), start=1):
        before, theta = estimates.posterior.copy(), estimates.theta.copy()
        estimates.add(x, y)
        after_each.add(x, y)
        if count in FITTED:
            np.testing.assert_allclose(estimates.theta, after_each.theta, rtol=1e-7)
            np.testing.assert_allclose(estimates.posterior, after_each.posterior, rtol=1e-7)
            continue
        assert np.abs(estimates.theta - after_each.theta).max() > 1e-6  # not fitted
        for agent in range(AGENTS):
            linear = before[agent] @ theta[agent]
            expected, added = exact(before[agent], linear, x[agent], y[agent])
            np.testing.assert_allclose(estimates.theta[agent], expected, rtol=1e-8)
            np.testing.assert_allclose(estimates.posterior[agent], before[agent] + added)
        whitener = estimates.whitener()
        identity = whitener.swapaxes(1, 2) @ estimates.posterior @ whitener
        np.testing.assert_allclose(identity, np.broadcast_to(np.eye(D), identity.shape), atol=1e-9)
        # The summary of the loss, from which the estimate for another prior is computed, is
        # consistent: with the same prior, the estimate stays.
        held = estimates.theta.copy()
        estimates.receive(*some_prior(), np.full(AGENTS, SCALE))
        np.testing.assert_allclose(estimates.theta, held, rtol=1e-8)


@pytest.mark.parametrize("count", [22, 23])  # 23 is fitted, 22 is not
def test_shares_are_those_of_fitted_estimates(count):
    estimates, after_each = personal(RATIO), personal(1.0)
    for x, y in duels_of(4, count):
        estimates.add(x, y)
        after_each.add(x, y)
    for found, expected in zip(estimates.shares(), after_each.shares(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(estimates.theta, after_each.theta, rtol=1e-7)


@pytest.mark.parametrize("algorithm", ["ldb", "alone", "fldb_personal"])
@pytest.mark.parametrize("saved_after", [5, 23, 25])  # 25 is not fitted
def test_agents_restored_between_two_fits_go_on_identically(algorithm, saved_after):
    values = {"algorithm": algorithm, "num_agents": 5, "horizon": 30, "dimension": D}
    values |= {"refit_ratio": RATIO, "environment": {"sigma": 0.5}}
    chosen = from_nested(values, "a test")
    prior = CommonPrior(2.0 * np.eye(D), np.ones(D), 0.3, 1.0, np.eye(D), 0.5)
    estimate = prior if algorithm == "fldb_personal" else None
    group, restored = AgentGroup(chosen, range(5)), AgentGroup(chosen, range(5))
    group.answer(Broadcast(PlayRequest(1, saved_after, estimate), None), 0)
    restored.restore({name: np.array(array) for name, array in group.state().items()})
    request = Broadcast(PlayRequest(1, 30, None), None)
    first, second = (each.answer(request, 0) for each in (group, restored))
    np.testing.assert_array_equal(first.outcomes[0].sums, second.outcomes[0].sums)
    for name, array in group.state().items():
        np.testing.assert_array_equal(array, restored.state()[name], err_msg=name)


@pytest.mark.parametrize("saved_after", [0, 1, 2, 8, 9])
def test_estimates_with_few_duels_are_restored_identically(saved_after):
    """NumPy's products of up to three columns round by the distance of their rows in memory."""
    features = 6
    rng = np.random.default_rng(saved_after)
    duels = rng.standard_normal((12, AGENTS, features)), rng.random((12, AGENTS)).round()
    for make in (lambda: OwnEstimates(AGENTS, features, RIDGE), lambda: personal(1.0, features)):
        estimates = make()
        for count, (x, y) in enumerate(zip(*duels, strict=True)):
            if count == saved_after:
                restored = make()
                restored.restore({k: np.array(v) for k, v in estimates.state().items()})
            estimates.add(x, y)
            if count >= saved_after:
                restored.add(x, y)
                np.testing.assert_array_equal(estimates.theta, restored.theta)


def test_the_largest_ratio_has_a_state_of_numbers():
    """The number of duels of the next fit can exceed the integers of NumPy."""
    for estimates in (OwnEstimates(AGENTS, D, RIDGE, refit_ratio=1e100), personal(1e100)):
        for x, y in duels_of(6):
            estimates.add(x, y)
        assert {array.dtype.kind for array in estimates.state().values()} == {"f", "i"}


@pytest.mark.parametrize("value", [0.99, -1, "often", float("inf")])
def test_other_ratios_are_rejected(value):
    with pytest.raises(SettingsError, match=r"^refit_ratio=.* \(from a test\): must be"):
        from_nested({"refit_ratio": value}, "a test")
