"""FLDB-Personal: its mathematics against textbook formulas, and what a run must satisfy."""

import itertools
import math

import numpy as np
import pytest
import scipy.optimize
import scipy.special
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fldb_flower.bandit import preference
from fldb_flower.bandit.estimate import (
    MAX_EXCESS,
    VARIANCES,
    CommonPrior,
    ShareChange,
    longest_shift,
    mean_squared_length,
    mean_variance,
    scale_of,
)
from fldb_flower.bandit.estimates import PersonalEstimates
from fldb_flower.bandit.newton import Loss, minimise
from fldb_flower.environments import Contexts
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.federation.plausibility import implausible_shares
from fldb_flower.linalg.linear import Form
from fldb_flower.settings import from_nested
from fldb_flower.wire import decode_broadcast, decode_upload, encode_broadcast, encode_upload
from simulations.engines import vectorized

AGENTS, D, RIDGE, SCALE = 3, 4, 0.7, 1.3
SHAPE = np.diag([4.0, 1.0, 0.0, 0.0, 0.0])


def settings(**values):
    base = {"algorithm": "fldb_personal", "num_agents": 6, "horizon": 20, "tau": 1}
    return from_nested({**base, **values}, "a test")


def regret(**values):
    chosen = settings(**values)
    history = History(chosen.horizon)
    vectorized.run(chosen, history)
    return history.regret


def duels_of(seed, count=7):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((AGENTS, count, D))
    return x, (rng.random((AGENTS, count)) < 0.5) * 1.0


def positive_definite(rng, size=D):
    root = rng.standard_normal((size, size + 2))
    return root @ root.T / size


def shares_of(precision, shift):
    zeros = np.zeros(len(shift))
    return ShareChange(precision, shift, np.zeros(len(VARIANCES)), zeros, zeros)


def learned(prior, counted, x, y):
    """Estimates after a broadcast and all duels."""
    estimates = PersonalEstimates(AGENTS, D, RIDGE)
    estimates.receive(prior, counted, np.full(AGENTS, SCALE))
    for t in range(x.shape[1]):
        estimates.add(x[:, t], y[:, t])
    return estimates


def prior_of(prior, counted, agent):
    """Q and the mean of one agent, by the formula with three inverses."""
    others = prior.precision - counted.precision[agent] + RIDGE * SCALE * np.eye(D)
    covariance = np.linalg.inv(others) + prior.variance / SCALE * np.eye(D)
    mean = np.linalg.inv(others) @ (prior.shift - counted.shift[agent])
    return np.linalg.inv(covariance), mean


def some_prior(seed):
    """A prior whose sums contain the agents' own shares."""
    rng = np.random.default_rng(seed)
    precision = np.stack([positive_definite(rng) for _ in range(AGENTS)])
    shift = rng.standard_normal((AGENTS, D))
    total = precision.sum(axis=0) + positive_definite(rng)
    prior = CommonPrior(total, shift.sum(axis=0) + rng.standard_normal(D), 0.3, SCALE)
    return prior, shares_of(precision, shift)


@pytest.mark.parametrize("seed", range(3))
def test_estimates_are_the_minimisers_of_loss_and_prior(seed):
    """SciPy minimises the same objective, with the prior from the textbook formula."""
    (prior, counted), (x, y) = some_prior(seed), duels_of(seed)
    estimates = learned(prior, counted, x, y)
    for agent in range(AGENTS):
        q, mean = prior_of(prior, counted, agent)

        def objective(theta, q=q, mean=mean, agent=agent):
            loss = preference.loss(theta, x[agent], y[agent])
            return loss + 0.5 * (theta - mean) @ q @ (theta - mean)

        best = scipy.optimize.minimize(objective, mean, tol=1e-12).x
        np.testing.assert_allclose(estimates.theta[agent], best, rtol=1e-4, atol=1e-5)
        _, hessian = preference.derivatives(estimates.theta[agent], x[agent], y[agent])
        np.testing.assert_allclose(estimates.posterior[agent], q + hessian, rtol=1e-9)


def test_shares_are_messages_about_the_common_theta():
    """M and m are what is left of the joint precision of (theta, theta_i) without theta_i."""
    (prior, counted), (x, y) = some_prior(1), duels_of(1)
    estimates = learned(prior, counted, x, y)
    precision, shift, _ = estimates.shares()
    eye, v = np.eye(D), prior.variance / SCALE
    for agent in range(AGENTS):
        theta = estimates.theta[agent]
        gradient, hessian = preference.derivatives(theta, x[agent], y[agent])
        link, own = eye / v, hessian + eye / v
        np.testing.assert_allclose(
            precision[agent], link - link @ np.linalg.inv(own) @ link, atol=1e-10
        )
        linear = hessian @ theta - gradient
        np.testing.assert_allclose(shift[agent], link @ np.linalg.inv(own) @ linear, atol=1e-10)
        values = np.linalg.eigvalsh(precision[agent])
        assert values.min() > -1e-12
        assert values.max() <= 1 / v + 1e-12


def test_an_exchange_gives_each_agent_the_posterior_mean_of_the_hierarchical_model():
    """One system of equations for the common theta and all theta_i has the same solution."""
    x, y = duels_of(4)
    nothing = shares_of(np.zeros((AGENTS, D, D)), np.zeros((AGENTS, D)))
    first = CommonPrior(np.zeros((D, D)), np.zeros(D), 0.3, SCALE)
    estimates = learned(first, nothing, x, y)
    before, v = estimates.theta.copy(), first.variance / SCALE
    shares = estimates.shares()[:2]
    total = CommonPrior(shares[0].sum(axis=0), shares[1].sum(axis=0), 0.3, SCALE)
    estimates.receive(total, shares_of(*shares), np.full(AGENTS, SCALE))

    size = D * (AGENTS + 1)  # theta, theta_1, ...
    system, right = np.zeros((size, size)), np.zeros(size)
    eye = np.eye(D)
    system[:D, :D] = (RIDGE * SCALE + AGENTS / v) * eye
    for agent in range(AGENTS):
        own = slice(D * (agent + 1), D * (agent + 2))
        gradient, hessian = preference.derivatives(before[agent], x[agent], y[agent])
        system[own, own] = hessian + eye / v
        system[:D, own] = system[own, :D] = -eye / v
        right[own] = hessian @ before[agent] - gradient
    solution = np.linalg.solve(system, right).reshape(AGENTS + 1, D)
    np.testing.assert_allclose(estimates.theta, solution[1:], rtol=1e-8, atol=1e-10)
    covariance = np.linalg.inv(system)
    for agent in range(AGENTS):
        own = slice(D * (agent + 1), D * (agent + 2))
        posterior = np.linalg.inv(estimates.posterior[agent])
        np.testing.assert_allclose(posterior, covariance[own, own], rtol=1e-7, atol=1e-10)


def test_log_losses_under_each_variance():
    """Each v has its own prior and posterior; excess losses are bounded."""
    (prior, counted), (x, y) = some_prior(2), duels_of(2)
    estimates = learned(prior, counted, x, y)
    rng = np.random.default_rng(5)
    new, answers = 4.0 * rng.standard_normal((AGENTS, D)), np.array([0.0, 0.0, 0.5])
    new[0] = 40.0 * prior_of(prior, counted, 0)[1]  # the answer is a surprise
    each = np.zeros((AGENTS, len(VARIANCES)))
    for (place, variance), agent in itertools.product(enumerate(VARIANCES), range(AGENTS)):
        q, mean = prior_of(prior._replace(variance=variance), counted, agent)
        theta = estimates.theta[agent]
        gradient, hessian = preference.derivatives(theta, x[agent], y[agent])
        covariance = np.linalg.inv(q + hessian)
        centre = covariance @ (q @ mean + hessian @ theta - gradient)
        width = new[agent] @ covariance @ new[agent]
        p = 1 / (1 + math.exp(-(new[agent] @ centre) / math.sqrt(1 + math.pi / 8 * width)))
        loss = -answers[agent] * math.log(p) - (1 - answers[agent]) * math.log(1 - p)
        each[agent, place] = loss
    excess = np.minimum(each - each.min(axis=1, keepdims=True), MAX_EXCESS)
    assert excess.max() == MAX_EXCESS  # the bound matters here
    np.testing.assert_allclose(estimates.losses(new, answers), excess, rtol=1e-8, atol=1e-12)


def test_the_prediction_is_that_of_the_posterior():
    (prior, counted), (x, y) = some_prior(3), duels_of(3)
    estimates = learned(prior, counted, x, y)
    new = np.random.default_rng(6).standard_normal((AGENTS, D))
    for agent, logit in enumerate(estimates.predict(new)):
        width = new[agent] @ np.linalg.inv(estimates.posterior[agent]) @ new[agent]
        expected = new[agent] @ estimates.theta[agent] / math.sqrt(1 + math.pi / 8 * width)
        assert logit == pytest.approx(expected)
    directions = np.repeat(np.eye(D)[None], AGENTS, axis=0)
    norms = np.linalg.norm(directions @ estimates.whitener(), axis=2) ** 2
    inverse = np.linalg.inv(estimates.posterior)
    np.testing.assert_allclose(norms, np.diagonal(inverse, axis1=1, axis2=2), rtol=1e-8)


def test_a_long_shift_is_shortened():
    far = CommonPrior(np.zeros((D, D)), np.full(D, 1e6), 0.3, SCALE)
    nothing = shares_of(np.zeros((AGENTS, D, D)), np.zeros((AGENTS, D)))
    x, y = 1e3 * np.ones((AGENTS, 1, D)), np.zeros((AGENTS, 1))
    _, shift, _ = learned(far, nothing, x, y).shares()
    longest = longest_shift(D, RIDGE * SCALE) / (0.3 / SCALE)
    assert longest == pytest.approx(10 * math.sqrt(D / (RIDGE * SCALE)) / (0.3 / SCALE))
    assert np.linalg.norm(shift, axis=1).max() <= longest * (1 + 1e-12)


def test_the_estimate_of_the_variance():
    prior = VARIANCES**-0.15
    first = (prior * VARIANCES).sum() / prior.sum()
    assert mean_variance(np.zeros(len(VARIANCES)), 0.0) == pytest.approx(first)
    for place, variance in enumerate(VARIANCES):
        losses = np.full(len(VARIANCES), 1e4)
        losses[place] = 0.0
        assert mean_variance(losses, 40.0) == pytest.approx(variance)
        assert mean_variance(losses, 0.0) == pytest.approx(first)  # no weight yet
    two = np.full(len(VARIANCES), 1e4)
    two[[0, 10]] = 0.0, 2 * math.log(3)  # with half of the weight: 3 to 1
    odds = 3 * 10**0.6  # prior weights 10^0.45 and 10^-0.15
    assert mean_variance(two, 40.0) == pytest.approx((odds * 1e-3 + 10.0) / (odds + 1))


def test_the_scale_of_features():
    rng = np.random.default_rng(0)
    arms = rng.standard_normal((2, 5, D))
    pairs = list(itertools.combinations(range(5), 2))
    squares = [np.mean([np.sum((row[a] - row[b]) ** 2) for a, b in pairs]) for row in arms]
    np.testing.assert_allclose(mean_squared_length(arms), squares)
    assert scale_of(10.0) == 1.0
    assert scale_of(0.0) == 1.0


class Scaled(Synthetic):
    """The synthetic environment with all features multiplied by a factor."""

    FACTOR = 1.0

    def contexts(self, streams, iterations):
        contexts = super().contexts(streams, iterations)
        return Contexts(self.FACTOR * contexts.features, contexts.rewards)


@pytest.mark.parametrize("tau", [1, 7])
def test_units_of_features_change_nothing(register_world, monkeypatch, tau):
    values = {"environment": {"name": register_world(Scaled)}, "horizon": 60, "tau": tau}
    expected = regret(**values)
    for factor in (1e-3, 1e3):
        monkeypatch.setattr(Scaled, "FACTOR", factor)
        assert regret(**values) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.0, 0.4])
def test_personal_learns_as_one_if_agents_are_alike_and_as_each_if_they_differ(sigma):
    kinds = ({}, {"algorithm": "alone"}, {"personal_variance": 1e-9})
    common_values = {"num_agents": 20, "horizon": 150, "environment": {"sigma": sigma}}
    personal, alone, common = (
        np.array([regret(**common_values, **kind, seed=seed) for seed in range(8)])
        for kind in kinds
    )
    if sigma:  # better by two standard errors of the paired differences
        for gain in (alone - personal, common - personal):
            assert gain.mean() > 2 * gain.std(ddof=1) / math.sqrt(len(gain))
    else:  # the price of not knowing v is limited
        assert personal.mean() < 1.75 * common.mean()  # 1.3 with T=500 (docs/personal.md)
        assert alone.mean() > 2 * personal.mean()


def counted_shares(group):
    """Sum of the counted shares of all agents, from the state of a group."""
    names = [f"policy.counted.{name}" for name in ("precision", "shift", "scatter")]
    state = group.state()
    return [
        sum(array.sum(axis=0) for key, array in state.items() if key.endswith(name))
        for name in names
    ]


@hypothesis_settings(deadline=None)
@given(
    events=st.lists(
        st.sampled_from(["ok", "request lost", "reply lost", "repeated", "late"]), max_size=12
    )
)
def test_the_sums_equal_the_counted_shares_exactly_once(events):
    """Whatever is lost, late or repeated: the server has the sum of the counted shares."""
    chosen = settings(num_agents=5, horizon=100, environment={"sigma": 0.3})
    group, form = AgentGroup(chosen, range(5)), Form(5)
    precision, shift = form.zeros(), np.zeros(5)
    counted, old = 0, None
    scatter = form.zeros()
    for t, event in enumerate([*events, "ok", "ok"], start=1):
        prior = CommonPrior(precision, shift, 0.3, 1.0, SHAPE, 0.2)
        broadcast = Broadcast(PlayRequest(t, t, prior), None, shares=True)
        if event == "request lost":
            continue
        if event == "late" and old is not None:
            group.answer(*old)  # a message of an earlier exchange arrives
        upload = group.answer(broadcast, counted)
        if event == "repeated":
            again = group.answer(broadcast, counted)
            np.testing.assert_array_equal(again.precision, upload.precision)
            np.testing.assert_array_equal(again.losses, upload.losses)
        old = (broadcast, counted)
        if event != "reply lost":
            assert upload.num_duels == 5 * (t - counted)
            precision, shift = precision + upload.precision, shift + upload.shift
            scatter = scatter + upload.scatter
            counted = t
    group.answer(Broadcast(None, None), counted)  # acknowledges the last upload
    expected = counted_shares(group)
    np.testing.assert_allclose(precision, expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(shift, expected[1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(scatter, expected[2], rtol=1e-9, atol=1e-12)


def honest(variance=0.3, scale=1.0, agents=5, shape=None):
    structure = "isotropic" if shape is None else "learned"
    chosen = settings(num_agents=agents, environment={"sigma": 0.5}, personal_structure=structure)
    group = AgentGroup(chosen, range(agents))
    prior = CommonPrior(np.zeros((5, 5)), np.zeros(5), variance, scale, shape)
    if shape is not None:
        prior = prior._replace(mix=0.2)
    least = np.linalg.eigvalsh(prior.covariance())[0]
    broadcast = Broadcast(PlayRequest(1, 9, prior), None, shares=True, lowest_variance=least)
    return group.answer(broadcast, 0), broadcast


def test_implausible_shares_are_refused_and_honest_ones_are_not():
    cases = itertools.product(VARIANCES[[0, 5, 10]], (0.0, 1.0), (None, SHAPE))
    for variance, scale, shape in cases:
        upload, broadcast = honest(variance, scale, shape=shape)
        assert implausible_shares([upload], [45], broadcast, ridge=1.0, longest=12.0) == [""]
    upload, broadcast = honest()
    above, largest = 1.01, 2 * 5 / 0.3  # of 5 agents with v = 0.3
    for changed, longest, reason in (
        ({"squares": -1.0}, 12.0, "squared length"),
        ({"squares": 45 * 12.0**2 * above}, 12.0, "squared length"),
        ({"members": 6.0}, 12.0, "members"),
        ({"losses": np.full(11, -0.1)}, 12.0, "log loss"),
        ({"losses": np.full(11, 45 * above)}, 12.0, "log loss"),
        ({"precision": largest * above * np.eye(5)}, 12.0, "largest eigenvalue"),
        ({"precision": -largest * above * np.eye(5)}, 12.0, "smallest eigenvalue"),
        ({"shift": np.full(5, 2**0.5 * 10 * largest * above)}, 12.0, "length of the change of m"),
        ({"squares": 0.0, "precision": 45 / 4 * above * np.eye(5)}, 1.0, "largest eigenvalue"),
        ({"squares": 0.0, "precision": -45 / 4 * above * np.eye(5)}, 1.0, "smallest eigenvalue"),
    ):
        lie = upload._replace(**changed)
        (found,) = implausible_shares([lie], [45], broadcast, ridge=1.0, longest=longest)
        assert reason in found
    upload, broadcast = honest(shape=SHAPE)
    for sign in (1.0, -1.0):
        lie = upload._replace(scatter=sign * above * (45 * 12.0) ** 2 * np.eye(5))
        (found,) = implausible_shares([lie], [45], broadcast, ridge=1.0, longest=12.0)
        assert "eigenvalue of the change of G" in found


@pytest.mark.parametrize("shape", [None, SHAPE])
def test_messages_hold_priors_and_changes_of_shares(shape):
    upload, broadcast = honest(shape=shape)
    form = Form(5)
    vector, header = encode_broadcast(broadcast)
    received = decode_broadcast(vector, header, form)
    assert received.shares
    assert received.learns
    for sent, got in zip(broadcast.play.estimate, received.play.estimate, strict=True):
        np.testing.assert_array_equal(got, sent)
    numbers = encode_upload(upload, broadcast)
    assert len(numbers) == 5 + 15 + 11 + 2 + (0 if shape is None else 15 + 44)
    assert (len(numbers), len(vector)) == broadcast.sizes(form)
    decoded = decode_upload(numbers, upload.num_duels, broadcast, form)
    for sent, got in zip(upload[1:7], decoded[1:7], strict=True):
        np.testing.assert_array_equal(got, sent)
    with pytest.raises(ValueError, match="a prior with v=0"):
        decode_broadcast(np.where(vector == 0.3, 0.0, vector), header, form)


def test_newton_steps_that_cycle_end_at_the_minimiser():
    """With a weak prior far away, steps that may end uphill return to where they were."""
    precision, mean = np.diag([0.0019, 0.00014, 0.0031]), np.array([21.0, -1.0, 12.6])
    duels = np.array([[[-1.4, 0.5], [1.6, 1.9], [-1.3, -2.2]]])
    answers, start = np.array([[1.0, 0.0]]), np.array([[3.1, 0.7, 0.2]])
    found = minimise(start, Loss(duels, answers), precision, mean)
    point, hessian, linear = (each[0] for each in found)
    wins = scipy.special.expit(point @ duels[0])
    slopes = duels[0] @ (wins - answers[0])
    np.testing.assert_allclose(slopes + precision @ (point - mean), 0.0, atol=1e-9)
    curvatures = wins * (1.0 - wins)
    np.testing.assert_allclose(hessian, duels[0] * curvatures @ duels[0].T, rtol=1e-9)
    np.testing.assert_allclose(hessian @ point - linear, slopes, atol=1e-9)
