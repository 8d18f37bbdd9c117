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
from simulations.api.ranking_text import counts_of, names_of, tells_people_apart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAWN = 60  # items in the figure


def draw(ranking: Ranking, figure: Figure) -> None:
    """Draw utilities as dots with intervals, the best item at the top."""
    table = ranking.table.head(_DRAWN)
    axes, places = figure.add_subplot(), np.arange(len(table))
    utility = table["utility"].to_numpy()
    axes.set_title(counts_of(ranking))
    spread = math.sqrt(ranking.variance or 0.0) if tells_people_apart(ranking) else 0.0
    if spread:
        axes.hlines(places, utility - spread, utility + spread, color="#d5dbe1", linewidth=5)
    axes.hlines(places, table["low"], table["high"], color="#0072b2", linewidth=1.2)
    axes.plot(utility, places, "o", color="#0072b2", markersize=4)
    axes.set_yticks(places, [name.replace("$", r"\$") for name in names_of(ranking, _DRAWN, 30)])
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    what = "utility (logits), with 95% interval"
    if spread:
        what += "\ngrey: two thirds of people"
    if ranking.similar:
        what += "\n* compared once, may be misspelt"
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
        help="write NAME.csv, NAME.png and, with people, NAME-people.csv (default: ranking)",
    )
    parser.add_argument(
        "--ridge",
        type=bounded(float, 1e-6, 1e6),
        default=1.0,
        help="precision of the prior of each utility (default: 1)",
    )
    parser.add_argument(
        "--next",
        metavar="N",
        type=bounded(int, 1, 10_000),
        default=0,
        help="write the N most informative pairs to compare next to NAME-next.csv",
    )
    arguments = parser.parse_args(argv)
    with interruptible():
        try:
            ranking = rank_items(arguments.file, arguments.ridge)
            name = arguments.output.name
            path = arguments.output.with_name(f"{name}.csv")
            files = {path: ranking.table.to_csv(index=False)}
            if ranking.people is not None:
                files[path.with_name(f"{name}-people.csv")] = ranking.people.to_csv()
            if arguments.next:
                pairs = ranking.next_pairs(arguments.next)
                files[path.with_name(f"{name}-next.csv")] = pairs.to_csv(index=False)
            for file, text in files.items():
                try:
                    replace_file(file, text.encode())
                except OSError as error:
                    raise OutputError(
                        f"cannot write {file}: {reason_of(error)}; name another file with --output"
                    ) from None
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")
        height = 0.9 + 0.16 * min(len(ranking.table), _DRAWN)
        drawn = save_figure(path, lambda figure: draw(ranking, figure), height=height)
        print(ranking)
        print(one_line(" ".join(["written:", *map(str, [*files, *drawn])])))


if __name__ == "__main__":
    main()
