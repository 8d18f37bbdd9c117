"""All agents in groups of about equal size, played in several processes where that pays."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

from fldb_flower.errors import FederationError
from fldb_flower.federation.agents import AgentGroup, total_of_blocks
from fldb_flower.federation.blocks import blocks_of, require_agents
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.named_arrays import join_parts, part_of
from fldb_flower.settings import Settings

_BLOCKS = 4  # in a shard, at least: enough work to be worth a message between processes
_SHARDS = 64


class Shards:
    """All N agents, in shards that do not depend on how many processors there are.

    Nor do results: uploads are summed shard by shard. From two shards on, each processor that
    this process may use plays some of them in a process of its own. (Threads
    would wait for each other at every call of NumPy.)

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    processes : int, optional
        How many to use at most.
    """

    def __init__(self, settings: Settings, processes: int | None = None) -> None:
        require_agents(settings, settings.num_agents)
        self._settings = settings
        self._shards = list(_shards(settings))
        available = _processors(settings.backend) if processes is None else processes
        count = min(available, len(self._shards))
        self.groups: list[AgentGroup] = []
        self._workers: list[_Worker] = []
        if count < 2:
            self.groups = self._make(self._shards)
            return
        ends = [len(self._shards) * place // count for place in range(count + 1)]
        for start, stop in itertools.pairwise(ends):
            self._workers.append(_Worker(self._make, self._shards[start:stop], self._workers))

    def _make(self, shards: list[range]) -> list[AgentGroup]:
        return [AgentGroup(self._settings, shard) for shard in shards]

    def answer(self, broadcast: Broadcast, counted: int) -> Upload:
        """Play what the broadcast asks for and return the statistics; see AgentGroup."""
        return total_of_blocks(self._call("answer", [(broadcast, counted)] * len(self._shards)))

    def state(self) -> dict[str, Array]:
        """Return what must outlive the process, as arrays; see :meth:`restore`."""
        states = self._call("state", [()] * len(self._shards))
        return join_parts({str(place): each for place, each in enumerate(states)})

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from where :meth:`state` was taken, with identical numbers."""
        self._call("restore", [(part_of(state, str(at)),) for at in range(len(self._shards))])

    def _call(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Call a method of each shard's group, with arguments of its own; return the results."""
        if not self._workers:
            return _called(self.groups, method, arguments)
        rest = iter(arguments)
        for worker in self._workers:
            worker.send(method, list(itertools.islice(rest, worker.shards)))
        # All of them, even if one raises: the next ones must be answers to the next call.
        replies = [worker.receive() for worker in self._workers]
        return [each for reply in replies for each in _unless_error(reply)]

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()


class _Worker:
    """A process that has some of the shards, forked from this one."""

    def __init__(self, make: Any, shards: list[range], others: list[_Worker]) -> None:
        self.shards = len(shards)
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        inherited = [worker._pipe for worker in others] + [self._pipe]
        self._process = fork.Process(
            target=_work, args=(theirs, inherited, make, shards), daemon=True
        )
        self._process.start()
        theirs.close()
        # At the end of Python, too: it waits for the process, which waits for this.
        self._hang_up = Finalize(self, self._pipe.close, exitpriority=1)

    def send(self, *message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # `receive` says so
            self._pipe.send(message)

    def receive(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            return FederationError(
                f"a process with {self.shards} shards of the agents ended with status"
                f" {self._process.exitcode}: out of memory?"
            )

    def close(self) -> None:
        self._hang_up()
        self._process.kill()  # what it may still be at is of no use
        self._process.join()


def _work(pipe: Connection, inherited: list[Connection], make: Any, shards: list[range]) -> None:
    """Answer calls until the other end is closed, by its process's end if need be."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that we work for decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for other in inherited:
        other.close()
    groups: list[AgentGroup] = []
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            method, arguments = pipe.recv()
            try:
                groups = groups or make(shards)
                pipe.send(_called(groups, method, arguments))
            except Exception as error:
                error.add_note(traceback.format_exc())
                pipe.send(error)


def _called(groups: list[AgentGroup], method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    return [getattr(each, method)(*mine) for each, mine in zip(groups, arguments, strict=True)]


def _unless_error(reply: Any) -> list[Any]:
    if isinstance(reply, Exception):
        raise reply
    answers: list[Any] = reply
    return answers


def _processors(backend: str) -> int:
    """Return how many processes may be used: one where it cannot fork, or PyTorch has threads."""
    if sys.platform != "linux" or backend != "numpy" or multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0))


def _shards(settings: Settings) -> Iterator[range]:
    """Put consecutive blocks together: at least four in a shard, at most 64 shards."""
    blocks = list(blocks_of(settings, range(settings.num_agents)))
    size = max(_BLOCKS, -(-len(blocks) // _SHARDS))
    for start in range(0, len(blocks), size):
        part = blocks[start : start + size]
        yield range(part[0].start, part[-1].stop)
