"""All agents in shards of about equal size, simulated in several processes if that is faster."""

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

MIN_BLOCKS = 4
"""Minimum number of blocks in a shard, so that its work outweighs the messages."""
MAX_SHARDS = 64


class Shards:
    """All N agents, in shards.

    Shards and results do not depend on the number of processors: uploads are summed shard by
    shard. With two or more shards, each available processor simulates some of them in its own
    process. Threads would wait for each other in every call of NumPy.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    processes : int, optional
        Maximum number of processes.
    """

    def __init__(self, settings: Settings, processes: int | None = None) -> None:
        require_agents(settings, settings.num_agents, may_repeat=False)
        self._settings = settings
        self.shards = list(_shards(settings))
        available = _processors(settings.backend) if processes is None else processes
        count = min(available, len(self.shards))
        self.groups: list[AgentGroup] = []  # in this process; empty with several processes
        self.workers: list[Worker] = []
        if count < 2:
            self.groups = self._make(self.shards)
            return
        ends = [len(self.shards) * place // count for place in range(count + 1)]
        for start, stop in itertools.pairwise(ends):
            self.workers.append(Worker(self._make, self.shards[start:stop], self.workers))

    def _make(self, shards: list[range]) -> list[AgentGroup]:
        return [AgentGroup(self._settings, shard) for shard in shards]

    def answer(self, broadcast: Broadcast, counted: int) -> Upload:
        """Play the requested iterations and return the statistics; see :class:`AgentGroup`."""
        return total_of_blocks(self._call("answer", [(broadcast, counted)] * len(self.shards)))

    def state(self) -> dict[str, Array]:
        """Return the state of all agents as arrays; see :meth:`restore`."""
        states = self._call("state", [()] * len(self.shards))
        return join_parts({str(place): each for place, each in enumerate(states)})

    def restore(self, state: dict[str, Array]) -> None:
        """Restore a state; the run continues with identical numbers."""
        self._call("restore", [(part_of(state, str(at)),) for at in range(len(self.shards))])

    def _call(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Call a method of the group of each shard with its arguments; return the results."""
        if not self.workers:
            return _called(self.groups, method, arguments)
        rest = iter(arguments)
        for worker in self.workers:
            worker.send(method, list(itertools.islice(rest, worker.shards)))
        # Receive all replies, even if one is an error, so that the next call gets its own.
        replies = [worker.receive() for worker in self.workers]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return list(itertools.chain.from_iterable(replies))

    def close(self) -> None:
        """End the processes."""
        for worker in self.workers:
            worker.close()


class Worker:
    """A process with some of the shards, forked from this one."""

    def __init__(self, make: Any, shards: list[range], others: list[Worker]) -> None:
        self.shards = len(shards)
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        inherited = [worker._pipe for worker in others] + [self._pipe]
        self.process = fork.Process(
            target=_work, args=(theirs, inherited, make, shards), daemon=True
        )
        self.process.start()
        theirs.close()
        # Also at exit: Python waits for the process, which waits for the pipe to close.
        self._close_pipe = Finalize(self, self._pipe.close, exitpriority=1)

    def send(self, *message: Any) -> None:
        """Send a call."""
        with contextlib.suppress(BrokenPipeError):  # `receive` reports it
            self._pipe.send(message)

    def receive(self) -> Any:
        """Return the reply to the last call: results, or an exception."""
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return FederationError(
                f"a process with {self.shards} shards of the agents ended with status"
                f" {self.process.exitcode}: out of memory?"
            )

    def close(self) -> None:
        """End the process."""
        self._close_pipe()
        self.process.kill()  # a pending result is not needed
        self.process.join()


def _work(pipe: Connection, inherited: list[Connection], make: Any, shards: list[range]) -> None:
    """Handle calls until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles signals
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


def _processors(backend: str) -> int:
    """Return how many processes to use: one without fork, or with the threads of PyTorch."""
    if sys.platform != "linux" or backend != "numpy" or multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0))


def _shards(settings: Settings) -> Iterator[range]:
    """Yield shards of consecutive blocks; see `MIN_BLOCKS` and `MAX_SHARDS`."""
    blocks = list(blocks_of(settings, range(settings.num_agents)))
    size = max(MIN_BLOCKS, -(-len(blocks) // MAX_SHARDS))
    for start in range(0, len(blocks), size):
        part = blocks[start : start + size]
        yield range(part[0].start, part[-1].stop)
