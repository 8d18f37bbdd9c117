"""`fldb check`: measure how long this device takes to start the reply to a message.

Flower starts a process for each message, and abandons it if it does not report within 30 seconds.
"""

from __future__ import annotations

if __name__ == "__main__":  # before slow imports
    from fldb_flower.system import startup

    startup.begin()

import subprocess
import sys
import time
from collections.abc import Sequence

from fldb_flower.errors import FederationError
from fldb_flower.system.commands import Parser, ending_in_one_line

LIMIT_SECONDS = 30
"""Flower's ``HEARTBEAT_DEFAULT_INTERVAL``."""
SLOW_SECONDS = 10
"""Above this time, a warning is printed, since other processes slow the start down."""
FLOWERS_IMPORTS = (
    "from importlib.metadata import entry_points\n"
    "next(iter(entry_points(group='console_scripts', name='flwr-clientapp'))).load()\n"
)
"""Python code that imports what Flower's process for a message imports."""
_MOST_SECONDS = 2 * LIMIT_SECONDS
_ADVICE = "see 'A device never replies' in docs/deployment/operation.md"


def start_seconds(
    code: str = f"{FLOWERS_IMPORTS}import fldb_flower.client_app, clients.device, clients.relay",
) -> float:
    """Return the duration of a process that imports what the reply to a message needs."""
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=False, timeout=_MOST_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise FederationError(
            f"a process for one message does not start within {_MOST_SECONDS} s, and Flower waits"
            f" {LIMIT_SECONDS} s: {_ADVICE}"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FederationError(f"a process for one message fails: {last}")
    return time.perf_counter() - begin


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; exit status 1, with an error on stderr, if the device could not reply."""
    Parser(description=__doc__).parse_args(argv)
    with ending_in_one_line():
        seconds = start_seconds()
    line = (
        f"a process for one message starts in {seconds:.1f} s, and Flower waits {LIMIT_SECONDS} s"
    )
    if seconds > LIMIT_SECONDS:
        sys.exit(f"error: {line}: {_ADVICE}")
    if seconds > SLOW_SECONDS:
        print(f"warning: {line}: {_ADVICE}", file=sys.stderr)
    else:
        print(line)


if __name__ == "__main__":
    main()
