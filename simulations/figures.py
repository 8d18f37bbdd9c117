"""`python -m simulations.figures [NAME ...]`: the paper's figures, and their data as CSV.

The settings of a figure are in ``conf/experiment/NAME.yaml``; its curves are defined here.
``+ours`` adds FLDB-ONS, and LDB with a tuned width, as further curves. The figure ``regret`` is in
the README and not in the paper.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from fldb_flower.system import startup

    startup.begin()

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
from omegaconf import OmegaConf

import conf
from fldb_flower.errors import OutputError, SettingsError
from fldb_flower.federation.history import History
from fldb_flower.runs import curves
from fldb_flower.runs.plots import FORMATS, WIDTHS, save_figure
from fldb_flower.runs.results import identity
from fldb_flower.runs.styles import styles_of
from fldb_flower.settings import Settings, from_nested
from fldb_flower.system.commands import Parser, bounded, ending_in_one_line
from fldb_flower.system.files import reason_of, replace_file
from fldb_flower.system.progress import progress
from simulations.engines import vectorized
from simulations.pools import map_in_processes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEEDS = 3  # "three independent runs", App. B
Overrides = dict[str, Any]

_OGD, _GD, _LDB = {"algorithm": "fldb_ogd"}, {"algorithm": "fldb_gd"}, {"algorithm": "ldb"}
_ONS = {"algorithm": "fldb_ons"}
_WIDTH = {"lambda": 1.0, "beta_scale": 0.3}  # docs/selection.md has other values
_TUNED = {**_LDB, **_WIDTH, "tau": 1}  # one run for every tau
_OURS: dict[str, Overrides] = {"LDB, tuned": _TUNED, "FLDB-ONS": _ONS}
_COMPARED = {"LDB": _LDB, "FLDB-OGD": _OGD, "FLDB-GD": _GD}
_AGENTS = {f"N={agents}": {"num_agents": agents} for agents in (20, 50, 100, 200)}
_TAUS = (1, 2, 3, 4, 5, 6, 7, 8)

_SYMBOLS = {"tau": r"\tau", "sigma^2": r"\sigma^2"}
_AXES = {"tau": r"communication period $\tau$", "rounds": "communication rounds"}
_COUNTS = ("rounds", "exchanges", "uploaded_bytes", "downloaded_bytes")
_ESTIMATES = ("log_loss", "accuracy", "heterogeneity")  # of algorithms that have them


class Panel(NamedTuple):
    """A figure: its title, the overrides of its experiment by curve, and its horizontal axis.

    ``against`` is ``iteration`` (cumulative regret), or ``tau`` or ``rounds`` (final regret).
    """

    title: str
    curves: Mapping[str, Overrides]
    against: str = "iteration"

    def all_curves(self, *, ours: bool = True) -> dict[str, Overrides]:
        """Return the curves, with those of ``+ours`` beside an LDB that has no tuned one."""
        has_untuned = "LDB" in self.curves and "LDB, tuned" not in self.curves
        return {**self.curves, **(_OURS if ours and has_untuned else {})}


def _final(arms: Iterable[int]) -> dict[str, Overrides]:
    """Return the runs of curves of the final regret: one curve per K, one point per tau."""
    return {f"K={k}, tau={tau}": {"num_arms": k, "tau": tau} for k in arms for tau in _TAUS}


PANELS = {
    "fig1a": Panel("N=50 (K=10, d=5)", _COMPARED),
    "fig1b": Panel("N=100 (K=10, d=5)", _COMPARED),
    "fig1c": Panel("N=100, tau=2 (K=10, d=5)", _COMPARED),
    "fig1d": Panel("MovieLens (K=5, d=10)", _COMPARED),
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
    "fig3a": Panel("sigma^2=0.01 (K=5, d=5)", _COMPARED),
    "fig3b": Panel("sigma^2=0.1 (K=5, d=5)", _COMPARED),
    "fig3c": Panel("sigma^2=0.25 (K=5, d=5)", _COMPARED),
    "fig4a": Panel("tau=4 (N=100, K=10, d=5)", {"LDB": _LDB, "FLDB-OGD": _OGD}),
    "fig4b": Panel("tau=6 (N=100, K=10, d=5)", {"LDB": _LDB, "FLDB-OGD": _OGD}),
    "fig4c": Panel("tau=8 (N=100, K=10, d=5)", {"LDB": _LDB, "FLDB-OGD": _OGD}),
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


class Result(NamedTuple):
    """The regret of a run after each iteration, its counts, and the estimates that it has."""

    regret: list[float]
    numbers: dict[str, float]


_Group = Sequence[tuple[Settings, Result]]  # one run per seed
_Runs = Mapping[str, _Group]  # by curve


def panel_of(name: str) -> Panel:
    """Return the panel of a figure; a SettingsError if it does not exist."""
    if name == OVERVIEW:
        return _OVERVIEW
    if name not in PANELS:
        raise SettingsError(f"no figure {name!r}: there are {', '.join([*PANELS, OVERVIEW])}")
    return PANELS[name]


def values_of(name: str, overrides: Overrides) -> dict[str, Any]:
    """Return the settings of a curve that differ from the defaults."""
    file = "fig1b" if name == OVERVIEW else name
    experiment = OmegaConf.load(Path(conf.__path__[0]) / "experiment" / f"{file}.yaml")
    values: Any = OmegaConf.to_container(OmegaConf.merge(experiment, overrides))
    values.pop("hydra", None)  # the settings of sweeps
    return dict(values)


def settings_of(name: str, overrides: Overrides, seed: int, movielens: str) -> Settings:
    """Return the settings of one run of a figure."""
    values = {**values_of(name, overrides), "seed": seed}
    if values.get("environment", {}).get("name") == "movielens":
        if not movielens:
            raise SettingsError(f"{name} needs MovieLens ratings: name them with --movielens PATH")
        values["environment"]["path"] = movielens
    return from_nested(values, f"conf/experiment/{name}.yaml")


def simulate(settings: Settings) -> Result:
    """Run on one processor."""
    history = History(settings.horizon)
    vectorized.run(settings, history)
    numbers: dict[str, float] = {name: getattr(history, name) for name in _COUNTS}
    for name in _ESTIMATES:
        if (value := getattr(history, name)) is not None:
            numbers[name] = float(f"{value:.6g}")
    return Result(history.cumulative_regret.tolist(), numbers)


def cost(settings: Settings) -> float:
    """Return an estimate of the duration of a run, in arbitrary units."""
    factor = {"ldb": 10, "fldb_gd": 8, "alone": 15, "fldb_personal": 20}
    size = settings.num_agents * settings.num_arms * settings.dimension * settings.horizon
    return factor.get(settings.algorithm, 1) * size


def each_once(settings: Iterable[Settings]) -> dict[Settings, Result]:
    """Run once with each of the settings, on all processors.

    Settings share a run if they differ in settings without effect only.
    """
    keys = {each: identity(each) for each in set(settings)}
    unique = {key: each for each, key in keys.items()}
    # Longest first, so that no processor waits at the end.
    order = sorted(unique, key=lambda key: cost(unique[key]), reverse=True)
    results = map_in_processes(simulate, [unique[key] for key in order])
    found = dict(zip(order, results, strict=True))
    return {each: found[key] for each, key in keys.items()}


def make(
    names: Sequence[str],
    folder: Path,
    *,
    ours: bool = False,
    movielens: str = "",
    seeds: int = SEEDS,
    width: str | None = None,
    formats: Sequence[str] = ("png",),
) -> dict[str, dict[str, list[Result]]]:
    """Simulate and draw figures, with their data as NAME.csv; return the results of each curve.

    A run of two figures is simulated once. By default, a figure has its width in the documents.
    """
    wanted = {
        name: {
            label: [settings_of(name, overrides, seed, movielens) for seed in range(seeds)]
            for label, overrides in panel_of(name).all_curves(ours=ours).items()
        }
        for name in names
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {reason_of(error)}") from None
    results = each_once(
        each for groups in wanted.values() for group in groups.values() for each in group
    )
    found: dict[str, dict[str, list[Result]]] = {}
    with progress("draw", len(names), "figure") as done:
        for name, groups in wanted.items():
            runs = {label: [(each, results[each]) for each in groups[label]] for label in groups}
            _write(name, runs, folder / f"{name}.csv", width, formats)
            found[name] = {label: [result for _, result in runs[label]] for label in runs}
            done()
    return found


def _rows(label: str, settings: Settings, result: Result) -> pd.DataFrame:
    """Return a run as rows of the CSV of a figure."""
    return pd.DataFrame(
        {
            "iteration": range(1, len(result.regret) + 1),
            "cumulative_regret": result.regret,
            "curve": label,
            "tau": settings.tau,
            "num_arms": settings.num_arms,
            "rounds": result.numbers["rounds"],
            "seed": settings.seed,
        }
    )


def _write(name: str, runs: _Runs, path: Path, width: str | None, formats: Sequence[str]) -> None:
    """Write the data of a figure, and draw it beside."""
    rows = pd.concat(_rows(label, *run) for label in runs for run in runs[label])
    try:
        replace_file(path, rows.to_csv(index=False, lineterminator="\n").encode())
    except OSError as error:
        raise OutputError(f"cannot write {path}: {reason_of(error)}") from None
    panel = panel_of(name)
    width = width or ("page" if name == OVERVIEW else "column")

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        if name == OVERVIEW:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        if panel.against == "iteration":
            curves.regret(axes, [_curve(runs[label], label, width == "column") for label in runs])
        else:
            _draw_final(axes, panel.against, rows[rows.iteration == rows.iteration.max()])
        seeds = curves.errors_text([len(group) for group in runs.values()])
        axes.set_title(f"{_math(panel.title)}\n{seeds}")

    height = 2.5 if width == "column" else 3.2
    save_figure(path, paint, height=height, width=width, formats=formats)


def _math(label: str) -> str:
    r"""Return a label with its settings as formulas: ``tau=4`` as ``$\tau=4$``."""

    def formula(match: re.Match[str]) -> str:
        return f"${_SYMBOLS.get(match[1], match[1])}={match[2]}$"

    return re.sub(r"\b(N|K|d|tau|sigma\^2)=([\d.]+)", formula, label)


def _curve(group: _Group, label: str, narrow: bool) -> curves.Curve:
    text = _math(label).replace(", ", "\n" if narrow and len(label) > 14 else ", ")
    return curves.Curve(group[0][0].algorithm, [result.regret for _, result in group], text)


def _draw_final(axes: Axes, against: str, last: pd.DataFrame) -> None:
    groups = list(last.groupby("num_arms"))
    styles = styles_of(["fldb_ogd"] * len(groups))
    lines = []
    for place, ((arms, part), style) in enumerate(zip(groups, styles, strict=True)):
        table = part.groupby(against).cumulative_regret.agg(["mean", "sem"])
        side = place - (len(groups) - 1) / 2  # keeps the error bars apart
        x = table.index + 0.1 * side if against == "tau" else table.index * 1.02**side
        values = [x, table["mean"], table["sem"].fillna(0)]
        lines.append(curves.points(axes, values, style, f"$K={arms}$"))
    if against == "rounds":
        axes.set_xscale("log")
        ticks: list[int] = []
        for number in sorted(last.rounds.unique().tolist(), reverse=True):
            if not ticks or ticks[-1] / number > 1.4:
                ticks.append(number)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel(_AXES[against])
    axes.set_ylabel(f"final {curves.REGRET}")
    if len(groups) > 1:
        curves.label(axes, lines)


def _make_asked(asked: argparse.Namespace) -> None:
    """Make the requested figures, and print their files, or CSV files without a plot."""
    names = [name for name in asked.name if name != "+ours"]
    if not names:
        names = [name for name in PANELS if asked.movielens or name != "fig1d"]
        if "fig1d" not in names:
            print("fig1d is omitted: it needs --movielens PATH", file=sys.stderr)
    make(
        names, asked.output, ours="+ours" in asked.name, movielens=asked.movielens,
        seeds=asked.seeds, width=asked.width, formats=asked.format,
    )  # fmt: skip
    for name in names:
        drawn = [asked.output / f"{name}.{each}" for each in asked.format]
        for path in [each for each in drawn if each.exists()] or [asked.output / f"{name}.csv"]:
            print(path)


def _formats(text: str) -> tuple[str, ...]:
    """Return the formats in a text such as ``pdf,svg``, each once."""
    names = dict.fromkeys(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            raise argparse.ArgumentTypeError(f"{name!r} is not a format: there are {known}")
    return tuple(names)


def main() -> None:
    """Run the command."""
    parser = Parser(description=__doc__, allow_abbrev=False)
    known = ", ".join([*PANELS, OVERVIEW])
    parser.add_argument("name", nargs="*", help=f"{known}, +ours")
    parser.add_argument("--output", type=Path, default=Path("figures"), help="folder")
    parser.add_argument("--movielens", default="", metavar="PATH", help="ratings, for fig1d")
    seeds = bounded(int, 1, 1000)
    parser.add_argument("--seeds", type=seeds, default=SEEDS, help="of each curve (default 3)")
    parser.add_argument(
        "--format", type=_formats, default=("png",), metavar="FORMAT,...",
        help=f"{', '.join(FORMATS)}, separated by commas (default png)",
    )  # fmt: skip
    inches = ", ".join(f"{name}: {width:g} in" for name, width in WIDTHS.items())
    parser.add_argument(
        "--width", choices=list(WIDTHS), help=f"{inches} (default: as in the documents)"
    )
    asked = parser.parse_args()
    with ending_in_one_line():
        _make_asked(asked)


if __name__ == "__main__":
    main()
