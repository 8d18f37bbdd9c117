"""COLDB against a plain loop with SciPy, and what it is refused for."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse.csgraph import connected_components

import fldb_flower as fldb
from fldb_flower.algorithms.coldb import components
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.errors import SettingsError
from fldb_flower.settings import from_keywords

GROUPS = {
    "algorithm": "coldb", "num_agents": 7, "horizon": 28, "num_arms": 5, "dimension": 2,
    "environment_sigma": 3.0, "environment_clusters": 2, "kappa_mu": 0.5, "delta": 0.2,
    "coldb_edge": 0.25, "beta_scale": 0.2,
}  # fmt: skip


def fitted(x, y, ridge):
    """The minimiser of the loss of duels with a ridge, by SciPy."""

    def loss(theta):
        z = x @ theta
        slopes = x.T @ (1 / (1 + np.exp(-z)) - y) + ridge * theta
        return np.logaddexp(0, z).sum() - y @ z + ridge / 2 * theta @ theta, slopes

    return minimize(loss, np.zeros(x.shape[1]), jac=True, tol=1e-12).x


def plain_loop(settings):
    """COLDB agent by agent, from the formulas of its docstring.

    Returns the cumulative regret, and the clusters after each iteration.
    """
    agents, d, ridge = settings.num_agents, settings.dimension, settings.ridge
    streams = AgentStreams(settings.seed, range(agents))
    contexts = Synthetic(settings, range(agents)).contexts(streams, settings.horizon)
    noise = streams.logistic("preferences", settings.horizon)
    duels = [[] for _ in range(agents)]
    edges = {(i, j) for i in range(agents) for j in range(agents)}
    labels, regrets, history, kappa = np.zeros(agents, dtype=int), [], [], settings.kappa_mu
    for t in range(settings.horizon):
        lost = 0.0
        new = []
        for agent in range(agents):
            rows = [duel for each in range(agents) if labels[each] == labels[agent]
                    for duel in duels[each]]  # fmt: skip
            x, y = np.array([row[:d] for row in rows]), np.array([row[d] for row in rows])
            theta, v = np.zeros(d), ridge / kappa * np.eye(d)
            if rows:
                theta, v = fitted(x, y, ridge), v + x.T @ x
            growth = d * np.log(1 + (t + 1) * agents * kappa / (d * ridge))
            beta = np.sqrt(2 * np.log(1 / settings.delta) + growth)
            arms, gains = contexts.features[agent, t], contexts.rewards[agent, t]
            first = np.argmax(arms @ theta)
            gaps = arms - arms[first]
            norms = np.sqrt(np.einsum("kd,de,ke->k", gaps, np.linalg.inv(v), gaps))
            second = np.argmax(gaps @ theta + settings.beta_scale * beta / kappa * norms)
            answer = float(noise[agent, t] < gains[first] - gains[second])
            new.append([*(arms[first] - arms[second]), answer])
            lost += 2 * gains.max() - gains[first] - gains[second]
        for agent in range(agents):
            duels[agent].append(new[agent])
        own = [fitted(np.array(each)[:, :d], np.array(each)[:, d], ridge) for each in duels]
        counts = np.array([len(each) for each in duels])
        logs = 2 * np.log(agents / settings.delta) + d * np.log(1 + counts * kappa / (d * ridge))
        radius = (np.sqrt(ridge * kappa) + np.sqrt(logs)) / (kappa * np.sqrt(counts))
        for i, j in list(edges):
            far = np.linalg.norm(own[i] - own[j]) > settings.coldb_edge * (radius[i] + radius[j])
            if i != j and far:
                edges.remove((i, j))
        matrix = np.zeros((agents, agents))
        matrix[tuple(np.array(list(edges)).T)] = 1
        labels = connected_components(matrix)[1]
        history.append(labels)
        regrets.append(lost / agents)
    return np.cumsum(regrets), history


@pytest.mark.parametrize("seed", range(2))
def test_a_plain_loop_gives_the_same_regret(seed):
    settings = from_keywords({**GROUPS, "lambda_": 0.5, "seed": seed}, "a test")
    expected, labels = plain_loop(settings)
    got = fldb.run({**GROUPS, "lambda_": 0.5}, seed=seed).regret.cumulative_regret.to_numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    assert len(set(labels[0])) == 1 < len(set(labels[-1])) < 7  # it finds clusters


def test_components_are_those_of_scipy():
    rng = np.random.default_rng(0)
    for density in (0.0, 0.02, 0.05, 0.1, 0.5):
        upper = rng.random((30, 30)) < density
        edges = upper | upper.T | np.eye(30, dtype=bool)
        labels, expected = components(edges), connected_components(edges)[1]
        assert ((labels[:, None] == labels) == (expected[:, None] == expected)).all()
    path = np.eye(9, dtype=bool) | np.eye(9, k=1, dtype=bool) | np.eye(9, k=-1, dtype=bool)
    assert (components(path) == 0).all()


def test_with_a_large_bound_all_agents_are_one_cluster():
    """Then it is FLDB-GD, which has the same minimiser, V and width."""
    base = {"num_agents": 6, "horizon": 30, "environment_sigma": 0.5, "beta_scale": 0.3}
    pooled = fldb.run(base, algorithm="coldb", coldb_edge=1e6).regret.cumulative_regret
    common = fldb.run(base, algorithm="fldb_gd").regret.cumulative_regret
    np.testing.assert_allclose(pooled, common, rtol=1e-9)


def test_with_a_bound_of_zero_every_agent_learns_alone_after_its_first_duel():
    base = {"num_agents": 6, "horizon": 30, "environment_sigma": 0.5, "beta_scale": 0.0}
    pooled = fldb.run(base, algorithm="coldb", coldb_edge=0).regret.cumulative_regret
    alone = fldb.run(base, algorithm="ldb").regret.cumulative_regret
    np.testing.assert_allclose(pooled, alone, rtol=1e-9)


def test_it_exchanges_nothing_and_has_no_common_estimate():
    result = fldb.run(algorithm="coldb", num_agents=3, horizon=5)
    assert result.summary["exchanges"] == 0
    assert result.theta is None


def test_other_engines_are_refused():
    message = r"^algorithm='coldb' \(from .*needs engine=vectorized, not engine=.*which no message"
    for engine in ("inprocess", "flower"):
        with pytest.raises(SettingsError, match=message):
            from_keywords({"algorithm": "coldb", "engine": engine}, "a test")
