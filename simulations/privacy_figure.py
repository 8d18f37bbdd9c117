"""`python -m simulations.privacy_figure [FOLDER]`: the picture of docs/privacy.md.

``privacy.png`` is drawn from ``docs/results/privacy.json``, by default into ``docs/figures``: the
final regret of FLDB-ONS against epsilon, with a curve for each number of agents. Noise for an
answer is that of one party, a trusted server. Noise for a person is that of the two parties of
secure sums.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from simulations import start

    start.begin()

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fldb_flower.runs.curves import REGRET, errors_text, points
from fldb_flower.runs.plots import save_figure
from fldb_flower.runs.styles import DASHES, MARKERS, SEQUENCE, Style
from simulations.drawing import DEFAULT, Output
from simulations.heterogeneity import run_command, summaries

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {("answer", 1): "per answer", ("person", 2): "per person"}
"""Titles by unit and number of parties that add noise."""

_TICKS = [5, 10, 30, 100, 300, 1000]


def draw_privacy(figure: Figure, rows: list[dict[str, Any]], width: str) -> None:
    """Draw the panels; the last point of a curve is without noise."""
    shape = (2, 1) if width == "column" else (1, 2)
    panels = figure.subplots(*shape, sharex=True, sharey=True).tolist()
    shown = [row for row in rows if row["algorithm"] == "fldb_ons" and row["dimension"] == 5]
    epsilons = sorted({row["epsilon"] for row in shown if row["epsilon"] != "none"})
    places = {epsilon: place for place, epsilon in enumerate([*epsilons, "none"])}
    for axes, (noise, title) in zip(panels, PANELS.items(), strict=True):
        for number, size in enumerate(sorted({row["num_agents"] for row in shown})):
            own = [
                row
                for row in shown
                if row["num_agents"] == size
                and (row["unit"] == "none" or (row["unit"], row["parties"]) == noise)
            ]
            own.sort(key=lambda row: places[row["epsilon"]])
            style = Style(
                label=f"$N$ = {size:,}", color=SEQUENCE[number + 1], dark=SEQUENCE[number + 1],
                dash=DASHES[number], marker=MARKERS[number],
            )  # fmt: skip
            where = [places[row["epsilon"]] for row in own]
            points(axes, [where, *summaries([row["regret"] for row in own])], style, style["label"])
        axes.set_yscale("log")
        axes.set_xticks(list(places.values()), [str(each).removesuffix(".0") for each in places])
        axes.set_title(title)
    errors = errors_text([len(row["regret"]) for row in shown])
    panels[0].set_title(f"{PANELS['answer', 1]}; {errors}")
    for axes in panels if width == "column" else panels[:1]:
        axes.set_ylabel(f"final {REGRET}")
        axes.yaxis.set_ticks(_TICKS, [str(tick) for tick in _TICKS])
        axes.yaxis.set_ticks([], minor=True)
    for axes in panels[-1:] if width == "column" else panels:
        axes.set_xlabel(r"privacy $\epsilon$ (none: without noise)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3 if width == "column" else 5)


def draw(content: Mapping[str, Any], folder: Path, output: Output = DEFAULT) -> list[Path]:
    """Draw the picture from the content of the result file; return its paths."""
    width = output.width or "page"
    return save_figure(
        folder / "privacy.png", lambda figure: draw_privacy(figure, content["rows"], width),
        height=4.6 if width == "column" else 2.9, width=width, formats=output.formats,
    )  # fmt: skip


def main() -> None:
    """Run the command."""
    run_command(__doc__, "privacy.json", draw)


if __name__ == "__main__":
    main()
