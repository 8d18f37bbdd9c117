"""The fastest engine: all agents as arrays, called without messages, in one or more processes."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from fldb_flower.algorithms import make_algorithm, run_rounds
from fldb_flower.errors import FederationError, SettingsError, one_line
from fldb_flower.federation.agents import AgentGroup, blocks_of, require_agents, total_of_blocks
from fldb_flower.federation.exchange import Broadcast, Federation
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array, join_parts, part_of
from fldb_flower.linalg.linear import make_form
from fldb_flower.privacy.mechanism import noise_of
from fldb_flower.runs.experiment import Checkpointer
from fldb_flower.settings import AUTO, RAY, Settings
from fldb_flower.system.process import keep_freed_memory, one_blas_thread, processors

MIN_BLOCKS = 4
"""Minimum number of blocks in a shard, so that its work outweighs the messages."""
MAX_SHARDS = 64


def run(settings: Settings, history: History, checkpointer: Checkpointer | None = None) -> Array:
    """Run the settings' algorithm over all agents; return its theta_sync."""
    for name, neutral in (("robust", "none"), ("fraction_train", 1.0)):
        if (value := getattr(settings, name)) != neutral:
            raise SettingsError(
                f"{name}={value}: needs engine=inprocess or engine=flower: the vectorized engine"
                " has no nodes"
            )
    algorithm = make_algorithm(settings)
    keep_freed_memory()
    with (
        one_blas_thread(),
        contextlib.closing(DirectFederation(settings, history)) as federation,
    ):
        after_round = None if checkpointer is None else checkpointer.follow(federation, algorithm)
        return run_rounds(federation, algorithm, after_round)


class DirectFederation(Federation):
    """A federation of all N agents in shards, called without messages.

    Shards and results do not depend on what plays them (the setting ``engine.workers``): uploads
    are summed shard by shard. With two or more shards, each available processor plays some of them
    in its own process. Threads would wait for each other in every call of NumPy.
    """

    history: History

    def __init__(self, settings: Settings, history: History) -> None:
        super().__init__(history, noise_of(settings))
        self._num_agents, self._form = settings.num_agents, make_form(settings)
        self._counted = 0
        self.shards = list(_shards(settings))
        self.workers = _workers(settings, self.shards)  # last: it may start processes

    def collect(self, broadcast: Broadcast) -> Any:
        """Call all agents and return the sum of their uploads."""
        uploads = self.workers.call("answer", [(broadcast, self._counted)])
        if broadcast.learns:
            up, down = broadcast.sizes(self._form)
            self.history.uploaded_bytes += 8 * self._num_agents * up
            self.history.downloaded_bytes += 8 * self._num_agents * down
        return total_of_blocks(uploads)

    def mark_counted(self) -> None:
        """Store the last iteration whose duels are counted."""
        self._counted = self.history.iteration

    def state(self) -> dict[str, Array]:
        """Return the agents' state."""
        states = self.workers.call("state", [()])
        parts = join_parts({str(at): state for at, state in enumerate(states)})
        return {"counted": np.array(self._counted), **parts}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state` returned; the run continues with identical numbers."""
        self._counted = int(state["counted"])
        self.workers.call("restore", [(part_of(state, str(at)),) for at in range(len(self.shards))])

    def close(self) -> None:
        """End the processes that play agents, if there are any."""
        self.workers.close()


def _shards(settings: Settings) -> Iterator[range]:
    """Yield the agents in shards of consecutive blocks; see `MIN_BLOCKS` and `MAX_SHARDS`."""
    blocks = list(blocks_of(settings, range(settings.num_agents)))
    size = max(MIN_BLOCKS, -(-len(blocks) // MAX_SHARDS))
    for start in range(0, len(blocks), size):
        part = blocks[start : start + size]
        yield range(part[0].start, part[-1].stop)


def _workers(settings: Settings, shards: list[range]) -> Any:
    """Return what plays the shards, with the methods `call` and `close` of :class:`Worker`."""
    workers = settings.engine.workers
    if workers == RAY:
        from simulations.engines.ray_workers import RayWorkers  # noqa: PLC0415 - imports Ray

        return RayWorkers(settings, shards)
    require_agents(settings, settings.num_agents, may_repeat=False)
    count = min(processors() if workers == AUTO else int(workers), len(shards))
    is_daemon = multiprocessing.current_process().daemon  # which may not have children
    # One process without fork, or with the threads of PyTorch.
    if count < 2 or sys.platform != "linux" or settings.backend != "numpy" or is_daemon:
        return Worker(settings, shards)
    return Processes(settings, shards, count)


class Worker:
    """Plays some of the shards; the process of the first call makes their agents."""

    def __init__(self, settings: Settings, shards: Sequence[range]) -> None:
        self._settings, self._shards = settings, shards

    @cached_property
    def groups(self) -> list[AgentGroup]:
        """The agents of each shard."""
        return [AgentGroup(self._settings, shard) for shard in self._shards]

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of the :class:`AgentGroup` of each shard; return what each returned.

        ``arguments`` are those for each shard, or one tuple for all.
        """
        several = arguments if len(arguments) > 1 else [*arguments] * len(self.groups)
        both = zip(self.groups, several, strict=True)
        return [getattr(group, method)(*its_arguments) for group, its_arguments in both]

    def reply(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> Any:
        """Return what :meth:`call` returns, or the exception that it raises."""
        try:
            return self.call(method, arguments)
        except Exception as error:
            sent = error
            try:
                pickle.loads(pickle.dumps(error))
            except Exception:  # it cannot be sent
                sent = FederationError(one_line(f"{type(error).__name__}: {error}"))
            sent.add_note(traceback.format_exc())
            return sent

    def close(self) -> None:
        """Do nothing: there is no other process."""


def split(items: Sequence[Any], count: int) -> list[Sequence[Any]]:
    """Return ``count`` consecutive parts of about equal size; a single item is in each part."""
    if len(items) == 1:
        return [items] * count
    ends = [len(items) * place // count for place in range(count + 1)]
    return [items[start:stop] for start, stop in itertools.pairwise(ends)]


def joined(replies: Sequence[Any]) -> list[Any]:
    """Return the results for all shards from the replies of the workers, or raise an exception."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return list(itertools.chain.from_iterable(replies))


_FORKING = threading.Lock()
"""Held while a pipe is made and its process forked.

A process that another thread forks meanwhile would have copies of both ends of the pipe. Then
neither would see that the other process has ended.
"""


class Processes:
    """Shards in processes forked from this one.

    They are killed when this object is closed or deleted and when Python exits, and end on their
    own when this process ends in another way. They are not asked to end: they may be busy or
    blocked, and have nothing to save.
    """

    def __init__(self, settings: Settings, shards: Sequence[range], count: int) -> None:
        self._parts = split(shards, count)
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        # At exit, before Python waits for the processes; they ignore SIGTERM.
        self.close = Finalize(self, _end, (self.pipes, self.processes), exitpriority=1)
        try:
            for part in self._parts:
                self._fork(Worker(settings, part))
        except OSError as error:  # of memory, processes or open files
            self.close()
            raise FederationError(
                f"cannot start {count} processes for the agents: {error.strerror}; use"
                " engine.workers=1"
            ) from None

    def _fork(self, worker: Worker) -> None:
        fork = multiprocessing.get_context("fork")
        with _FORKING:
            pipe, theirs = fork.Pipe()
            process = fork.Process(target=_work, args=(theirs, worker), daemon=True)
            self.pipes.append(pipe)
            self.processes.append(process)
            process.start()
            theirs.close()

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of the group of each shard; return what each returned."""
        for pipe, part in zip(self.pipes, split(arguments, len(self.pipes)), strict=True):
            with contextlib.suppress(BrokenPipeError):  # `_receive` reports it
                pipe.send((method, part))
        # Receive all replies, even if one is an error, so that the next call gets its own.
        return joined([self._receive(at) for at in range(len(self.pipes))])

    def _receive(self, at: int) -> Any:
        try:
            return self.pipes[at].recv()
        except (EOFError, ConnectionResetError):
            process = self.processes[at]
            process.join()
            return FederationError(
                f"a process with {len(self._parts[at])} shards of the agents ended with status"
                f" {process.exitcode}: out of memory?"
            )


def _end(pipes: list[Connection], processes: list[BaseProcess]) -> None:
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.close()
        if process.pid is not None:  # it was started
            process.kill()
            process.join()


def _work(pipe: Connection, worker: Worker) -> None:
    """Handle calls until the parent closes the pipe or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles signals
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(worker.reply(*pipe.recv()))


def _end_with_parent() -> None:
    """End this process when its parent ends.

    The pipe may stay open then: processes that were forked later have copies of the parent's end.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
