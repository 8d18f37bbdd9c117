"""`fldb rounds`: check whether a server runs rounds, or whether one was counted recently.

The exit status is 0 for yes, 1 for no, and 2 after an error. A ServerApp holds a lock on its folder
of results, which the system releases when the process ends.
"""

from __future__ import annotations

if __name__ == "__main__":  # before slow imports
    from fldb_flower.system import startup

    startup.begin()

import csv
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

from fldb_flower.errors import one_line
from fldb_flower.system.commands import Parser
from fldb_flower.system.files import is_locked

YES, NO, ERROR = 0, 1, 2
"""Exit statuses of the command."""

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class _Parser(Parser):
    def error(self, message: str) -> NoReturn:
        """Exit with status 2, because status 1 is an answer."""
        print(f"error: {one_line(message)}", file=sys.stderr)
        sys.exit(ERROR)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command; it always ends with SystemExit."""
    parser = _Parser(description=__doc__)
    checks = parser.add_mutually_exclusive_group(required=True)
    checks.add_argument(
        "--is-running", metavar="DIR", help="whether a ServerApp with this output-dir is running"
    )
    checks.add_argument(
        "--max-age", metavar=("AGE", "DIR"), nargs=2,
        help="whether the last counted round began at most this long ago, such as 90s, 30m, 2h, 1d",
    )  # fmt: skip
    options = parser.parse_args(argv)
    name, (age, text) = "--is-running", options.max_age or ("", options.is_running)
    folder = Path(text)
    if options.max_age:
        name = f"--max-age {age}"
        if not re.fullmatch(r"[1-9]\d{0,5}[smhd]", age):
            parser.error(f"{name}: must be a number of seconds, minutes, hours or days, as 30m")
    try:
        if not folder.is_dir():
            parser.error(f"{name} {folder}: must be an existing folder, the run's output-dir")
        if options.max_age:
            last = _last_round(folder / "rounds.csv")
            found = "no round was counted" if last is None else f"the last round began {last}"
            oldest = datetime.now(UTC) - timedelta(**{_UNITS[age[-1]]: int(age[:-1])})
            is_true = last is not None and last >= oldest
        else:
            is_true = is_locked(folder)
            found = "running" if is_true else "not running"
    except OSError as reason:
        parser.error(f"cannot open {reason.filename or folder}: {reason.strerror}")
    except (KeyError, TypeError, ValueError):
        parser.error(f"{folder / 'rounds.csv'}: not a file of rounds")
    print(f"{folder}: {found}")
    sys.exit(YES if is_true else NO)


def _last_round(path: Path) -> datetime | None:
    """Return when the last counted round began; None before the first."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        times = [row["time"] for row in csv.DictReader(file)]
    return datetime.fromisoformat(times[-1]) if times else None


if __name__ == "__main__":
    main()
