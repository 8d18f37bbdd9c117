"""What plays the agents of some shards: this process, or processes forked from it."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, Protocol

from fldb_flower.errors import FederationError, one_line
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.settings import Settings

State = dict[str, Array]


class Workers(Protocol):
    """Workers of all shards; lists are in the order of the shards."""

    def answer(self, broadcast: Broadcast, counted: int) -> list[Upload]:
        """Return the upload of each shard; see :class:`AgentGroup`."""

    def state(self) -> list[State]:
        """Return the state of each shard, for :meth:`restore`."""

    def restore(self, states: Sequence[State]) -> None:
        """Restore the states of the shards."""

    def close(self) -> None:
        """End the workers."""


class Groups:
    """Shards that are played in the process that calls."""

    def __init__(self, settings: Settings, shards: Sequence[range]) -> None:
        self.groups = [AgentGroup(settings, shard) for shard in shards]

    def answer(self, broadcast: Broadcast, counted: int) -> list[Upload]:
        """Return the upload of each shard."""
        return [group.answer(broadcast, counted) for group in self.groups]

    def state(self) -> list[State]:
        """Return the state of each shard."""
        return [group.state() for group in self.groups]

    def restore(self, states: Sequence[State]) -> None:
        """Restore the states of the shards."""
        for group, state in zip(self.groups, states, strict=True):
            group.restore(state)

    def close(self) -> None:
        """Do nothing: there is no other process."""


class Worker:
    """Some of the shards in another process, which makes them in its first call."""

    def __init__(self, settings: Settings, shards: Sequence[range]) -> None:
        self.shards = shards
        self._settings = settings
        self._groups: Groups | None = None

    def call(self, method: str, arguments: Sequence[Any]) -> Any:
        """Return the result of a method of :class:`Groups`, or the exception that it raises."""
        try:
            if self._groups is None:
                self._groups = Groups(self._settings, self.shards)
            return getattr(self._groups, method)(*arguments)
        except Exception as error:
            sent = _sendable(error)
            sent.add_note(traceback.format_exc())
            return sent


def _sendable(error: Exception) -> Exception:
    """Return the error, or one with its text if a copy by pickle fails."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return FederationError(one_line(f"{type(error).__name__}: {error}"))
    return error


def split(items: Sequence[Any], count: int) -> list[Sequence[Any]]:
    """Return the items in ``count`` consecutive parts of about equal size."""
    ends = [len(items) * place // count for place in range(count + 1)]
    return [items[start:stop] for start, stop in itertools.pairwise(ends)]


def joined(replies: Sequence[Any]) -> list[Any]:
    """Return the results for all shards from the replies of the workers, or raise an exception."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return list(itertools.chain.from_iterable(reply or () for reply in replies))


class Processes:
    """Shards in processes forked from this one.

    Raises
    ------
    FederationError
        A process cannot be started.
    """

    def __init__(self, settings: Settings, shards: Sequence[range], count: int) -> None:
        self.processes: list[ForkedProcess] = []
        try:
            for part in split(shards, count):
                self.processes.append(ForkedProcess(Worker(settings, part)))
        except OSError as error:  # of memory, processes or open files
            self.close()
            raise FederationError(
                f"cannot start {count} processes for the agents: {error.strerror}; use"
                " engine.workers=1"
            ) from None

    def answer(self, broadcast: Broadcast, counted: int) -> list[Upload]:
        """Return the upload of each shard."""
        return self._call("answer", [(broadcast, counted)] * len(self.processes))

    def state(self) -> list[State]:
        """Return the state of each shard."""
        return self._call("state", [()] * len(self.processes))

    def restore(self, states: Sequence[State]) -> None:
        """Restore the states of the shards."""
        self._call("restore", [(part,) for part in split(states, len(self.processes))])

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        for process, its_arguments in zip(self.processes, arguments, strict=True):
            process.send(method, its_arguments)
        # Receive all replies, even if one is an error, so that the next call gets its own.
        return joined([process.receive() for process in self.processes])

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.close()


_FORKING = threading.Lock()
"""Held while a pipe is made and its process forked.

A process that another thread forks meanwhile would have copies of both ends of the pipe. Then
neither would see that the other process has ended.
"""


class ForkedProcess:
    """A process with a worker, forked from this one.

    It is killed when this object is closed or deleted, and when Python exits. It ends by itself
    when this process ends in another way. It is not asked to end: it may be busy or blocked, and
    has nothing to save.
    """

    def __init__(self, worker: Worker) -> None:
        self._shards = len(worker.shards)
        fork = multiprocessing.get_context("fork")
        with _FORKING:
            self._pipe, theirs = fork.Pipe()
            self.process = fork.Process(target=_work, args=(theirs, worker), daemon=True)
            # At exit, before Python waits for the process; the process ignores SIGTERM.
            self._end = Finalize(self, _end, (self._pipe, self.process), exitpriority=1)
            self.process.start()
            theirs.close()

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
                f"a process with {self._shards} shards of the agents ended with status"
                f" {self.process.exitcode}: out of memory?"
            )

    def close(self) -> None:
        """End the process."""
        self._end()


def _end(pipe: Connection, process: BaseProcess) -> None:
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
            pipe.send(worker.call(*pipe.recv()))


def _end_with_parent() -> None:
    """End this process when its parent ends.

    The pipe may stay open then: processes that were forked later have copies of the parent's end.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
