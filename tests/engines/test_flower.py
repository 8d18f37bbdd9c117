"""Runs on Flower's simulation engine: `flwr run` and engine=flower start Ray."""

import json
import tempfile

import numpy as np
import pandas as pd
import pytest
from conftest import nested
from local_processes import processes_of, wait_until

from fldb_flower.errors import FederationError
from fldb_flower.settings import from_nested
from simulations.run import run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]  # one Ray at a time
SMALL = {"num_agents": 100, "horizon": 12, "num_arms": 4, "dimension": 3, "tau": 3}


def spell(output, **values):
    config = {**SMALL, **values}
    pairs = [f"{name.replace('_', '-')}={value!r}" for name, value in config.items()]
    return " ".join([*pairs, f"output-dir='{output}'"])


@pytest.mark.parametrize(
    ("nodes", "algorithm"),
    [(4, "fldb_ons"), pytest.param(100, "fldb_ogd", marks=pytest.mark.exhaustive)],
)
def test_flwr_run_equals_vectorized(flwr, tmp_path, nodes, algorithm):
    options = ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]
    done = flwr(spell(tmp_path / "f", algorithm=algorithm), *options)
    assert (tmp_path / "f" / "summary.json").exists(), done.stdout
    run(from_nested(nested(**SMALL, algorithm=algorithm), "a test"), tmp_path / "v")
    expected, got = (pd.read_csv(tmp_path / name / "regret.csv") for name in ("v", "f"))
    np.testing.assert_allclose(got.cumulative_regret, expected.cumulative_regret, rtol=1e-9)
    summary = json.loads((tmp_path / "f" / "summary.json").read_text())
    assert summary["engine"] == "flower"
    assert summary["participation"] == 1.0
    # The output contains the result and the path of the plot.
    assert f"{nodes} nodes" in done.stdout
    assert "final regret" in done.stdout
    assert str(tmp_path / "f" / "regret.png") in done.stdout


@pytest.mark.exhaustive
def test_an_invalid_setting_gives_a_one_line_error_without_a_stack_trace(flwr, tmp_path):
    done = flwr(spell(tmp_path / "f", tau=0))
    text = done.stdout + done.stderr
    assert "the run failed: tau=0 (from Flower's run config): must be at least 1" in text
    assert "Traceback" not in text
    assert not (tmp_path / "f").exists()


def test_engine_flower_equals_vectorized_and_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the home of Flower's processes
    (tmp_path / "f").mkdir()  # of a run that was stopped before it saved anything
    chosen = nested(**SMALL, engine__name="flower", resume=True)
    run(from_nested(chosen, "a test"), tmp_path / "f")
    run(from_nested(nested(**SMALL), "a test"), tmp_path / "v")
    expected, got = (pd.read_csv(tmp_path / name / "regret.csv") for name in ("v", "f"))
    np.testing.assert_allclose(got.cumulative_regret, expected.cumulative_regret, rtol=1e-9)
    for file, keys in (
        ("summary.json", ("uploaded_bytes", "downloaded_bytes")),
        ("model.json", ("theta_sync", "iteration")),
    ):
        ours, theirs = (json.loads((tmp_path / name / file).read_text()) for name in ("v", "f"))
        for key in keys:
            np.testing.assert_allclose(theirs[key], ours[key], rtol=1e-9)
    wait_until(lambda: not processes_of(tmp_path), 120, "the SuperLink and its processes end")


@pytest.mark.exhaustive  # test_processes tests the message
def test_engine_flower_reports_why_a_run_failed(tmp_path):
    greedy = nested(**SMALL, engine__name="flower", engine__num_gpus=99.0)
    with pytest.raises(FederationError, match=r"no client fits this machine.*num_gpus=99"):
        run(from_nested(greedy, "a test"), tmp_path / "f")


@pytest.mark.exhaustive
def test_engine_flower_uses_the_given_ray_cluster(tmp_path, monkeypatch):
    """A cluster of two nodes with one CPU each; the run is one of its jobs."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        run(from_nested(nested(**SMALL, engine__name="flower"), "a test"), tmp_path / "f")
        assert (tmp_path / "f" / "summary.json").exists()
        ray.init(address=cluster.address, log_to_driver=False)
        # A cluster numbers its jobs: the first was the run, the second is this connection.
        assert ray.get_runtime_context().get_job_id() == "02000000"
        ray.shutdown()
    finally:
        cluster.shutdown()
