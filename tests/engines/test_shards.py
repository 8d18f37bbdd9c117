"""Agents in several processes: identical results, and errors when a process ends."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import nested
from local_processes import wait_until

from fldb_flower.bandit.estimate import Estimate
from fldb_flower.environments import Contexts
from fldb_flower.errors import DataError, FederationError
from fldb_flower.federation.agents import AgentGroup, total_of_blocks
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.settings import from_nested
from simulations.engines import vectorized
from simulations.engines.vectorized import DirectFederation
from simulations.pools import map_in_processes

D = 3


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Use blocks of 32 agents, two in a shard."""
    monkeypatch.setattr("fldb_flower.federation.agents.BLOCK_NUMBERS", 1)
    monkeypatch.setattr(vectorized, "MIN_BLOCKS", 2)


def settings(agents=200, workers="auto", **values):
    sizes = {"num_agents": agents, "num_arms": 4, "dimension": D}
    return from_nested(nested(**sizes, engine__workers=workers, **values), "a test")


def broadcast(first, last, seed=0):
    rng = np.random.default_rng(seed)
    theta, factor = rng.standard_normal(D), rng.standard_normal((D, D))
    estimate = Estimate(theta, factor @ factor.T + np.eye(D))
    return Broadcast(PlayRequest(first, last, estimate), theta, hessian=True)


def opened(**values):
    chosen = settings(**values)
    return DirectFederation(chosen, History(chosen.horizon))


def answer(shards, request, counted):
    return total_of_blocks(shards.workers.call("answer", [(request, counted)]))


def same(first, second):
    for name in ("num_duels", "gradient", "information", "hessian"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
    for one, other in zip(first.outcomes, second.outcomes, strict=True):
        assert (one.first, one.agents) == (other.first, other.agents)
        np.testing.assert_array_equal(one.sums, other.sums)


@pytest.mark.parametrize("algorithm", ["fldb_ons", "fldb_gd", "ldb", "random"])
def test_results_and_states_do_not_depend_on_the_number_of_processes(algorithm):
    values = {"algorithm": algorithm, "selection": "thompson"}
    uploads, states = [], []
    for workers, number in ((1, 0), (2, 2), (3, 3), (9, 4)):
        shards = opened(workers=workers, **values)
        assert len(shards.shards) == 4
        assert len(getattr(shards.workers, "processes", ())) == number
        first, state = answer(shards, broadcast(1, 3), 0), shards.state()
        uploads.append([first, answer(shards, broadcast(4, 5, 1), 3)])
        states.append(state)
        shards.close()
    for place, other in enumerate(uploads):
        for one, two in zip(uploads[0], other, strict=True):
            same(one, two)
        restored = opened(workers=1 + (place < 2), **values)  # another number than saved it
        restored.restore(states[place])
        same(answer(restored, broadcast(4, 5, 1), 3), uploads[0][1])
        restored.close()
    whole = AgentGroup(settings(**values), range(200)).answer(broadcast(1, 3), 0)
    assert whole.num_duels == uploads[0][0].num_duels == 600
    np.testing.assert_allclose(whole.gradient, uploads[0][0].gradient, rtol=1e-12)
    np.testing.assert_allclose(whole.outcomes[0].sums, uploads[0][0].outcomes[0].sums, rtol=1e-12)


def test_few_agents_are_one_shard():
    shards = opened(agents=40, workers=8)
    assert shards.shards == [range(40)]
    assert [group.agents for group in shards.workers.groups] == [range(40)]


def test_an_invalid_feature_is_reported_and_processes_stay_synchronized(monkeypatch):
    class Broken:
        """Agent 190 receives an invalid number in iteration 2."""

        def __init__(self, _settings, agents):
            self.agents, self.t = agents, 0

        def contexts(self, streams, iterations):
            features = streams.standard_normal("arms", iterations, 4, D)
            drawn, self.t = self.t, self.t + iterations
            if drawn < 2 <= self.t and 190 in self.agents:
                features[190 - self.agents.start, 1 - drawn, 1, 0] = np.nan
            return Contexts(features, features.sum(axis=-1))

    monkeypatch.setattr("fldb_flower.federation.agents.make_environment", Broken)
    shards = opened(workers=2)
    answer(shards, broadcast(1, 1), 0)
    with pytest.raises(DataError, match="agent 190, arm 1, iteration 2: ") as error:
        answer(shards, broadcast(2, 2), 1)
    assert "play_iteration" in "".join(error.value.__notes__)  # the location of the error
    shards.close()


class CodedError(Exception):
    """Has two arguments, so that a copy by pickle fails."""

    def __init__(self, code, text):
        super().__init__(f"{text} ({code})")


def test_an_error_that_cannot_be_sent_is_reported_by_its_text(monkeypatch):
    def failing(group, _broadcast, _counted):
        raise CodedError(len(group.agents), "no arms")

    monkeypatch.setattr(AgentGroup, "answer", failing)
    shards = opened(workers=2)
    with pytest.raises(FederationError, match=r"^CodedError: no arms \(64\)") as error:
        answer(shards, broadcast(1, 3), 0)
    assert "in failing" in "".join(error.value.__notes__)
    shards.close()


def test_a_killed_process_is_reported():
    shards = opened(workers=2)
    answer(shards, broadcast(1, 1), 0)
    os.kill(shards.workers.processes[1].pid, signal.SIGKILL)
    with pytest.raises(FederationError, match=r"2 shards .* ended with status -9: out of memory"):
        answer(shards, broadcast(2, 2), 1)
    shards.close()
    assert all(each.exitcode is not None for each in shards.workers.processes)


def number_of_processes(workers):
    shards = opened(workers=workers)
    shards.close()
    return len(getattr(shards.workers, "processes", ()))


def test_parallel_runs_share_the_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(7))
    fork = multiprocessing.get_context("fork")
    assert map_in_processes(number_of_processes, ["auto", 4], 2, fork) == [3, 4]
    assert map_in_processes(number_of_processes, ["auto", 3], 9, fork) == [0, 3]
    assert number_of_processes("auto") == 4  # one for each shard


def test_a_process_that_cannot_be_forked_is_reported(monkeypatch):
    started, fork = [], os.fork

    def failing():
        if started:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        started.append(fork())
        return started[0]

    monkeypatch.setattr(os, "fork", failing)
    message = r"^cannot start 2 processes .*: Cannot allocate memory; use engine.workers=1$"
    with pytest.raises(FederationError, match=message):
        opened(workers=2)
    assert not is_running(started[0])


def test_workers_end_with_their_parent():
    """A child process starts workers and is killed; the workers end when their pipes close."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        shards = opened(workers=3)
        answer(shards, broadcast(1, 1), 0)
        os.write(writer, " ".join(str(each.pid) for each in shards.workers.processes).encode())
        signal.pause()
    workers = [int(word) for word in os.read(reader, 100).split()]
    assert len(workers) == 3
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    wait_until(lambda: not any(map(is_running, workers)), 200, "its processes end")


PROGRAM = """
import os, sys, threading, time
import numpy as np
import fldb_flower.federation.agents as blocks
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.settings import from_nested
from fldb_flower.federation.history import History
from simulations.engines.vectorized import DirectFederation

blocks.BLOCK_NUMBERS = 1  # 32 agents are a block

def opened():
    settings = from_nested({"num_agents": 400, "engine": {"workers": 2}}, "")
    shards = DirectFederation(settings, History(settings.horizon))
    print(*(each.pid for each in shards.workers.processes), flush=True)
    return shards

def request(last):
    return Broadcast(PlayRequest(1, last, Estimate(np.zeros(5), np.eye(5))), None)

"""
ENDS = {
    "without closing them": """
kept = [opened(), opened()]
for shards in kept:
    shards.workers.call("answer", [(request(1), 0)])
""",
    "by an exception, which refers to them": """
shards = opened()
raise SystemExit(0)
""",
    "while they are busy": """
kept = opened()
for pipe in kept.workers.pipes:
    pipe.send(("answer", [(request(10**6), 0)]))
""",
    "with a reply that nobody receives": """
kept = opened()
for pipe in kept.workers.pipes:
    pipe.send(("state", [()]))
time.sleep(0.5)
""",
    "while another process has copies of the pipes": """
shards, parent = opened(), os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.05)
    os._exit(0)
""",
    "after several threads started some at once": """
kept = []
threads = [threading.Thread(target=lambda: kept.append(opened())) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
""",
    "at once": """
kept = [opened(), opened()]
for pipe in kept[0].workers.pipes:
    pipe.send(("answer", [(request(10**6), 0)]))
os._exit(0)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
def test_processes_end_with_a_program_that_ends(how):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + ENDS[how]], check=True, capture_output=True, text=True,
        cwd=Path(__file__).parents[2], timeout=300,
    )  # fmt: skip
    assert done.stderr == ""
    workers = done.stdout.split()
    assert len(workers) >= 2
    wait_until(lambda: not any(map(is_running, workers)), 100, "its processes end")


def is_running(pid):
    """Return whether a process is running; a process that has ended has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
