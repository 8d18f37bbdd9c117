"""`fldb rank FILE`: a ranking of items from comparisons.

FILE has a row per comparison: winner,loser or first,second,preference. person, tie and count are
optional columns.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from fldb_flower.system import startup

    startup.begin()

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fldb_flower.errors import FldbError, OutputError, one_line
from fldb_flower.runs.plots import save_figure
from fldb_flower.system.commands import Parser, bounded
from fldb_flower.system.files import reason_of, replace_file
from fldb_flower.system.startup import interruptible
from simulations.api.ranking import Ranking, rank_items

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 20  # rows on the terminal
_DRAWN = 60  # items in the figure


def text_of(ranking: Ranking) -> str:
    """Return the ranking as lines for a terminal."""
    table = ranking.table
    shown = table.head(_SHOWN).copy()
    shown["item"] = [one_line(item)[:40] for item in shown["item"]]
    for column in ("utility", "low", "high"):
        shown[column] = shown[column].map("{:+.2f}".format)
    shown["best"] = shown["best"].map("{:.0%}".format)
    for column in ("wins", "losses", "ties"):
        shown[column] = shown[column].map("{:g}".format)
    lines = [shown.to_string(index=False)]
    if len(table) > _SHOWN:
        lines.append(f"... and {len(table) - _SHOWN} more in the CSV file")
    common, *own = (
        f"{right:.0%} of winners (log loss {loss:.3f})"
        for right, loss in zip(ranking.accuracy, ranking.log_loss, strict=True)
    )
    lines += ["", f"For comparisons that it has not seen, the ranking predicts {common}."]
    if ranking.variance is not None:
        deviation = math.sqrt(ranking.variance)
        differ = f"Utilities of people differ with standard deviation {deviation:.2f}"
        lines.append(f"{differ}; a ranking for each person predicts {own[0]}.")
    return "\n".join([*lines, *(f"Note: {one_line(note)}." for note in ranking.notes)])


def draw(ranking: Ranking, figure: Figure) -> None:
    """Draw utilities as dots with intervals, the best item at the top."""
    table = ranking.table.head(_DRAWN)
    axes, places = figure.add_subplot(), np.arange(len(table))
    utility = table["utility"].to_numpy()
    if ranking.variance:
        spread = math.sqrt(ranking.variance)
        axes.hlines(places, utility - spread, utility + spread, color="#d5dbe1", linewidth=5)
    axes.hlines(places, table["low"], table["high"], color="#0072b2", linewidth=1.2)
    axes.plot(utility, places, "o", color="#0072b2", markersize=4)
    axes.set_yticks(places, [one_line(item)[:30].replace("$", r"\$") for item in table["item"]])
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    what = "utility (logits), with 95% interval"
    if ranking.variance:
        what += "\ngrey: two thirds of people"
    axes.set_xlabel(what)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; exit status 1, with one line on stderr, for an error of the user."""
    parser = Parser(description=__doc__)
    parser.add_argument("file", metavar="FILE", type=Path, help="CSV, TSV or Excel")
    parser.add_argument(
        "--output",
        metavar="NAME",
        type=Path,
        default=Path("ranking"),
        help="write NAME.csv and NAME.png (default: ranking)",
    )
    parser.add_argument(
        "--ridge",
        type=bounded(float, 1e-6, 1e6),
        default=1.0,
        help="precision of the prior of each utility (default: 1)",
    )
    arguments = parser.parse_args(argv)
    with interruptible():
        try:
            ranking = rank_items(arguments.file, arguments.ridge)
            path = arguments.output.with_name(f"{arguments.output.name}.csv")
            try:
                replace_file(path, ranking.table.to_csv(index=False).encode())
            except OSError as error:
                raise OutputError(
                    f"cannot write {path}: {reason_of(error)}; name another file with --output"
                ) from None
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")
        height = 0.9 + 0.16 * min(len(ranking.table), _DRAWN)
        drawn = save_figure(path, lambda figure: draw(ranking, figure), height=height)
        print(text_of(ranking))
        print(one_line(" ".join(["written:", *map(str, [path, *drawn])])))


if __name__ == "__main__":
    main()
