"""`python -m simulations.figures [NAME ...]`: the paper's figures, each as PNG and CSV.

The settings of a figure are in ``conf/experiment/NAME.yaml``; the curves that it draws are here.
``+ours`` adds FLDB-ONS as a curve of its own, never in place of one of the paper's; ``+bounds``
adds the paper's regret bounds, dashed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from omegaconf import OmegaConf

import conf
from fldb_flower.errors import FldbError, OutputError, SettingsError
from fldb_flower.history import History
from fldb_flower.settings import Settings, from_nested
from fldb_flower.theory import average_bound
from simulations.sweep import draw_mean

SEEDS = (0, 1, 2)  # "three independent runs", App. B
Overrides = dict[str, Any]

_OGD, _GD, _LDB = {"algorithm": "fldb_ogd"}, {"algorithm": "fldb_gd"}, {"algorithm": "ldb"}
_ONS = {"algorithm": "fldb_ons"}
_COMPARED = {"LDB": _LDB, "FLDB-OGD": _OGD, "FLDB-GD": _GD}
_AGENTS = {f"N={agents}": {"num_agents": agents} for agents in (20, 50, 100, 200)}
_TAUS = (1, 2, 3, 4, 5, 6, 7, 8)


@dataclass(frozen=True)
class Panel:
    """A figure: a title, its curves, and what is drawn.

    Attributes
    ----------
    title : str
        As in the paper.
    curves : dict
        Label of each curve -> overrides of the experiment's settings.
    ours : dict
        Further curves, drawn with ``+ours``.
    against : str
        ``iteration``: cumulative regret; ``tau`` or ``rounds``: the final regret.
    """

    title: str
    curves: dict[str, Overrides]
    ours: dict[str, Overrides] = field(default_factory=dict)
    against: str = "iteration"


def _final(arms: Iterable[int]) -> dict[str, Overrides]:
    """Curves of final regret: each label stands for one K, each point for one tau."""
    return {f"K={k}, tau={tau}": {"num_arms": k, "tau": tau} for k in arms for tau in _TAUS}


PANELS = {
    "fig1a": Panel("N=50 (K=10, d=5)", _COMPARED, {"FLDB-ONS": _ONS}),
    "fig1b": Panel("N=100 (K=10, d=5)", _COMPARED, {"FLDB-ONS": _ONS}),
    "fig1c": Panel("N=100, tau=2 (K=10, d=5)", _COMPARED, {"FLDB-ONS": _ONS}),
    "fig1d": Panel("MovieLens (K=5, d=10)", _COMPARED, {"FLDB-ONS": _ONS}),
    "fig2a": Panel("FLDB-OGD (K=10, d=5)", _AGENTS),
    "fig2b": Panel("FLDB-OGD (K=50, d=5)", _AGENTS),
    "fig2c": Panel(
        "heterogeneous (K=5, d=5)",
        {
            f"{name}, sigma^2={sigma**2:.2g}": {**algorithm, "environment": {"sigma": sigma}}
            for sigma in (0.1**0.5, 0.5)
            for name, algorithm in {"FLDB-OGD": _OGD, "FLDB-GD": _GD}.items()
        },
    ),
    "fig2d": Panel("communication vs. regret (N=100, d=5)", _final([10]), against="rounds"),
    "fig3a": Panel("sigma^2=0.01 (K=5, d=5)", _COMPARED, {"FLDB-ONS": _ONS}),
    "fig3b": Panel("sigma^2=0.1 (K=5, d=5)", _COMPARED, {"FLDB-ONS": _ONS}),
    "fig3c": Panel("sigma^2=0.25 (K=5, d=5)", _COMPARED, {"FLDB-ONS": _ONS}),
    "fig4a": Panel("tau=4 (N=100, K=10, d=5)", {"LDB": _LDB, "FLDB-OGD": _OGD}, {"FLDB-ONS": _ONS}),
    "fig4b": Panel("tau=6 (N=100, K=10, d=5)", {"LDB": _LDB, "FLDB-OGD": _OGD}, {"FLDB-ONS": _ONS}),
    "fig4c": Panel("tau=8 (N=100, K=10, d=5)", {"LDB": _LDB, "FLDB-OGD": _OGD}, {"FLDB-ONS": _ONS}),
    "fig5a": Panel("final regret vs. tau (N=100)", _final([5, 10, 20]), against="tau"),
    "fig5b": Panel("final regret vs. rounds (N=100)", _final([5, 10, 20]), against="rounds"),
}


def settings_of(name: str, overrides: Overrides, seed: int, path: str) -> Settings:
    """Return the settings of one run of a figure.

    Raises
    ------
    SettingsError
        A MovieLens figure without ``--movielens``.
    """
    experiment = OmegaConf.load(Path(conf.__path__[0]) / "experiment" / f"{name}.yaml")
    values: Any = OmegaConf.to_container(
        OmegaConf.merge(experiment, OmegaConf.create(overrides), {"seed": seed})
    )
    if values.get("environment", {}).get("name") == "movielens":
        if not path:
            raise SettingsError(f"{name} needs MovieLens ratings: name them with --movielens PATH")
        values["environment"]["path"] = path
    return from_nested(values, f"conf/experiment/{name}.yaml")


def simulate(settings: Settings) -> tuple[list[float], int]:
    """Run once on the vectorized engine; return the regret after each iteration, and rounds."""
    from simulations.engines import vectorized  # noqa: PLC0415 - in the worker process

    history = History(settings.horizon)
    vectorized.run(settings, history)
    return history.cumulative_regret.tolist(), history.rounds


def draw(name: str, panel: Panel, rows: pd.DataFrame, bounds: dict[str, Any], folder: Path) -> None:
    """Write one figure's CSV and PNG; ``bounds`` holds the curves' bounds by label."""
    rows.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
    figure = Figure(figsize=(4.6, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if panel.against == "iteration":
        for label in rows.curve.unique().tolist():
            part = rows[rows.curve == label]
            wide = part.pivot(index="seed", columns="iteration", values="cumulative_regret")
            draw_mean(axes, list(wide.to_numpy()), label=label, linewidth=2)
            if label in bounds:
                color, steps = axes.lines[-1].get_color(), wide.columns.to_numpy()
                axes.plot(steps, bounds[label], "--", color=color, label=f"{label}, bound")
        axes.set_ylabel("average cumulative regret")
    else:
        _draw_final(axes, rows, panel.against)
    axes.set_xlabel({"iteration": "iteration", "tau": "tau", "rounds": "rounds"}[panel.against])
    axes.set_title(panel.title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})


def _draw_final(axes: Any, rows: pd.DataFrame, against: str) -> None:
    last = rows[rows.iteration == rows.iteration.max()]
    for arms, part in last.groupby("num_arms"):
        points = part.groupby(against).cumulative_regret.agg(["mean", "sem"])
        axes.errorbar(points.index, points["mean"], points["sem"], marker="o", label=f"K={arms}")
    axes.set_ylabel("final average cumulative regret")


def make(names: Sequence[str], folder: Path, *, ours: bool, bounds: bool, movielens: str) -> None:
    """Simulate and draw some figures; a run that two figures share is made once."""
    curves = {
        name: {**PANELS[name].curves, **(PANELS[name].ours if ours else {})} for name in names
    }
    wanted = {
        (name, label, seed): settings_of(name, overrides, seed, movielens)
        for name in names
        for label, overrides in curves[name].items()
        for seed in SEEDS
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror}") from None
    # The longest first, so that no core waits for one of them at the end.
    unique = sorted(set(wanted.values()), key=_cost, reverse=True)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        results = dict(zip(unique, pool.map(simulate, unique), strict=True))
    for name in names:
        parts = []
        for (figure, label, seed), settings in wanted.items():
            if figure == name:
                regret, rounds = results[settings]
                steps = {"iteration": range(1, len(regret) + 1), "cumulative_regret": regret}
                same = {"tau": settings.tau, "num_arms": settings.num_arms, "rounds": rounds}
                parts.append(pd.DataFrame({**steps, "curve": label, **same, "seed": seed}))
        dashed = _bounds({label: s for (n, label, _), s in wanted.items() if n == name})
        rows = pd.concat(parts, ignore_index=True)
        draw(name, PANELS[name], rows, dashed if bounds else {}, folder)
        print(f"{folder / name}.png")


def _bounds(curves: dict[str, Settings]) -> dict[str, Any]:
    found = {
        label: average_bound(np.arange(1.0, settings.horizon + 1), settings)
        for label, settings in curves.items()
    }
    return {label: bound for label, bound in found.items() if bound is not None}


def _cost(settings: Settings) -> float:
    """How long a run takes, roughly."""
    factor = {"ldb": 10, "fldb_gd": 8}.get(settings.algorithm, 1)
    return factor * settings.num_agents * settings.num_arms * settings.dimension


def main() -> None:
    """Entry point."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("name", nargs="*", help=f"{', '.join(PANELS)}, +ours, +bounds")
    parser.add_argument("--output", type=Path, default=Path("figures"), help="folder")
    parser.add_argument("--movielens", default="", metavar="PATH", help="ratings, for fig1d")
    asked = parser.parse_args()
    ours, bounds = "+ours" in asked.name, "+bounds" in asked.name
    names = [name for name in asked.name if name not in ("+ours", "+bounds")]
    try:
        unknown = [name for name in names if name not in PANELS]
        if unknown:
            raise SettingsError(f"no figure {unknown[0]!r}: there are {', '.join(PANELS)}")
        if not names:
            names = [name for name in PANELS if asked.movielens or name != "fig1d"]
            if "fig1d" not in names:
                print("fig1d is left out: it needs --movielens PATH", file=sys.stderr)
        make(names, asked.output, ours=ours, bounds=bounds, movielens=asked.movielens)
    except FldbError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
