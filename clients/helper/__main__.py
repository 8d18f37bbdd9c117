"""`fldb helper --key FILE --dir DIR`: the helper of secure sums."""

from __future__ import annotations

if __name__ == "__main__":  # before slow imports
    from fldb_flower.system import startup

    startup.begin()
    startup.require("fldb helper", *startup.SERVICE_EXTRA)

import argparse
import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool

from clients.helper.sums import Helper
from clients.service import http
from clients.service.http import BINARY, Guard, Limiter, add_handlers, binary_body, read_token
from clients.service.limits import LIMITS
from fldb_flower.deployment.keys import load_helper_key
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.privacy.discrete import sampler
from fldb_flower.secure.protocol import MOST_REPORTS, to_json
from fldb_flower.system.commands import Parser, bounded, ending_in_one_line

PORT = 8378
MOST_BYTES = 80 * 2**20
"""Largest body of a request: a million reports, and the sizes of their groups."""

BODY_SECONDS = 120.0
"""Time limit for the body of a request."""

_STOP_SECONDS = 40  # time for open requests to end
_KEY_SECONDS = 3600.0  # between two removals of expired keys
_COUNTS = {
    "answers": "Answers that were computed.",
    "refused": "Requests that were refused.",
    "opened": "Reports that were opened.",
    "dropped": "Reports that could not be opened or were repeated.",
}


def create_app(helper: Helper, token: str) -> FastAPI:
    """Return the service of a helper; ``token`` is that of the server."""

    async def remove_expired() -> None:
        while True:
            helper.keys()
            await asyncio.sleep(_KEY_SECONDS)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(remove_expired())
        yield
        task.cancel()

    app = FastAPI(title="Helper of secure sums", openapi_url=None, lifespan=lifespan)
    add_handlers(app)

    @app.post("/sums")
    async def answer(request: Request) -> Response:
        content = await binary_body(request)
        return Response(await run_in_threadpool(helper.answer, content), media_type=BINARY)

    @app.get("/keys")
    async def keys() -> Response:
        content = to_json({"key": helper.keys(), "signer": helper.signer.public_bytes_raw()})
        return Response(content, media_type="application/json")

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        """Counters for Prometheus, without times: the time to draw noise depends on the noise."""
        lines = (
            f"# HELP fldb_helper_{name}_total {text}\n# TYPE fldb_helper_{name}_total counter\n"
            f"fldb_helper_{name}_total {helper.counts[name]}\n"
            for name, text in _COUNTS.items()
        )
        return PlainTextResponse("".join(lines), media_type="text/plain; version=0.0.4")

    app.add_middleware(
        Guard, token=token, any_host=True, body_seconds=BODY_SECONDS,
        public={"/keys", "/health"}, bodies={"/sums": MOST_BYTES},
    )  # fmt: skip
    return app


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__)

    def add(name: str, help: str, metavar: str | None = "FILE", **options: Any) -> None:
        parser.add_argument(name, help=help, metavar=metavar, **{"type": Path, **options})

    add("--key", "private key, from `fldb keys helper`", required=True)
    add("--dir", "folder of the answers; created if missing", "DIR", required=True)
    add("--host", "address to listen on (%(default)s)", None, type=str, default="127.0.0.1")
    port, reports = bounded(int, 0, 65535), bounded(int, 1, MOST_REPORTS)
    add("--port", "port, or 0 for any free one (%(default)s)", None, type=port, default=PORT)
    add("--token-file", "token of the server; created if missing (DIR/token)")
    add("--certificate", "serve HTTPS with this certificate chain")
    add("--certificate-key", "private key of --certificate")
    add("--min-reports", "refuse sums of fewer reports (%(default)s)", "N", type=reports, default=1)
    return parser.parse_args(argv)


def _tls(certificate: Path | None, key: Path | None) -> dict[str, Path]:
    """Return uvicorn's options for HTTPS; none without a certificate."""
    if certificate is None and key is None:
        return {}
    if certificate is None or key is None:
        raise SettingsError("--certificate and --certificate-key are needed together")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:  # includes SSLError
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"cannot use {certificate} with the key {key}: {reason}") from None
    return {"ssl_certfile": certificate, "ssl_keyfile": key}


def serve(arguments: argparse.Namespace) -> None:
    """Run the service until a signal stops it; raise FldbError if it cannot start."""
    sampler()
    with contextlib.suppress(ImportError):  # Windows
        import resource  # noqa: PLC0415

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # private keys are in memory
    host, folder = arguments.host, arguments.dir.expanduser()
    signer = load_helper_key(arguments.key.expanduser())
    tls = _tls(arguments.certificate, arguments.certificate_key)
    helper = Helper(folder, signer, min_reports=arguments.min_reports)
    with contextlib.closing(helper), http.listen(host, arguments.port) as listener:
        token = read_token(arguments.token_file or folder / "token")
        if not tls and not http.is_loopback(host):
            print(
                f"warning: nothing is encrypted at {host}, not even the token: use --certificate,"
                " or a proxy with TLS on this machine",
                file=sys.stderr,
            )
        scheme, address = "https" if tls else "http", http.address(host, listener)
        public = helper.signer.public_bytes_raw().hex()
        print(f"{scheme}://{address} public key {public}", flush=True)
        options = {"timeout_graceful_shutdown": _STOP_SECONDS, **tls}
        http.serve(create_app(helper, token), listener, LIMITS, Limiter(token), **options)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; a user error ends it with status 1 and one line on stderr."""
    with ending_in_one_line("stopped"):  # uvicorn raises the signal again after its shutdown
        serve(_arguments(argv))


if __name__ == "__main__":
    main()
