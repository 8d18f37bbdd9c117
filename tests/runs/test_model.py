"""`model.json`: the estimate learned by a finished simulation."""

import json

import numpy as np
import pytest
from conftest import nested, scikit_learn_minimiser

from fldb_flower.errors import FederationError
from fldb_flower.federation.agents import AgentBlock
from fldb_flower.federation.history import History
from fldb_flower.runs.results import RunDirectory
from fldb_flower.settings import from_nested
from simulations.run import run

SMALL = {
    "num_agents": 7, "horizon": 12, "num_arms": 4, "dimension": 3, "tau": 3, "engine__num_nodes": 3,
    "checkpoint_seconds": 0.0,
}  # fmt: skip


def settings(**values):
    return from_nested(nested(**{**SMALL, **values}), "a test")


def model(path):
    return json.loads((path / "model.json").read_text())


@pytest.fixture
def duels(monkeypatch):
    """Collect the differences and preferences of all duels that are played."""
    played, play = [], AgentBlock.play_iterations

    def playing(block, iterations, offers):
        play(block, iterations, offers)
        count = len(iterations) * len(block.agents)
        played.append([each[-count:].copy() for each in block.log.fresh()])

    monkeypatch.setattr(AgentBlock, "play_iterations", playing)
    return played


def test_the_model_of_fldb_gd_is_the_ridge_regression_of_its_duels(tmp_path, duels):
    for engine, lambda_, ridge in (("vectorized", 0.5, 0.5), ("inprocess", "auto", 1 / 12)):
        duels.clear()
        chosen = settings(algorithm="fldb_gd", engine__name=engine, lambda_=lambda_)
        run(chosen, tmp_path / engine)
        differences, preferences = (np.concatenate(rows) for rows in zip(*duels, strict=True))
        assert len(preferences) == 7 * 12
        expected = scikit_learn_minimiser(differences, preferences, ridge)
        found = model(tmp_path / engine)["theta_sync"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_gd", "fldb_ons"])
def test_the_model_is_equal_across_engines_and_describes_itself(tmp_path, algorithm):
    models = []
    for place, (engine, nodes) in enumerate(
        [("vectorized", 2), ("inprocess", 1), ("inprocess", 3)]
    ):
        chosen = settings(algorithm=algorithm, engine__name=engine, engine__num_nodes=nodes)
        run(chosen, tmp_path / str(place))
        models.append(model(tmp_path / str(place)))
    thetas = [each.pop("theta_sync") for each in models]
    np.testing.assert_allclose(thetas[1:], thetas[:1] * 2, rtol=1e-9)
    assert models[0] == models[1] == models[2]
    assert models[0] == {
        "algorithm": algorithm, "environment": "synthetic", "dimension": 3, "iteration": 12,
        "round": 12 if algorithm == "fldb_gd" else 5,  # else t = 1, 3, 6, 9 and 12
    }  # fmt: skip


def test_without_a_common_estimate_there_is_no_model(tmp_path):
    for algorithm, engine in (("ldb", "inprocess"), ("random", "vectorized")):
        run(settings(algorithm=algorithm, engine__name=engine), tmp_path / algorithm)
        assert (tmp_path / algorithm / "summary.json").exists()
        assert not (tmp_path / algorithm / "model.json").exists()


def test_an_estimate_that_is_not_finite_is_refused(tmp_path):
    directory = RunDirectory(tmp_path, settings())
    history = History(12)
    history.count_exchange((1, 12), learns=True)
    for number in (np.nan, np.inf):
        with pytest.raises(FederationError, match=r"ogd: the estimate is not finite after .* 12"):
            directory.finish(history, np.array([0.0, number, 0.0]), runtime_seconds=0.0)
    directory.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.yaml"]
