"""Agents as actors of Ray: the same bytes, also after nodes and actors are lost, and errors."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import nested

import fldb_flower as fldb
from fldb_flower.environments import Contexts
from fldb_flower.errors import DataError, FederationError, SettingsError
from fldb_flower.settings import from_nested
from simulations.engines import ray_workers
from simulations.run import run

ARMS, D = 64, 32  # 32 agents fill a block, and four blocks are a shard
SIZES = {"num_agents": 500, "num_arms": ARMS, "dimension": D, "horizon": 12, "tau": 2}
ray_starts = [pytest.mark.slow, pytest.mark.xdist_group("flower")]  # one Ray at a time


@pytest.fixture(scope="module")
def cluster():
    """Start a Ray cluster of two nodes with one CPU each."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500,
             "health_check_failure_threshold": 4, "agent_register_timeout_ms": 120_000}  # fmt: skip
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": quick}
    started = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        started.add_node(num_cpus=1)
        yield started
    finally:
        started.shutdown()


@pytest.fixture
def at_cluster(cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    return cluster


def same(one, other):
    assert one.regret.equals(other.regret)
    np.testing.assert_array_equal(one.theta, other.theta)


class TestCluster:
    pytestmark = ray_starts

    @pytest.mark.parametrize("algorithm", ["fldb_ons", "fldb_personal"])
    def test_results_equal_those_of_this_process(self, at_cluster, algorithm):
        values = {**SIZES, "algorithm": algorithm, "selection": "thompson", "horizon": 6}
        same(fldb.run(values, engine_workers=1), fldb.run(values, engine_workers="ray"))

    def test_a_node_is_killed_and_another_one_started(self, at_cluster, monkeypatch, caplog):
        """States are saved every two exchanges, so that the lost shards start from one."""
        monkeypatch.setattr(ray_workers, "REPLAYED", 2)
        monkeypatch.setattr(ray_workers, "CHECKPOINT_COST", 0)

        class Fault(fldb.Callback):
            def on_round(self, history):
                if history.iteration == 6:
                    (node,) = at_cluster.worker_nodes
                    at_cluster.remove_node(node, allow_graceful=False)
                if history.iteration == 9:
                    at_cluster.add_node(num_cpus=1)

        values = {**SIZES, "algorithm": "fldb_ons"}
        got = fldb.run(values, engine_workers="ray", callbacks=[Fault()])
        same(fldb.run(values, engine_workers=1), got)
        assert "Ray lost 1 of 2 actors" in caplog.text
