"""Algorithms with noisy sums: estimates of matrices, observations, and what a run must satisfy."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from fldb_flower.algorithms.ogd import FLDBOGD
from fldb_flower.algorithms.ons import FLDBONS
from fldb_flower.algorithms.personal import FLDBPersonal
from fldb_flower.algorithms.schedules import Round
from fldb_flower.bandit.estimate import VARIANCES
from fldb_flower.bandit.limits import typical_share_sizes, typical_sizes
from fldb_flower.federation.exchange import (
    Broadcast,
    Noise,
    PlayRequest,
    ShareUpload,
    Upload,
    limited_statistics,
    statistics,
)
from fldb_flower.linalg.linear import Form
from fldb_flower.linalg.noisy import blurred, denoised, observed, shrunk
from fldb_flower.settings import from_nested

D = 4
seeds = st.integers(0, 2**32 - 1)
sizes = st.floats(-6.0, 6.0).map(lambda exponent: 10.0**exponent)


def settings(**values):
    private = {"privacy": {"epsilon": 3.0, "unit": "person", "clip": 3.0}}
    base = {"algorithm": "fldb_ons", "num_agents": 10, "dimension": D, "horizon": 50}
    if values.get("algorithm", "fldb_ons") != "fldb_personal":
        base["first_round"] = "step"
    return from_nested({**base, **private, **values}, "a test")


def symmetric(rng, d=D):
    matrix = rng.standard_normal((d, d))
    return (matrix + matrix.T) / 2.0


def positive(rng, d=D):
    rows = rng.standard_normal((2 * d, d))
    return rows.T @ rows


def learn(algorithm, upload, number):
    """Let an algorithm learn from one upload, and change its state."""
    federation = SimpleNamespace(exchange=lambda _broadcast: upload)
    algorithm.arrays |= algorithm.learn(federation, Round(number, number, number))


def share_upload(precision, shift, losses, noise):
    return ShareUpload(10, precision, shift, losses, squares=90.0, members=10.0, noise=noise)


# --- estimates of matrices and vectors


@given(seeds, sizes, sizes, st.booleans())
@examples(60)
def test_a_denoised_matrix_is_positive_semi_definite(seed, size, deviation, diagonal):
    rng = np.random.default_rng(seed)
    matrix = size * (rng.standard_normal(D) if diagonal else symmetric(rng))
    found = denoised(matrix, deviation)
    lowest = found.min() if diagonal else np.linalg.eigvalsh(found)[0]
    assert lowest >= -1e-13 * size


@given(seeds, st.floats(0.0, 10.0))
@examples(60)
def test_denoising_commutes_with_rotations(seed, deviation):
    rng = np.random.default_rng(seed)
    matrix = 3.0 * symmetric(rng)
    turn = np.linalg.qr(rng.standard_normal((D, D)))[0]
    turned = turn @ denoised(matrix, deviation) @ turn.T
    np.testing.assert_allclose(denoised(turn @ matrix @ turn.T, deviation), turned, atol=1e-9)


def test_without_noise_nothing_is_changed():
    rng = np.random.default_rng(0)
    matrix, vector = positive(rng), rng.standard_normal(D)
    np.testing.assert_allclose(denoised(matrix, 0.0), matrix, rtol=1e-12)
    np.testing.assert_array_equal(shrunk(vector, 0.0), vector)
    precision, linear = observed(matrix, 1.0, vector, 1e-12)
    np.testing.assert_allclose(precision, matrix, rtol=1e-9)
    np.testing.assert_allclose(linear, vector, rtol=1e-9)


def noise_of(rng, d, deviation):
    """Return noise by its definition: coordinates in an orthonormal basis are independent."""
    noise = np.zeros((d, d))
    for j in range(d):
        for k in range(j + 1):
            draw = deviation * rng.standard_normal()
            noise[j, k] = noise[k, j] = draw if j == k else draw / math.sqrt(2.0)
    return noise


@pytest.mark.parametrize("deviation", [0.3, 3.0, 30.0])
def test_a_denoised_matrix_is_closer_to_the_truth_than_the_noisy_one(deviation):
    rng = np.random.default_rng(1)
    truth = positive(rng, 6)
    raw, found = [], []
    for _ in range(300):
        noisy = truth + noise_of(rng, 6, deviation)
        raw.append(((noisy - truth) ** 2).sum())
        found.append(((denoised(noisy, deviation) - truth) ** 2).sum())
    gain = np.array(raw) - np.array(found)
    assert gain.mean() > -2.0 * gain.std() / math.sqrt(len(gain))
    if deviation == 30.0:  # nearly all is noise: one coordinate of 21 is kept
        assert np.mean(found) < 0.2 * np.mean(raw)


@given(seeds, sizes, st.floats(0.1, 10.0), st.floats(0.01, 100.0))
@examples(60)
def test_an_observation_is_bayes_rule(seed, ridge, spread, variance):
    """Condition the joint normal distribution of x and g, which needs other formulas."""
    rng = np.random.default_rng(seed)
    h, g = positive(rng), rng.standard_normal(D)
    prior = np.eye(D) / ridge
    covariance_of_g = h @ prior @ h + spread * h + variance * np.eye(D)
    gain = prior @ h @ np.linalg.inv(covariance_of_g)
    precision, linear = observed(h, spread, g, variance)
    posterior = np.linalg.inv(ridge * np.eye(D) + precision)
    np.testing.assert_allclose(posterior @ linear, gain @ g, rtol=1e-5, atol=1e-7 / ridge)
    np.testing.assert_allclose(posterior, prior - gain @ h @ prior, rtol=1e-5, atol=1e-6 / ridge)


# --- FLDB-ONS and FLDB-OGD


def upload_of(rng, size, noise):
    gradient = size * rng.standard_normal(D)
    return Upload(10, gradient, size * symmetric(rng), size * symmetric(rng), None, (), noise)


@given(seeds, st.lists(st.tuples(sizes, sizes, sizes, sizes), min_size=1, max_size=6))
@examples(60)
def test_matrices_stay_positive_definite_and_steps_bounded_for_any_noise(seed, rounds):
    rng = np.random.default_rng(seed)
    algorithm = FLDBONS(settings())
    ridge = algorithm.settings.ons_ridge
    for number, (size, *deviations) in enumerate(rounds, start=1):
        before = algorithm.arrays
        upload = upload_of(rng, size, Noise(*deviations))
        learn(algorithm, upload, number)
        for name in ("information", "curvature"):
            values = np.linalg.eigvalsh(algorithm.arrays[name])
            assert values[0] > 0.0
            grown = np.linalg.eigvalsh(algorithm.arrays[name] - before[name])
            assert grown[0] >= -1e-10 * values[-1]
        assert np.linalg.eigvalsh(algorithm.arrays["curvature"])[0] >= ridge * (1 - 1e-6)
        step = np.linalg.norm(algorithm.theta_sync - before["theta_sync"])
        longest = np.linalg.norm(upload.gradient) / (2 * deviations[0] * math.sqrt(ridge))
        assert step <= longest * (1 + 1e-6)


def test_fldb_ons_is_the_posterior_of_all_noisy_observations():
    """Generalised least squares on all rounds at once, from linear observations of theta."""
    rng = np.random.default_rng(3)
    truth, s = rng.standard_normal(D), 4.0
    algorithm = FLDBONS(settings(ons_ridge=2.0))
    exact = Noise(gradient=s)  # matrices without noise
    precision, linear = 2.0 * np.eye(D), np.zeros(D)
    w = positive(rng)
    g = -(w / 8.0) @ truth + rng.standard_normal(D)
    learn(algorithm, Upload(10, g, w, None, None, (), exact), 1)
    inverse = np.linalg.inv(5.0 * w / 8.0 + s**2 * np.eye(D))
    precision += (w / 8.0) @ inverse @ (w / 8.0)
    linear -= (w / 8.0) @ inverse @ g
    for number in range(2, 6):
        h, theta = positive(rng), algorithm.theta_hat
        g = h @ (theta - truth) + 3.0 * rng.standard_normal(D)
        learn(algorithm, Upload(10, g, 4.0 * h, h, None, (), exact), number)
        inverse = np.linalg.inv(h + s**2 * np.eye(D))
        precision += h @ inverse @ h
        linear += h @ inverse @ (h @ theta - g)
    np.testing.assert_allclose(algorithm.arrays["curvature"], precision, rtol=1e-9)
    expected = np.linalg.solve(precision, linear)
    np.testing.assert_allclose(algorithm.theta_sync, expected, rtol=1e-8)


def test_fldb_ogd_does_not_move_if_all_is_noise():
    rng = np.random.default_rng(5)
    algorithm = FLDBOGD(settings(algorithm="fldb_ogd"))
    learn(algorithm, upload_of(rng, 10.0, Noise(1.0, 1.0))._replace(hessian=None), 1)
    before = algorithm.theta_hat
    learn(algorithm, upload_of(rng, 1.0, Noise(1e3, 1e3))._replace(hessian=None), 2)
    np.testing.assert_array_equal(algorithm.theta_hat, before)
    learn(algorithm, upload_of(rng, 1.0, Noise(1e-3, 1e3))._replace(hessian=None), 3)
    assert (algorithm.theta_hat != before).all()


# --- FLDB-Personal


def test_agents_of_fldb_personal_learn_alone_if_all_is_noise():
    rng = np.random.default_rng(7)
    algorithm = FLDBPersonal(settings(algorithm="fldb_personal"))
    noise = Noise(precision=1e7, shift=1e7, losses=1e7)
    for number in range(1, 5):
        upload = share_upload(symmetric(rng), rng.standard_normal(D), rng.random(11), noise)
        learn(algorithm, upload, number)
    prior = algorithm.prior
    assert np.abs(prior.precision).max() < 1e-6
    assert np.abs(prior.shift).max() < 1e-6
    weights = VARIANCES**-0.15
    assert prior.variance == pytest.approx(weights @ VARIANCES / weights.sum())


@given(seeds, st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=5))
@examples(60)
def test_the_common_prior_is_proper_for_any_noise(seed, rounds):
    rng = np.random.default_rng(seed)
    algorithm = FLDBPersonal(settings(algorithm="fldb_personal"))
    for number, (size, *deviations) in enumerate(rounds, start=1):
        noise = Noise(precision=deviations[0], shift=deviations[1], losses=1.0)
        matrix, vector = size * symmetric(rng), size * rng.standard_normal(D)
        learn(algorithm, share_upload(matrix, vector, rng.random(11), noise), number)
        values = np.linalg.eigvalsh(algorithm.prior.precision)
        # Agents add lambda_0 I, which is far above the rounding errors of the pooled sums.
        assert values[0] >= -1e-11 * (1.0 + np.trace(algorithm.arrays["pooled"]))
        assert 1e-3 <= algorithm.prior.variance <= 10.0
        assert np.isfinite(algorithm.theta_sync).all()


def test_without_noise_agents_receive_the_last_shares():
    rng = np.random.default_rng(13)
    algorithm = FLDBPersonal(settings(algorithm="fldb_personal"))
    for number in range(1, 4):
        m, c, theta = positive(rng), rng.standard_normal(D), algorithm.theta_sync
        learn(algorithm, share_upload(m, c, np.zeros(11), Noise(shift=1e-6)), number)
        np.testing.assert_allclose(algorithm.prior.precision, m, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(algorithm.prior.shift, c + m @ theta, rtol=1e-5, atol=1e-5)


def test_noise_that_hides_a_direction_does_not_erase_the_common_mean():
    algorithm = FLDBPersonal(settings(algorithm="fldb_personal"))
    truth, noise = np.array([3.0, -1.0, 0.5, 2.0]), Noise(precision=1e2, shift=1e2)
    for number, first in enumerate([1e4, 2e4, 3e4, -1e2, 4e4], start=1):
        m = np.diag([first, 9e4, 9e4, 9e4])
        c = np.maximum(m, 0.0) @ (truth - algorithm.theta_sync)
        learn(algorithm, share_upload(m, c, np.zeros(11), noise), number)
        np.testing.assert_allclose(algorithm.theta_sync, truth, rtol=0.03)


@given(seeds, st.floats(-3.0, 3.0), st.integers(0, D))
@examples(30)
def test_a_further_error_adds_its_covariance(seed, exponent, rank):
    rng = np.random.default_rng(seed)
    rows = 10.0**exponent * rng.standard_normal((rank, D))
    known, curvature = rows.T @ rows, positive(rng)
    mean = rng.standard_normal(D)
    precision, linear = blurred(known, known @ mean, curvature, 0.0)
    # K observes the products with its rows, each with an error of variance 1.
    error = rows @ np.linalg.solve(curvature, rows.T) + np.eye(rank)
    gain = rows.T @ np.linalg.inv(error)
    np.testing.assert_allclose(precision, gain @ rows, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(linear, gain @ (rows @ mean), rtol=1e-6, atol=1e-6)
    assert np.linalg.eigvalsh(precision)[0] >= -1e-12 * np.trace(curvature)


# --- what one person contributes


def by_hand(x, y, theta, units, *, diagonal):
    """Return the limited sums over persons, one person and one duel at a time."""
    sums = {"gradient": 0.0, "information": 0.0, "hessian": 0.0}
    for duels, answers in zip(x, y, strict=True):
        parts = dict.fromkeys(sums, 0.0)
        for phi, answer in zip(duels, answers, strict=True):
            p = 1.0 / (1.0 + math.exp(-phi @ theta))
            outer = phi * phi if diagonal else np.outer(phi, phi)
            parts["gradient"] += (p - answer) * phi
            parts["information"] += outer
            parts["hessian"] += p * (1.0 - p) * outer
        length = math.sqrt(sum((parts[k] ** 2).sum() / units[k] ** 2 for k in parts))
        for name, part in parts.items():
            sums[name] = sums[name] + part / max(1.0, length)
    return sums


@pytest.mark.parametrize("diagonal", [False, True])
def test_statistics_are_limited_by_person(diagonal):
    rng = np.random.default_rng(11)
    agents, duels = 6, 5
    x = 2.0 * rng.standard_normal((agents, duels, D))
    x[0] *= 1e-2  # below the limit
    y = (rng.random((agents, duels)) < 0.5) * 1.0
    theta = rng.standard_normal(D)
    units = {"gradient": 5.0, "information": 40.0, "hessian": 6.0}
    request = Broadcast(PlayRequest(1, duels), theta, hessian=True)
    form = Form(D, is_diagonal=True) if diagonal else Form(D)
    rows = x.swapaxes(0, 1).reshape(-1, D), y.T.reshape(-1)
    upload = limited_statistics(request, *rows, agents, form, units=units)
    for name, expected in by_hand(x, y, theta, units, diagonal=diagonal).items():
        np.testing.assert_allclose(getattr(upload, name), expected, rtol=1e-10)
    wide = dict.fromkeys(units, 1e9)
    whole = limited_statistics(request, *rows, agents, form, units=wide)
    plain = statistics(request, *rows, rows[0], form)
    np.testing.assert_allclose(whole.hessian, plain.hessian, rtol=1e-10)
    np.testing.assert_allclose(whole.gradient, plain.gradient, rtol=1e-10)


@pytest.mark.parametrize("form", [Form(D), Form(D, is_diagonal=True)])
def test_limited_statistics_of_torch_tensors(form):
    """On the CPU, they are those of NumPy arrays."""
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    rng, agents, duels = np.random.default_rng(12), 7, 4
    x = rng.standard_normal((duels * agents, D)) * rng.uniform(0.01, 3.0, (duels * agents, 1))
    y, theta = rng.integers(0, 3, len(x)) / 2.0, rng.standard_normal(D)
    units = {"gradient": 3.0, "information": 10.0, "hessian": 2.0}
    request = Broadcast(PlayRequest(1, duels), theta, hessian=True)
    here = limited_statistics(request, x, y, agents, form, units=units)
    tensors = (torch.from_numpy(array) for array in (x, y))
    there = request._replace(theta_hat=torch.from_numpy(theta))
    found = limited_statistics(there, *tensors, agents, form, units=units)
    assert found.num_duels == here.num_duels == duels * agents
    for name in units:
        part = getattr(found, name)
        assert isinstance(part, torch.Tensor)
        np.testing.assert_allclose(part.numpy(), getattr(here, name), rtol=1e-9, atol=1e-12)


def test_typical_sizes_are_those_of_random_directions():
    """Simulate persons with differences of length L and answers at the true theta."""
    rng = np.random.default_rng(13)
    answers, longest, persons = 12, 3.0, 4000
    x = rng.standard_normal((persons, answers, D))
    x *= longest / np.linalg.norm(x, axis=2, keepdims=True)
    matrices = x.swapaxes(1, 2) @ x
    # Residuals with the variance 1/8, independent of x.
    g = ((rng.choice([-1.0, 1.0], (persons, answers, 1)) * math.sqrt(0.125)) * x).sum(axis=1)
    sizes_ = typical_sizes(answers, longest, D)
    rms = math.sqrt((matrices**2).sum(axis=(1, 2)).mean())
    assert sizes_["information"] == pytest.approx(rms, rel=0.02)
    assert sizes_["gradient"] == pytest.approx(math.sqrt((g**2).sum(axis=1).mean()), rel=0.03)


def test_typical_shares_are_those_of_isotropic_hessians():
    """With H = h I: M = h / (1 + v h) I, and m - M theta has the covariance M."""
    answers, longest, v = 10_000, 3.0, 0.2  # many answers, so that H is isotropic
    h = answers * longest**2 / 8.0 / D
    m = h / (1.0 + v * h)
    sizes_ = typical_share_sizes(answers, 1, longest, D, v)
    assert sizes_["precision"] == pytest.approx(m * math.sqrt(D), rel=1e-3)
    assert sizes_["shift"] == pytest.approx(math.sqrt(D * m), rel=1e-3)
