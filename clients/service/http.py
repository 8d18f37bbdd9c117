"""HTTP for one machine: limits on connections and bodies, tokens, one-line errors, few logs.

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
import traceback
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

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

from clients.service.limits import LIMITS, Limits
from clients.store import ConflictingAnswerError, DuelExpiredError, UndoError, UnknownDuelError
from clients.validation import first_error
from fldb_flower.errors import DataError, FldbError, OutputError, SecureError, one_line
from fldb_flower.system.files import create_file, read_file
from fldb_flower.system.startup import leave

BINARY = "application/octet-stream"
_LOG = logging.getLogger("uvicorn.error")
_LOGGERS = ("uvicorn.error", "uvicorn.access", "asyncio")
_TICKS = 600  # tenths of a second between two reports of a Limiter
_MOST = 3  # records of a kind in each period


class Limiter(logging.Filter):
    """Logs the first records of each kind in a minute, and then the last one and their number.

    Records are of one kind if they have the same text before arguments are inserted, and the same
    place of the exception, if any. ``tokens`` are replaced in messages.
    """

    def __init__(self, *tokens: str) -> None:
        super().__init__()
        self._tokens = re.compile("|".join(map(re.escape, tokens)))
        self._seen: dict[Hashable, tuple[int, logging.LogRecord]] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Filter the records of uvicorn and asyncio in this block."""
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)
        try:
            yield
        finally:
            for name in _LOGGERS:
                logging.getLogger(name).removeFilter(self)
            self.report()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged now."""
        _, error, trace = record.exc_info or (None, None, None)
        if isinstance(error, asyncio.CancelledError):  # uvicorn logs their number
            return False
        places = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace)]
        text = str(record.msg).partition("\n")[0]
        kind = record.name, text, type(error), *places[-1:]
        record.msg, record.args = self._tokens.sub("TOKEN", record.getMessage()), None
        number = self._seen[kind][0] + 1 if kind in self._seen else 1
        self._seen[kind] = number, record
        return number <= _MOST

    def report(self) -> None:
        """Log how many records of each kind were not logged, and begin a new period."""
        seen, self._seen = self._seen, {}
        for number, last in seen.values():
            if number > _MOST + 1:
                last.msg = f"{last.msg} (and {number - _MOST - 1} more in the last minute)"
            if number > _MOST:
                logging.getLogger(last.name).callHandlers(last)  # not filtered


WITH_TOKEN = "with-token"
"""Key in the state of a request that had the right token."""

# What a connection waits for.
_HEAD, _BODY, _SERVICE, _READER = "a request's head", "its body", "the reply", "the client to read"


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
    config = uvicorn.Config(
        app,
        http=type("Connection", (_Connection,), {"limits": limits}),
        ws="none",
        backlog=limits.connections,
        timeout_keep_alive=max(1, round(limits.seconds)),
        log_level="warning",
        access_log=False,
        server_header=False,
        **options,
    )
    with limiter.installed():
        _Server(config, limiter).run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that looks at its connections every tenth of a second."""

    def __init__(self, config: uvicorn.Config, limiter: Limiter) -> None:
        super().__init__(config)
        self._limiter = limiter

    async def on_tick(self, counter: int) -> bool:
        for connection in list(self.server_state.connections):
            if isinstance(connection, _Connection):
                connection.update()
        if counter % _TICKS == 0:
            self._limiter.report()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:  # a second signal
            leave(sig, "stopped without waiting for open requests")
        super().handle_exit(sig, frame)


class _Connection(H11Protocol):
    """A connection that is closed if its client does not send or read in time."""

    limits: Limits
    _waiting: tuple[str, object] = "", None
    _since: float  # time of the last change of what the connection waits for
    _read = 0  # number of times the client has read waiting replies

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = time.monotonic()
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read += 1

    def update(self) -> None:
        """Update what the connection waits for; close it after waiting for too long."""
        waiting, now, limit = self._awaited(), time.monotonic(), self.limits.seconds
        if waiting != self._waiting:
            self._waiting, self._since = waiting, now
        elif waiting[0] in {_HEAD, _READER} and now > self._since + limit:  # Guard limits bodies
            if waiting[0] == _READER:
                _LOG.warning("replies were not read within %g s: closed", limit)
            elif self.conn.trailing_data[0]:  # the beginning of a request
                _LOG.warning("a request's head did not arrive within %g s: closed", limit)
            self.transport.abort()

    def _awaited(self) -> tuple[str, object]:
        """Return what the connection waits for, and the request."""
        if self.flow.write_paused or self.transport.is_closing():
            return _READER, self._read
        if self.cycle is None or self.cycle.response_complete:
            return _HEAD, self.cycle
        return (_BODY if self.conn.their_state is h11.SEND_BODY else _SERVICE), self.cycle

    def _is_kept(self) -> bool:
        """Return whether the service works on a request with the token, with no reply yet."""
        if self._waiting[0] != _SERVICE or self.cycle.response_started:
            return False
        return bool(self.cycle.scope["state"].get(WITH_TOKEN))

    def _make_room(self) -> None:
        others = [each for each in self.connections if isinstance(each, _Connection)]
        for each in others:
            each.update()
        closable = [each for each in others if each is not self and not each._is_kept()]
        if not closable:
            self.app = service_unavailable
            _LOG.warning("all %d connections are busy: a new one is refused", len(others) - 1)
            return
        oldest = min(closable, key=lambda each: each._since)
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


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)


def add_handlers(app: FastAPI) -> None:
    """Reply to every exception with one line of JSON."""
    for kind in (FldbError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _on_error)


def problem(status: int, detail: object, **headers: str) -> JSONResponse:
    """Return the reply for an error."""
    return JSONResponse({"detail": one_line(detail)}, status, headers)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, FldbError):
        return problem(status_of(error), error)
    if isinstance(error, RequestValidationError):
        return problem(422, _invalid(request, error))
    if not isinstance(error, HTTPException):
        return problem(500, "internal error: see the output of the service")
    detail, headers, path = error.detail, dict(error.headers or {}), request.url.path[:200]
    if error.status_code == 400 and error.__cause__ is not None:
        detail = f"the body cannot be read: {error.__cause__}"
    elif error.status_code == 404 and detail == "Not Found":
        described = ": /docs describes the endpoints" if request.app.openapi_url else ""
        detail = f"there is nothing at {path}{described}"
    elif error.status_code == 405:
        detail = f"{request.method} is not allowed at {path}: use {headers.get('Allow', 'GET')}"
    return problem(error.status_code, detail, **headers)


def _invalid(request: Request, error: RequestValidationError) -> str:
    first, as_json = error.errors()[0], "send JSON, as Content-Type: application/json"
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {error.__cause__}"
    if first["loc"] == ("body",) and first["type"] == "missing":
        return f"the body is required: {as_json}"
    if isinstance(first["input"], bytes):
        kind = request.headers.get("content-type")
        sent = "no Content-Type" if kind is None else f"Content-Type: {kind[:100]}"
        return f"the body has {sent}: {as_json}"
    return first_error(error.errors(), "the body")


def read_token(path: Path, mode: int = 0o600) -> str:
    """Return the token in a file; create the file if it does not exist.

    A line on stderr warns if users other than those of ``mode`` can read it.
    """
    try:
        if not path.exists():
            with contextlib.suppress(FileExistsError):  # another process has just created it
                create_file(path, f"{secrets.token_urlsafe()}\n".encode())
        token = read_file(path, 2**12).decode(errors="replace").strip()
        if stat.S_IMODE(path.stat().st_mode) & 0o077 & ~mode:
            warning = one_line(f"warning: other users can read {path}: chmod {mode:o}")
            print(warning, file=sys.stderr)
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
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content-Security-Policy of replies that are not pages."""
_ASSETS = "/static-offline-docs/"  # where fastapi-offline serves the files of /docs
_THIS_MACHINE = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)


@dataclass
class Guard:
    """Refuse other host names, wrong tokens, and bodies that are too large or too slow.

    Requests need ``token``, unless their path is ``public`` or has another token in ``tokens``.
    ``policies`` are values of Content-Security-Policy by path, and ``bodies`` limits of bodies.
    """

    app: ASGIApp
    token: str
    any_host: bool
    body_seconds: float
    public: Collection[str]
    tokens: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict)
    bodies: Mapping[str, int] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        most = self.bodies.get(path, MAX_BODY)
        needed = None
        if path not in self.public and not path.startswith(_ASSETS):
            needed = self.tokens.get(path, self.token)
        refusal = self._refusal(Headers(scope=scope), needed, most)
        if refusal is None and needed is not None:
            scope.setdefault("state", {})[WITH_TOKEN] = True
        request = f"{scope['method']} {path[:100]}"
        receive = _limited(receive, request, self.body_seconds, most)
        policy = self.policies.get(path, NOTHING)
        await (refusal or self.app)(scope, receive, _with_headers(send, policy))

    def _refusal(self, headers: Headers, needed: str | None, most: int) -> JSONResponse | None:
        # DNS rebinding: a site can point its own name at 127.0.0.1, and its pages may then connect.
        if not self.any_host and not _THIS_MACHINE.fullmatch(headers.get("host", "")):
            return problem(400, "use 127.0.0.1, localhost or [::1] as the host name")
        if needed is not None:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            valid = secrets.compare_digest(token.strip().encode(), needed.encode())
            if scheme.lower() != "bearer" or not valid:
                detail = "the token is missing or wrong: send Authorization: Bearer TOKEN"
                return problem(401, detail, **{"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            return problem(413, _too_large(most), Connection="close")
        return None


def _with_headers(send: Send, policy: str) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Content-Security-Policy"] = policy
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
