"""The helper over HTTP, as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool

from clients.helper.sums import Helper
from clients.service.errors import add_handlers
from clients.service.guard import BINARY, Guard, binary_body

MOST_BYTES = 80 * 2**20
"""Largest body of a request: a million reports, and the sizes of their groups."""

BODY_SECONDS = 120.0
"""Time limit for the body of a request."""

_KEY_SECONDS = 3600.0  # between two removals of expired keys
_COUNTS = {
    "answers": "Answers that were computed.",
    "refused": "Requests that were refused.",
    "opened": "Reports that were opened.",
    "dropped": "Reports that did not open, or were repeated.",
}


def create_app(helper: Helper, token: str, *, body_seconds: float = BODY_SECONDS) -> FastAPI:
    """Return the service of a helper; ``token`` is that of the server."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(_remove_expired(helper))
        yield
        task.cancel()

    app = FastAPI(title="Helper of secure sums", openapi_url=None, lifespan=lifespan)
    add_handlers(app)

    @app.post("/sums")
    async def answer(request: Request) -> Response:
        content = await binary_body(request)
        return Response(await run_in_threadpool(helper.answer, content), media_type=BINARY)

    @app.get("/keys")
    async def keys() -> dict[str, Any]:
        return {"key": helper.keys().to_fields(), "signer": helper.signer}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(_metrics(helper), media_type="text/plain; version=0.0.4")

    app.add_middleware(
        Guard, token=token, any_host=True, body_seconds=body_seconds,
        public={"/keys", "/health"}, bodies={"/sums": MOST_BYTES},
    )  # fmt: skip
    return app


async def _remove_expired(helper: Helper) -> None:
    while True:
        helper.keys()
        await asyncio.sleep(_KEY_SECONDS)


def _metrics(helper: Helper) -> str:
    """Return the counters in the text format of Prometheus.

    Times are not among them: that of drawing noise depends on the noise.
    """
    values = [(name, text, helper.counts[name]) for name, text in _COUNTS.items()]
    return "".join(
        f"# HELP fldb_helper_{name}_total {text}\n"
        f"# TYPE fldb_helper_{name}_total counter\n"
        f"fldb_helper_{name}_total {value}\n"
        for name, text, value in values
    )
