"""Bounds on uploads: honest uploads pass, invalid ones are rejected."""

import math
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from fldb_flower import environments
from fldb_flower.bandit import preference
from fldb_flower.environments import max_difference
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.federation.plausibility import implausible
from fldb_flower.linalg.linear import Form
from fldb_flower.settings import from_flat, from_nested
from fldb_flower.wire import decode_upload

property_test = settings(deadline=None, derandomize=True, max_examples=150)


def mu(z):
    return 1 / (1 + np.exp(-z))


def summed(theta, x, y, *, scope="fresh", fresh=None):
    """Return the uploads of one node with these duels, and the broadcast."""
    gradient, hessian = map(np.asarray, preference.derivatives(theta, x, y))
    information = preference.gram(x if fresh is None else fresh)
    loss = float(preference.loss(theta, x, y))
    upload = Upload(len(x), gradient, information, hessian, loss)
    return [upload], Broadcast(None, theta, scope=scope, hessian=True, loss=True)


# --- valid uploads -------------------------------------------------------------------------


@property_test
@given(
    d=st.integers(1, 7),
    n=st.integers(0, 40),
    seed=st.integers(0, 10**6),
    exponents=st.lists(st.integers(-6, 6), min_size=7, max_size=7),
    loudness=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]),
    how=st.sampled_from(["drawn", "expected", "contrary", "ties"]),
    shape=st.sampled_from(["any", "one again and again", "in a line", "some are 0", "mirrored"]),
    knows_length=st.booleans(),
)
def test_honest_uploads_are_never_refused(  # noqa: PLR0917
    d, n, seed, exponents, loudness, how, shape, knows_length
):
    """For features in any units, and nearly equal duels."""
    rng = np.random.default_rng(seed)
    units = 10.0 ** np.array(exponents[:d])
    x = rng.standard_normal((n, d))
    if shape == "one again and again" and n:
        x[:] = x[0]
    elif shape == "in a line":
        x = rng.standard_normal((n, 1)) * rng.standard_normal(d)
    elif shape == "some are 0":
        x[rng.random((n, d)) < 0.5] = 0.0
        x[rng.random(n) < 0.3] = 0.0
    elif shape == "mirrored":
        x[n // 2 :] = -x[: n - n // 2]
    x, theta = x * units, loudness * rng.standard_normal(d) / units
    longest = np.linalg.norm(x, axis=1).max(initial=0.0) if knows_length else math.inf
    z = x @ theta
    y = {
        "drawn": (rng.random(n) < preference.logistic(z)).astype(float),
        "expected": (z > 0).astype(float),
        "contrary": (z <= 0).astype(float),  # the largest residuals
        "ties": np.full(n, 0.5),
    }[how]
    for scope, fresh in (("fresh", x), ("all", x[: n // 3])):
        pair = summed(theta, x, y, scope=scope, fresh=fresh)
        assert implausible(*pair, longest or 1.0) == [""]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("spread", [0.0, 1e-8, 1.0])
def test_a_million_honest_duels_are_not_refused(scale, spread):
    """Close to every bound: nearly equal duels, always with the unlikely answer."""
    rng = np.random.default_rng(1)
    x = scale * (rng.standard_normal(4) + spread * rng.standard_normal((10**6, 4)))
    longest = float(np.linalg.norm(x, axis=1).max())
    for theta in (np.zeros(4), rng.standard_normal(4) / scale, 50 * rng.standard_normal(4) / scale):
        pair = summed(theta, x, (x @ theta <= 0).astype(float))
        assert implausible(*pair, longest) == [""]


def test_uploads_are_checked_independently():
    rng = np.random.default_rng(3)
    theta = rng.standard_normal(3)
    pairs = [summed(theta, x, np.ones(len(x))) for x in map(rng.standard_normal, [(5, 3)] * 6)]
    uploads = [upload for (upload,), _ in pairs]
    uploads[1] = uploads[1]._replace(gradient=100 * uploads[1].gradient)
    uploads[4] = uploads[4]._replace(information=-uploads[4].information)
    reasons = implausible(uploads, pairs[0][1])
    assert [bool(reason) for reason in reasons] == [False, True, False, False, True, False]
    assert reasons[4] == "W_new is not positive semi-definite"


# --- invalid uploads -----------------------------------------------------------------------

D = 3
THETA = np.array([0.5, -0.3, 0.2])


def some(n=6, seed=0):
    """Return a node's upload over arms on the unit sphere (L = 2), and the broadcast."""
    rng = np.random.default_rng(seed)
    arms = rng.standard_normal((2, n, D))
    arms /= np.linalg.norm(arms, axis=-1, keepdims=True)
    x = arms[0] - arms[1]
    (upload,), broadcast = summed(THETA, x, (rng.random(n) < mu(x @ THETA)).astype(float))
    return upload, broadcast


def changed(**changes):
    return lambda upload: upload._replace(
        **{name: change(getattr(upload, name)) for name, change in changes.items()}
    )


SADDLE = np.diag([1.0, 1.0, -0.01])
LIES = {
    "all ten times": (
        changed(gradient=lambda g: 10 * g, information=lambda w: 10 * w, hessian=lambda h: 10 * h),
        r"W_new is larger than 6 duels allow: trace = [\d.]+ > n L\^2 = 24 \(L: max-difference\)",
    ),
    "gradient ten times": (
        changed(gradient=lambda g: 10 * g + 1),
        r"gradient is longer than 6 duels allow: \|g\| = [\d.]+ > n L mu\(q\) = [\d.]+ \(L",
    ),
    "gradient of more than these duels": (
        changed(gradient=lambda g: 3 * g / np.linalg.norm(g), information=lambda w: w / 10),
        r"gradient is longer than 6 duels of this W_new allow: g\^T W_new\^-1 g = [\d.]+ > n mu",
    ),
    "W_new negated": (changed(information=lambda w: -w), "W_new is not positive semi-definite"),
    "W_new a saddle": (changed(information=lambda w: SADDLE), "W_new is not positive semi"),
    "Hessian a saddle": (changed(hessian=lambda h: h @ SADDLE @ h), "Hessian is not positive"),
    "Hessian negated": (changed(hessian=lambda h: -h), "Hessian is not positive"),
    "Hessian ten times": (changed(hessian=lambda h: 10 * h), "Hessian is larger than W_new / 4"),
    "Hessian a tenth": (changed(hessian=lambda h: h / 10), "Hessian is smaller than W_new and"),
    "Hessian of none": (changed(hessian=np.zeros_like), "Hessian is smaller than W_new and"),
    "five duels too few": (
        changed(num_duels=lambda n: 1),
        r"W_new has more directions than 1 duels",
    ),
    "two duels": (changed(num_duels=lambda n: 2), "W_new has more directions than 2 duels"),
    "no duels": (changed(num_duels=lambda n: 0), "numbers other than 0, of no duels"),
    "loss below 0": (changed(loss=lambda v: -1e-9), "loss is below 0"),
    "loss ten times": (
        changed(loss=lambda v: 10 * v),
        r"loss is larger than 6 duels allow: [\d.]+ > n log\(1 \+ e\^q\) = [\d.]+",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_false_upload_is_refused_with_a_reason(name):
    lie, reason = LIES[name]
    for seed in range(5):
        upload, broadcast = some(seed=seed)
        assert implausible([upload], broadcast, 2.0) == [""]
        (message,) = implausible([lie(upload)], broadcast, 2.0)
        assert re.match(reason, message), message


@pytest.mark.parametrize("longest", [2.0, math.inf])
def test_a_gradient_outside_of_the_duels_directions_is_refused(longest):
    """Two duels in a plane; the gradient has a small component along the normal."""
    x = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    (upload,), broadcast = summed(THETA, x, np.array([1.0, 0.0]))
    for size in (1.0, 1e-2, 1e-3):
        lie = upload._replace(gradient=upload.gradient + np.array([0, 0, size]))
        (message,) = implausible([lie], broadcast, longest)
        assert message.startswith("gradient is longer than 2 duels of this W_new allow")


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_false_values_of_a_feature_in_other_units_are_detected(scale):
    """Two features in units that differ by 1e12: the gradient of each has its own bound."""
    units = np.array([1.0, scale, scale**2])
    rng = np.random.default_rng(0)
    x = units * rng.standard_normal((8, 3))
    (upload,), broadcast = summed(np.zeros(3), x, np.ones(8))
    assert implausible([upload], broadcast) == [""]
    for place in range(3):
        gradient = upload.gradient.copy()
        gradient[place] *= 100
        information = upload.information.copy()
        information[place, place] *= -1
        assert implausible([upload._replace(gradient=gradient)], broadcast) != [""]
        assert implausible([upload._replace(information=information)], broadcast) != [""]


def test_over_all_duels_only_lengths_are_known():
    rng = np.random.default_rng(4)
    x, theta = rng.standard_normal((30, D)), rng.standard_normal(D)
    longest = float(np.linalg.norm(x, axis=1).max())
    (upload,), broadcast = summed(theta, x, np.ones(30), scope="all", fresh=x[:2])
    assert implausible([upload], broadcast, longest) == [""]
    farthest = np.linalg.norm(theta) * longest
    edges = {
        "gradient": np.array([30 * longest * mu(farthest), 0, 0]),
        "hessian": np.diag([30 * longest**2 / 4, 0, 0]),
        "loss": 30 * math.log1p(math.exp(farthest)),
        "information": np.diag([30 * longest**2, 0, 0]),
    }
    for name, edge in edges.items():
        assert implausible([upload._replace(**{name: edge})], broadcast, longest) == [""]
        (message,) = implausible([upload._replace(**{name: 1.001 * edge})], broadcast, longest)
        assert " larger than 30 duels" in message or "longer than 30 duels" in message
        assert implausible([upload._replace(**{name: 1000 * edge})], broadcast) == [""]  # no L


def test_without_duels_everything_is_zero():
    (upload,), broadcast = summed(THETA, np.zeros((0, D)), np.zeros(0))
    assert implausible([upload], broadcast) == implausible([upload], broadcast, 2.0) == [""]
    for name in ("gradient", "information", "hessian", "loss"):
        lie = upload._replace(**{name: getattr(upload, name) + 1e-300})
        assert implausible([lie], broadcast) == ["numbers other than 0, of no duels"]


def test_bounds_for_one_duel():
    """W = x x^T and theta determine |z|, and so the largest gradient and the smallest Hessian."""
    x = np.array([[1.0, 2.0, -1.0]])
    (upload,), broadcast = summed(THETA, x, np.zeros(1) if x[0] @ THETA > 0 else np.ones(1))
    assert implausible([upload], broadcast) == [""]
    assert implausible([upload._replace(hessian=0.999 * upload.hessian)], broadcast) != [""]
    assert implausible([upload._replace(gradient=1.001 * upload.gradient)], broadcast) != [""]


finite = st.floats(-1e153, 1e153) | st.sampled_from([0.0, -0.0, 5e-324, 1e-160, -1e153, 1e153])


@pytest.mark.parametrize("form", [Form(3), Form(3, is_diagonal=True)])
@property_test
@given(
    numbers=st.lists(finite, min_size=16, max_size=16),
    n=st.sampled_from([0, 1, 2, 5, 10**6, 10**300]),
    theta=st.lists(finite, min_size=3, max_size=3),
    scope=st.sampled_from(["fresh", "all"]),
    longest=st.sampled_from([1e-9, 2.0, math.inf]),
)
@example([1e153] * 16, 1, [1e153] * 3, "fresh", 2.0)
@example(  # a difference of matrices is NaN
    [0.0] * 5 + [5.078874068175891e16, 3.539550519920586e138] + [0.0] * 9,
    *(0, [0.0, 1.0, -1e153], "fresh", 1e-9),
)
@example([0.0] * 4 + [1e153] + [0.0] * 11, 1, [0.0] * 3, "fresh", math.inf)
def test_the_check_handles_any_decoded_upload(  # noqa: PLR0917
    form, numbers, n, theta, scope, longest
):
    broadcast = Broadcast(None, np.array(theta), scope=scope, hessian=True, loss=True)
    vector = np.array(numbers)[: broadcast.sizes(form)[0]]
    with np.errstate(over="ignore"):
        if not math.isfinite(vector @ vector):
            vector /= 100
    upload = decode_upload(vector, n, broadcast, form)
    (reason,) = implausible([upload], broadcast, longest)
    assert "\n" not in reason
    assert len(reason) < 1000


# --- exactness of the bounds ---------------------------------------------------------------


def as_duels(information, gradient, n):
    """Find n differences and residuals of equal size with these sums."""
    values, vectors = np.linalg.eigh(information)
    x = np.zeros((n, len(values)))
    kept = values > 1e-9 * values[-1]
    x[: kept.sum()] = (vectors[:, kept] * np.sqrt(values[kept])).T
    r = x @ np.linalg.pinv(information, rcond=1e-9) @ gradient
    target = np.full(n, np.linalg.norm(r) / math.sqrt(n))
    normal = r - target  # of the Householder reflection that maps r to target
    if normal @ normal > 0:
        x = x - 2 * np.outer(normal, normal @ x) / (normal @ normal)
    return x, target


@property_test
@given(
    d=st.integers(1, 4),
    n=st.integers(1, 9),
    seed=st.integers(0, 10**6),
    loudness=st.sampled_from([0.0, 1.0, 5.0]),
)
def test_an_upload_is_accepted_if_and_only_if_some_duels_produce_it(d, n, seed, loudness):
    """The bounds on W_new and g are exact: mean residuals up to mu(q) suffice."""
    rng = np.random.default_rng(seed)
    rank = min(n, d)
    directions, _ = np.linalg.qr(rng.standard_normal((d, rank)))
    root = directions * rng.uniform(0.1, 3.0, rank)
    information, theta = root @ root.T, loudness * rng.standard_normal(d)
    q = math.sqrt(theta @ information @ theta / n)
    edge = root @ rng.standard_normal(rank)
    edge *= math.sqrt(n) * mu(q) / math.sqrt(edge @ np.linalg.pinv(information) @ edge)
    hessian = mu(q * math.sqrt(n)) * (1 - mu(q * math.sqrt(n))) * information
    broadcast = Broadcast(None, theta, hessian=True)
    for share, passes in ((rng.random(), True), (1 - 1e-9, True), (1.001, False)):
        lie = Upload(n, share * edge, information, hessian, None, ())
        assert (implausible([lie], broadcast) == [""]) == passes
        x, r = as_duels(information, share * edge, n)
        np.testing.assert_allclose(x.T @ x, information, atol=1e-8)
        np.testing.assert_allclose(x.T @ r, share * edge, atol=1e-8)
        assert (np.abs(r).max() <= mu(q) * (1 + 1e-6)) == passes


@property_test
@given(d=st.integers(1, 4), n=st.integers(1, 9), seed=st.integers(0, 10**6))
def test_the_bound_on_the_step_length(d, n, seed):
    """|A^-1 g|_A <= mu(q) sqrt(n / mu'(z_max)), tested at the extreme gradients and Hessians."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((d, min(n, d))) * 10.0 ** rng.integers(-2, 3)
    information = root @ root.T
    theta = rng.standard_normal(d) / (1 + np.linalg.norm(root))
    s = theta @ information @ theta
    residual, largest = mu(math.sqrt(s / n)), mu(math.sqrt(s))
    least = largest * (1 - largest)
    bound = residual * math.sqrt(n / least)
    broadcast = Broadcast(None, theta, hessian=True)
    longest = 0.0
    for _ in range(30):
        gradient = root @ rng.standard_normal(root.shape[1])
        size = gradient @ np.linalg.pinv(information) @ gradient
        gradient *= math.sqrt(n / size) * residual * (1 - 1e-9)
        hessian = (least + (0.25 - least) * rng.choice([1e-9, 0.5])) * information
        lie = Upload(n, gradient, information, hessian, None, ())
        assert implausible([lie], broadcast) == [""]
        others = rng.standard_normal((d, d))
        curvature = 1e-9 * np.eye(d) + hessian + rng.choice([0, 1]) * others @ others.T
        longest = max(longest, math.sqrt(gradient @ np.linalg.solve(curvature, gradient)))
    assert longest <= bound * (1 + 1e-4)


# --- L -------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 5, 50])
@pytest.mark.parametrize(
    ("agents", "horizon", "arms"), [(1, 1, 2), (100, 500, 10), (10**6, 500, 3)]
)
def test_the_bound_on_the_distance_of_synthetic_arms(d, agents, horizon, arms):
    """The chi-squared tail times the number of pairs is below 1e-9, but not much smaller."""
    sizes = {"num_agents": agents, "horizon": horizon, "num_arms": arms, "dimension": d}
    chosen = from_nested(sizes, "a test")
    longest = max_difference(chosen)
    pairs = agents * horizon * arms * (arms - 1) / 2
    assert 1e-16 < pairs * stats.chi2.sf(longest**2 / 2, d) < 1e-9


def test_the_longest_difference_in_each_environment(ratings, register_world):
    path = str(ratings())
    movielens = {"environment": {"name": "movielens", "path": path}, "num_agents": 5}
    chosen = from_nested(movielens, "a test")
    assert max_difference(chosen) == 2.0
    features = environments.make_environment(chosen, range(5)).features
    differences = features[:, None] - features[None]
    assert np.linalg.norm(differences, axis=-1).max() <= 2.0 + 1e-9
    assert max_difference(from_nested({**movielens, "max_difference": 1.5}, "a test")) == 1.5
    devices = {"mode": "devices", "algorithm": "fldb_ons"}
    assert max_difference(from_flat(devices, "a test")) == math.inf
    assert max_difference(from_flat({**devices, "max-difference": 3.0}, "a test")) == 3.0
    world = {"environment": {"name": register_world(lambda settings, agents: None)}}
    assert max_difference(from_nested(world, "a test")) == math.inf  # it has no bound


def test_the_limit_on_a_person_is_a_weight_of_its_duels():
    """One duel of logit 2 with weight 1/4: W = 1, so s = 1, but mu' = mu'(2) = 0.105 < mu'(1)."""
    wins = 1.0 / (1.0 + math.exp(-2.0))
    gradient, unit = np.array([0.25 * 2.0 * wins, 0.0]), np.diag([1.0, 0.0])
    upload = Upload(1, gradient, unit, wins * (1.0 - wins) * unit, None, ())
    broadcast = Broadcast(None, np.array([1.0, 0.0]), hessian=True)
    assert implausible([upload], broadcast, 2.0, weighted=True) == [""]
    assert implausible([upload], broadcast, 2.0) != [""]
    smaller = upload._replace(hessian=0.9 * wins * (1.0 - wins) * unit)
    (reason,) = implausible([smaller], broadcast, 2.0, weighted=True)
    assert reason == "Hessian is smaller than W_new and theta allow"
