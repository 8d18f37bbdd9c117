"""Connections of the service: how many there may be, and how long a request may take to arrive.

uvicorn limits the size of a request's head and what follows a response. It does not end a
connection that sends no complete request, nor a body that never ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, NamedTuple

import uvicorn
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

from fldb_flower.errors import one_line

_LOG = logging.getLogger("uvicorn.error")
_LOG_SECONDS = 60.0  # between two lines about connections that made room


class Limits(NamedTuple):
    """What one client can take from the others.

    Attributes
    ----------
    connections : int
        Open at once. Where there are more, those that are between two requests are closed, the
        longest idle first; where all have a request, a new one is refused with status 503.
    seconds : float
        For a request's head to arrive, counted from the connection or the response before; and
        for its body.
    """

    connections: int = 100
    seconds: float = 20.0


def config(app: Any, limits: Limits, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration with these limits."""
    connections = {"limits": limits, "logged": [float("-inf")]}
    return uvicorn.Config(
        app,
        http=type("Connection", (_Connection,), connections),
        ws="none",
        backlog=limits.connections,
        limit_concurrency=limits.connections + 1,
        timeout_keep_alive=max(1, round(limits.seconds)),
        **options,
    )


class _Connection(H11Protocol):
    """One connection, closed if a request's head does not arrive in time."""

    limits: Limits
    logged: list[float]  # when a line about too many connections was last written
    idle_since: float | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # which may begin the next request
        if self.cycle.response_complete and not self.transport.is_closing():
            self._wait_for_head()

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self.idle_since = time.monotonic()
        self._deadline = self.loop.call_later(self.limits.seconds, self._give_up)

    def _stop_waiting(self) -> None:
        self.idle_since = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self.conn.trailing_data[0]:  # the beginning of a request
            _LOG.warning("a request's head did not arrive within %g s: closed", self.limits.seconds)
        self.transport.abort()

    def _make_room(self) -> None:
        idle = [
            (each.idle_since, number, each)
            for number, each in enumerate(self.connections)
            if isinstance(each, _Connection) and each.idle_since is not None and each is not self
        ]
        if not idle:
            return  # limit_concurrency refuses the request
        longest = min(idle)[-1]
        longest._stop_waiting()
        self.connections.discard(longest)
        longest.transport.abort()
        if time.monotonic() - self.logged[0] > _LOG_SECONDS:
            self.logged[0] = time.monotonic()
            _LOG.warning(
                "more than %d connections: idle ones are closed, the longest idle first",
                self.limits.connections,
            )


def limited(receive: Receive, what: str, most_bytes: int, seconds: float) -> Receive:
    """Return a ``receive`` that refuses a body that is too large or arrives too slowly.

    Parameters
    ----------
    receive : callable
        ASGI's.
    what : str
        The request, for the log.
    most_bytes : int
        Of a body: its length need not be announced.
    seconds : float
        For the whole body to arrive.
    """
    left, arriving = most_bytes, True
    deadline = time.monotonic() + seconds

    async def receive_in_time() -> Message:
        nonlocal left, arriving
        if not arriving:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), deadline - time.monotonic())
        except TimeoutError:
            line = f"the body did not arrive within {seconds:g} s"
            _LOG.warning("%s", one_line(f"{what}: {line}"))
            raise HTTPException(408, line, {"Connection": "close"}) from None
        left -= len(message.get("body", b""))
        arriving = message["type"] == "http.request" and message.get("more_body", False)
        if left < 0:
            raise HTTPException(413, too_large(most_bytes), {"Connection": "close"})
        return message

    return receive_in_time


def too_large(most_bytes: int) -> str:
    """Return the reason why a body is refused."""
    return f"the body is larger than {most_bytes // 2**20} MiB"
