"""HTTP for one machine: limits of connections and bodies, tokens, errors as one line, few logs.

uvicorn limits the size of a request's head and the time after a response. It closes no connection
whose client sends an incomplete request, or does not read the replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import secrets
import socket
import stat
import sys
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple

import h11
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

from clients.store import (
    ConflictingAnswerError,
    DuelExpiredError,
    UndoError,
    UnknownDuelError,
    database,
)
from clients.validation import first_error
from fldb_flower.errors import DataError, FldbError, OutputError, SecureError, one_line
from fldb_flower.system.commands import ending_in_one_line
from fldb_flower.system.files import create_file, read_file
from fldb_flower.system.startup import leave

PERIOD = 60
"""Seconds between two reports of :class:`Limiter`."""

_MOST = 3  # records of a kind in each period
_LOGGERS = ("uvicorn.error", "uvicorn.access", "asyncio")


class _Dropped(NamedTuple):
    number: int
    last: logging.LogRecord


class Limiter(logging.Filter):
    """Limits the records of each kind, and counts the others.

    Records are of one kind if they have the same text before arguments are inserted, and the same
    place of the exception, if any. ``tokens`` are replaced in messages.
    """

    def __init__(self, *tokens: str) -> None:
        super().__init__()
        self._tokens = tokens
        self._passed: dict[Hashable, int] = {}
        self._dropped: dict[Hashable, _Dropped] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Filter the records of uvicorn and asyncio in this block."""
        loggers = [logging.getLogger(name) for name in _LOGGERS]
        for logger in loggers:
            logger.addFilter(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(self)
            self.report()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged now."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):  # uvicorn logs their number
            return False
        kind = _kind(record, error)
        message = record.getMessage()
        for token in self._tokens:
            message = message.replace(token, "TOKEN")
        record.msg, record.args = message, None
        self._passed[kind] = self._passed.get(kind, 0) + 1
        if self._passed[kind] <= _MOST:
            return True
        number = self._dropped[kind].number if kind in self._dropped else 0
        self._dropped[kind] = _Dropped(number + 1, record)
        return False

    async def notify(self) -> None:
        """Report, as uvicorn calls it every :data:`PERIOD`."""
        self.report()

    def report(self) -> None:
        """Log how many records of each kind were not logged, and begin a new period."""
        dropped, self._dropped, self._passed = self._dropped, {}, {}
        for number, last in dropped.values():
            if number > 1:
                last.msg = f"{last.msg} (and {number - 1} more in the last minute)"
            logging.getLogger(last.name).callHandlers(last)  # not filtered


def _kind(record: logging.LogRecord, error: BaseException | None) -> Hashable:
    place = None
    if error is not None and (trace := error.__traceback__) is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        place = trace.tb_frame.f_code, trace.tb_lineno
    return record.name, str(record.msg).partition("\n")[0], type(error), place


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
    with ending_in_one_line("stopped"):  # uvicorn raises the signal again after its shutdown
        serve()


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


_STATUS = {
    UnknownDuelError: 404,
    ConflictingAnswerError: 409,
    UndoError: 409,
    DuelExpiredError: 410,
    DataError: 422,
    SecureError: 409,
    OutputError: 503,
}


def add_handlers(app: FastAPI) -> None:
    """Reply to every exception with one line of JSON."""
    app.add_exception_handler(FldbError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_refusal)
    app.add_exception_handler(Exception, _on_bug)


def problem(status: int, detail: object, **headers: str) -> JSONResponse:
    """Return the reply for an error."""
    return JSONResponse({"detail": one_line(detail)}, status, headers)


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)


async def _on_error(_request: Request, error: Exception) -> JSONResponse:
    return problem(status_of(error), error)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first, as_json = error.errors()[0], "send JSON, as Content-Type: application/json"
    if first["type"] == "json_invalid":
        return problem(422, f"the body is not JSON: {error.__cause__}")
    if first["loc"] == ("body",) and first["type"] == "missing":
        return problem(422, f"the body is required: {as_json}")
    if isinstance(first["input"], bytes):
        kind = request.headers.get("content-type")
        sent = "no Content-Type" if kind is None else f"Content-Type: {kind[:100]}"
        return problem(422, f"the body has {sent}: {as_json}")
    return problem(422, first_error(error.errors(), "the body"))


async def _on_refusal(request: Request, error: Exception) -> JSONResponse:
    """Reply to requests that reach no endpoint, with more detail than the framework's."""
    assert isinstance(error, HTTPException)
    detail, headers, path = error.detail, dict(error.headers or {}), request.url.path[:200]
    if error.status_code == 400 and error.__cause__ is not None:
        detail = f"the body cannot be read: {_why_unreadable(error.__cause__)}"
    elif error.status_code == 404 and detail == "Not Found":
        described = ": /docs describes the endpoints" if request.app.openapi_url else ""
        detail = f"there is nothing at {path}{described}"
    elif error.status_code == 405:
        allowed = headers.get("Allow") or headers.get("allow") or "GET"
        detail = f"{request.method} is not allowed at {path}: use {allowed}"
    return problem(error.status_code, detail, **headers)


def _why_unreadable(cause: BaseException) -> str:
    if isinstance(cause, UnicodeDecodeError):
        return f"byte {cause.start} is 0x{cause.object[cause.start]:02x}, which is not UTF-8"
    if isinstance(cause, RecursionError):
        return "its JSON is nested too deeply"
    if isinstance(cause, ValueError):  # Python limits the length of integers
        return f"it contains an integer of more than {sys.get_int_max_str_digits()} digits"
    return str(cause)


async def _on_bug(_request: Request, _error: Exception) -> JSONResponse:
    return problem(500, "internal error: see the output of the service")


# Values of Content-Security-Policy: for replies that are not pages, and for /docs.
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
DOCS = (  # Swagger UI starts with an inline script; the page contains no data but /openapi.json
    f"{NOTHING}; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'"
)

_MOST_BYTES = 2**12  # of a token


def read_token(path: Path, mode: int = 0o600) -> str:
    """Return the token in a file; create the file if it does not exist.

    If other users can read it than ``mode`` allows, a line on stderr warns of it.
    """
    try:
        if not path.exists():
            with contextlib.suppress(FileExistsError):  # another process has just created it
                create_file(path, f"{secrets.token_urlsafe()}\n".encode())
        token = read_file(path, _MOST_BYTES).decode().strip()
        if stat.S_IMODE(path.stat().st_mode) & 0o077 & ~mode:
            print(
                one_line(f"warning: other users can read {path}: chmod {mode:o}"), file=sys.stderr
            )
    except UnicodeDecodeError:
        token = ""
    except OSError as error:
        raise OutputError(f"cannot use the token file {path}: {error.strerror}") from None
    if not re.fullmatch(r"[\w.~+/=-]{16,}", token, re.ASCII):
        raise DataError(
            f"{path} does not contain a token (16 or more letters and digits): delete the file, and"
            " the next start creates one"
        )
    return token


MAX_BODY = 32 * 2**20
"""Largest body of a request, in bytes."""
MAX_NODE_BODY = 64 * 2**20
"""Largest body of a request of the SuperNode: a broadcast may contain a matrix, (d, d)."""
BINARY = "application/octet-stream"
DEADLINE: ContextVar[float] = ContextVar("deadline")
"""Until when this request may wait for locks of other processes, all in all."""
_NODE = "/node"
_ASSETS = "/static-offline-docs/"  # where fastapi-offline serves the files of /docs
_PUBLIC = {"/", "/health", "/docs", "/openapi.json"}
_LOG = logging.getLogger("uvicorn.error")


class Guard:
    """Refuse other host names, wrong tokens, and bodies that are too large or too slow.

    The parameters are those of :func:`~clients.service.app.create_app`; ``policies`` are values of
    Content-Security-Policy by path, ``public`` are the paths that need no token, and ``bodies`` are
    limits of bodies by path.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        any_host: bool,
        body_seconds: float,
        node_token: str | None = None,
        policies: Mapping[str, str] = MappingProxyType({}),
        public: Collection[str] = _PUBLIC,
        bodies: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._app = app
        self._token = token.encode()
        self._node_token = None if node_token is None else node_token.encode()
        self._any_host = any_host
        self._body_seconds = body_seconds
        self._policies = policies
        self._public = public
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope["path"], Headers(scope=scope))
        if refusal is None and self._expected(scope["path"]) is not None:
            scope.setdefault("state", {})[WITH_TOKEN] = True
        app = refusal or self._app
        DEADLINE.set(time.monotonic() + database.BUSY_SECONDS)
        request = f"{scope['method']} {scope['path'][:100]}"
        receive = _limited(receive, request, self._body_seconds, self._most(scope["path"]))
        await app(scope, receive, self._with_headers(scope["path"], send))

    def _refusal(self, path: str, headers: Headers) -> JSONResponse | None:
        # DNS rebinding: a site can point its own name at 127.0.0.1, and its pages may then connect.
        if not self._any_host and not _is_this_machine(headers.get("host", "")):
            return problem(400, "use 127.0.0.1, localhost or [::1] as the host name")
        expected = self._expected(path)
        if expected is not None:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            valid = secrets.compare_digest(token.strip().encode(), expected)
            if scheme.lower() != "bearer" or not valid:
                detail = "the token is missing or wrong: send Authorization: Bearer TOKEN"
                return problem(401, detail, **{"WWW-Authenticate": "Bearer"})
        length, most = headers.get("content-length", "0"), self._most(path)
        if length.isdecimal() and int(length) > most:
            return problem(413, _too_large(most), Connection="close")
        return None

    def _most(self, path: str) -> int:
        return self._bodies.get(path, MAX_NODE_BODY if path == _NODE else MAX_BODY)

    def _expected(self, path: str) -> bytes | None:
        """Return the token that a path needs, or None if it needs none."""
        if path == _NODE:
            return self._node_token  # without one, the endpoint replies that there is no vault
        return None if path in self._public or path.startswith(_ASSETS) else self._token

    def _with_headers(self, path: str, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = self._policies.get(path, NOTHING)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Cache-Control"] = "no-store"
            await send(message)

        return send_with_headers


async def binary_body(request: Request) -> bytes:
    """Return the body of a request that must be binary."""
    if request.headers.get("content-type") != BINARY:
        raise HTTPException(415, f"send the request as Content-Type: {BINARY}")
    return await request.body()


def _is_this_machine(host: str) -> bool:
    return re.fullmatch(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", host, re.I) is not None


def _too_large(most: int) -> str:
    return f"the body is larger than {most // 2**20} MiB"


def _limited(receive: Receive, request: str, seconds: float, most: int) -> Receive:
    """Return a ``receive`` that refuses a body that is too large or takes too long to arrive."""
    left, arriving = most, True  # the body may be longer than its Content-Length, or have none
    deadline = time.monotonic() + seconds

    async def receive_in_time() -> Message:
        nonlocal left, arriving
        if not arriving:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), deadline - time.monotonic())
        except TimeoutError:
            _LOG.warning("%s: the body did not arrive within %g s", one_line(request), seconds)
            detail = f"the body did not arrive within {seconds:g} s"
            raise HTTPException(408, detail, {"Connection": "close"}) from None
        left -= len(message.get("body", b""))
        arriving = message["type"] == "http.request" and message.get("more_body", False)
        if left < 0:
            raise HTTPException(413, _too_large(most), {"Connection": "close"})
        return message

    return receive_in_time
