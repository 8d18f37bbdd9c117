"""`python -m simulations.report DIR [DIR ...] [--output FILE]`: one page about many runs.

The page is a single HTML file that needs no other file and no network. The data of the runs is in
it as one block of JSON.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from fldb_flower.system import startup

    startup.begin()

import sys
from collections.abc import Sequence
from pathlib import Path

from fldb_flower.errors import DataError, OutputError, one_line
from fldb_flower.system.commands import Parser, ending_in_one_line
from fldb_flower.system.files import reason_of, replace_file
from fldb_flower.system.progress import progress
from fldb_flower.system.startup import require
from simulations.saved_runs import Unfinished, find_runs


def report(
    folders: Sequence[Path], output: Path | None = None
) -> tuple[Path, int, list[Unfinished]]:
    """Write the page about the runs below folders; return its path, their number, and the others.

    The page is by default ``report.html`` in the first folder.
    """
    require("simulations.report", "report", "plotly", "itables")
    from simulations.report.page import build  # noqa: PLC0415 - needs the extra

    with progress("read", unit="run") as done:
        runs, unfinished = find_runs(folders, done)
    if not runs:
        where = ", ".join(map(str, folders))
        if not unfinished:
            raise DataError(f"there are no runs below {where}")
        first = unfinished[0]
        raise DataError(
            f"none of the {len(unfinished)} runs below {where} is finished;"
            f" the first is {first.path}: {first.reason}"
        )
    path = folders[0] / "report.html" if output is None else output
    with progress("write the page"):
        try:
            replace_file(path, build(runs, unfinished, path.parent).encode())
        except OSError as error:
            raise OutputError(
                f"cannot write {path}: {reason_of(error)}; name another file with --output"
            ) from None
    return path, len(runs), unfinished


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; exit status 1, with one line on stderr, for an error of the user."""
    parser = Parser(description="Write one self-contained page about the runs below folders.")
    parser.add_argument("folders", metavar="DIR", nargs="+", type=Path, help="searched for runs")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="the page (default: report.html in the first DIR)",
    )
    arguments = parser.parse_args(argv)
    with ending_in_one_line():
        path, count, unfinished = report(arguments.folders, arguments.output)
        for item in unfinished:
            print(one_line(f"skipped {item.path}: {item.reason}"), file=sys.stderr)
        print(one_line(f"report: {path} ({count} runs)"))


if __name__ == "__main__":
    main()
