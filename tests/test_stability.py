"""What real features do: repeats, duplicated columns, scales, long runs. No warning, no NaN.

`pyproject.toml` turns RuntimeWarning into an error, so each test also says "no warning".
"""

import numpy as np
import pytest
from conftest import nested

from fldb_flower.algorithms.estimation import newton
from fldb_flower.environments.base import Contexts
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.federation import Upload
from fldb_flower.history import History
from fldb_flower.preference import derivatives, information
from fldb_flower.selection import ucb, whiten
from fldb_flower.settings import from_nested
from simulations.engines import vectorized

LEARNERS = {
    "ogd": {"algorithm": "fldb_ogd"},
    "gd": {"algorithm": "fldb_gd"},
    "ons": {"algorithm": "fldb_ons"},
    "ons geometric": {"algorithm": "fldb_ons", "schedule__name": "geometric"},
    "ldb": {"algorithm": "ldb"},
}


def test_1e5_rank_one_updates_keep_w_symmetric_and_factorisable():
    rng = np.random.default_rng(0)
    d = 7
    w = np.eye(d) / 500
    for difference in rng.standard_normal((10**5, 1, d)):
        w = w + information(difference)
    assert np.array_equal(w, w.T)
    whitener = whiten(w)
    np.testing.assert_allclose(whitener.T @ w @ whitener, np.eye(d), atol=1e-10)
    # 10^5 draws of N(0, I): W / 10^5 is close to I (law of large numbers).
    np.testing.assert_allclose(w / 10**5, np.eye(d), atol=0.03)


def test_the_same_duel_1000_times():
    """One direction, 700 wins of 1000: the MLE's logit is log(7 / 3), all else is 0."""
    difference = np.array([3.0, 0.0, 4.0])
    differences = np.tile(difference, (1000, 1))
    preferences = np.repeat([1.0, 0.0], [700, 300])

    def evaluate(theta):
        gradient, hessian = derivatives(theta, differences, preferences)
        return Upload(1000, gradient, information(differences), hessian, None, ())

    theta = newton(evaluate, evaluate(np.zeros(3)), np.zeros(3), 1e-3).theta
    np.testing.assert_allclose(theta @ difference, np.log(7 / 3), rtol=1e-5)
    np.testing.assert_allclose(np.cross(theta, difference), 0, atol=1e-6)
    # W is rank one plus a tiny ridge; the second arm is the one in an unseen direction.
    w = np.eye(3) / 500 + information(differences)
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


def regret(monkeypatch, world, algorithm, **values):
    monkeypatch.setattr("fldb_flower.environments._TABLE", {"synthetic": world})
    total = []
    for seed in range(3):
        chosen = from_nested(
            nested(num_agents=12, horizon=60, num_arms=6, dimension=4, seed=seed, tau=1)
            | nested(**algorithm, **values),
            "a test",
        )
        history = History(chosen.horizon)
        theta = vectorized.run(chosen, history)
        assert theta is None or np.isfinite(theta).all()
        assert np.isfinite(history.cumulative_regret).all()
        total.append(history.regret)
    return np.mean(total)


@pytest.mark.parametrize("learner", LEARNERS)
def test_duplicated_feature_columns(monkeypatch, learner):
    world = type("World", (Scaled,), {"duplicate": True})
    random = regret(monkeypatch, world, {"algorithm": "random"})
    assert regret(monkeypatch, world, LEARNERS[learner]) < 0.75 * random


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("learner", LEARNERS)
def test_features_of_extreme_scale(monkeypatch, learner, scale):
    """The latent reward stays of order 1; only its features are in other units."""
    world = type("World", (Scaled,), {"scale": scale})
    random = regret(monkeypatch, world, {"algorithm": "random"})
    got = regret(monkeypatch, world, LEARNERS[learner])
    if scale > 1 and learner != "ogd":  # OGD's step size is in the features' units: see alpha
        assert got < 0.75 * random


@pytest.mark.parametrize("learner", ["ons", "ons geometric", "gd"])
def test_few_agents_with_separable_first_duels(monkeypatch, learner):
    """Two agents in four dimensions: the first duels are always separable."""
    world = type("World", (Scaled,), {})
    random = regret(monkeypatch, world, {"algorithm": "random"}, num_agents=2, horizon=200)
    assert regret(monkeypatch, world, LEARNERS[learner], num_agents=2, horizon=200) < 0.5 * random
