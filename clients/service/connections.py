"""Addresses to listen on, and limits of the service's connections.

uvicorn limits the size of a request's head and the time after a response. It closes no connection
whose client sends an incomplete request, or does not read the replies.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

from clients.service.logs import PERIOD, Limiter
from fldb_flower.errors import FldbError, OutputError, one_line
from fldb_flower.system.startup import interruptible, leave

_LOG = logging.getLogger("uvicorn.error")
WITH_TOKEN = "with-token"
"""Key in the state of a request that had the right token."""

_HEAD, _BODY, _READER = "the head of a request", "the body", "the client to read"


class Limits(NamedTuple):
    """Limits that keep one client from blocking the others.

    If there are more connections, the one that has waited for the longest time is closed: for a
    request, for its body, or until replies are read. A connection is kept while the service works
    on a request with the token. If that is so for all, the new one is refused with status 503.
    """

    connections: int = 100
    seconds: float = 20.0  # for a request's head, for its body, and to read 64 kB of replies


LIMITS = Limits()


def run(serve: Callable[[], None]) -> None:
    """Run a service; a signal ends it with one line, and a user error with status 1 as well."""
    with interruptible(lambda: "stopped"):  # uvicorn raises the signal again after its shutdown
        try:
            serve()
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")


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


def serve(
    app: Any, listener: socket.socket, limits: Limits, limiter: Limiter, **options: Any
) -> None:
    """Serve an application with these limits, and uvicorn's options, until a signal stops it."""
    quiet = {"log_level": "warning", "access_log": False, "server_header": False}
    limited = {"callback_notify": limiter.notify, "timeout_notify": PERIOD}
    with limiter.installed():
        Server(_config(app, limits, **quiet, **limited, **options)).run(sockets=[listener])


def _config(app: Any, limits: Limits, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration with these limits."""
    return uvicorn.Config(
        app,
        http=type("Connection", (_Connection,), {"limits": limits}),
        ws="none",
        backlog=limits.connections,
        timeout_keep_alive=max(1, round(limits.seconds)),
        **options,
    )


class Server(uvicorn.Server):
    """A server that ends at once on a second signal."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.should_exit:
            leave(sig, "stopped without waiting for open requests")
        super().handle_exit(sig, frame)


class _Connection(H11Protocol):
    """A connection that is closed if its client does not send or read in time."""

    limits: Limits
    since = 0.0
    """Time of the last change of what the connection waits for."""

    _waiting: tuple[str, object] | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update()
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # which may begin the next request
        self._update()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update()

    @property
    def is_kept(self) -> bool:
        """Whether the service works on a request with the token, and has not begun to reply."""
        if self._waiting is not None or self.cycle.response_started:
            return False
        return bool(self.cycle.scope["state"].get(WITH_TOKEN))

    def _update(self) -> None:
        """Begin a deadline if the connection waits for something else than before."""
        waiting = self._awaited()
        if waiting == self._waiting:
            return
        self._waiting, self.since = waiting, time.monotonic()
        self._stop_deadline()
        if waiting is not None and waiting[0] != _BODY:  # Guard replies to a late body
            self._deadline = self.loop.call_later(self.limits.seconds, self._abort)

    def _awaited(self) -> tuple[str, object] | None:
        """Return what the connection waits for, and of which request; None while it is served."""
        if self.flow.write_paused or self.transport.is_closing():
            return _READER, None
        if self.cycle is None or self.cycle.response_complete:
            return _HEAD, self.cycle
        return (_BODY, self.cycle) if self.conn.their_state is h11.SEND_BODY else None

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _abort(self) -> None:
        assert self._waiting is not None
        if self._waiting[0] == _READER:
            _LOG.warning("replies were not read within %g s: closed", self.limits.seconds)
        elif self.conn.trailing_data[0]:  # the beginning of a request
            _LOG.warning("a request's head did not arrive within %g s: closed", self.limits.seconds)
        self.transport.abort()

    def _make_room(self) -> None:
        others = [each for each in self.connections if isinstance(each, _Connection)]
        closable = [each for each in others if each is not self and not each.is_kept]
        if not closable:
            self.app = service_unavailable
            _LOG.warning("all %d connections are busy: a new one is refused", len(others) - 1)
            return
        oldest = min(closable, key=lambda each: each.since)
        self.connections.discard(oldest)
        oldest.transport.abort()
        _LOG.warning(
            "more than %d connections: those that wait are closed, the longest waiting first",
            self.limits.connections,
        )
