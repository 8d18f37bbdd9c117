"""Middleware: which requests are accepted, limits of their bodies, and headers of every reply."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Collection, Mapping
from types import MappingProxyType

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clients.service.connections import WITH_TOKEN
from clients.service.errors import problem
from clients.service.files import NOTHING
from clients.service.worker import begin_request
from fldb_flower.errors import one_line

MAX_BODY = 32 * 2**20
"""Largest body of a request, in bytes."""
MAX_NODE_BODY = 64 * 2**20
"""Largest body of a request of the SuperNode: a broadcast may contain a matrix, (d, d)."""
BINARY = "application/octet-stream"
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
        begin_request()
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
