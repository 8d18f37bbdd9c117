"""`python -m clients.helper --key FILE --dir DIR`: the helper of secure sums."""

from __future__ import annotations

if __name__ == "__main__":  # before slow imports
    from fldb_flower.system import startup

    startup.begin()
    startup.require("python -m clients.helper", *startup.SERVICE_EXTRA)

import argparse
import contextlib
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from clients.helper.service import create_app
from clients.helper.sums import Helper
from clients.service import connections
from clients.service.connections import LIMITS
from clients.service.files import read_token
from clients.service.logs import Limiter
from fldb_flower.deployment.keys import load_helper_key
from fldb_flower.errors import DataError, FldbError, SettingsError, one_line
from fldb_flower.privacy.discrete import require_sampler
from fldb_flower.secure.report import MOST_REPORTS
from fldb_flower.system.commands import Parser, bounded
from fldb_flower.system.signals import interruptible

PORT = 8378
_STOP_SECONDS = 40  # for open requests


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add(
        "--key", metavar="FILE", type=Path, required=True,
        help="private key, from `fldb keys helper`",
    )  # fmt: skip
    add(
        "--dir", metavar="DIR", type=Path, required=True,
        help="folder of the answers; created if missing",
    )  # fmt: skip
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=bounded(int, 0, 65535), default=PORT, help="0: any free one (%(default)s)")
    add(
        "--token-file", metavar="FILE", type=Path,
        help="token of the server; created if missing (DIR/token)",
    )  # fmt: skip
    add("--certificate", metavar="FILE", type=Path, help="serve HTTPS with this certificate chain")
    add("--certificate-key", metavar="FILE", type=Path, help="private key of --certificate")
    add(
        "--min-reports", metavar="N", type=bounded(int, 1, MOST_REPORTS), default=1,
        help="refuse sums of fewer reports (%(default)s)",
    )  # fmt: skip
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
    require_sampler()
    with contextlib.suppress(ImportError):  # Windows
        import resource  # noqa: PLC0415

        # The memory has the private keys.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    host, folder = arguments.host, arguments.dir.expanduser()
    signer = load_helper_key(arguments.key.expanduser())
    tls = _tls(arguments.certificate, arguments.certificate_key)
    helper = Helper(folder, signer, min_reports=arguments.min_reports)
    with contextlib.closing(helper), connections.listen(host, arguments.port) as listener:
        token = read_token(arguments.token_file or folder / "token")
        if not tls and not connections.is_loopback(host):
            print(
                f"warning: nothing is encrypted at {host}, not even the token: use --certificate,"
                " or a proxy with TLS on this machine",
                file=sys.stderr,
            )
        scheme = "https" if tls else "http"
        address = connections.address(host, listener)
        print(f"{scheme}://{address} public key {helper.signer}", flush=True)
        app = create_app(helper, token)
        options = {"timeout_graceful_shutdown": _STOP_SECONDS, **tls}
        connections.serve(app, listener, LIMITS, Limiter(token), **options)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; a user error ends it with status 1 and one line on stderr."""
    arguments = _arguments(argv)
    with interruptible(lambda: "stopped"):  # uvicorn raises the signal again after its shutdown
        try:
            serve(arguments)
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")


if __name__ == "__main__":
    main()
