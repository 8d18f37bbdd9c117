"""Tests of the minimisers against scikit-learn and the bound from strong convexity."""

import sys

import numpy as np
import pytest
from conftest import scikit_learn_minimiser
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit, log_expit

from fldb_flower.algorithms.solvers import MAX_EXCHANGES, gradient_descent, lbfgs, newton
from fldb_flower.bandit import newton as local
from fldb_flower.bandit.estimates import OwnEstimates
from fldb_flower.errors import ConvergenceError, SettingsError
from fldb_flower.federation.exchange import Upload
from fldb_flower.linalg.linear import Form, add_to_whiteners

N, D = 40, 3
RIDGES = [1 / 500, 0.1, 2.0]

property_test = settings(deadline=None, derandomize=True, max_examples=60)


def random_duels(seed=0, scale=1.0, n=N, d=D):
    rng = np.random.default_rng(seed)
    differences = rng.standard_normal((n, d))
    theta = rng.standard_normal(d)
    preferences = (rng.random(n) < expit(differences @ theta)).astype(float)
    return scale * differences, preferences


def separable_duels(seed=0, scale=1.0, n=N, d=D):
    """Separable duels: one theta explains all of them, so without a ridge there is no minimum."""
    rng = np.random.default_rng(seed)
    differences, theta = rng.standard_normal((n, d)), rng.standard_normal(d)
    return scale * differences, (differences @ theta > 0).astype(float)


KINDS = {"random": random_duels, "separable": separable_duels}


class CountedLoss:
    """Evaluates the loss by its formula and records every point."""

    def __init__(self, differences, preferences):
        self.differences, self.preferences = differences, preferences
        self.points = []

    def at(self, theta):
        x, y = self.differences, self.preferences
        z = x @ theta
        mu = expit(z)
        return Upload(
            num_duels=len(y),
            gradient=((mu - y)[:, None] * x).sum(axis=0),
            information=x.T @ x,
            hessian=np.einsum("n,ni,nj->ij", mu * expit(-z), x, x),
            loss=float(-(y * log_expit(z) + (1 - y) * log_expit(-z)).sum()),
            outcomes=(),
        )

    def __call__(self, theta):
        self.points.append(np.array(theta))
        return self.at(theta)

    def slope(self, theta, ridge):
        """Gradient of the objective including the ridge."""
        return self.at(theta).gradient + ridge * theta


def distance_left(oracle, theta, ridge):
    """Return the length of Newton's step, an estimate of the distance to the minimum."""
    curvature = oracle.at(theta).hessian + ridge * np.eye(len(theta))
    return np.linalg.norm(np.linalg.solve(curvature, oracle.slope(theta, ridge)))


def far_start(oracle, theta, ridge, solver=newton, **options):
    start = oracle.at(theta)
    if solver is lbfgs:
        options["information"] = start.information
    return solver(oracle, start, theta, ridge, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ridge", RIDGES)
def test_newton_finds_scikit_learns_minimum_also_with_diagonals(kind, ridge):
    """With diagonals more exchanges are needed; correlated features make them poor."""
    oracle = CountedLoss(*KINDS[kind](seed=1))
    found = far_start(oracle, np.zeros(D), ridge)
    expected = scikit_learn_minimiser(oracle.differences, oracle.preferences, ridge)
    np.testing.assert_allclose(found.theta, expected, rtol=1e-6)
    assert len(oracle.points) <= 15

    differences, preferences = KINDS[kind](seed=1, d=8)
    mixed = differences @ (np.eye(8) + 0.5 * np.ones((8, 8)))
    oracle = CountedLoss(mixed, preferences)

    def evaluate(theta):
        upload, wins = oracle(theta), expit(mixed @ theta)
        return upload._replace(hessian=Form(8, is_diagonal=True).gram(mixed, wins * (1 - wins)))

    start = evaluate(np.zeros(8))
    found = newton(evaluate, start, np.zeros(8), ridge, tolerance=1e-14)
    expected = scikit_learn_minimiser(mixed, preferences, ridge)
    np.testing.assert_allclose(found.theta, expected, rtol=1e-4, atol=1e-5)
    roughly = len(oracle.points)
    newton(evaluate, start, np.zeros(8), ridge, tolerance=1e-4)
    assert roughly <= 100
    assert len(oracle.points) - roughly <= 40


def test_one_duel_worked_by_hand():
    # d = 1, x = 1, y = 1, ridge a: mu(theta) - 1 + a theta = 0. With theta = log(3): a theta = 1/4.
    theta = np.log(3)
    oracle = CountedLoss(np.ones((1, 1)), np.ones(1))
    found = far_start(oracle, np.zeros(1), 1 / 4 / theta)
    assert found.theta[0] == pytest.approx(theta, abs=1e-9)


@property_test
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(sorted(KINDS)),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    away=st.sampled_from([0.0, 1.0, 100.0, 1e4]),
    ridge=st.sampled_from(RIDGES),
    n=st.integers(1, 60),
)
def test_newton_converges_from_anywhere(seed, kind, scale, away, ridge, n):  # noqa: PLR0917
    oracle = CountedLoss(*KINDS[kind](seed, scale, n))
    start = away * np.random.default_rng(seed + 1).standard_normal(D)
    found = far_start(oracle, start, ridge)
    assert distance_left(oracle, found.theta, ridge) <= 1e-7 * (1 + np.linalg.norm(found.theta))
    # Strong convexity: ||theta - minimum|| <= ||slope(theta)|| / ridge for every theta.
    assert np.linalg.norm(oracle.slope(found.theta, ridge)) <= 1e-7 * n * max(scale, 1)
    assert len(oracle.points) <= 50  # stricter than the limit of 200
    # The returned upload was computed at the minimiser.
    np.testing.assert_array_equal(found.upload.gradient, oracle.at(found.theta).gradient)


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_last_step_saves_an_exchange_at_full_accuracy(kind):
    for seed in range(5):
        exact, trusting = CountedLoss(*KINDS[kind](seed)), CountedLoss(*KINDS[kind](seed))
        minimum = far_start(exact, np.zeros(D), 1 / 500).theta
        # Newton's error is about the square of its step: a step of 1e-7 leaves about 1e-14.
        close = minimum + 1e-7 / np.sqrt(D)
        exact.points.clear()
        far_start(exact, close, 1 / 500)
        trusted = far_start(trusting, close, 1 / 500, settled=1e-13)
        assert (len(exact.points), len(trusting.points)) == (1, 0)
        np.testing.assert_allclose(trusted.theta, minimum, atol=1e-11)
        # The last step is also taken from a distant start.
        found = far_start(trusting, np.zeros(D), 1 / 500, settled=1e-13).theta
        assert distance_left(exact, found, 1 / 500) <= 1e-8 * (1 + np.linalg.norm(found))
        # A start at the minimum needs no evaluation.
        exact.points.clear()
        np.testing.assert_array_equal(far_start(exact, minimum, 1 / 500).theta, minimum)
        assert exact.points == []


@pytest.mark.parametrize("kind", KINDS)
def test_lbfgs_reaches_the_same_minimum(kind):
    pytest.importorskip("torch", reason="solver=lbfgs needs the torch extra")
    for ridge in RIDGES:
        oracle = CountedLoss(*KINDS[kind](seed=4))
        found = far_start(oracle, np.zeros(D), ridge, lbfgs)
        slope = np.linalg.norm(oracle.slope(found, ridge))
        assert slope <= 1e-6 * N
        minimum = far_start(CountedLoss(oracle.differences, oracle.preferences), np.zeros(D), ridge)
        np.testing.assert_allclose(found, minimum.theta, rtol=1e-6)
        assert 1 <= len(oracle.points) <= MAX_EXCHANGES
        assert all(point.any() for point in oracle.points)  # the start is not evaluated again


@pytest.mark.parametrize("solver", [newton, lbfgs])
@pytest.mark.parametrize("scale", [1e-40, 1e-9, 1e-5, 1e5, 1e20])
def test_minima_for_features_of_any_scale(solver, scale):
    """``scale theta`` with the ridge ``scale^2`` does not depend on the scale."""
    if solver is lbfgs:
        pytest.importorskip("torch", reason="solver=lbfgs needs the torch extra")
    found = far_start(CountedLoss(*random_duels(6, scale)), np.zeros(D), 0.1 * scale**2, solver)
    theta = found if solver is lbfgs else found.theta
    expected = scikit_learn_minimiser(*random_duels(6), 0.1)
    np.testing.assert_allclose(scale * theta, expected, rtol=1e-6)


@pytest.mark.parametrize("settled", [0.0, 1e-13])
@pytest.mark.parametrize("ridge", [1e-3, 1e-14, 1e-24, 1e-60])
def test_newton_on_one_duel_of_any_confidence(ridge, settled):
    """``-ridge theta = mu(theta)``; the logarithm has its root by SciPy."""
    oracle = CountedLoss(np.ones((1, 1)), np.zeros(1))  # mu - 0 is accurate if tiny
    found = far_start(oracle, np.zeros(1), ridge, settled=settled)
    expected = brentq(lambda z: np.log(ridge * z) + np.logaddexp(0.0, z), 1e-9, 1e3, xtol=1e-13)
    assert found.theta[0] == pytest.approx(-expected, rel=1e-8)


@pytest.mark.parametrize("ridge", [1e-3, 1e-14, 1e-24, 1e-60, 1e-250])
@pytest.mark.parametrize("refit_ratio", [1.0, 4.0])
def test_local_estimates_of_any_confidence(ridge, refit_ratio):
    """n duels won: ``ridge theta = n mu(-theta)``; the logarithm has its root by SciPy."""
    estimates = OwnEstimates(1, 1, ridge, refit_ratio=refit_ratio)
    for count in range(1, 9):
        estimates.add(np.ones((1, 1)), np.ones(1))
        expected = brentq(
            lambda z, n=count: np.log(ridge / n * z) + np.logaddexp(0.0, z), 1e-9, 1e3, xtol=1e-13
        )
        assert estimates.theta[0, 0] == pytest.approx(expected, rel=1e-9)


def test_lbfgs_without_torch_names_the_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    oracle = CountedLoss(*random_duels())
    with pytest.raises(SettingsError, match=r"pip install -e '\.\[torch\]'.*solver=newton"):
        far_start(oracle, np.zeros(D), 0.1, lbfgs)


def test_two_steps_of_gradient_descent_worked_by_hand():
    # x = 1, y = 1, ridge 0.5, eta 2, from theta = 0:
    # step 1: gradient mu(0) - 1 + 0 = -0.5, theta = 1
    # step 2: gradient mu(1) - 1 + 0.5, theta = 1 - 2 (mu(1) - 0.5) = 2 - 2 mu(1)
    oracle = CountedLoss(np.ones((1, 1)), np.ones(1))
    found = far_start(oracle, np.zeros(1), 0.5, gradient_descent, steps=2, step_size=2.0)
    assert found[0] == pytest.approx(2 - 2 / (1 + np.exp(-1)), rel=1e-14)
    assert [point.tolist() for point in oracle.points] == [[1.0]]
    # The first step uses the start: M steps cost M exchanges with it.
    for steps in (1, 2, 7):
        oracle = CountedLoss(*random_duels())
        far_start(oracle, np.zeros(D), 0.1, gradient_descent, steps=steps, step_size=0.01)
        assert len(oracle.points) == steps - 1


class UnboundedLoss(CountedLoss):
    """The objective is a plane, which has no minimum."""

    ridge = 0.1

    def at(self, theta):
        plane = np.ones(D)
        return Upload(
            num_duels=1,
            gradient=plane - self.ridge * theta,
            information=np.diag([1.0, 0.0, 0.0]),  # of one duel
            hessian=1e3 * np.eye(D),
            loss=float(plane @ theta - 0.5 * self.ridge * theta @ theta),
            outcomes=(),
        )


class IncreasingLoss(CountedLoss):
    """The objective always increases along the step, unlike any convex loss."""

    def at(self, theta):
        direction = np.ones(D) if self.points == [] else -np.ones(D)
        return Upload(1, direction - 0.1 * theta, np.eye(D), np.eye(D), 0.0, ())


@pytest.mark.parametrize("answers", [UnboundedLoss, IncreasingLoss])
def test_newton_ends_after_200_exchanges_with_a_warning(answers, caplog):
    oracle = answers(None, None)
    far_start(oracle, np.zeros(D), 0.1)
    assert "within 200 exchanges: gradient norm 1.7e+00" in caplog.text
    assert len(oracle.points) == MAX_EXCHANGES == 200


class InconsistentLoss(CountedLoss):
    """Inconsistent evaluations: each has a different small error."""

    rng = np.random.default_rng(8)

    def at(self, theta):
        upload = super().at(theta)
        return upload._replace(gradient=upload.gradient + 1e-3 * self.rng.standard_normal(D))


def test_newton_returns_a_nearly_stationary_point_with_a_warning(caplog):
    oracle = InconsistentLoss(*random_duels(7))
    found = far_start(oracle, np.zeros(D), 0.1, max_exchanges=30)
    assert len(oracle.points) == 30
    assert "within 30 exchanges" in caplog.text
    exact = scikit_learn_minimiser(oracle.differences, oracle.preferences, 0.1)
    np.testing.assert_allclose(found.theta, exact, atol=1e-2)


def test_lbfgs_raises_without_a_minimum():
    pytest.importorskip("torch", reason="solver=lbfgs needs the torch extra")
    oracle = UnboundedLoss(None, None)
    with pytest.raises(ConvergenceError, match=r"gradient norm 1\.7e\+00 per duel"):
        far_start(oracle, np.zeros(D), 0.1, lbfgs)


AGENTS = 4


def rounds_of_duels(count, seed=0, scale=1.0):
    """`count` duels of each agent; agent 0 always answers according to one theta."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(D)
    for _ in range(count):
        differences = scale * rng.standard_normal((AGENTS, D))
        logits = differences @ theta
        preferences = (rng.random(AGENTS) < expit(logits)).astype(float)
        preferences[0] = float(logits[0] > 0)
        yield differences, preferences


def assert_stationary(estimates, history, ridge, relative=1e-7, absolute=1e-7):
    """Check each agent's estimate by Newton's step for all of its duels."""
    for agent, theta in enumerate(estimates.theta):
        own = CountedLoss(*(np.array([each[part][agent] for each in history]) for part in (0, 1)))
        assert distance_left(own, theta, ridge) <= relative * np.linalg.norm(theta) + absolute


@pytest.mark.parametrize("ridge", RIDGES)
def test_local_estimates_equal_scikit_learn_agent_by_agent(ridge):
    estimates, history = OwnEstimates(AGENTS, D, ridge), []
    for count, duels in enumerate(rounds_of_duels(20), start=1):
        history.append(duels)
        estimates.add(*duels)
        if count not in {1, 2, 8, 9, 17, 20}:  # the storage grows at 8 and 16
            continue
        for agent in range(AGENTS):
            own, answers = (np.array([each[part][agent] for each in history]) for part in (0, 1))
            expected = scikit_learn_minimiser(own, answers, ridge)
            np.testing.assert_allclose(estimates.theta[agent], expected, rtol=1e-5, atol=1e-7)


@property_test
@given(
    seed=st.integers(0, 10**6),
    d=st.integers(1, 12),
    count=st.integers(1, 16),
    ridge=st.sampled_from(RIDGES),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1e3]),
    repeats=st.booleans(),
    duplicated=st.booleans(),
)
def test_local_estimates_before_and_after_duels_span_the_features(  # noqa: PLR0917
    seed, d, count, ridge, scale, repeats, duplicated
):
    """Some duels span no new direction: an arm against itself, or a repeated pair."""
    rng = np.random.default_rng(seed)
    differences = scale * rng.standard_normal((count, 2, d))
    differences[rng.random(count) < 0.2] = 0.0
    if repeats:
        differences = differences[rng.integers(count, size=count) // 3]
    if duplicated:
        differences[..., -1] = differences[..., 0]
    preferences = (rng.random((count, 2)) < 0.5).astype(float)
    estimates, history = OwnEstimates(2, d, ridge), [*zip(differences, preferences, strict=True)]
    for duels in history:
        estimates.add(*duels)
    assert_stationary(estimates, history, ridge, 1e-8, 1e-14 if scale < 1e3 else 1e-7)


@property_test
@given(seed=st.integers(0, 10**6), d=st.integers(1, 12), count=st.integers(1, 20))
def test_whiteners_square_to_the_inverse(seed, d, count):
    rng = np.random.default_rng(seed)
    ridges = rng.uniform(0.1, 10.0, 3)
    whiteners = np.eye(d) / np.sqrt(ridges)[:, None, None]
    information = np.eye(d) * ridges[:, None, None]
    for differences in rng.standard_normal((count, 3, d)):
        add_to_whiteners(whiteners, differences)
        information += differences[:, :, None] * differences[:, None, :]
    np.testing.assert_allclose(
        whiteners @ whiteners.swapaxes(1, 2), np.linalg.inv(information), rtol=1e-9, atol=1e-12
    )


def test_many_features_with_distant_warm_starts(monkeypatch):
    """More features than duels, every tenth duel contradicts the rest, as for LDB with d = 60.

    Estimates of separable duels are so far from 0 that the curvature vanishes there.
    """
    evaluations = []
    residuals = local.residuals

    def counted(logits, answers):
        evaluations.append(1)
        return residuals(logits, answers)

    monkeypatch.setattr(local, "residuals", counted)
    d, count, ridge = 60, 40, 1 / 200
    rng = np.random.default_rng(3)
    theta = rng.standard_normal(d)
    estimates = OwnEstimates(2, d, ridge)
    history = []
    for number in range(count):
        differences = 1.5 * rng.standard_normal((2, d))
        preferences = (differences @ theta > 0).astype(float)
        history.append((differences, 1 - preferences if number % 10 == 9 else preferences))
        evaluations.clear()
        estimates.add(*history[-1])
        assert len(evaluations) <= 40
        assert_stationary(estimates, history, ridge)


@pytest.mark.parametrize("ridge", [1e-3, 1e-7])
@pytest.mark.parametrize("kind", ["in four dimensions", "one again and again", "indicators"])
def test_duels_of_low_rank(kind, ridge):
    """Fewer directions than duels, before and after there are more duels than features."""
    d, agents, rng = 8, 20, np.random.default_rng(0)
    inside = np.linalg.qr(rng.standard_normal((d, 4)))[0].T
    theta = 0.3 * rng.standard_normal(d)
    first = 3.0 * rng.standard_normal((agents, d))
    estimates, history = OwnEstimates(agents, d, ridge), []
    for _ in range(2 * d):
        differences = {
            "in four dimensions": 3.0 * rng.standard_normal((agents, 4)) @ inside,
            "one again and again": first,
            "indicators": 3.0 * np.eye(d)[rng.integers(0, 3, agents)],
        }[kind]
        preferences = (rng.random(agents) < expit(differences @ theta)).astype(float)
        history.append((differences, preferences))
        estimates.add(differences, preferences)
        assert_stationary(estimates, history, ridge, 1e-6, 1e-6)


def test_an_agents_estimate_does_not_depend_on_other_agents():
    together = OwnEstimates(AGENTS, D, 1 / 500)
    apart = [OwnEstimates(1, D, 1 / 500) for _ in range(AGENTS)]
    for differences, preferences in rounds_of_duels(12, seed=1):
        together.add(differences, preferences)
        for agent, alone in enumerate(apart):
            alone.add(differences[agent : agent + 1], preferences[agent : agent + 1])
    np.testing.assert_allclose(together.theta, [alone.theta[0] for alone in apart], rtol=1e-9)


def test_local_estimates_raise_if_the_minimum_is_not_found(monkeypatch):
    monkeypatch.setattr(local, "MAX_STEPS", 1)
    estimates = OwnEstimates(AGENTS, D, 1 / 500)
    with pytest.raises(ConvergenceError, match=r"not reached in 1 Newton steps .*lambda=0\.002"):
        estimates.add(*next(rounds_of_duels(1)))
