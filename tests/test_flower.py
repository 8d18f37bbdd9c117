"""The real thing: `flwr run` on Ray, in a home and on ports of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import nested

from fldb_flower.deployment.processes import free_port
from fldb_flower.errors import FederationError
from fldb_flower.settings import from_nested
from simulations.run import run

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.xdist_group("flower")  # one Ray at a time
SMALL = {"num_agents": 100, "horizon": 12, "num_arms": 4, "dimension": 3, "tau": 3}


def processes(file, wanted):
    """Return the ids of processes whose `environ` or `cmdline` has a part that ends so."""
    for entry in Path("/proc").iterdir():
        try:
            parts = (entry / file).read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue  # it ended, or is not ours
        if any(part.endswith(wanted) for part in parts):
            yield int(entry.name)


def processes_of(home):
    """Return the ids of processes that were started with this FLWR_HOME."""
    return processes("environ", f"FLWR_HOME={home}".encode())


@pytest.fixture(scope="module")
def flwr(tmp_path_factory):
    """Run `flwr run` with a SuperLink that this module starts and stops."""
    home = tmp_path_factory.mktemp("flwr")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_ADDRESS": "local",  # not a cluster that somebody left
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
    }

    flwr_command = shutil.which("flwr", path=environment["PATH"])

    def start(config, *options):
        return subprocess.run(
            [flwr_command, "run", str(ROOT), "--stream", "--run-config", config, *options],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
        )

    yield start
    for pid in processes_of(home):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while list(processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in processes_of(home):
        os.kill(pid, signal.SIGKILL)


def spell(output, **values):
    config = {**SMALL, **values}
    pairs = [f"{name.replace('_', '-')}={value!r}" for name, value in config.items()]
    return " ".join([*pairs, f"output-dir='{output}'"])


@pytest.mark.parametrize(
    ("nodes", "algorithm"), [(2, "fldb_ogd"), (4, "fldb_ons"), (100, "fldb_ogd")]
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
    # It said how it went, and where the plot is.
    assert f"{nodes} nodes" in done.stdout
    assert "final regret" in done.stdout
    assert str(tmp_path / "f" / "regret.png") in done.stdout


def test_movielens_through_flwr_run(flwr, tmp_path, ratings):
    world = {"environment": "movielens", "environment_path": str(ratings()), "num_agents": 180}
    done = flwr(spell(tmp_path / "f", **world))
    assert (tmp_path / "f" / "summary.json").exists(), done.stdout


def test_a_mistake_is_one_line_without_a_stack_trace(flwr, tmp_path):
    done = flwr(spell(tmp_path / "f", tau=0))
    text = done.stdout + done.stderr
    assert "the run failed: tau=0 (from Flower's run config): must be at least 1" in text
    assert "Traceback" not in text
    assert not (tmp_path / "f").exists()


def test_engine_flower_equals_vectorized_and_leaves_no_process(tmp_path):
    before = set(superlinks())
    run(from_nested(nested(**SMALL, engine__name="flower"), "a test"), tmp_path / "f")
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
    deadline = time.monotonic() + 20  # what the SuperLink had started ends a moment after it
    while (left := set(superlinks()) - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def test_engine_flower_says_why_a_run_failed(tmp_path):
    greedy = nested(**SMALL, engine__name="flower", engine__num_gpus=99.0)
    with pytest.raises(FederationError, match=r"no client fits this machine.*num_gpus=99"):
        run(from_nested(greedy, "a test"), tmp_path / "f")


def superlinks():
    return processes("cmdline", b"flower-superlink")


def test_engine_flower_uses_the_ray_cluster_it_is_pointed_at(tmp_path, monkeypatch):
    """A cluster of two nodes with one CPU each: Flower's driver is a job of it."""
    from ray._private import state
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        run(from_nested(nested(**SMALL, engine__name="flower"), "a test"), tmp_path / "f")
        assert (tmp_path / "f" / "summary.json").exists()
        import ray

        ray.init(address=cluster.address, log_to_driver=False)
        jobs = state.jobs()
        assert len(jobs) == 2  # this test's own connection, and Flower's
        ray.shutdown()
    finally:
        cluster.shutdown()
