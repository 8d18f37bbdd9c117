"""Repeated duels, duplicated columns, scales and long runs, without warnings or NaN.

`pyproject.toml` turns RuntimeWarning into an error.
"""

from fractions import Fraction

import numpy as np
import pytest
from conftest import nested

from fldb_flower.algorithms.solvers import newton
from fldb_flower.bandit.preference import derivatives, gram
from fldb_flower.bandit.selection import ucb, whiten
from fldb_flower.environments import Contexts
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.federation.exchange import Upload
from fldb_flower.federation.history import History
from fldb_flower.linalg.linear import add_to_whiteners
from fldb_flower.settings import from_nested
from simulations.engines import vectorized

LEARNERS = {
    "ogd": {"algorithm": "fldb_ogd"},
    "gd": {"algorithm": "fldb_gd"},
    "ons": {"algorithm": "fldb_ons"},
    "ons geometric": {"algorithm": "fldb_ons", "schedule__name": "geometric"},
    "ldb": {"algorithm": "ldb"},
}


def exact_norm(vector, information):
    """Return ``||x||_{W^-1}`` by elimination with fractions."""
    rows = [[*row, Fraction(float(x))] for row, x in zip(information, vector, strict=True)]
    square = Fraction(0)
    while rows:  # sum of squared residuals, each divided by its pivot
        pivot, *rest = rows
        square += pivot[-1] ** 2 / pivot[0]
        rows = [
            [entry - row[0] / pivot[0] * top for entry, top in zip(row, pivot, strict=True)][1:]
            for row in rest
        ]
    return float(square) ** 0.5


def test_1e5_updates_of_whiteners():
    """Four kinds of duels in three units each: one agent for each combination.

    Features are multiples of 1/16, so sums of their products are exact in double precision.
    Factoring the sum W fails here: beside 1e12, 1/512 is lost, and repeated duels leave it
    singular.
    """
    rng = np.random.default_rng(0)
    d, count, scales = 4, 10**5, np.array([2.0**-20, 1.0, 2.0**20])
    kinds = np.round(16 * rng.standard_normal((count, 4, d))) / 16
    kinds[:, 1, -1] = kinds[:, 1, 0]  # a duplicated column
    kinds[:, 2] = kinds[:3, 2][rng.integers(3, size=count)]  # three duels, repeated
    kinds[::2, 3] = 0.0  # an arm against itself, in every second duel
    duels = (kinds[:, :, None] * scales[:, None]).reshape(count, 12, d)
    whiteners = np.tile(np.eye(d) * 512**0.5, (12, 1, 1))
    for differences in duels:
        add_to_whiteners(whiteners, differences)
    sums = np.einsum("tai,taj->aij", duels, duels)
    ridge = np.array([[Fraction(int(i == j), 512) for j in range(d)] for i in range(d)])
    for agent in range(12):
        exactly = np.vectorize(Fraction, otypes=[object])(sums[agent]) + ridge
        size = np.linalg.norm(whiteners[agent])
        for vector in (*rng.standard_normal((3, d)), duels[1, agent], np.array([1, 0, 0, -1.0])):
            norm = np.linalg.norm(vector @ whiteners[agent])
            rounding = 5e-15 * size * np.linalg.norm(vector)  # 1.4e-15 with AVX2
            assert norm == pytest.approx(exact_norm(vector, exactly), rel=1e-9, abs=rounding)


def test_a_duel_1e7_times_as_informative_as_all_before():
    """Features of scale 1e6: the first duel's direction shrinks by 1e7 and remains exact."""
    u, other = np.array([3e6, 0.0, 4e6]), np.array([4.0, 7.0, -3.0])
    whiteners = np.eye(3)[None] * 5.0
    add_to_whiteners(whiteners, u[None])
    assert np.linalg.norm(u @ whiteners[0]) == pytest.approx(1.0, rel=1e-7)
    assert np.linalg.norm(other @ whiteners[0]) == pytest.approx(5 * 74**0.5, rel=1e-12)


def test_the_same_duel_1000_times():
    """One direction, 700 wins of 1000: the MLE's logit is log(7 / 3), all other entries are 0."""
    difference = np.array([3.0, 0.0, 4.0])
    differences = np.tile(difference, (1000, 1))
    preferences = np.repeat([1.0, 0.0], [700, 300])

    def evaluate(theta):
        gradient, hessian = derivatives(theta, differences, preferences)
        return Upload(1000, gradient, gram(differences), hessian, None, ())

    theta = newton(evaluate, evaluate(np.zeros(3)), np.zeros(3), 1e-3).theta
    np.testing.assert_allclose(theta @ difference, np.log(7 / 3), rtol=1e-5)
    np.testing.assert_allclose(np.cross(theta, difference), 0, atol=1e-6)
    # W is rank one plus a tiny ridge; the second arm is in an unseen direction.
    w = np.eye(3) / 500 + gram(differences)
    features = np.array([[[0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [0.0, 1.0, 0.0], [6.0, 0.0, 8.0]]])
    first, second = ucb(features, theta, whiten(w), 5.0)
    assert (first.tolist(), second.tolist()) == ([3], [2])


class Scaled(Synthetic):
    scale = 1.0
    duplicate = False

    def contexts(self, streams, iterations):
        drawn = super().contexts(streams, iterations)
        features = drawn.features
        if self.duplicate:
            features = np.concatenate([features[..., :-1], features[..., :1]], axis=-1)
        return Contexts(features * self.scale, features @ self.theta)


@pytest.fixture
def regret(register_world):
    """Return the mean final regret of three seeds in an environment."""

    def run(world, algorithm, **values):
        values |= algorithm | {"environment__name": register_world(world)}
        total = []
        for seed in range(3):
            size = {"num_agents": 12, "horizon": 60, "num_arms": 6, "dimension": 4, "tau": 1}
            chosen = from_nested(nested(**size | values, seed=seed), "a test")
            history = History(chosen.horizon)
            theta = vectorized.run(chosen, history)
            assert theta is None or np.isfinite(theta).all()
            assert np.isfinite(history.cumulative_regret).all()
            total.append(history.regret)
        return np.mean(total)

    return run


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("learner", LEARNERS)
def test_features_of_extreme_scale(regret, learner, scale):
    """The latent reward remains of order 1; only the units of the features change."""
    world = type("World", (Scaled,), {"scale": scale})
    random = regret(world, {"algorithm": "random"})
    values = LEARNERS[learner]
    assert regret(world, values) < random or scale < 1 or learner == "ogd"
    if learner.startswith("ons"):  # lambda_0, in the features' units, matters more if narrow
        values = {**values, "beta_scale": 1}
    if scale > 1 and learner != "ogd":  # OGD's step size is in the features' units
        assert regret(world, values) < 0.75 * random


@pytest.mark.parametrize("scale", [1e8, 1e30])
@pytest.mark.parametrize("agents", [3, 30])
@pytest.mark.parametrize(
    "learner",
    [
        {"algorithm": "fldb_gd"},
        {"algorithm": "fldb_gd", "solver": "gd", "gd_steps": 10},
        LEARNERS["ldb"],
    ],
)
def test_features_so_large_that_lambda_is_lost(regret, learner, agents, scale):
    """Squares of features are 1e16 and more, so lambda = 1/60 is below W's rounding error.

    Rewards are of the order of the features, so preferences are almost deterministic.
    """

    class Decided(Scaled):
        def contexts(self, streams, iterations):
            drawn = super().contexts(streams, iterations)
            return Contexts(drawn.features, drawn.rewards * scale)

    Decided.scale = scale
    random = regret(Decided, {"algorithm": "random"}, num_agents=agents)
    assert regret(Decided, learner, num_agents=agents) < 0.75 * random


@pytest.mark.parametrize("learner", ["gd", "ons", "ldb"])
def test_a_ridge_below_rounding_errors(regret, learner):
    random = regret(Scaled, {"algorithm": "random"})
    for ridge in (1e-16, 1e-30, 1e-100):
        assert regret(Scaled, LEARNERS[learner], lambda_=ridge) < 0.75 * random


@pytest.mark.parametrize("learner", LEARNERS)
def test_features_whose_squares_are_just_finite(regret, learner):
    for scale in (1e-150, 1e150):
        world = type("World", (Scaled,), {"scale": scale / 4.0})
        assert regret(world, LEARNERS[learner]) >= 0.0


@pytest.mark.parametrize("learner", ["ons", "ons geometric", "gd"])
def test_few_agents_with_separable_first_duels(regret, learner):
    """Two agents in four dimensions: the first duels are always separable."""
    world = type("World", (Scaled,), {})
    random = regret(world, {"algorithm": "random"}, num_agents=2, horizon=200)
    assert regret(world, LEARNERS[learner], num_agents=2, horizon=200) < 0.5 * random
