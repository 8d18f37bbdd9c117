"""`model.json`: the estimate learned by a finished simulation."""

import json

import numpy as np
import pytest
from conftest import nested, scikit_learn_minimiser
from test_resume import kill_at

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


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
@pytest.mark.parametrize("lambda_", ["auto", 0.5])
def test_the_model_of_fldb_gd_is_the_ridge_regression_of_its_duels(
    tmp_path, duels, engine, lambda_
):
    chosen = settings(algorithm="fldb_gd", engine__name=engine, lambda_=lambda_)
    run(chosen, tmp_path)
    differences, preferences = (np.concatenate(rows) for rows in zip(*duels, strict=True))
    assert len(preferences) == 7 * 12
    ridge = 1 / 12 if lambda_ == "auto" else lambda_
    expected = scikit_learn_minimiser(differences, preferences, ridge)
    np.testing.assert_allclose(model(tmp_path)["theta_sync"], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["fldb_ogd", "fldb_gd", "fldb_ons"])
def test_the_model_is_equal_across_engines_and_describes_itself(tmp_path, algorithm):
    models = []
    for name, engine, nodes in (
        ("v", "vectorized", 2),
        ("1", "inprocess", 1),
        ("3", "inprocess", 3),
    ):
        run(
            settings(algorithm=algorithm, engine__name=engine, engine__num_nodes=nodes),
            tmp_path / name,
        )
        models.append(model(tmp_path / name))
    thetas = [each.pop("theta_sync") for each in models]
    np.testing.assert_allclose(thetas[1:], thetas[:1] * 2, rtol=1e-9)
    assert models[0] == models[1] == models[2]
    assert models[0] == {
        "algorithm": algorithm, "environment": "synthetic", "dimension": 3, "iteration": 12,
        "round": 12 if algorithm == "fldb_gd" else 5,  # else t = 1, 3, 6, 9 and 12
    }  # fmt: skip


@pytest.mark.parametrize("checkpoint", [2, 5])  # in the middle, and after the last round
def test_a_resumed_run_writes_the_same_model(tmp_path, checkpoint):
    run(settings(), tmp_path / "whole")
    assert kill_at(tmp_path / "cut", settings(), checkpoint)
    assert not (tmp_path / "cut" / "model.json").exists()
    run(settings(resume=True), tmp_path / "cut")
    assert model(tmp_path / "cut") == model(tmp_path / "whole")


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
@pytest.mark.parametrize("algorithm", ["ldb", "random"])
def test_without_a_common_estimate_there_is_no_model(tmp_path, algorithm, engine):
    run(settings(algorithm=algorithm, engine__name=engine), tmp_path)
    assert (tmp_path / "summary.json").exists()
    assert not (tmp_path / "model.json").exists()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_an_estimate_that_is_not_finite_is_refused(tmp_path, number):
    directory = RunDirectory(tmp_path, settings())
    history = History(12)
    history.count_exchange((1, 12), learns=True)
    with pytest.raises(FederationError, match=r"fldb_ogd: the estimate is not finite after .* 12"):
        directory.finish(history, np.array([0.0, number, 0.0]), runtime_seconds=0.0)
    directory.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.yaml"]
