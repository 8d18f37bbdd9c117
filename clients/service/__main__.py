"""`fldb serve --store duels.db`: a device's duels over HTTP, and a page for people."""

from __future__ import annotations

if __name__ == "__main__":  # before slow imports
    try:
        from fldb_flower.system import startup
    except ImportError:
        import fldb_flower

        found = f"error: {fldb_flower.__file__} shadows fldb-flower's package 'fldb_flower'"
        raise SystemExit(f"{found}: rename it") from None
    startup.begin()

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clients.preference_agent import EXPIRE_AFTER, MOST_SECONDS, PreferenceAgent
from clients.service.limits import LIMITS, Limits
from clients.service.models import MAX_ARMS
from clients.vault import read_config
from fldb_flower.bandit.selection.informative import PURPOSES
from fldb_flower.errors import SettingsError, one_line
from fldb_flower.system.commands import Parser, bounded, ending_in_one_line
from fldb_flower.system.startup import SERVICE_EXTRA, require

if TYPE_CHECKING:
    from clients.service.catalogue import Catalogue

PORT = 8377
_NODE_TOKEN_MODE = 0o640  # at most: the SuperNode's user reads it as a member of the group
_STOP_SECONDS = 40  # time for open requests to end; they wait up to 30 s for a locked store


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("--store", metavar="FILE", type=Path, required=True, help="the device's duels")
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=bounded(int, 0, 65535), default=PORT, help="0 for a free one (%(default)s)")
    add("--token-file", metavar="FILE", type=Path, help="created if missing (STORE.token)")
    add(
        "--arms", metavar="FILE", type=Path,
        help="arms to propose duels between. CSV with the columns arm, text (optional), image"
        " (optional) and one per feature, or JSON: [{key, features, text?, image?}, ...]",
    )  # fmt: skip
    add(
        "--choices", metavar="K", type=bounded(int, 2, MAX_ARMS), default=10,
        help="arms drawn from --arms for each duel (%(default)s)",
    )  # fmt: skip
    add(
        "--expire-after", metavar="SECONDS", type=bounded(float, 1, MOST_SECONDS),
        default=EXPIRE_AFTER, help="time limit for the answer to a duel (%(default).0f)",
    )  # fmt: skip
    add(
        "--purpose", choices=PURPOSES, default=PURPOSES[0],
        help="suggest: show good arms; rank: learn a ranking of all arms (%(default)s)",
    )  # fmt: skip
    add(
        "--half-life", metavar="N", type=bounded(float, 0.01, 1e9),
        help="for tastes that change: an answer has half its weight after N later answers; in a"
        " federation, the server's setting applies (none)",
    )  # fmt: skip
    add(
        "--max-connections", metavar="N", type=bounded(int, 1, 10_000),
        default=LIMITS.connections, help="if exceeded, waiting ones are closed (%(default)s)",
    )  # fmt: skip
    add(
        "--request-seconds", metavar="SECONDS", type=bounded(float, 0.1, 3600),
        default=LIMITS.seconds, help="time limit for a request's head, for its body,"
        " and to read a part of the reply (%(default).0f)",
    )  # fmt: skip
    add(
        "--vault", metavar="FILE", type=Path,
        help="take part in secure sums: TOML file with the federation, its helper and limits",
    )  # fmt: skip
    add(
        "--node-token-file", metavar="FILE", type=Path,
        help="token of the SuperNode, for secure sums only; created if missing (STORE.node-token)",
    )  # fmt: skip
    add("--allow-remote", action="store_true", help="listen beyond this machine, unencrypted")
    return parser.parse_args(argv)


def serve(arguments: argparse.Namespace) -> None:
    """Run the service until a signal stops it; raise FldbError if it cannot start."""
    from clients.service import http  # noqa: PLC0415 - needs the extra, as the next two
    from clients.service.app import Node, create_app, load_page  # noqa: PLC0415
    from clients.service.catalogue import read_arms  # noqa: PLC0415

    host, store = arguments.host, arguments.store.expanduser()
    remote = not http.is_loopback(host)
    if remote and not arguments.allow_remote:
        raise SettingsError(f"--host {host} is reachable from other machines: add --allow-remote")
    if arguments.node_token_file and not arguments.vault:
        raise SettingsError("--node-token-file needs --vault: the token is for secure sums only")
    load_page()  # before anything is created, if its files are missing
    config = read_config(arguments.vault.expanduser()) if arguments.vault else None
    catalogue = read_arms(arguments.arms) if arguments.arms else None
    with http.listen(host, arguments.port) as listener:
        PreferenceAgent(store).close()  # if the store cannot be used, no token is created
        token = http.read_token(arguments.token_file or store.with_name(f"{store.name}.token"))
        node = None
        if config is not None:
            path = arguments.node_token_file or store.with_name(f"{store.name}.node-token")
            node = Node(config, http.read_token(path, _NODE_TOKEN_MODE))
        app = create_app(
            store,
            token,
            node=node,
            catalogue=catalogue,
            choices=arguments.choices,
            expire_after=arguments.expire_after,
            purpose=arguments.purpose,
            half_life=arguments.half_life,
            any_host=arguments.allow_remote,
            body_seconds=arguments.request_seconds,
            connections=arguments.max_connections,
        )
        if remote:
            _say(
                f"warning: anybody who reaches {host} and has the token can read and answer duels;"
                " nothing is encrypted, not even the token"
            )
        print(f"http://{http.address(host, listener)}/#token={token}", flush=True)
        if catalogue is not None:
            _remark(one_line(arguments.arms), catalogue)
        limits = Limits(arguments.max_connections, arguments.request_seconds)
        tokens = [token, *([] if node is None else [node.token])]
        http.serve(
            app, listener, limits, http.Limiter(*tokens), timeout_graceful_shutdown=_STOP_SECONDS
        )


def _remark(arms: str, catalogue: Catalogue) -> None:
    """Print what a person should know about the arms of a file."""
    if catalogue.warning:
        _say(f"warning: {arms}: {catalogue.warning}")
    if catalogue.hides_features:
        _say(f"note: {arms}: an arm with a text or an image is shown without its features")


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; a user error ends it with status 1 and one line on stderr."""
    arguments = _arguments(argv)
    require("fldb serve", *SERVICE_EXTRA)
    with ending_in_one_line("stopped"):  # uvicorn raises the signal again after its shutdown
        serve(arguments)


if __name__ == "__main__":
    main()
