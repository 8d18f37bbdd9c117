"""`python docs/measure/pictures.py`: draw the pictures of documents from the result files again.

``heterogeneity.png`` is the final regret against sigma, and ``studies.png`` the regret and the log
loss on studies of real people (docs/personal.md). ``privacy.png`` is the final regret of FLDB-ONS
against epsilon, with a curve for each number of agents (docs/privacy.md): noise for an answer is
that of one party, and noise for a person that of the two parties of secure sums. ``scaling.png`` is
time and memory against each size (docs/scaling.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import pandas as pd

import measured
from fldb_flower.runs.plots import MARKER_CODES, REGRET, errors_text, points, save_figure
from fldb_flower.runs.styles import Style, shades_of, styles_of
from memory import BASE, VARIED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[1] / "figures"
ALGORITHMS = {  # of the runs by their name; later ones are drawn over earlier ones
    "ldb": "ldb",
    "alone": "alone",
    "fldb_gd": "fldb_gd",
    "fldb_ons": "fldb_ons",
    "common": "random",  # of which no picture has a curve
    "personal": "fldb_personal",
}
STYLES: dict[str, Style] = dict(
    zip(reversed(ALGORITHMS), styles_of(list(ALGORITHMS.values())[::-1]), strict=True)
)
NOISES = {("answer", 1): "per answer", ("person", 2): "per person"}
"""Titles by unit and number of parties that add noise."""
SIZES = {"num_agents": "agents $N$", "horizon": "iterations $T$", "num_arms": "arms $K$"}
_Runs = Mapping[str, measured.Run]


def sem(values: Sequence[float]) -> float:
    """Return the standard error of the mean of two or more values."""
    return float(stdev(values) / len(values) ** 0.5)


def summaries(values: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the mean of each of several lists, and their standard errors."""
    return [fmean(each) for each in values], [sem(each) for each in values]


def _label_of(name: str) -> str:
    return "common theta" if name == "common" else STYLES[name]["label"]


def _tuned(runs: _Runs, name: str) -> measured.Run:
    """Return a run with the width that was chosen by tuning.py, if it has one."""
    return runs.get(f"{name}_tuned", runs[name])


def draw_heterogeneity(figure: Figure, synthetic: Mapping[str, Mapping[str, _Runs]]) -> None:
    """Draw the final regret of each algorithm against sigma, one panel for each N."""
    panels = figure.subplots(1, len(synthetic), sharex=True, sharey=True)
    for axes, (size, by_sigma) in zip(panels, synthetic.items(), strict=True):
        sigmas = [float(sigma) for sigma in by_sigma]
        for name in ALGORITHMS:
            found = summaries([_tuned(runs, name)["regret"] for runs in by_sigma.values()])
            points(axes, [sigmas, *found], STYLES[name], _label_of(name))
        axes.set_yscale("log")
        axes.set_title(f"$N={size.removeprefix('n')}$")
        axes.set_xlabel(r"heterogeneity $\sigma$")
    panels[0].set_ylabel(f"final {REGRET}")
    panels[0].set_title(f"{panels[0].get_title('left')}; tuned; {_errors_text(synthetic)}")
    _number(panels[0].yaxis, [10, 30, 100, 300, 1000])
    _legend(figure, panels[0], 6)


def draw_studies(figure: Figure, studies: Mapping[str, _Runs]) -> None:
    """Draw the final regret on each study that is replayed, and the log loss on each other one."""
    replayed = {name: runs for name, runs in studies.items() if "regret" in runs["personal"]}
    predicted = {name: runs for name, runs in studies.items() if name not in replayed}
    upper, lower = figure.subplots(1, 2)
    upper.set_title(_errors_text(studies))
    _draw_rows(upper, replayed, "regret", f"final {REGRET}, tuned")
    _draw_rows(lower, predicted, "log_loss", "log loss of predictions")
    lower.locator_params(axis="x", nbins=6)
    upper.set_xscale("log")
    _number(upper.xaxis, [4, 5, 7, 10, 15, 20])
    _legend(figure, upper, 6)


def _errors_text(content: Mapping[str, Any]) -> str:
    return errors_text([run["seeds"] for _, run in measured.runs_in(content)])


def _number(axis: Axis, ticks: Sequence[int]) -> None:
    axis.set_ticks(ticks, [str(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def _legend(figure: Figure, axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _draw_rows(axes: Axes, studies: Mapping[str, _Runs], measure: str, title: str) -> None:
    """Draw one row per study, with a point per algorithm."""
    shown = [name for name in ALGORITHMS if all(name in runs for runs in studies.values())]
    for place, name in enumerate(shown):
        heights = [row + 0.13 * (place - (len(shown) - 1) / 2) for row in range(len(studies))]
        means, errors = summaries([_tuned(runs, name)[measure] for runs in studies.values()])
        style = STYLES[name]
        axes.errorbar(
            means, heights, xerr=errors, label=_label_of(name), color=style["color"],
            marker=MARKER_CODES[style["marker"]], markeredgewidth=0, linestyle="none",
            elinewidth=0.8, capthick=0.8,
        )  # fmt: skip
    axes.set_yticks(range(len(studies)), list(studies))
    axes.set_ylim(len(studies) - 0.5, -0.5)
    axes.set_xlabel(title)
    axes.grid(visible=False, axis="y")
    for row in range(1, len(studies)):
        axes.axhline(row - 0.5, color="0.7", linewidth=0.6)


def draw_privacy(figure: Figure, rows: list[dict[str, Any]]) -> None:
    """Draw a panel for each noise; the last point of a curve is without noise."""
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    shown = [row for row in rows if row["algorithm"] == "fldb_ons" and row["dimension"] == 5]
    epsilons = sorted({row["epsilon"] for row in shown if row["epsilon"] != "none"})
    places = {epsilon: place for place, epsilon in enumerate([*epsilons, "none"])}
    errors = errors_text([len(row["regret"]) for row in shown])
    titles = [f"{NOISES['answer', 1]}; {errors}", NOISES["person", 2]]
    for axes, noise, title in zip(panels, NOISES, titles, strict=True):
        sizes = sorted({row["num_agents"] for row in shown})
        for size, style in zip(sizes, shades_of("fldb_ons", len(sizes)), strict=True):
            own = [
                row
                for row in shown
                if row["num_agents"] == size
                and (row["unit"] == "none" or (row["unit"], row["parties"]) == noise)
            ]
            own.sort(key=lambda row: places[row["epsilon"]])
            where = [places[row["epsilon"]] for row in own]
            values = [where, *summaries([row["regret"] for row in own])]
            points(axes, values, style, f"$N$ = {size:,}")
        axes.set_yscale("log")
        axes.set_xticks(list(places.values()), [str(each).removesuffix(".0") for each in places])
        axes.set_title(title)
        axes.set_xlabel(r"privacy $\epsilon$ (none: without noise)")
    panels[0].set_ylabel(f"final {REGRET}")
    _number(panels[0].yaxis, [5, 10, 30, 100, 300, 1000])
    _legend(figure, panels[0], 5)


def draw_scale(figure: Figure, rows: list[dict[str, Any]]) -> None:
    """Plot time and memory against each size."""
    table = pd.DataFrame(rows)
    panels = figure.subplots(2, 2, sharey=True)
    lines: dict[str, Any] = {}
    for axes, (name, (_, sizes)) in zip(panels.flat, VARIED.items(), strict=True):
        styles = iter(shades_of(str(BASE["algorithm"]), 2 * table["backend"].nunique()))
        for backend, part in table[table["varied"] == name].groupby("backend"):
            shown = {"time (s)": part["seconds"], "peak memory (GB)": part["peak MB"] / 1000}
            for kind, values in shown.items():
                text = kind if backend == "numpy" else f"{kind}, {backend}"
                lines[text] = points(axes, [part["size"], values], next(styles), text)
        axes.loglog()
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(SIZES.get(name, "features $d$"))
    figure.legend(lines.values(), lines, loc="outside upper center", ncols=len(lines))


PICTURES: dict[str, list[tuple[str, float, Callable[..., None]]]] = {
    "personal": [
        (
            "heterogeneity",
            2.9,
            lambda figure, all_: draw_heterogeneity(figure, all_["synthetic"]),
        ),
        ("studies", 2.6, lambda figure, all_: draw_studies(figure, all_["studies"])),
    ],
    "privacy": [("privacy", 2.9, lambda figure, all_: draw_privacy(figure, all_["rows"]))],
    "scale": [("scaling", 4.6, lambda figure, all_: draw_scale(figure, all_["rows"]))],
}
"""Names, heights and functions of the pictures of each result file."""


def draw(name: str, content: Mapping[str, Any], folder: Path = FOLDER) -> None:
    """Draw the pictures of a result file, if it has any."""
    for file, height, paint in PICTURES.get(name, []):
        with_content = partial(paint, all_=content)
        save_figure(folder / f"{file}.png", with_content, width="page", height=height)


if __name__ == "__main__":
    for each, results in measured.load().items():
        draw(each, results)
