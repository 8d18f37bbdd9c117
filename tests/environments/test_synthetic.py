"""The synthetic environment: how its agents differ. Thetas are recovered from arms and rewards."""

import numpy as np
import pytest

import fldb_flower as fldb
from fldb_flower.bandit.streams import AgentStreams, shared_generator
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.errors import SettingsError
from fldb_flower.settings import from_keywords


def thetas(*, agents=None, **values):
    """Return each agent's theta and the common one, by least squares from arms and rewards."""
    settings = from_keywords({"num_agents": 400, "environment_sigma": 0.5, **values}, "a test")
    agents = agents or range(settings.num_agents)
    streams = AgentStreams(settings.seed, agents)
    contexts = Synthetic(settings, agents).contexts(streams, 2)
    d = settings.dimension
    pairs = zip(contexts.features, contexts.rewards, strict=True)
    found = [np.linalg.lstsq(x.reshape(-1, d), y.ravel(), rcond=None)[0] for x, y in pairs]
    return np.array(found), shared_generator(settings.seed, "theta").standard_normal(d)


def test_without_directions_agents_differ_by_their_own_draws():
    """As in 0.3.0: one draw of d numbers from the agent's stream named theta."""
    found, common = thetas(seed=3)
    draws = AgentStreams(3, range(400)).standard_normal("theta", 1, 5)[:, 0]
    np.testing.assert_allclose(found, common + 0.5 * draws, atol=1e-9)


@pytest.mark.parametrize(("d", "r"), [(5, 1), (10, 2), (4, 4)])
def test_agents_differ_along_the_directions_at_equal_total_variance(d, r):
    traces = []
    for seed in range(40):
        found, common = thetas(seed=seed, dimension=d, environment_directions=r)
        variances = np.linalg.eigvalsh((found - common).T @ (found - common) / len(found))
        traces.append(variances.sum())
        rest = 0.005 * 0.25 * (1 + 4 / np.sqrt(len(found)))  # largest eigenvalues, too
        assert (variances[: d - r] < 2 * rest).all()
        if r < d:
            assert variances[d - r] > 10 * rest
            assert variances[0] == pytest.approx(rest, rel=0.5)
    error = np.std(traces, ddof=1) / np.sqrt(len(traces))
    assert abs(np.mean(traces) - 0.25 * d) < 4 * error


def test_agents_of_a_cluster_have_the_same_theta():
    centers = []
    for seed in range(30):
        found, common = thetas(seed=seed, environment_clusters=3)
        groups, sizes = np.unique(found.round(9), axis=0, return_counts=True)
        assert len(groups) == 3
        assert (abs(sizes - 400 / 3) < 5 * np.sqrt(400 * 2 / 9)).all()
        centers.append(groups - common)
    assert np.std(centers) == pytest.approx(0.5, rel=0.15)


@pytest.mark.parametrize("chosen", [{"environment_directions": 2}, {"environment_clusters": 3}])
def test_an_agent_is_the_same_in_every_block(chosen):
    whole, _ = thetas(**chosen)
    part, _ = thetas(agents=range(37, 55), **chosen)
    np.testing.assert_allclose(part, whole[37:55], atol=1e-9)


@pytest.mark.parametrize("chosen", [{"environment_directions": 1}, {"environment_clusters": 2}])
def test_engines_agree(chosen):
    base = {"num_agents": 5, "horizon": 9, "environment_sigma": 1, "algorithm": "alone", **chosen}
    one, other, without = (
        fldb.run(base, **values).regret.cumulative_regret.to_numpy()
        for values in ({}, {"engine": "inprocess"}, dict.fromkeys(chosen, 0))
    )
    np.testing.assert_allclose(other, one, rtol=1e-9)
    assert (one != without).any()


@pytest.mark.parametrize("name", ["directions", "clusters"])
def test_torch_draws_such_agents_too(name):
    pytest.importorskip("torch")
    values = {"num_agents": 5, "horizon": 9, "environment_sigma": 1, f"environment_{name}": 2}
    run = fldb.run(**values, backend="cpu", rng="torch", algorithm="alone")
    assert np.isfinite(run.regret.cumulative_regret).all()


def test_impossible_groups_are_refused():
    for values, message in (
        ({"environment_directions": 6}, r"directions=6 .*: must be at most dimension=5$"),
        ({"environment_clusters": 9, "num_agents": 8}, r"clusters=9 .*at most num_agents=8$"),
        ({"environment_directions": 1, "environment_clusters": 2}, r"clusters=2 .*directions=0$"),
        ({"environment_directions": 1, "environment_sigma": 0}, "needs environment.sigma above 0"),
        ({"environment_clusters": 1, "environment_sigma": 0}, "needs environment.sigma above 0"),
    ):
        with pytest.raises(SettingsError, match=rf"^environment\..*{message}") as error:
            from_keywords({"environment_sigma": 0.5, **values}, "a test")
        assert "\n" not in str(error.value)
