"""Draw the figures of commands: their options, and the paper's figures from tables of runs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from fldb_flower.errors import OutputError
from fldb_flower.runs import curves
from fldb_flower.runs.plots import FORMATS, WIDTHS, save_figure
from fldb_flower.runs.styles import styles_of
from fldb_flower.system.files import reason_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SYMBOLS = {"tau": r"\tau", "sigma^2": r"\sigma^2"}
_LONG = 14  # characters of a label that is broken in a column
_TICKS = 1.4  # least ratio of two of a logarithmic axis
_AXES = {"tau": r"communication period $\tau$", "rounds": "communication rounds"}


class Output(NamedTuple):
    """How figures are saved: see :func:`fldb_flower.runs.plots.save_figure`.

    ``width`` is that of each figure in the documents if it is None.
    """

    width: str | None = None
    formats: tuple[str, ...] = ("png",)


DEFAULT = Output()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options ``--format`` and ``--width``."""
    parser.add_argument(
        "--format", type=formats, default=("png",), metavar="FORMAT,...",
        help=f"{', '.join(FORMATS)}, separated by commas (default png)",
    )  # fmt: skip
    inches = ", ".join(f"{name}: {width:g} in" for name, width in WIDTHS.items())
    parser.add_argument(
        "--width", choices=list(WIDTHS), help=f"{inches} (default: as in the documents)"
    )


def formats(text: str) -> tuple[str, ...]:
    """Return the formats in a text such as ``pdf,svg``, each once."""
    names = dict.fromkeys(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            raise argparse.ArgumentTypeError(f"{name!r} is not a format: there are {known}")
    return tuple(names)


def make_folder(folder: Path) -> None:
    """Create the folder of the figures, if necessary; raise an OutputError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {reason_of(error)}") from None


class Drawing(NamedTuple):
    """A figure of the paper, apart from its runs.

    Attributes
    ----------
    title : str
        Text of Matplotlib.
    against : str
        ``iteration``: cumulative regret; ``tau`` or ``rounds``: the final regret.
    algorithms : dict
        Name of the algorithm by label of the curve.
    bounds : dict
        Regret bound by iteration, by label of the curve.
    logarithmic : bool
        Whether the axis of the regret is.
    """

    title: str
    against: str
    algorithms: Mapping[str, str]
    bounds: Mapping[str, Any]
    logarithmic: bool = False


def save(path: Path, drawing: Drawing, rows: pd.DataFrame, output: Output) -> list[Path]:
    """Save a figure of the paper, and return its files.

    Parameters
    ----------
    path : Path
        Path of the PNG file; see :func:`fldb_flower.runs.plots.save_figure`.
    drawing : Drawing
        What is drawn.
    rows : DataFrame
        The CSV of the figure.
    output : Output
        Width and formats.
    """

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        if drawing.logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        if drawing.against == "iteration":
            _draw_curves(axes, drawing, rows, output)
        else:
            _draw_final(axes, drawing.against, rows)
        axes.set_title(f"{drawing.title}\n{curves.errors_text([rows.seed.nunique()])}")

    width = output.width or "column"
    height = 2.5 if width == "column" else 3.2
    return save_figure(path, paint, height=height, width=width, formats=output.formats)


def math(label: str) -> str:
    r"""Return a label with its settings as formulas: ``tau=4`` as ``$\tau=4$``."""

    def formula(match: re.Match[str]) -> str:
        return f"${_SYMBOLS.get(match[1], match[1])}={match[2]}$"

    return re.sub(r"\b(N|K|d|tau|sigma\^2)=([\d.]+)", formula, label)


def _draw_curves(axes: Axes, drawing: Drawing, rows: pd.DataFrame, output: Output) -> None:
    shown = []
    for label in rows.curve.unique().tolist():
        part = rows[rows.curve == label]
        wide = part.pivot(index="seed", columns="iteration", values="cumulative_regret")
        text = math(label)
        if output.width != "page" and len(label) > _LONG:
            text = text.replace(", ", "\n")
        shown.append(curves.Curve(drawing.algorithms[label], wide.to_numpy(), text))
    lines = curves.means(axes, shown)
    for label, line in zip(rows.curve.unique().tolist(), tuple(lines), strict=True):
        if label in drawing.bounds:
            values = drawing.bounds[label]
            steps, color = range(1, len(values) + 1), line.get_color()
            text = f"{line.get_label()}, bound"
            lines += axes.plot(steps, values, color=color, linewidth=0.7, label=text)
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
            if not ticks or ticks[-1] / number > _TICKS:
                ticks.append(number)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel(_AXES[against])
    axes.set_ylabel(f"final {curves.REGRET}")
    if len(groups) > 1:
        curves.label(axes, lines)
