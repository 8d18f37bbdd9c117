"""Agents as actors of Ray: the same bytes, also after nodes and actors are lost, and errors."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import psutil
import pytest
from conftest import nested
from local_processes import processes_of, wait_until

import fldb_flower as fldb
from fldb_flower.environments import Contexts
from fldb_flower.errors import DataError, FederationError, SettingsError
from fldb_flower.settings import from_nested
from fldb_flower.system import process
from simulations import engines
from simulations.engines import ray_workers, vectorized

# 32 agents fill a block with these arms, and four blocks are a shard.
SIZES = {"num_agents": 500, "num_arms": 64, "dimension": 32, "horizon": 12, "tau": 2}
starts_ray = [pytest.mark.slow, pytest.mark.xdist_group("flower")]  # one Ray at a time


def same(one, other):
    assert one.regret.equals(other.regret)
    np.testing.assert_array_equal(one.theta, other.theta)


PROGRAM = """
import json, os, psutil, signal, sys
import fldb_flower as fldb
from fldb_flower.environments import Contexts
from fldb_flower.settings import from_keywords
from fldb_flower.federation.history import History
from simulations.engines.vectorized import DirectFederation

@fldb.register_environment("positive")
class Positive:  # it is in no module that another process can import
    def __init__(self, settings, agents):
        self.sizes = settings.num_arms, settings.dimension

    def contexts(self, streams, iterations):
        arms = abs(streams.standard_normal("arms", iterations, *self.sizes))
        return Contexts(arms, arms.sum(axis=-1) / 10)

class Listeners(fldb.Callback):
    hosts = set()

    def on_round(self, history):
        for process in psutil.Process().children(recursive=True):
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    self.hosts.add(each.laddr.ip)

folder, sizes = sys.argv[1], {**json.loads(sys.argv[2]), "environment": "positive"}
for workers in ("auto", 1, 2, 3, "ray"):
    callbacks = [Listeners()] if workers == "ray" else []
    fldb.run(sizes, engine_workers=workers, callbacks=callbacks).save(f"{folder}/{workers}")
before = lambda number, frame: None
signal.signal(signal.SIGTERM, before)
settings = from_keywords({**sizes, "engine.workers": "ray"}, "a test")
shards = DirectFederation(settings, History(settings.horizon))
assert len(shards.shards) == 4
assert signal.getsignal(signal.SIGTERM) is before
print(json.dumps(sorted(Listeners.hosts)))
raise SystemExit(3)  # the actors are still there
"""


@pytest.mark.exhaustive
@pytest.mark.xdist_group("flower")
def test_local_workers_write_the_same_bytes_and_end_with_the_program(tmp_path):
    environment = {**os.environ, "OWNER_OF_PROCESSES": str(tmp_path)}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), json.dumps(SIZES)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, timeout=600,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (3, "")
    assert json.loads(done.stdout) in (["127.0.0.1"], ["127.0.0.1", "::ffff:127.0.0.1"])
    for name in ("regret.csv", "model.json"):
        contents = {path.read_bytes() for path in tmp_path.glob(f"*/{name}")}
        assert len(list(tmp_path.glob(f"*/{name}"))) == 5
        assert len(contents) == 1
    wait_until(lambda: not processes_of(tmp_path), 120, "Ray's processes end")


@pytest.fixture(scope="module")
def cluster():
    """Start a Ray cluster of two nodes with one CPU each, which quickly sees that one is lost."""
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs Ray")
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500,
             "agent_register_timeout_ms": 120_000}  # fmt: skip
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": quick}
    started = cluster_utils.Cluster()
    try:
        add_node(started, **head)
        add_node(started, num_cpus=1)
        yield started
    finally:
        started.shutdown()


def add_node(cluster, **options):
    """Add a node to a cluster; if Ray gives up waiting for it, end its processes and repeat."""
    own = psutil.Process()
    for left in reversed(range(engines.STARTS)):
        before = set(own.children(recursive=True))
        try:
            cluster.add_node(**options)
            return
        except Exception as error:
            for process in set(own.children(recursive=True)) - before:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if not left or engines.SLOW_START not in str(error):
                raise


@pytest.fixture
def nodes(cluster, monkeypatch):
    """Return the cluster, which `engine.workers=ray` uses."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    return cluster


class TestCluster:
    pytestmark = starts_ray

    def test_a_node_is_killed_and_another_one_started(self, nodes, monkeypatch, caplog):
        """States are saved every two exchanges, so that lost shards start from one.

        The actor that is killed afterwards continues on the new node: it is lost with that node.
        """
        monkeypatch.setattr(ray_workers, "REPLAYED", 2)
        monkeypatch.setattr(ray_workers, "CHECKPOINT_COST", 0)

        class Faults(fldb.Callback):
            def on_round(self, history):
                if history.iteration in (4, 10):
                    (node,) = nodes.worker_nodes
                    nodes.remove_node(node, allow_graceful=False)
                if history.iteration == 6:
                    add_node(nodes, num_cpus=1)
                if history.iteration == 8:
                    processes = psutil.Process().children(recursive=True)
                    next(each for each in processes if each.name().startswith("ray::Actor")).kill()

        values = {**SIZES, "algorithm": "fldb_ons", "selection": "thompson"}
        got = fldb.run(values, engine_workers="ray", callbacks=[Faults()])
        add_node(nodes, num_cpus=1)  # for the next test
        assert caplog.text.count("Ray lost 1 of 2 actors") >= 2
        same(fldb.run(values, engine_workers=1), got)

    @pytest.mark.exhaustive
    def test_an_actor_is_killed_during_an_exchange(self, nodes, tmp_path, register_world, caplog):
        """No state is saved yet, so the shards are played from the start."""
        killed = tmp_path / "killed"

        class Deadly:
            def __init__(self, settings, agents):
                self.first, self.t = agents.start, 0
                self.sizes = settings.num_arms, settings.dimension

            def contexts(self, streams, iterations):
                self.t += iterations
                if self.first == 320 and self.t >= 8 and not killed.exists():
                    killed.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                arms = streams.standard_normal("arms", iterations, *self.sizes)
                return Contexts(arms, arms.sum(axis=-1) / 10)

        values = {**SIZES, "algorithm": "fldb_personal", "environment": register_world(Deadly)}
        got = fldb.run(values, engine_workers="ray")
        assert killed.exists()
        assert "Ray lost 1 of 2 actors" in caplog.text
        same(fldb.run(values, engine_workers=1), got)

    def test_an_error_of_the_agents_arrives_as_itself(self, nodes, register_world):
        class Broken:
            def __init__(self, settings, agents):
                self.agents = agents

            def contexts(self, streams, iterations):
                arms = streams.standard_normal("arms", iterations, 64, 32)
                if 300 in self.agents:
                    arms[300 - self.agents.start, -1, 1, 0] = np.nan
                return Contexts(arms, arms.sum(axis=-1))

        values = {**SIZES, "environment": register_world(Broken)}
        with pytest.raises(DataError, match="agent 300, arm 1, iteration 1: ") as error:
            fldb.run(values, engine_workers="ray")
        assert "play_iteration" in "".join(error.value.__notes__)  # the location of the error

    def test_what_nodes_cannot_import_is_named(self, nodes, tmp_path, monkeypatch, register_world):
        (tmp_path / "only_here.py").write_text("class World:\n    pass\n")
        monkeypatch.syspath_prepend(tmp_path)
        from only_here import World

        values = {**SIZES, "environment": register_world(World)}
        with pytest.raises(FederationError, match=r"^an actor of Ray failed: .*'only_here'$"):
            fldb.run(values, engine_workers="ray")

    def test_what_cannot_be_sent_is_named(self, nodes, register_world):
        class Locked:
            pipe = sys.stdout.buffer

        values = {**SIZES, "environment": register_world(Locked)}
        with pytest.raises(FederationError, match=r"^world cannot be sent to Ray: .*$"):
            fldb.run(values, engine_workers="ray")


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "Connection refused"), ("nonsense", "Invalid address format: nonsense")],
)
def test_a_cluster_that_cannot_be_reached_is_named(monkeypatch, address, reason):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(FederationError, match=f"^RAY_ADDRESS={address}: no .*{reason}.*$"):
        fldb.run(engine_workers="ray")


@pytest.mark.parametrize("failures", [2, 3])
def test_a_slow_start_of_ray_is_repeated(failures, monkeypatch):
    """Ray fails if its node is not ready after 30 s, which a busy machine may need."""
    errors = [Exception("The current node timed out during startup.")] * failures
    started = mock.Mock(side_effect=[*errors, None])
    module = SimpleNamespace(init=started, is_initialized=lambda: False, shutdown=mock.Mock())
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    refused = pytest.raises(
        FederationError, match=r"^Ray did not start: The current node timed out"
    )
    with refused if failures == 3 else contextlib.nullcontext(), ray_workers.connected() as ray:
        assert ray is module
    assert started.call_count == 3


def test_a_missing_ray_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"engine.workers=ray needs Ray: pip install"):
        fldb.run(engine_workers="ray")


def test_agents_must_fit_in_the_memory_of_the_only_node(monkeypatch):
    """10^7 agents, each with 300 duels of 6 numbers and a matrix of 25, of 8 bytes each."""
    monkeypatch.setattr(process, "machine_memory", lambda: 10**11)
    cluster = SimpleNamespace(nodes=lambda: [{"Alive": True}, {"Alive": False}])
    monkeypatch.setattr(ray_workers, "connected", lambda: contextlib.nullcontext(cluster))
    with pytest.raises(SettingsError, match=r"at least 146 GB .*has 100 GB"):
        fldb.run(engine_workers="ray", num_agents=10**7, horizon=300, algorithm="ldb")


class LostError(Exception):
    """As Ray's error for an actor that is lost."""


class FakeRay:
    """Ray whose actors are objects of this process; the first ones may be lost at their start."""

    def __init__(self, lost_at_start=0):
        self.actors, self.lost_at_start = [], lost_at_start
        self.exceptions = SimpleNamespace(
            RayError=LostError, RayTaskError=(), GetTimeoutError=TimeoutError
        )
        self.kill = mock.Mock()

    def nodes(self):
        return [{"NodeID": each, "Alive": True, "Resources": {"CPU": 1}} for each in "ab"]

    def cluster_resources(self):
        return {"CPU": 2}

    available_resources = cluster_resources

    def remote(self, kind):
        def create(*arguments):
            worker, started = kind(*arguments), None
            if len(self.actors) < self.lost_at_start:
                started = LostError("The actor never ran")
            ready = SimpleNamespace(remote=lambda: started)
            actor = SimpleNamespace(lost=False, __ray_ready__=ready)

            def reply(method, values):
                return LostError("lost") if actor.lost else worker.reply(method, values)

            actor.reply = SimpleNamespace(remote=reply)
            self.actors.append(actor)
            return actor

        return SimpleNamespace(options=lambda **_options: SimpleNamespace(remote=create))

    def put(self, value):
        return value

    def get(self, results, timeout=None):
        for each in results if isinstance(results, list) else [results]:
            if isinstance(each, LostError):
                raise each
        return results


@pytest.mark.parametrize("lost", [1, 2, 3, 100])
def test_an_actor_that_is_lost_before_it_runs_is_replaced(lost, monkeypatch):
    """Ray may place it on a node that was just lost."""
    ray = FakeRay(lost)
    monkeypatch.setattr(ray_workers, "connected", lambda: contextlib.nullcontext(ray))
    values = {**SIZES, "num_agents": 160, "horizon": 6}
    if lost == 100:
        with pytest.raises(FederationError, match="an actor of Ray failed: The actor never ran"):
            fldb.run(values, engine_workers="ray")
        return
    same(fldb.run(values, engine_workers=1), fldb.run(values, engine_workers="ray"))
    assert len(ray.actors) == 2 + lost


def test_an_error_while_a_lost_state_is_restored_ends_the_run(monkeypatch):
    ray = FakeRay()

    class Loss(fldb.Callback):
        def on_round(self, history):
            if history.iteration == 4:
                ray.actors[0].lost = True
                failing = mock.Mock(side_effect=MemoryError("no memory"))
                monkeypatch.setattr(vectorized.AgentGroup, "restore", failing)

    monkeypatch.setattr(ray_workers, "connected", lambda: contextlib.nullcontext(ray))
    monkeypatch.setattr(ray_workers, "REPLAYED", 1)
    monkeypatch.setattr(ray_workers, "CHECKPOINT_COST", 0)
    values = {**SIZES, "num_agents": 160, "horizon": 6, "algorithm": "fldb_ons"}
    with pytest.raises(DataError, match="no memory"):
        fldb.run(values, engine_workers="ray", callbacks=[Loss()])
    assert len(ray.actors) == 3


def test_invalid_workers_are_refused():
    for values, reason in (
        ({"engine__workers": 0}, "engine.workers=0 .*from 1 to 4096"),
        ({"engine__workers": "many"}, "'many' .*whole number, from 1 to 4096, or auto or ray"),
        ({"engine__workers": "ray", "backend": "cpu"}, "workers=ray .*needs backend=numpy"),
        ({"engine__workers": 2, "engine__name": "flower"}, "workers=2 .*needs engine=vectorized"),
    ):
        with pytest.raises(SettingsError, match=reason):
            from_nested(nested(**values), "a test")
