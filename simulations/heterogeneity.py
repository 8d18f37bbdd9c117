"""`python -m simulations.heterogeneity [FOLDER]`: the pictures of docs/personal.md.

They are drawn from ``docs/results/personal.json``, by default into ``docs/figures``:
``heterogeneity.png`` is the final regret against sigma, and ``studies.png`` the regret and the log
loss on studies of real people. ``python -m simulations.documents --recompute personal`` repeats the
runs and draws the pictures again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fldb_flower.errors import FldbError, one_line
from fldb_flower.runs.plots import save_figure
from fldb_flower.system.commands import Parser
from simulations import measured

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
STYLES: dict[str, tuple[str, str, str]] = {  # label, color, marker
    "ldb": ("LDB", "tab:gray", "v"),
    "alone": ("alone", "tab:orange", "s"),
    "fldb_gd": ("FLDB-GD", "tab:purple", "D"),
    "fldb_ons": ("FLDB-ONS", "tab:green", "^"),
    "common": ("common", "tab:red", "X"),
    "personal": ("FLDB-Personal", "tab:blue", "o"),
}
_Runs = Mapping[str, measured.Run]


def summary(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return fmean(values), measured.sem(values)


def draw_heterogeneity(figure: Any, synthetic: Mapping[str, Mapping[str, _Runs]]) -> None:
    """Draw the final regret of each algorithm against sigma, one panel for each N."""
    panels = figure.subplots(len(synthetic), 1, sharex=True)
    for axes, (size, by_sigma) in zip(panels, synthetic.items(), strict=True):
        for name, (label, color, marker) in STYLES.items():
            points = [summary(runs[name]["regret"]) for runs in by_sigma.values()]
            means, errors = zip(*points, strict=True)
            is_ours = name == "personal"
            style = "--" if name == "common" else "-"  # FLDB-ONS may be below it
            axes.errorbar(
                [float(sigma) for sigma in by_sigma], means, errors,
                label=label, color=color, marker=marker, markersize=6, capsize=3, linestyle=style,
                linewidth=3 if is_ours else 1.6, zorder=3 if is_ours else 2,
            )  # fmt: skip
        axes.set_yscale("log")
        _label(axes.yaxis, [10, 30, 100, 300, 1000])
        axes.set_title(f"N={size.removeprefix('n')} agents", fontsize=12)
        axes.set_ylabel("final regret", fontsize=12)
        axes.tick_params(labelsize=11)
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel(r"$\sigma$, how much agents differ", fontsize=12)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _label(axis: Any, ticks: Sequence[int]) -> None:
    axis.set_ticks(ticks, [str(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def draw_studies(figure: Any, studies: Mapping[str, _Runs]) -> None:
    """Draw the final regret on each study that is replayed, and the log loss on each other one."""
    replayed = {name: runs for name, runs in studies.items() if "regret" in runs["personal"]}
    predicted = {name: runs for name, runs in studies.items() if name not in replayed}
    heights = [len(replayed) + 0.8, len(predicted) + 0.8]
    upper, lower = figure.subplots(2, 1, height_ratios=heights)
    _draw_rows(upper, replayed, "regret", "final regret")
    _draw_rows(lower, predicted, "log_loss", "log loss of predictions")
    lower.locator_params(axis="x", nbins=6)
    upper.set_xscale("log")
    _label(upper.xaxis, [4, 5, 7, 10, 15, 20])
    figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _draw_rows(axes: Any, studies: Mapping[str, _Runs], measure: str, title: str) -> None:
    """Draw one row per study, with a point per algorithm."""
    for place, (name, (label, color, marker)) in enumerate(STYLES.items()):
        if not all(name in runs for runs in studies.values()):
            continue
        heights = [row + 0.12 * (place - (len(STYLES) - 1) / 2) for row in range(len(studies))]
        means, errors = zip(
            *(summary(runs[name][measure]) for runs in studies.values()), strict=True
        )
        axes.errorbar(
            means, heights, xerr=errors, label=label, color=color, marker=marker,
            markersize=9 if name == "personal" else 6, linestyle="none", capsize=3, zorder=2,
        )  # fmt: skip
    axes.set_yticks(range(len(studies)), list(studies), fontsize=11)
    axes.set_ylim(len(studies) - 0.5, -0.5)
    axes.set_xlabel(title, fontsize=12)
    axes.tick_params(labelsize=11)
    axes.grid(alpha=0.3, axis="x")
    for row in range(1, len(studies)):
        axes.axhline(row - 0.5, color="black", alpha=0.3, linewidth=0.8)


def draw(content: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw both pictures from the content of the result file; return their paths."""
    pictures = {
        "heterogeneity": (draw_heterogeneity, content["synthetic"], (4.8, 6.8)),
        "studies": (draw_studies, content["studies"], (6.0, 4.6)),
    }
    paths = [folder / f"{name}.png" for name in pictures]
    for path, (paint, values, size) in zip(paths, pictures.values(), strict=True):
        save_figure(path, lambda figure: paint(figure, values), size=size, dpi=130)  # noqa: B023
    return paths


def main() -> None:
    """Run the command."""
    assert __doc__ is not None
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="of the PNG files")
    asked = parser.parse_args()
    try:
        content = measured.read(measured.FOLDER / "personal.json")
        for path in draw(content, asked.folder):
            print(path)
    except FldbError as error:
        sys.exit(f"error: {one_line(error)}")


if __name__ == "__main__":
    main()
