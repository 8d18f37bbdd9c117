"""`python -m simulations.figures [NAME ...]`: the paper's figures, and their data as CSV.

The settings and curves of a figure are in ``conf/experiment/NAME.yaml``.
``+ours`` adds the curves of ``conf/tuned.yaml``: FLDB-ONS, and algorithms of the paper with tuned
widths. The figures ``people`` and ``regret`` are not in the paper.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from fldb_flower.system import startup

    startup.begin()

import argparse
import itertools
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
from fldb_flower.runs import plots
from fldb_flower.runs.results import identity
from fldb_flower.runs.styles import TUNED_STYLES, style_of, styles_of
from fldb_flower.settings import Settings, from_nested
from fldb_flower.system.commands import Parser, bounded, ending_in_one_line
from fldb_flower.system.files import replace_file, reported
from fldb_flower.system.progress import progress
from simulations.engines import vectorized
from simulations.pools import map_in_processes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEEDS = 3  # "three independent runs", App. B
_NAMES = {"num_agents": "N", "num_arms": "K"}  # of settings in labels
_SYMBOLS = {"tau": r"\tau", "sigma^2": r"\sigma^2"}
_AXES = {"tau": r"communication period $\tau$", "rounds": "communication rounds"}
_COUNTS = ("rounds", "exchanges", "uploaded_bytes", "downloaded_bytes")
_FAR = 4.0  # ratio of the ends of curves above which an axis is logarithmic
_ESTIMATES = ("log_loss", "accuracy", "heterogeneity")  # of algorithms that have them

PANELS = {
    "fig1a": "N=50 (K=10, d=5)",
    "fig1b": "N=100 (K=10, d=5)",
    "fig1c": "N=100, tau=2 (K=10, d=5)",
    "fig1d": "MovieLens (K=5, d=10)",
    "fig2a": "FLDB-OGD (K=10, d=5)",
    "fig2b": "FLDB-OGD (K=50, d=5)",
    "fig2c": "heterogeneous agents (K=5, d=5)",
    "fig2d": "communication vs. regret (N=100, d=5)",
    "fig3a": "sigma^2=0.01 (K=5, d=5)",
    "fig3b": "sigma^2=0.1 (K=5, d=5)",
    "fig3c": "sigma^2=0.25 (K=5, d=5)",
    "fig4a": "tau=4 (N=100, K=10, d=5)",
    "fig4b": "tau=6 (N=100, K=10, d=5)",
    "fig4c": "tau=8 (N=100, K=10, d=5)",
    "fig5a": r"final regret vs. $\tau$ (N=100)",
    "fig5b": "final regret vs. rounds (N=100)",
}
"""Titles of the paper's figures."""
AGAINST = {"fig2d": "rounds", "fig5a": "tau", "fig5b": "rounds"}
"""Figures of the final regret; the others show the cumulative regret against the iterations."""
PEOPLE, OVERVIEW = "people", "regret"
OVERVIEWS = {
    PEOPLE: "100 people who differ along 2 of 10 directions (K=10)",
    OVERVIEW: "100 agents learn one preference (K=10, d=5)",
}
"""Titles of figures that are not in the paper; the last one has the curves of Fig. 1b."""
_WORDS = {"alone": "each person alone", "FLDB-ONS": "one estimate for all (FLDB-ONS)"}


class Result(NamedTuple):
    """The regret of a run after each iteration, its counts, and the estimates that it has."""

    regret: list[float]
    numbers: dict[str, float]


_Group = Sequence[tuple[Settings, Result]]  # one run per seed
_Runs = Mapping[str, _Group]  # by curve


def curves_of(name: str, *, ours: bool = True) -> dict[str, dict[str, Any]]:
    """Return the settings of each curve that differ from the defaults, without the seed.

    The curves are those that the experiment sweeps. In figures of the final regret, each point is
    one. ``ours`` adds those of ``+ours``, which the overview always has.
    """
    if name not in PANELS | OVERVIEWS:
        raise SettingsError(f"no figure {name!r}: there are {', '.join(PANELS | OVERVIEWS)}")
    file = f"{'fig1b' if name == OVERVIEW else name}.yaml"
    base: Any = OmegaConf.load(Path(conf.__path__[0]) / "experiment" / file)
    swept = base.pop("hydra").sweeper.params
    found: dict[str, Any] = {}
    for values in itertools.product(
        *(str(swept[key]).split(",") for key in swept if key != "seed")
    ):
        words = map("=".join, zip(swept, values, strict=False))
        chosen = OmegaConf.from_dotlist(list(words))
        found[_label(chosen)] = chosen
    if ours or name == OVERVIEW:
        tuned: Any = OmegaConf.load(Path(conf.__path__[0]) / "tuned.yaml")
        found |= tuned.get(name, {})
    merged: Any = {key: OmegaConf.to_container(OmegaConf.merge(base, found[key])) for key in found}
    return dict(merged)


def _label(chosen: Any) -> str:
    """Return the label of a curve, such as ``FLDB-OGD, sigma^2=0.1``."""
    parts = [style_of(chosen.algorithm)["label"]] if "algorithm" in chosen else []
    for key in chosen:
        if key == "environment":
            parts.append(f"sigma^2={chosen.environment.sigma**2:.2g}")
        elif key != "algorithm":
            parts.append(f"{_NAMES.get(key, key)}={chosen[key]}")
    return ", ".join(parts)


def settings_of(name: str, curve: Mapping[str, Any], seed: int, movielens: str) -> Settings:
    """Return the settings of one run of a figure."""
    world = dict(curve.get("environment", {}))
    if world.get("name") == "movielens":
        if not movielens:
            raise SettingsError(f"{name} needs MovieLens ratings: name them with --movielens PATH")
        world["path"] = movielens
    return from_nested(
        {**curve, "environment": world, "seed": seed}, f"conf/experiment/{name}.yaml"
    )


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
    font: str = "",
) -> dict[str, dict[str, list[Result]]]:
    """Simulate and draw figures, with their data as NAME.csv; return the results of each curve.

    A run of two figures is simulated once. By default, a figure has its width in the documents.
    """
    wanted = {
        name: {
            label: [settings_of(name, curve, seed, movielens) for seed in range(seeds)]
            for label, curve in curves_of(name, ours=ours).items()
        }
        for name in names
    }
    with reported(OutputError, f"write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    results = each_once(
        each for groups in wanted.values() for group in groups.values() for each in group
    )
    found: dict[str, dict[str, list[Result]]] = {}
    with progress("draw", len(names), "figure") as done:
        for name, groups in wanted.items():
            runs = {label: [(each, results[each]) for each in groups[label]] for label in groups}
            path = folder / f"{name}.csv"
            _write(name, runs, path, width, formats=formats, font=font)
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


def _write(name: str, runs: _Runs, path: Path, width: str | None, **saved: Any) -> None:
    """Write the data of a figure, and draw it beside."""
    rows = pd.concat(_rows(label, *run) for label in runs for run in runs[label])
    with reported(OutputError, f"write {path}"):
        replace_file(path, rows.to_csv(index=False, lineterminator="\n").encode())
    width = width or ("page" if name in OVERVIEWS else "column")

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        final = rows[rows.iteration == rows.iteration.max()]
        if len(runs.keys() & TUNED_STYLES.keys()) > 1:
            axes.set_yscale(scale_of(final.groupby("curve").cumulative_regret.mean()))
        if name in AGAINST:
            _draw_final(axes, AGAINST[name], final)
        else:
            plots.regret(axes, [_curve(runs[label], label, width, name) for label in runs])
        seeds = plots.errors_text([len(group) for group in runs.values()])
        axes.set_title(f"{_math((PANELS | OVERVIEWS)[name])}\n{seeds}")

    height = 2.5 if width == "column" else 3.2
    plots.save_figure(path, paint, height=height, width=width, **saved)


def scale_of(ends: pd.Series[float]) -> str:
    """Return the scale of an axis: logarithmic if curves end too far apart for a linear one."""
    return "log" if ends.max() > _FAR * ends.min() else "linear"


def _math(label: str) -> str:
    r"""Return a label with its settings as formulas: ``tau=4`` as ``$\tau=4$``."""

    def formula(match: re.Match[str]) -> str:
        return f"${_SYMBOLS.get(match[1], match[1])}={match[2]}$"

    return re.sub(r"\b(N|K|d|tau|sigma\^2)=([\d.]+)", formula, label)


def _curve(group: _Group, label: str, width: str, name: str) -> plots.Curve:
    narrow = width == "column" and len(label) > 16
    text = _math(label).replace(", ", "\n" if narrow else ", ")
    if name == PEOPLE:
        text = _WORDS.get(label, text)
    if name == OVERVIEW:
        count = sum(result.numbers["exchanges"] for _, result in group) / len(group)
        text += f" ({count:,.0f} exchanges)"
    style = label if label in TUNED_STYLES else group[0][0].algorithm
    return plots.Curve(style, [result.regret for _, result in group], text)


def _draw_final(axes: Axes, against: str, last: pd.DataFrame) -> None:
    groups = list(last.groupby("num_arms"))
    styles = styles_of(["fldb_ogd"] * len(groups))
    lines = []
    for place, ((arms, part), style) in enumerate(zip(groups, styles, strict=True)):
        table = part.groupby(against).cumulative_regret.agg(["mean", "sem"])
        side = place - (len(groups) - 1) / 2  # keeps the error bars apart
        x = table.index + 0.1 * side if against == "tau" else table.index * 1.02**side
        values = [x, table["mean"], table["sem"].fillna(0)]
        lines.append(plots.points(axes, values, style, f"$K={arms}$"))
    if against == "rounds":
        axes.set_xscale("log")
        plots.log_ticks(axes.xaxis)
    else:
        axes.set_xticks(sorted(last.tau.unique()))
    axes.set_xlabel(_AXES[against])
    axes.set_ylabel(f"final {plots.REGRET}")
    if len(groups) > 1:
        plots.label(axes, lines)


def _make_asked(asked: argparse.Namespace) -> None:
    """Make the requested figures, and print their files, or CSV files without a plot."""
    names = [name for name in asked.name if name != "+ours"]
    if not names:
        names = [name for name in PANELS if asked.movielens or name != "fig1d"]
        if "fig1d" not in names:
            print("fig1d is omitted: it needs --movielens PATH", file=sys.stderr)
    make(
        names, asked.output, ours="+ours" in asked.name, movielens=asked.movielens,
        seeds=asked.seeds, width=asked.width, formats=asked.format, font=asked.font,
    )  # fmt: skip
    for name in names:
        drawn = [asked.output / f"{name}.{each}" for each in asked.format]
        for path in [each for each in drawn if each.exists()] or [asked.output / f"{name}.csv"]:
            print(path)


def _formats(text: str) -> tuple[str, ...]:
    """Return the formats in a text such as ``pdf,svg``, each once."""
    names = dict.fromkeys(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in plots.FORMATS:
            known = ", ".join(plots.FORMATS)
            raise argparse.ArgumentTypeError(f"{name!r} is not a format: there are {known}")
    return tuple(names)


def main() -> None:
    """Run the command."""
    parser = Parser(description=__doc__, allow_abbrev=False)
    known = ", ".join(PANELS | OVERVIEWS)
    parser.add_argument("name", nargs="*", help=f"{known}, +ours")
    parser.add_argument("--output", type=Path, default=Path("figures"), help="folder")
    parser.add_argument("--movielens", default="", metavar="PATH", help="ratings, for fig1d")
    seeds = bounded(int, 1, 1000)
    parser.add_argument("--seeds", type=seeds, default=SEEDS, help="of each curve (default 3)")
    parser.add_argument(
        "--format", type=_formats, default=("png",), metavar="FORMAT,...",
        help=f"{', '.join(plots.FORMATS)} (for LaTeX), separated by commas (default png)",
    )  # fmt: skip
    inches = ", ".join(f"{name}: {width:g} in" for name, width in plots.WIDTHS.items())
    parser.add_argument(
        "--width", choices=list(plots.WIDTHS), help=f"{inches} (default: as in the documents)"
    )
    parser.add_argument("--font", default="", metavar="NAME", help="font (not of pgf)")
    parser.add_argument("--fonts", action="store_true", help="list the fonts")
    asked = parser.parse_args()
    if asked.fonts:
        print(*plots.fonts(), sep="\n")
        return
    with ending_in_one_line():
        if asked.font and asked.font not in plots.fonts():
            raise SettingsError(f"no font {asked.font!r}: fldb figures --fonts lists the fonts")
        _make_asked(asked)


if __name__ == "__main__":
    main()
