"""Addresses to listen on, and limits of the service's connections.

uvicorn limits the size of a request's head and the time after a response. It closes no connection
that sends an incomplete request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from typing import Any, NamedTuple

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fldb_flower.errors import OutputError

_LOG = logging.getLogger("uvicorn.error")
_LOG_SECONDS = 60.0  # between two warnings about too many connections


class Limits(NamedTuple):
    """Limits that keep one client from blocking the others.

    If there are more connections, the one that has been idle between two requests for the longest
    time is closed; if none is idle, the new request is refused with status 503.
    """

    connections: int = 100
    seconds: float = 20.0  # for a request's head, from the previous response, and for its body


LIMITS = Limits()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address, or raise OutputError."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(
            address, family=family, backlog=LIMITS.connections, dualstack_ipv6=dual
        )
    except (OSError, UnicodeError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise OutputError(f"cannot listen on {host}, port {port}: {reason}") from None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def address(host: str, listener: socket.socket) -> str:
    """Return host and port of a socket as in a URL."""
    name = f"[{host}]" if ":" in host else host
    return f"{name}:{listener.getsockname()[1]}"


def serve(app: Any, listener: socket.socket, limits: Limits, **options: Any) -> None:
    """Serve an application with these limits, and uvicorn's options, until a signal stops it."""
    quiet = {"log_level": "warning", "access_log": False, "server_header": False}
    uvicorn.Server(_config(app, limits, **quiet, **options)).run(sockets=[listener])


def _config(app: Any, limits: Limits, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration with these limits."""
    attributes = {"limits": limits, "logged": [float("-inf")]}
    return uvicorn.Config(
        app,
        http=type("Connection", (_Connection,), attributes),
        ws="none",
        backlog=limits.connections,
        limit_concurrency=limits.connections + 1,
        timeout_keep_alive=max(1, round(limits.seconds)),
        **options,
    )


class _Connection(H11Protocol):
    """A connection that is closed if the head of a request does not arrive in time."""

    limits: Limits
    logged: list[float]  # time of the last warning about too many connections
    idle_since: float | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self.stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # which may begin the next request
        if self.cycle.response_complete and not self.transport.is_closing():
            self._wait_for_head()

    def stop_waiting(self) -> None:
        """Remove the deadline for the head of a request."""
        self.idle_since = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _wait_for_head(self) -> None:
        self.stop_waiting()
        self.idle_since = time.monotonic()
        self._deadline = self.loop.call_later(self.limits.seconds, self._abort)

    def _abort(self) -> None:
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
        oldest = min(idle)[-1]
        oldest.stop_waiting()
        self.connections.discard(oldest)
        oldest.transport.abort()
        if time.monotonic() - self.logged[0] > _LOG_SECONDS:
            self.logged[0] = time.monotonic()
            _LOG.warning(
                "more than %d connections: idle ones are closed, the longest idle first",
                self.limits.connections,
            )
