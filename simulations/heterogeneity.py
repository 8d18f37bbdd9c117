"""`python -m simulations.heterogeneity [FOLDER]`: the pictures of docs/personal.md.

They are drawn from ``docs/results/personal.json``, by default into ``docs/figures``:
``heterogeneity.png`` is the final regret against sigma, and ``studies.png`` the regret and the log
loss on studies of real people. ``python -m simulations.documents --recompute personal`` repeats the
runs and draws the pictures again.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from simulations import start

    start.begin()

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fldb_flower.errors import FldbError, one_line
from fldb_flower.runs.curves import REGRET, errors_text, marker_of, points
from fldb_flower.runs.plots import save_figure
from fldb_flower.runs.styles import Style, styles_of
from fldb_flower.system.commands import Parser
from fldb_flower.system.progress import progress
from simulations import measured
from simulations.drawing import DEFAULT, Output, add_options, make_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
ALGORITHMS = {  # of the runs by their name; later ones are drawn over earlier ones
    "ldb": "ldb",
    "alone": "alone",
    "fldb_gd": "fldb_gd",
    "fldb_ons": "fldb_ons",
    "common": "fldb_personal",  # a dashed line, over that of FLDB-ONS
    "personal": "fldb_personal",
}
STYLES: dict[str, Style] = dict(
    zip(reversed(ALGORITHMS), styles_of(list(ALGORITHMS.values())[::-1]), strict=True)
)
_Runs = Mapping[str, measured.Run]


def summary(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return fmean(values), measured.sem(values)


def summaries(values: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the mean of each of several lists, and their standard errors."""
    found = [summary(each) for each in values]
    return [mean for mean, _ in found], [error for _, error in found]


def _label_of(name: str) -> str:
    return name if name == "common" else STYLES[name]["label"]


def draw_heterogeneity(
    figure: Figure, synthetic: Mapping[str, Mapping[str, _Runs]], width: str
) -> None:
    """Draw the final regret of each algorithm against sigma, one panel for each N."""
    panels = _panels(figure, len(synthetic), width, sharex=True, sharey=True)
    for axes, (size, by_sigma) in zip(panels, synthetic.items(), strict=True):
        sigmas = [float(sigma) for sigma in by_sigma]
        for name in ALGORITHMS:
            found = summaries([runs[name]["regret"] for runs in by_sigma.values()])
            points(axes, [sigmas, *found], STYLES[name], _label_of(name))
        axes.set_yscale("log")
        axes.set_title(f"$N={size.removeprefix('n')}$ agents")
    for axes in panels if width == "column" else panels[:1]:
        axes.set_ylabel(f"final {REGRET}")
    for axes in panels[-1:] if width == "column" else panels:
        axes.set_xlabel(r"heterogeneity $\sigma$")
    panels[0].set_title(f"{panels[0].get_title('left')}; {_errors_text(synthetic)}")
    _number(panels[0].yaxis, [10, 30, 100, 300, 1000])
    _legend(figure, panels[0], width)


def draw_studies(figure: Figure, studies: Mapping[str, _Runs], width: str) -> None:
    """Draw the final regret on each study that is replayed, and the log loss on each other one."""
    replayed = {name: runs for name, runs in studies.items() if "regret" in runs["personal"]}
    predicted = {name: runs for name, runs in studies.items() if name not in replayed}
    rows = [len(replayed) + 0.8, len(predicted) + 0.8]
    upper, lower = _panels(
        figure, 2, width, **({"height_ratios": rows} if width == "column" else {})
    )
    upper.set_title(_errors_text(studies))
    _draw_rows(upper, replayed, "regret", f"final {REGRET}")
    _draw_rows(lower, predicted, "log_loss", "log loss of predictions")
    lower.locator_params(axis="x", nbins=6)
    upper.set_xscale("log")
    _number(upper.xaxis, [4, 5, 7, 10, 15, 20])
    _legend(figure, upper, width)


def _errors_text(content: Mapping[str, Any]) -> str:
    return errors_text([run["seeds"] for _, run in measured.runs_in(content)])


def _panels(figure: Figure, count: int, width: str, **options: Any) -> Sequence[Axes]:
    """Return panels, one below the other in a column and side by side on a page."""
    shape = (count, 1) if width == "column" else (1, count)
    panels: Sequence[Axes] = figure.subplots(*shape, **options).tolist()
    return panels


def _number(axis: Axis, ticks: Sequence[int]) -> None:
    axis.set_ticks(ticks, [str(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def _legend(figure: Figure, axes: Axes, width: str) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3 if width == "column" else 6)


def _draw_rows(axes: Axes, studies: Mapping[str, _Runs], measure: str, title: str) -> None:
    """Draw one row per study, with a point per algorithm."""
    shown = [name for name in ALGORITHMS if all(name in runs for runs in studies.values())]
    for place, name in enumerate(shown):
        heights = [row + 0.13 * (place - (len(shown) - 1) / 2) for row in range(len(studies))]
        means, errors = summaries([runs[name][measure] for runs in studies.values()])
        style = STYLES[name]
        axes.errorbar(
            means, heights, xerr=errors, label=_label_of(name), color=style["color"],
            marker=marker_of(style), markeredgewidth=0, linestyle="none", elinewidth=0.8,
            capthick=0.8,
        )  # fmt: skip
    axes.set_yticks(range(len(studies)), list(studies))
    axes.set_ylim(len(studies) - 0.5, -0.5)
    axes.set_xlabel(title)
    axes.grid(visible=False, axis="y")
    for row in range(1, len(studies)):
        axes.axhline(row - 0.5, color="0.7", linewidth=0.6)


def draw(content: Mapping[str, Any], folder: Path, output: Output = DEFAULT) -> list[Path]:
    """Draw both pictures from the content of the result file; return their paths."""
    width = output.width or "page"
    high = width == "column"
    pictures = {
        "heterogeneity": (draw_heterogeneity, content["synthetic"], 4.6 if high else 2.9),
        "studies": (draw_studies, content["studies"], 3.8 if high else 2.6),
    }
    paths = []
    for name, (paint, values, height) in pictures.items():
        paths += save_figure(
            folder / f"{name}.png", lambda figure: paint(figure, values, width),  # noqa: B023
            height=height, width=width, formats=output.formats,
        )  # fmt: skip
    return paths


def run_command(
    description: str | None,
    results: str,
    draw_all: Callable[[Mapping[str, Any], Path, Output], list[Path]],
) -> None:
    """Run a command that draws the pictures of a result file, and prints their paths."""
    assert description is not None
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="of the pictures")
    add_options(parser)
    asked = parser.parse_args()
    try:
        make_folder(asked.folder)
        content = measured.read(measured.FOLDER / results)
        with progress("draw"):
            paths = draw_all(content, asked.folder, Output(asked.width, asked.format))
        for path in paths:
            print(path)
    except FldbError as error:
        sys.exit(f"error: {one_line(error)}")


def main() -> None:
    """Run the command."""
    run_command(__doc__, "personal.json", draw)


if __name__ == "__main__":
    main()
