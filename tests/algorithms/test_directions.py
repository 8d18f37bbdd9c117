"""FLDB-Personal with a learned V: its rule against textbook formulas, and a plain loop."""

import itertools
import json
import math
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import subspace_angles
from scipy.optimize import approx_fprime
from scipy.special import expit

from clients.preference_agent import PreferenceAgent
from clients.store import Synchronization
from fldb_flower.algorithms import make_algorithm, run_rounds, structure
from fldb_flower.bandit.directions import directions_of, features_of
from fldb_flower.bandit.estimate import MIXES, VARIANCES, CommonPrior
from fldb_flower.bandit.streams import shared_generator
from fldb_flower.errors import SettingsError
from fldb_flower.federation.agents import AgentGroup, total_of_blocks
from fldb_flower.federation.exchange import Federation
from fldb_flower.federation.history import History
from fldb_flower.settings import from_nested
from simulations.engines.vectorized import DirectFederation
from simulations.run import run

NU = 0.3


def settings(**values):
    base = {"algorithm": "fldb_personal", "num_agents": 6, "horizon": 20, "tau": 1}
    return from_nested({**base, **values}, "a test")


def positive_definite(rng, d, most=2.0):
    root = rng.standard_normal((d, d + 2))
    return most * root @ root.T / d


# --- the step of the server ------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1), d=st.integers(1, 6), size=st.floats(1e-3, 1e3))
def test_the_step_solves_its_equation(seed, d, size):
    rng = np.random.default_rng(seed)
    covariance, curvature = (positive_definite(rng, d, size) for _ in range(2))
    gradients = rng.standard_normal((2, d))
    scatter = gradients.T @ gradients
    found = structure.next_covariance(covariance, curvature, scatter)
    # V' = X V^-1 X, so X is the geometric mean of V and V': X V^-1 X = V', X positive definite.
    factor = np.linalg.cholesky(covariance)
    values, vectors = np.linalg.eigh(np.linalg.solve(factor, np.linalg.solve(factor, found).T))
    mean = factor @ (vectors * np.sqrt(values)) @ vectors.T @ factor.T
    left = mean @ (curvature + NU * np.linalg.inv(covariance)) @ mean
    pull = NU * np.trace(covariance) / d * np.eye(d)
    right = covariance @ scatter @ covariance + pull
    np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-7 * np.abs(right).max())


def test_a_step_of_one_number_by_hand():
    """X^2 (F + nu / V) = V^2 G + nu V with V=2, F=3, G=5: V' = X^2 / V = 20.6 / 3.15 / 2."""
    found = structure.next_covariance(*(np.array([[each]]) for each in (2.0, 3.0, 5.0)))
    assert found.item() == pytest.approx(20.6 / 3.15 / 2)


def restricted_likelihood(covariance, hessians, linear):
    """Return the log likelihood of V, with a flat prior of the common theta, up to a constant.

    The estimate of agent i, ``H_i^-1 b_i``, is N(theta, H_i^-1 + V).
    """
    precisions = [np.linalg.inv(np.linalg.inv(each) + covariance) for each in hessians]
    estimates = [np.linalg.solve(*each) for each in zip(hessians, linear, strict=True)]
    total = sum(precisions)
    theta = np.linalg.solve(total, sum(p @ e for p, e in zip(precisions, estimates, strict=True)))
    value = -np.linalg.slogdet(total)[1]
    for precision, estimate in zip(precisions, estimates, strict=True):
        off = estimate - theta
        value += np.linalg.slogdet(precision)[1] - off @ precision @ off
    return value / 2


def shares_and_scatter(covariance, hessians, linear):
    """Return the sum of M_i, and that of g_i g_i^T at the estimates of all answers."""
    eye = np.eye(len(covariance))
    mixed = [np.linalg.inv(eye + each @ covariance) for each in hessians]
    precision = sum(m @ h for m, h in zip(mixed, hessians, strict=True))
    theta = np.linalg.solve(precision, sum(m @ b for m, b in zip(mixed, linear, strict=True)))
    prior = np.linalg.inv(covariance)
    scatter = 0.0
    for hessian, b in zip(hessians, linear, strict=True):
        own = np.linalg.solve(hessian + prior, b + prior @ theta)
        gradient = hessian @ own - b
        scatter = scatter + np.outer(gradient, gradient)
    return precision, scatter


@pytest.mark.parametrize("seed", range(3))
def test_the_scatter_and_the_shares_are_the_score_of_the_restricted_likelihood(seed):
    """Numerical derivatives agree; F is exact if all agents have the same Hessian."""
    rng, d, agents = np.random.default_rng(seed), 3, 7
    covariance, hessian = positive_definite(rng, d), positive_definite(rng, d)
    hessians, linear = [hessian] * agents, rng.standard_normal((agents, d))
    precision, scatter = shares_and_scatter(covariance, hessians, linear)
    score = (scatter - (1 - 1 / agents) * precision) / 2
    rows, columns = np.triu_indices(d)

    def likelihood(entries):
        other = np.zeros((d, d))
        other[rows, columns] = other[columns, rows] = entries
        return restricted_likelihood(other, hessians, linear)

    found = approx_fprime(covariance[rows, columns], likelihood, 1e-7)
    twice = np.where(rows == columns, 1.0, 2.0)  # each off-diagonal entry stands twice in V
    np.testing.assert_allclose(found, twice * score[rows, columns], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_steps_without_the_pull_never_decrease_the_restricted_likelihood(seed, monkeypatch):
    monkeypatch.setattr(structure, "PULL", 0.0)
    rng, d, agents = np.random.default_rng(seed), 3, 9
    hessians = [positive_definite(rng, d)] * agents
    linear = 3.0 * rng.standard_normal((agents, d))
    covariance = np.eye(d)
    before = restricted_likelihood(covariance, hessians, linear)
    for _ in range(8):
        precision, scatter = shares_and_scatter(covariance, hessians, linear)
        curvature = (1 - 1 / agents) * precision
        covariance = structure.next_covariance(covariance, curvature, scatter)
        after = restricted_likelihood(covariance, hessians, linear)
        assert after >= before - 1e-9
        before = after


def test_the_shape_has_a_mean_variance_of_1_where_there_is_information():
    """lambda_0 = 1 and sum M = diag(9, 0): W = diag(0.9, 0)."""
    shape = structure.shape_of(np.diag([4.0, 100.0]), np.diag([9.0, 0.0]), 1.0)
    np.testing.assert_allclose(shape, np.diag([1.0, 25.0]))
    nothing = structure.shape_of(np.diag([4.0, 6.0]), np.zeros((2, 2)), 1.0)
    np.testing.assert_allclose(nothing, np.diag([0.8, 1.2]))


def test_the_mean_of_v_and_rho():
    size = len(VARIANCES) * len(MIXES)
    first = VARIANCES ** (1 - 0.15)
    variance, mix = structure.mean_mixture(np.zeros(size), 0.0)
    assert variance == pytest.approx(first.sum() / (VARIANCES**-0.15).sum())
    assert mix == pytest.approx(MIXES.mean())
    for place, rho in itertools.product((0, 7), range(len(MIXES))):
        losses = np.full((len(VARIANCES), len(MIXES)), 1e4)
        losses[place, rho] = 0.0
        variance, mix = structure.mean_mixture(losses.ravel(), 20.0)
        assert variance == pytest.approx(VARIANCES[place])
        assert mix == pytest.approx(MIXES[rho])
    two = np.full((len(VARIANCES), len(MIXES)), 1e4)
    two[0, 4], two[10, 0] = 0.0, 2 * math.log(3)  # with half of the weight: 3 to 1
    odds = 3 * 10**0.6  # prior weights 10^0.45 and 10^-0.15
    variance, mix = structure.mean_mixture(two.ravel(), 20.0)
    assert variance == pytest.approx((odds * 1e-3 + 10.0) / (odds + 1))
    assert mix * variance == pytest.approx(odds * 1e-3 / (odds + 1))


# --- a plain loop ----------------------------------------------------------------------------


class PlainLoop:
    """The algorithm of docs/personal.md, for duels that are given: scalars, inverses and SciPy."""

    def __init__(self, agents, d, ridge=1.0):
        self.d, self.ridge, self.agents = d, ridge, agents
        nothing = [(np.zeros((d, d)), np.zeros(d), np.zeros((d, d)))] * agents
        self.shares, self.summaries = nothing, [(np.zeros((d, d)), np.zeros(d))] * agents
        self.v, self.rho, self.shape = 0.1, 1.0, np.eye(d)
        self.scale, self.squares, self.losses, self.answers = 0.0, 0.0, 0.0, 0

    def covariance(self, v, rho):
        return v * ((1 - rho) * self.shape + rho * np.eye(self.d))

    def prior(self, agent, scale):
        others = self.ridge * scale * np.eye(self.d)
        others = others + sum(s[0] for s in self.shares) - self.shares[agent][0]
        return others, sum(s[1] for s in self.shares) - self.shares[agent][1]

    def estimate(self, x, y, q, mean):
        def objective(theta):
            z = x @ theta
            return np.sum(np.logaddexp(0, z) - y * z) + (theta - mean) @ q @ (theta - mean) / 2

        def curvature(theta):
            p = expit(x @ theta)
            return (x.T * (p * (1 - p))) @ x + q

        theta = mean
        for _ in range(60):  # Newton's method, with steps that are halved until they descend
            slope = x.T @ (expit(x @ theta) - y) + q @ (theta - mean)
            step, size = np.linalg.solve(curvature(theta), slope), 1.0
            while objective(theta - size * step) > objective(theta) + 1e-14 and size > 1e-6:
                size /= 2
            theta = theta - size * step
        return theta, curvature(theta) - q, x.T @ (expit(x @ theta) - y)

    def round(self, duels, squares):
        """Each agent's duels so far, the last one new; ``squares`` of its arms, of each agent."""
        losses, shares, summaries = 0.0, [], []
        for agent, (x, y) in enumerate(duels):
            scale = self.scale or squares[agent] / 10
            others, shift = self.prior(agent, scale)
            mean, n = np.linalg.solve(others, shift), len(x) - 1

            def precision(v, rho, others=others, scale=scale):
                return np.linalg.inv(np.linalg.inv(others) + self.covariance(v, rho) / scale)

            hessian, linear = self.summaries[agent]  # after the last round
            each = []
            for v, rho in itertools.product(VARIANCES, MIXES):
                q = precision(v, rho)
                covariance = np.linalg.inv(q + hessian)
                z = x[n] @ covariance @ (q @ mean + linear)
                z = z / math.sqrt(1 + math.pi / 8 * x[n] @ covariance @ x[n])
                each.append(np.logaddexp(0, z) - y[n] * z)
            losses = losses + np.minimum(np.array(each) - min(each), 1.0)
            theta, hessian, gradient = self.estimate(x, y, precision(self.v, self.rho), mean)
            mixed = np.linalg.inv(
                np.eye(self.d) + hessian @ self.covariance(self.v, self.rho) / scale
            )
            linear = hessian @ theta - gradient
            shares.append((mixed @ hessian, mixed @ linear, np.outer(gradient, gradient)))
            summaries.append((hessian, linear))
        self.shares, self.summaries, self.answers = shares, summaries, self.answers + 1
        self.squares += sum(squares)
        self.learn(losses)

    def learn(self, losses):
        t, n, eye = self.answers, self.agents, np.eye(self.d)
        self.scale = self.squares / (n * t) / 10
        total = sum(share[0] for share in self.shares) / self.scale
        scatter = sum(share[2] for share in self.shares) / self.scale
        v = self.covariance(self.v, self.rho)
        left = (1 - 1 / n) * total + NU * np.linalg.inv(v)
        right = v @ scatter @ v + NU * np.trace(v) / self.d * eye
        # X left X = right: X = left^-1/2 (left^1/2 right left^1/2)^1/2 left^-1/2
        values, vectors = np.linalg.eigh(left)
        root = (vectors * values**0.5) @ vectors.T
        values, vectors = np.linalg.eigh(root @ right @ root)
        x = np.linalg.inv(root) @ (vectors * values**0.5) @ vectors.T @ np.linalg.inv(root)
        new = x @ np.linalg.inv(v) @ x
        weights = eye - self.ridge * np.linalg.inv(total + self.ridge * eye)
        self.shape = new * np.trace(weights) / np.trace(new @ weights)
        self.losses = (1 - 1 / (10 + t / 3) / (1 + 50 / n)) * self.losses + losses
        grid = np.array(list(itertools.product(VARIANCES, MIXES)))
        odds = np.exp(-t / (t + 20) * (self.losses - np.min(self.losses))) * grid[:, 0] ** -0.15
        odds /= odds.sum()
        self.v = odds @ grid[:, 0]
        self.rho = odds @ grid.prod(axis=1) / self.v


def test_a_plain_loop_has_the_same_thetas_shares_and_covariance():
    """The loop gets the duels that a run has played, and computes all else by itself."""
    agents, d, horizon = 3, 3, 15
    chosen = settings(
        num_agents=agents, dimension=d, horizon=horizon, environment={"sigma": 0.8}, num_arms=4
    )
    algorithm, loop = make_algorithm(chosen), PlainLoop(agents, d)

    groups = [AgentGroup(chosen, range(agent, agent + 1)) for agent in range(agents)]

    played = [([], []) for _ in groups]

    class Recorded(Federation):
        def collect(self, broadcast):
            done = self.history.iteration
            uploads = [group.answer(broadcast, done) for group in groups]
            if broadcast.shares:
                for (x, y), group in zip(played, groups, strict=True):
                    new, answer = group.blocks[0].log.fresh()
                    x.append(new[0].copy())
                    y.append(float(answer[0]))
                rows = [(np.array(x), np.array(y)) for x, y in played]
                loop.round(rows, [upload.squares for upload in uploads])
            return total_of_blocks(uploads)

        def mark_counted(self):
            pass

    run_rounds(Recorded(History(horizon)), algorithm)
    prior = algorithm.prior
    np.testing.assert_allclose(prior.precision, sum(s[0] for s in loop.shares), rtol=1e-5)
    np.testing.assert_allclose(prior.shift, sum(s[1] for s in loop.shares), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        algorithm.arrays["scatter"], sum(s[2] for s in loop.shares), rtol=1e-5
    )
    np.testing.assert_allclose(prior.shape, loop.shape, rtol=1e-5, atol=1e-7)
    assert (prior.variance, prior.mix) == pytest.approx((loop.v, loop.rho), rel=1e-6)
    assert prior.scale == pytest.approx(loop.scale)
    common = np.linalg.solve(prior.precision + loop.scale * np.eye(d), prior.shift)
    np.testing.assert_allclose(algorithm.theta_sync, common, rtol=1e-9)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"personal_variance": 0.5}, "personal_structure=learned estimates v"),
        ({"privacy": {"epsilon": 3.0}}, "not with privacy.epsilon"),
    ],
)
def test_a_learned_structure_with_a_known_variance_or_noise_is_refused(values, reason):
    assert not settings(**values).learns_directions
    assert settings().learns_directions
    with pytest.raises(SettingsError, match=reason):
        settings(**values, personal_structure="learned")


# --- what is shown ---------------------------------------------------------------------------


def test_directions_are_named_with_their_share_of_the_variance():
    """V = 0.5 [0.8 * 3 u u^T + 0.2 I] with u = (0.6, -0.8, 0): variances 1.3, 0.1 and 0.1."""
    u = np.array([0.6, -0.8, 0.0])
    prior = CommonPrior(np.eye(3), np.ones(3), 0.5, 1.0, 3 * np.outer(u, u), 0.2)
    (found,) = directions_of(prior, ["tax", "army", "trees"])
    assert found["share"] == pytest.approx(1.3 / 1.5, abs=1e-4)
    assert found["weights"] == pytest.approx({"army": 0.8, "tax": -0.6}, abs=1e-4)
    assert list(found["weights"]) == ["army", "tax"]  # the largest first
    assert list(directions_of(prior)[0]["weights"]) == ["feature 2", "feature 1"]
    assert not directions_of(prior._replace(mix=1.0))  # no direction is notable
    assert not directions_of(prior._replace(shape=None))


def test_directions_in_which_no_two_arms_differ_are_not_reported():
    """Each arm is red or blue, so the sum of both indicators is 1 in all arms."""
    both, colour, price = np.array([1.0, 1, 0]), np.array([1.0, -1, 0]), np.array([0.0, 0, 1])
    information = np.outer(colour, colour) + 4.0 * np.outer(price, price)
    shape = np.outer(both, both) + 0.4 * np.outer(colour, colour) + 0.2 * np.outer(price, price)
    prior = CommonPrior(information, np.zeros(3), 0.5, 1.0, shape, 0.0)
    (found,) = directions_of(
        prior, ["red", "blue", "price"]
    )  # variances: 0.4, and 0.1 of the price
    assert found["share"] == 0.8
    assert sorted(found["weights"].values()) == [-0.7071, 0.7071]
    assert set(found["weights"]) == {"red", "blue"}
    assert directions_of(prior._replace(precision=np.zeros((3, 3)))) == []


OPPOSITE = " (some prefer more + and less -, some the reverse)"


def test_results_of_a_study_name_the_features_in_which_people_differ(tmp_path, caplog):
    """Everybody likes green arms; half of the people like, and half dislike, expensive ones."""
    (tmp_path / "arms.csv").write_text(
        "arm,price,green\n" + "".join(f"{n},{n % 4},{n // 4}\n" for n in range(12))
    )
    rng, rows = np.random.default_rng(0), []
    for person in range(30):
        for first, second in rng.permuted(np.tile(np.arange(12), (25, 1)), axis=1)[:, :2]:
            sign = 1 if person % 2 else -1
            z = 3 * sign * (first % 4 - second % 4) + first // 4 - second // 4
            rows.append(f"p{person},{first},{second},{int(rng.random() < expit(z))}\n")
    (tmp_path / "duels.csv").write_text("person,first,second,preference\n" + "".join(rows))
    study = {"name": "duels", "path": str(tmp_path), "play": "replay"}
    values = {"num_agents": "auto", "dimension": "auto", "num_arms": 3, "environment": study}
    with caplog.at_level("INFO", "fldb_flower"):
        run(settings(**values, horizon=40), tmp_path / "run")
    summary, model = (
        json.loads((tmp_path / "run" / f"{name}.json").read_text()) for name in ("summary", "model")
    )
    assert summary["directions"] == model["directions"]
    assert list(model["directions"][0]["weights"]) == ["price"]
    share = model["directions"][0]["share"]
    assert share > 0.65
    line = f"agents differ most in price (+): {share:.0%} of the variance{OPPOSITE}"
    assert caplog.messages[-2] == line
    opposite = {"share": 0.5, "weights": dict(zip("abcdefg", (1, -1, 1, -1, 1, 1, 1), strict=True))}
    expected = "a (+), b (-), c (+), d (-), e (+) and 2 more: 50% of the variance"
    assert features_of(opposite) == expected + OPPOSITE


def test_a_device_names_the_directions_of_the_last_broadcast(tmp_path):
    shape = np.diag([1.9, 0.1])
    prior = CommonPrior(np.eye(2), np.zeros(2), 0.1, 1.0, shape, 0.0)
    with PreferenceAgent(tmp_path / "duels.db") as agent:
        agent.name_features(["sweet", "strong"])
        agent.propose(np.eye(2))
        assert agent.explain().directions == []
        packed = np.array([1.0, 0.0, 1.0])
        chosen = {"algorithm": "fldb_personal", "selection": "ucb"}
        agent.store.synchronize(Synchronization(1.0, 7, 0, 5, np.zeros(2), packed, chosen, prior))
        found = agent.explain().directions
    assert found == [{"share": 0.95, "weights": {"sweet": 1.0}}]


@pytest.mark.slow
def test_the_directions_in_which_agents_differ_are_recovered():
    """The largest angle between both planes is below 15 degrees in 18 of 20 seeds."""
    angles = []
    for seed in range(20):
        chosen = settings(
            num_agents=200, dimension=10, horizon=100, seed=seed, engine={"workers": 1},
            environment={"sigma": math.sqrt(0.8), "directions": 2},
        )  # fmt: skip
        algorithm = make_algorithm(chosen)
        with closing(DirectFederation(chosen, History(100))) as federation:
            run_rounds(federation, algorithm)
        basis = shared_generator(seed, "directions").standard_normal((10, 2))
        _, vectors = np.linalg.eigh(algorithm.arrays["shape"])
        angles.append(np.degrees(subspace_angles(basis, vectors[:, -2:]).max()))
    assert np.sum(np.array(angles) < 15.0) >= 18
