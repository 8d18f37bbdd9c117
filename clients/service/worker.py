"""The threads of the service that use the store, and the time that a request may wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from clients.preference_agent import PreferenceAgent
from clients.store import database
from fldb_flower.errors import OutputError

_T = TypeVar("_T")
_DEADLINE: ContextVar[float] = ContextVar("deadline")


def begin_request() -> None:
    """Begin the time that this request may wait for locks of other processes, all in all."""
    _DEADLINE.set(time.monotonic() + database.BUSY_SECONDS)


class Worker:
    """An agent with its own thread, so that the event loop never waits for SQLite.

    ``most`` is the largest number of requests that wait for it at the same time.
    """

    def __init__(self, path: Path, expire_after: float, purpose: str, most: int) -> None:
        self.agent = PreferenceAgent(path, expire_after=expire_after, purpose=purpose)
        self._thread = ThreadPoolExecutor(1)
        self._waiting, self._most = 0, most

    async def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call ``function(agent, *arguments)`` in the thread.

        Raises
        ------
        OutputError
            Too many requests wait already.
        """
        if self._waiting >= self._most:
            raise OutputError(
                f"{self._waiting} requests already wait for {self.agent.store.path}: try again"
            )
        loop, deadline = asyncio.get_running_loop(), _DEADLINE.get()
        self._waiting += 1
        try:
            return await loop.run_in_executor(
                self._thread, self._call, deadline, function, *arguments
            )
        finally:
            self._waiting -= 1

    def _call(self, deadline: float, function: Callable[..., _T], *arguments: Any) -> _T:
        self.agent.store.wait_at_most(max(0.0, deadline - time.monotonic()))
        return function(self.agent, *arguments)

    def close(self) -> None:
        """Wait for the thread, and close the store."""
        self._thread.shutdown()
        self.agent.close()
