"""`python -m simulations.figures [NAME ...]`: the paper's figures, and their data as CSV.

The settings of a figure are in ``conf/experiment/NAME.yaml``; its curves are defined here.
``+ours`` adds FLDB-ONS, and LDB with a tuned width, as further curves. ``+bounds`` adds the paper's
regret bounds, dashed. The figure ``regret`` is in the README and not in the paper.
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
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

import conf
from fldb_flower.bandit.theory import average_bound
from fldb_flower.errors import DataError, FldbError, OutputError, SettingsError, one_line
from fldb_flower.federation.history import History
from fldb_flower.runs import curves
from fldb_flower.runs.plots import FORMATS, WIDTHS, save_figure
from fldb_flower.runs.results import identity
from fldb_flower.runs.styles import styles_of
from fldb_flower.settings import Settings, from_nested
from fldb_flower.system.commands import Parser, bounded
from fldb_flower.system.files import reason_of, replace_file
from fldb_flower.system.progress import progress
from fldb_flower.system.startup import interruptible
from simulations.engines import vectorized
from simulations.pools import map_in_processes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEEDS = (0, 1, 2)  # "three independent runs", App. B
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
    """A figure: its title, overrides of its experiment by curve, those of ``+ours``, its axis.

    ``against`` is ``iteration`` (cumulative regret), or ``tau`` or ``rounds`` (final regret).
    """

    title: str
    curves: Mapping[str, Overrides]
    ours: Mapping[str, Overrides] = MappingProxyType({})
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


class Output(NamedTuple):
    """Formats of figures, and their width; None: that of each figure in the documents."""

    width: str | None = None
    formats: tuple[str, ...] = ("png",)


_DEFAULT = Output()


class Result(NamedTuple):
    """The regret of a run after each iteration, its counts, and the estimates that it has."""

    regret: list[float]
    numbers: dict[str, float]


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
    bounds: bool = False,
    movielens: str = "",
    seeds: int = len(SEEDS),
    output: Output = _DEFAULT,
) -> dict[str, dict[str, list[Result]]]:
    """Simulate and draw figures, with their data as NAME.csv; return the results of each curve.

    A run of two figures is simulated once.
    """
    panels = {name: panel_of(name) for name in names}
    wanted = {
        (name, label): [settings_of(name, overrides, seed, movielens) for seed in range(seeds)]
        for name, panel in panels.items()
        for label, overrides in {**panel.curves, **(panel.ours if ours else {})}.items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {reason_of(error)}") from None
    results = each_once(each for group in wanted.values() for each in group)
    found: dict[str, dict[str, list[Result]]] = {name: {} for name in names}
    with progress("draw", len(names), "figure") as done:
        for name in names:
            runs = {label: group for (of, label), group in wanted.items() if of == name}
            rows = pd.concat(
                _rows(label, each, results[each]) for label, group in runs.items() for each in group
            )
            path = folder / f"{name}.csv"
            try:
                replace_file(path, rows.to_csv(index=False, lineterminator="\n").encode())
            except OSError as error:
                raise OutputError(f"cannot write {path}: {reason_of(error)}") from None
            shown = {label: group[0] for label, group in runs.items()} if bounds else {}
            draw(name, rows, shown, folder, output)
            found[name] = {label: [results[each] for each in runs[label]] for label in runs}
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


def redraw(name: str, folder: Path, *, bounds: bool, movielens: str, output: Output) -> None:
    """Draw a figure again from its CSV file, without simulating."""
    path, panel = folder / f"{name}.csv", panel_of(name)
    known = {**panel.curves, **panel.ours}
    try:
        rows = pd.read_csv(path, dtype={"iteration": "int64", "cumulative_regret": "float64"})
        shown = {each: settings_of(name, known[each], 0, movielens) for each in rows.curve.unique()}
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, AttributeError):
        raise DataError(f"{path} is not the CSV file of {name}: draw without --redraw") from None
    draw(name, rows, shown if bounds else {}, folder, output)


def draw(
    name: str, rows: pd.DataFrame, bounds: Mapping[str, Settings], folder: Path, output: Output
) -> None:
    """Draw a figure from its CSV, with the regret bounds of the curves in ``bounds``."""
    panel = panel_of(name)
    width = output.width or ("page" if name == OVERVIEW else "column")

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        if name == OVERVIEW:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        if panel.against == "iteration":
            _draw_curves(axes, name, rows, bounds, narrow=width == "column")
        else:
            _draw_final(axes, panel.against, rows)
        axes.set_title(f"{_math(panel.title)}\n{curves.errors_text([rows.seed.nunique()])}")

    height = 2.5 if width == "column" else 3.2
    save_figure(folder / f"{name}.png", paint, height=height, width=width, formats=output.formats)


def _math(label: str) -> str:
    r"""Return a label with its settings as formulas: ``tau=4`` as ``$\tau=4$``."""

    def formula(match: re.Match[str]) -> str:
        return f"${_SYMBOLS.get(match[1], match[1])}={match[2]}$"

    return re.sub(r"\b(N|K|d|tau|sigma\^2)=([\d.]+)", formula, label)


def _draw_curves(
    axes: Axes, name: str, rows: pd.DataFrame, bounds: Mapping[str, Settings], *, narrow: bool
) -> None:
    panel, labels, shown = panel_of(name), rows.curve.unique().tolist(), []
    for label in labels:
        part = rows[rows.curve == label]
        wide = part.pivot(index="seed", columns="iteration", values="cumulative_regret")
        values = values_of(name, {**panel.curves, **panel.ours}[label])
        algorithm = str(values.get("algorithm", Settings.algorithm))
        text = _math(label).replace(", ", "\n" if narrow and len(label) > 14 else ", ")
        shown.append(curves.Curve(algorithm, wide.to_numpy(), text))
    lines = curves.means(axes, shown)
    for label, line in zip(labels, tuple(lines), strict=True):
        steps = np.arange(1.0, rows.iteration.max() + 1)
        if label in bounds and (bound := average_bound(steps, bounds[label])) is not None:
            text = f"{line.get_label()}, bound"
            lines += axes.plot(steps, bound, color=line.get_color(), linewidth=0.7, label=text)
    curves.label_axes(axes)
    curves.label(axes, lines)


def _draw_final(axes: Axes, against: str, rows: pd.DataFrame) -> None:
    last = rows[rows.iteration == rows.iteration.max()]
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
    names = [name for name in asked.name if name not in ("+ours", "+bounds")]
    if not names:
        names = [name for name in PANELS if asked.movielens or name != "fig1d"]
        if "fig1d" not in names:
            print("fig1d is omitted: it needs --movielens PATH", file=sys.stderr)
    output = Output(asked.width, asked.format)
    options = {"bounds": "+bounds" in asked.name, "movielens": asked.movielens, "output": output}
    if asked.redraw:
        with progress("draw", len(names), "figure") as done:
            for name in names:
                redraw(name, asked.output, **options)
                done()
    else:
        make(names, asked.output, ours="+ours" in asked.name, seeds=asked.seeds, **options)
    for name in names:
        drawn = [asked.output / f"{name}.{each}" for each in output.formats]
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
    parser.add_argument("name", nargs="*", help=f"{known}, +ours, +bounds")
    parser.add_argument("--output", type=Path, default=Path("figures"), help="folder")
    parser.add_argument("--movielens", default="", metavar="PATH", help="ratings, for fig1d")
    seeds = bounded(int, 1, 1000)
    parser.add_argument("--seeds", type=seeds, default=len(SEEDS), help="of each curve (default 3)")
    parser.add_argument(
        "--format", type=_formats, default=("png",), metavar="FORMAT,...",
        help=f"{', '.join(FORMATS)}, separated by commas (default png)",
    )  # fmt: skip
    inches = ", ".join(f"{name}: {width:g} in" for name, width in WIDTHS.items())
    parser.add_argument(
        "--width", choices=list(WIDTHS), help=f"{inches} (default: as in the documents)"
    )
    parser.add_argument(
        "--redraw", action="store_true", help="draw the CSV files in the folder, without simulating"
    )
    asked = parser.parse_args()
    with interruptible():
        try:
            _make_asked(asked)
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")


if __name__ == "__main__":
    main()
