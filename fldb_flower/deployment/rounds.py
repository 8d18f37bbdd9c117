"""`fldb rounds`: check whether a server runs rounds.

The exit status is 0 if a ServerApp is running, 1 if none is, and 2 after an error. A ServerApp
holds a lock on its folder of results, which the system releases when the process ends.
"""

from __future__ import annotations

if __name__ == "__main__":  # before slow imports
    from fldb_flower.system import startup

    startup.begin()

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fldb_flower.errors import one_line
from fldb_flower.system.commands import Parser
from fldb_flower.system.files import is_locked

RUNNING, NOT_RUNNING, ERROR = 0, 1, 2
"""Exit statuses of the command."""


class _Parser(Parser):
    def error(self, message: str) -> NoReturn:
        """Exit with status 2, because status 1 is an answer."""
        print(f"error: {one_line(message)}", file=sys.stderr)
        sys.exit(ERROR)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command; it always ends with SystemExit."""
    parser = _Parser(description=__doc__)
    parser.add_argument(
        "--is-running", metavar="DIR", type=Path, required=True, dest="folder",
        help="whether a ServerApp with this output-dir is running",
    )  # fmt: skip
    folder = parser.parse_args(argv).folder
    try:
        if not folder.is_dir():
            parser.error(f"--is-running {folder}: must be an existing folder, the run's output-dir")
        running = is_locked(folder)
    except OSError as reason:
        parser.error(f"cannot open {folder}: {reason.strerror}")
    print(f"{folder}: {'running' if running else 'not running'}")
    sys.exit(RUNNING if running else NOT_RUNNING)


if __name__ == "__main__":
    main()
