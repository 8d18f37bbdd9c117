"""The BTL model against SciPy, finite differences, autograd and numbers computed by hand."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, check_grad
from scipy.special import expit, log_expit

from fldb_flower.bandit import preference

N, D = 7, 3

property_test = settings(deadline=None, derandomize=True, max_examples=60)


def some_duels(seed=0, scale=1.0, n=N, d=D):
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(d) * scale
    return theta, rng.standard_normal((n, d)), rng.choice([0.0, 0.5, 1.0], n)


def hessian(theta, differences, preferences=None):
    if preferences is None:  # the Hessian does not depend on them
        preferences = 0 * differences[:, 0] + 1
    return preference.derivatives(theta, differences, preferences)[1]


def expected_loss(theta, differences, preferences):
    """Cross-entropy as in the text: y log mu(z) + (1 - y) log mu(-z), duel by duel."""
    total = 0.0
    for difference, y in zip(differences, preferences, strict=True):
        z = float(np.dot(difference, theta))
        total -= y * log_expit(z) + (1.0 - y) * log_expit(-z)
    return total


def test_one_duel_worked_by_hand():
    # d = 2, one duel: z = log(3), mu = 3/4, mu' = 3/16; the second arm won (y = 0).
    theta, difference, lost = np.array([math.log(3), 5.0]), np.array([[1.0, 0.0]]), np.array([0.0])
    assert preference.loss(theta, difference, lost) == pytest.approx(math.log(4), rel=1e-15)
    assert preference.loss(theta, difference, 1 - lost) == pytest.approx(math.log(4 / 3), rel=1e-15)
    np.testing.assert_allclose(preference.gradient(theta, difference, lost), [0.75, 0], atol=1e-15)
    np.testing.assert_allclose(
        preference.gradient(theta, difference, 1 - lost), [-0.25, 0], atol=1e-15
    )
    np.testing.assert_allclose(hessian(theta, difference), [[3 / 16, 0], [0, 0]], atol=1e-15)


@property_test
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.1, 1.0, 10.0]))
def test_statistics_are_sums_over_duels_in_any_order_of_the_arms(seed, scale):
    """The loss equals SciPy's; a tie counts as half a win each."""
    theta, x, y = some_duels(seed, scale)
    assert preference.loss(theta, x, y) == pytest.approx(expected_loss(theta, x, y), rel=1e-13)
    twice = np.concatenate([x, x]), np.concatenate([y, y])
    tie, win, defeat = (np.full(N, answer) for answer in (0.5, 1.0, 0.0))
    for statistic in (preference.loss, preference.gradient):
        once = statistic(theta, x, y)
        np.testing.assert_allclose(statistic(theta, *twice), 2 * once, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(statistic(theta, -x, 1 - y), once, rtol=1e-12, atol=1e-12)
        halves = statistic(theta, x, win) + statistic(theta, x, defeat)
        np.testing.assert_allclose(2 * statistic(theta, x, tie), halves, rtol=1e-12, atol=1e-12)
    for matrix in (lambda rows: hessian(theta, rows), preference.gram):
        np.testing.assert_allclose(matrix(twice[0]), 2 * matrix(x), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_gradient_and_hessian_against_finite_differences(seed):
    theta, differences, preferences = some_duels(seed)
    error = check_grad(
        preference.loss, preference.gradient, theta, differences, preferences, seed=seed
    )
    assert error < 1e-6
    jacobian = approx_fprime(theta, preference.gradient, 1e-7, differences, preferences)
    np.testing.assert_allclose(hessian(theta, differences), jacobian, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_tensors_and_arrays_give_the_derivatives_of_autograd(seed):
    torch = pytest.importorskip("torch", reason="autograd needs the torch extra")
    arrays = some_duels(seed)
    theta, x, y = tensors = [torch.tensor(array) for array in arrays]

    def reference(point):
        return torch.nn.functional.binary_cross_entropy_with_logits(x @ point, y, reduction="sum")

    expected = {
        preference.loss: reference(theta),
        preference.gradient: torch.autograd.functional.jacobian(reference, theta),
        hessian: torch.autograd.functional.hessian(reference, theta),
        lambda _, rows, __: preference.gram(rows): x.T @ x,
        lambda point, rows, _: preference.logistic(rows @ point): torch.sigmoid(x @ theta),
    }
    for statistic, right in expected.items():
        found = statistic(*tensors)
        assert isinstance(found, torch.Tensor)
        assert found.dtype == torch.float64
        np.testing.assert_allclose(found.numpy(), right.numpy(), rtol=1e-12)
        np.testing.assert_allclose(statistic(*arrays), right.numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("z", "y", "loss", "slope"),
    [
        # log(1 + exp(z)) - y z for |z| = 1e4, where exp(z) overflows a float.
        (1e4, 1.0, 0.0, 0.0),
        (1e4, 0.0, 1e4, 1.0),
        (1e4, 0.5, 5e3, 0.5),
        (-1e4, 1.0, 1e4, -1.0),
        (-1e4, 0.0, 0.0, 0.0),
        (-1e4, 0.5, 5e3, -0.5),
    ],
)
def test_finite_and_exact_at_extreme_logits(z, y, loss, slope):
    theta, difference, answer = np.array([z / 4, 7.0]), np.array([[4.0, 0.0]]), np.array([y])
    assert float(preference.loss(theta, difference, answer)) == loss
    assert preference.gradient(theta, difference, answer).tolist() == [4.0 * slope, 0.0]
    assert hessian(theta, difference).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@property_test
@given(z=st.floats(-1e4, 1e4))
def test_logistic_equals_scipy_and_is_symmetric(z):
    mu = float(preference.logistic(np.array(z)))
    assert mu == pytest.approx(float(expit(z)), abs=2e-16)
    assert mu + float(preference.logistic(np.array(-z))) == pytest.approx(1.0, abs=2e-16)


@property_test
@given(z=st.floats(-700, 700), y=st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_derivatives_keep_relative_accuracy(z, y):
    logits, answers = np.array([z, 0.0]), np.array([y, 0.0])
    wins, curvatures = preference.link(logits)
    slopes, weights = preference.residuals(logits, answers)
    with mpmath.workdps(400):
        mu, rest = 1 / (1 + mpmath.exp(-z)), 1 / (1 + mpmath.exp(z))
        assert wins[0] == pytest.approx(float(mu), rel=1e-13)
        assert curvatures[0] == weights[0] == pytest.approx(float(mu * rest), rel=1e-13)
        assert slopes[0] == pytest.approx(float(mu - y), rel=1e-13, abs=1e-16 * (y == 0.3))
    assert (wins[1], curvatures[1], slopes[1]) == (0.5, 0.25, 0.5)


@property_test
@given(z=st.floats(-700, 700))
def test_tail_of_the_loss_keeps_relative_accuracy(z):
    # exp(-|z|) must not be rounded away beside 1, as in log(1 + exp(-|z|)) without log1p.
    won = float(preference.loss(np.array([z]), np.ones((1, 1)), np.ones(1)))
    assert won == pytest.approx(-float(log_expit(z)), rel=1e-12, abs=1e-13)
    if z > 0:
        lost = float(preference.loss(np.array([-z]), np.ones((1, 1)), np.zeros(1)))
        assert lost == pytest.approx(math.log1p(math.exp(-z)), rel=1e-12, abs=0)


@pytest.mark.parametrize("n", [0, 1, 4095, 4096, 4097, 9000])
def test_derivatives_in_one_pass_are_those_of_all_duels(n):
    theta, differences, preferences = some_duels(n=n)
    slope, curvature = preference.derivatives(theta, differences, preferences)
    mu = expit(differences @ theta)
    expected = np.einsum("n,ni,nj->ij", mu * (1 - mu), differences, differences)
    np.testing.assert_allclose(curvature, expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(
        slope, preference.gradient(theta, differences, preferences), rtol=1e-11, atol=1e-11
    )
    # The Hessian does not depend on the preferences.
    other = preference.derivatives(theta, differences, 1 - preferences)[1]
    np.testing.assert_array_equal(other, curvature)


def test_statistics_without_duels_are_zero():
    nothing, theta = np.empty((0, D)), np.ones(D)
    assert float(preference.loss(theta, nothing, np.empty(0))) == 0.0
    assert preference.gradient(theta, nothing, np.empty(0)).tolist() == [0.0] * D
    assert hessian(theta, nothing).tolist() == [[0.0] * D] * D
    assert preference.gram(nothing).tolist() == [[0.0] * D] * D


@property_test
@given(st.lists(st.floats(-1e4, 1e4) | st.floats(-1.0, 1.0), min_size=1, max_size=20))
def test_residuals_of_wins_are_accurate_in_both_tails(logits):
    """``-mu(-z)`` and ``mu(z) mu(-z)`` with 40 digits; below 1e-300 they may be 0."""
    slopes, curvatures = preference.win_residuals(np.array(logits))
    with mpmath.workdps(40):
        powers = [mpmath.exp(mpmath.mpf(z)) for z in logits]
        exact = [(float(1 / (1 + p)), float(p / (1 + p) ** 2)) for p in powers]
    found = np.stack([-slopes, curvatures], axis=1)
    np.testing.assert_allclose(found, exact, rtol=1e-13, atol=1e-300)
