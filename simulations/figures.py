"""`python -m simulations.figures [NAME ...]`: the paper's figures, and their data as CSV.

The settings of a figure are in ``conf/experiment/NAME.yaml``; its curves are defined here.
``+ours`` adds FLDB-ONS, and LDB with a tuned width, as further curves. ``+bounds`` adds the paper's
regret bounds, dashed. The figure ``regret`` is in the README and not in the paper.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from simulations import start

    start.begin()

import itertools
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

import conf
from fldb_flower.bandit.theory import average_bound
from fldb_flower.errors import DataError, FldbError, SettingsError, one_line
from fldb_flower.settings import Settings
from fldb_flower.system.commands import Parser, bounded
from fldb_flower.system.progress import progress
from fldb_flower.system.signals import interruptible
from simulations import drawing, measured
from simulations.drawing import DEFAULT, Output

SEEDS = (0, 1, 2)  # "three independent runs", App. B
Overrides = dict[str, Any]

_ON_THE_WAY = [f"regret_{iteration}" for iteration in (100, 200, 300, 400)]

_OGD, _GD, _LDB = {"algorithm": "fldb_ogd"}, {"algorithm": "fldb_gd"}, {"algorithm": "ldb"}
_ONS = {"algorithm": "fldb_ons"}
_WIDTH = {"lambda": 1.0, "beta_scale": 0.3}  # docs/selection.md has other values
_TUNED = {**_LDB, **_WIDTH, "tau": 1}  # one run for every tau
_OURS: dict[str, Overrides] = {"LDB, tuned": _TUNED, "FLDB-ONS": _ONS}
_COMPARED = {"LDB": _LDB, "FLDB-OGD": _OGD, "FLDB-GD": _GD}
_AGENTS = {f"N={agents}": {"num_agents": agents} for agents in (20, 50, 100, 200)}
_TAUS = (1, 2, 3, 4, 5, 6, 7, 8)


@dataclass(frozen=True)
class Panel:
    """A figure: its title, its curves and its axes.

    Attributes
    ----------
    title : str
        As in the paper, as text of Matplotlib; formulas such as N=50 need no dollar signs.
    curves, ours : dict
        Overrides of the settings of the experiment, by label of the curve; those of ``+ours``.
    against : str
        ``iteration``: cumulative regret; ``tau`` or ``rounds``: the final regret.
    """

    title: str
    curves: dict[str, Overrides]
    ours: dict[str, Overrides] = field(default_factory=dict)
    against: str = "iteration"


def _final(arms: Iterable[int]) -> dict[str, Overrides]:
    """Return the runs of curves of the final regret: one curve per K, one point per tau."""
    return {f"K={k}, tau={tau}": {"num_arms": k, "tau": tau} for k in arms for tau in _TAUS}


PANELS = {
    "fig1a": Panel("N=50 (K=10, d=5)", _COMPARED, _OURS),
    "fig1b": Panel("N=100 (K=10, d=5)", _COMPARED, _OURS),
    "fig1c": Panel("N=100, tau=2 (K=10, d=5)", _COMPARED, _OURS),
    "fig1d": Panel("MovieLens (K=5, d=10)", _COMPARED, _OURS),
    "fig2a": Panel("FLDB-OGD (K=10, d=5)", _AGENTS),
    "fig2b": Panel("FLDB-OGD (K=50, d=5)", _AGENTS),
    "fig2c": Panel(
        "heterogeneous agents (K=5, d=5)",
        {
            f"{name}, sigma^2={sigma**2:.2g}": {**algorithm, "environment": {"sigma": sigma}}
            for sigma in (0.1**0.5, 0.5)
            for name, algorithm in {"FLDB-OGD": _OGD, "FLDB-GD": _GD}.items()
        },
    ),
    "fig2d": Panel("communication vs. regret (N=100, d=5)", _final([10]), against="rounds"),
    "fig3a": Panel("sigma^2=0.01 (K=5, d=5)", _COMPARED, _OURS),
    "fig3b": Panel("sigma^2=0.1 (K=5, d=5)", _COMPARED, _OURS),
    "fig3c": Panel("sigma^2=0.25 (K=5, d=5)", _COMPARED, _OURS),
    "fig4a": Panel("tau=4 (N=100, K=10, d=5)", {"LDB": _LDB, "FLDB-OGD": _OGD}, _OURS),
    "fig4b": Panel("tau=6 (N=100, K=10, d=5)", {"LDB": _LDB, "FLDB-OGD": _OGD}, _OURS),
    "fig4c": Panel("tau=8 (N=100, K=10, d=5)", {"LDB": _LDB, "FLDB-OGD": _OGD}, _OURS),
    "fig5a": Panel(r"final regret vs. $\tau$ (N=100)", _final([5, 10, 20]), against="tau"),
    "fig5b": Panel("final regret vs. rounds (N=100)", _final([5, 10, 20]), against="rounds"),
}

OVERVIEW = "regret"  # in the README, with the settings of Fig. 1b
_OVERVIEW = Panel(
    "100 agents learn one preference (K=10, d=5)",
    {
        **_COMPARED,
        "LDB, tuned": _TUNED,
        "FLDB-GD, tuned": {**_GD, **_WIDTH},
        "FLDB-ONS, geometric": {**_ONS, "schedule": {"name": "geometric"}},
    },
)


def panel_of(name: str) -> Panel:
    """Return the panel of a figure.

    Raises
    ------
    SettingsError
        The figure does not exist.
    """
    if name == OVERVIEW:
        return _OVERVIEW
    if name not in PANELS:
        raise SettingsError(f"no figure {name!r}: there are {', '.join([*PANELS, OVERVIEW])}")
    return PANELS[name]


def curves_of(name: str, *, ours: bool) -> dict[str, Overrides]:
    """Return the overrides of the curves of a figure by label."""
    panel = panel_of(name)
    return {**panel.curves, **(panel.ours if ours else {})}


def values_of(name: str, overrides: Overrides) -> dict[str, Any]:
    """Return the settings of a curve that differ from the defaults."""
    file = "fig1b" if name == OVERVIEW else name
    experiment = OmegaConf.load(Path(conf.__path__[0]) / "experiment" / f"{file}.yaml")
    values: Any = OmegaConf.to_container(OmegaConf.merge(experiment, overrides))
    values.pop("hydra", None)  # the settings of sweeps
    return dict(values)


def settings_of(name: str, overrides: Overrides, seed: int, path: str) -> Settings:
    """Return the settings of one run of a figure.

    Raises
    ------
    SettingsError
        A MovieLens figure without ``--movielens``.
    """
    run = {"settings": values_of(name, overrides)}
    source = f"conf/experiment/{name}.yaml"
    return measured.settings_of(run, seed, source, {"movielens": path})


def runs_of(name: str, *, ours: bool, seeds: int) -> dict[str, measured.Run]:
    """Return the curves of a figure as runs of a result file, without values."""
    points = _ON_THE_WAY if panel_of(name).against == "iteration" else []
    return {
        label: {
            "settings": values_of(name, overrides),
            "seeds": seeds,
            **{key: [] for key in (*points, "regret", "rounds")},
        }
        for label, overrides in curves_of(name, ours=ours).items()
    }


def draw(
    name: str, rows: pd.DataFrame, bounds: Mapping[str, Any], folder: Path, output: Output
) -> list[Path]:
    """Write a figure and return its files; ``bounds`` has the bounds by label of the curve."""
    panel, is_overview = panel_of(name), name == OVERVIEW
    algorithms = {
        label: str(values_of(name, overrides).get("algorithm", Settings.algorithm))
        for label, overrides in curves_of(name, ours=True).items()
    }
    if output.width is None:
        output = output._replace(width="page" if is_overview else "column")
    title = drawing.math(panel.title)
    what = drawing.Drawing(title, panel.against, algorithms, bounds, logarithmic=is_overview)
    return drawing.save(folder / f"{name}.png", what, rows, output)


def make(
    names: Sequence[str],
    folder: Path,
    *,
    ours: bool,
    bounds: bool,
    movielens: str,
    seeds: int = len(SEEDS),
    output: Output = DEFAULT,
) -> dict[str, Any]:
    """Simulate and draw figures; a run of two figures is simulated once.

    Parameters
    ----------
    names : sequence of str
        Names of the figures.
    folder : Path
        Folder of the figures and NAME.csv.
    ours, bounds : bool
        Whether to add FLDB-ONS and the tuned LDB, and the paper's regret bounds.
    movielens : str
        Path of the ratings, for fig1d.
    seeds, output
        Number of runs per curve; width and formats.

    Returns
    -------
    dict
        The runs of each figure by name and label, in the format of a result file.
    """
    wanted = {
        name: {
            label: [settings_of(name, overrides, seed, movielens) for seed in range(seeds)]
            for label, overrides in curves_of(name, ours=ours).items()
        }
        for name in names
    }
    drawing.make_folder(folder)
    chain = itertools.chain.from_iterable
    results = measured.each_once(chain(chain(curves.values() for curves in wanted.values())))
    figures = {name: runs_of(name, ours=ours, seeds=seeds) for name in names}
    with progress("draw", len(wanted), "figure") as done:
        for name, curves in wanted.items():
            for label, group in curves.items():
                measured.fill(figures[name][label], [results[each] for each in group])
            rows = _table(curves, results)
            measured.write_text(folder / f"{name}.csv", _csv(rows))
            draw(name, rows, _bounds(curves) if bounds else {}, folder, output)
            done()
    return figures


def redraw(name: str, folder: Path, *, bounds: bool, movielens: str, output: Output) -> None:
    """Draw a figure again from its CSV file, without simulating.

    Raises
    ------
    DataError
        The CSV file is missing, or is not that of this figure.
    """
    path, known = folder / f"{name}.csv", curves_of(name, ours=True)
    try:
        rows = pd.read_csv(path, dtype={"iteration": "int64", "cumulative_regret": "float64"})
        labels = rows.curve.unique().tolist()
        curves = {each: [settings_of(name, known[each], 0, movielens)] for each in labels}
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, AttributeError):
        raise DataError(f"{path} is not the CSV file of {name}: draw without --redraw") from None
    draw(name, rows, _bounds(curves) if bounds else {}, folder, output)


def _table(
    curves: dict[str, list[Settings]], results: dict[Settings, measured.Result]
) -> pd.DataFrame:
    """Return the CSV of a figure: one row per iteration of each run of each curve."""
    runs = [(label, each) for label, group in curves.items() for each in group]
    parts = [_rows(label, each, *results[each]) for label, each in runs]
    return pd.concat(parts, ignore_index=True)


def _csv(rows: pd.DataFrame) -> str:
    return rows.to_csv(index=False, lineterminator="\n")


def _rows(
    label: str, settings: Settings, curve: list[float], counts: dict[str, float]
) -> pd.DataFrame:
    """Return a run as rows of the CSV of a figure."""
    return pd.DataFrame(
        {
            "iteration": range(1, len(curve) + 1),
            "cumulative_regret": curve,
            "curve": label,
            "tau": settings.tau,
            "num_arms": settings.num_arms,
            "rounds": counts["rounds"],
            "seed": settings.seed,
        }
    )


def _bounds(curves: dict[str, list[Settings]]) -> dict[str, Any]:
    """Return the regret bound by iteration of each curve that has one."""
    steps = {label: np.arange(1.0, group[0].horizon + 1) for label, group in curves.items()}
    found = {label: average_bound(steps[label], group[0]) for label, group in curves.items()}
    return {label: bound for label, bound in found.items() if bound is not None}


def _make_asked(asked: Namespace) -> list[Path]:
    """Make the requested figures; return their files, or CSV files without a plot."""
    extras = {name: f"+{name}" in asked.name for name in ("ours", "bounds")}
    names = [name for name in asked.name if name not in ("+ours", "+bounds")]
    if not names:
        names = [name for name in PANELS if asked.movielens or name != "fig1d"]
        if "fig1d" not in names:
            print("fig1d is omitted: it needs --movielens PATH", file=sys.stderr)
    output = Output(asked.width, asked.format)
    if asked.redraw:
        with progress("draw", len(names), "figure") as done:
            for name in names:
                redraw(name, asked.output, bounds=extras["bounds"], movielens=asked.movielens,
                       output=output)  # fmt: skip
                done()
    else:
        make(names, asked.output, **extras, movielens=asked.movielens, seeds=asked.seeds,
             output=output)  # fmt: skip
    paths = []
    for name in names:
        drawn = [asked.output / f"{name}.{each}" for each in output.formats]
        paths += [path for path in drawn if path.exists()] or [asked.output / f"{name}.csv"]
    return paths


def main() -> None:
    """Run the command."""
    assert __doc__ is not None
    parser = Parser(description=__doc__, allow_abbrev=False)
    known = ", ".join([*PANELS, OVERVIEW])
    parser.add_argument("name", nargs="*", help=f"{known}, +ours, +bounds")
    parser.add_argument("--output", type=Path, default=Path("figures"), help="folder")
    parser.add_argument("--movielens", default="", metavar="PATH", help="ratings, for fig1d")
    seeds = bounded(int, 1, 1000)
    parser.add_argument("--seeds", type=seeds, default=len(SEEDS), help="of each curve (default 3)")
    drawing.add_options(parser)
    parser.add_argument(
        "--redraw", action="store_true", help="draw the CSV files in the folder, without simulating"
    )
    asked = parser.parse_args()
    with interruptible():
        try:
            for path in _make_asked(asked):
                print(path)
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")


if __name__ == "__main__":
    main()
