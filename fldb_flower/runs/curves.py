"""Curves with their standard errors and labels, on axes of Matplotlib."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fldb_flower.runs.styles import Style, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

SYMBOLS = {
    "num_agents": "N", "horizon": "T", "num_arms": "K", "dimension": "d", "tau": r"\tau",
    "environment.sigma": r"\sigma", "lambda": r"\lambda", "kappa_mu": r"\kappa_\mu",
    "delta": r"\delta", "alpha": r"\alpha", "privacy.epsilon": r"\varepsilon",
}  # fmt: skip
"""Symbols of settings in the paper, in TeX."""

_SIZES = ("num_agents", "horizon", "num_arms", "dimension", "tau", "schedule.ratio")
ITERATION, REGRET = "iteration $t$", "average cumulative regret"
_CODES = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-down": "v",
    "triangle-up": "^", "triangle-left": "<", "triangle-right": ">", "cross": "P",
}  # fmt: skip
_THIN: dict[str, Any] = {"elinewidth": 0.8, "capthick": 0.8}  # error bars
_MAX_BANDS = 5  # with more curves, error bars at a few points
_BARS = 5  # of each of these curves
_MAX_POINTS = 1000  # of a curve
_LINE = 1.4  # height of a line of a label in font sizes
_LEAD, _PAD = 0.26, 2  # length of the line to a label in inches, and the gap in points


class Curve(NamedTuple):
    """The cumulative regret of one configuration.

    Attributes
    ----------
    algorithm : str
        Name of the algorithm, which determines the style.
    values : array_like
        Cumulative regret by iteration, of one run (iterations,) or several (seeds, iterations).
    label : str
        Label of the curve; by default the name of the algorithm in figures.
    """

    algorithm: str
    values: npt.ArrayLike
    label: str = ""


def regret(axes: Axes, curves: Sequence[Curve]) -> None:
    """Plot the mean regret of curves, their standard errors and their labels.

    Bands show the standard errors of up to five curves, and error bars at a few points those of
    more. A single curve has no label unless it is given.

    Parameters
    ----------
    axes : Axes
        Axes of Matplotlib.
    curves : sequence of Curve
        The curves.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> axes = Figure().add_subplot()
    >>> regret(axes, [Curve("ldb", [1, 3, 4]), Curve("fldb_ons", [[1, 2, 2], [1, 1, 1]])])
    >>> [text.get_text() for text in axes.texts]
    ['LDB', 'FLDB-ONS']
    """
    lines = means(axes, curves)
    label_axes(axes)
    if len(curves) > 1 or any(curve.label for curve in curves):
        label(axes, lines)


def label_axes(axes: Axes) -> None:
    """Name the axes of the regret, which start at 0."""
    axes.set_xlabel(ITERATION)
    axes.set_ylabel(REGRET)
    axes.set_xlim(0, max(float(np.max(line.get_xdata())) for line in axes.lines))
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)


def means(axes: Axes, curves: Sequence[Curve]) -> list[Line2D]:
    """Plot the mean of each curve and its standard error, and return the lines."""
    styles = styles_of([curve.algorithm for curve in curves])
    lines = []
    for place, (curve, style) in enumerate(zip(curves, styles, strict=True)):
        rows = np.atleast_2d(np.asarray(curve.values, dtype=float))
        horizon = rows.shape[1]
        kept = np.unique(np.linspace(0, horizon - 1, min(horizon, _MAX_POINTS)).astype(int))
        steps, mean = kept + 1, rows.mean(axis=0)[kept]
        text = curve.label or style["label"]
        (line,) = axes.plot(steps, mean, label=text, zorder=3, **line_style(style))
        lines.append(line)
        if len(rows) > 1:
            error = rows.std(axis=0, ddof=1)[kept] / np.sqrt(len(rows))
            if len(curves) <= _MAX_BANDS:
                _band(axes, np.array([steps, mean, error]), style)
            else:
                _bars(axes, np.array([steps, mean, error]), style, place / len(curves))
    return lines


def _band(axes: Axes, values: npt.NDArray[np.float64], style: Style) -> None:
    """Draw a band with thin edges, from rows x, y and error."""
    x, y, error = values
    color = style["color"]
    axes.fill_between(x, y - error, y + error, color=color, alpha=0.15, linewidth=0, zorder=1)
    for edge in (y - error, y + error):
        axes.plot(x, edge, color=color, alpha=0.5, linewidth=0.4, zorder=1)


def _bars(axes: Axes, values: npt.NDArray[np.float64], style: Style, shift: float) -> None:
    """Draw error bars at a few points; ``shift``, from 0 to 1, keeps those of curves apart."""
    places = (np.arange(1, _BARS + 1) - 0.1 - 0.8 * shift) / _BARS * (values.shape[1] - 1)
    x, y, error = values[:, np.unique(np.rint(places).astype(int))]
    axes.errorbar(x, y, error, fmt="none", ecolor=style["color"], zorder=2, **_THIN)


def points(axes: Axes, values: Sequence[Any], style: Style, text: str) -> Line2D:
    """Plot points joined by a line, from rows x, y and their errors, if any; return the line."""
    look: dict[str, Any] = {**line_style(style), **_THIN, "marker": marker_of(style), "zorder": 3}
    line: Line2D = axes.errorbar(*values, **look).lines[0]
    line.set_label(text)
    return line


def line_style(style: Style) -> dict[str, Any]:
    """Return the color and the dash pattern of a style as arguments of Matplotlib."""
    return {"color": style["color"], "linestyle": (0, style["dash"]) if style["dash"] else "-"}


def marker_of(style: Style) -> str:
    """Return the marker of a style as Matplotlib writes it."""
    return _CODES[style["marker"]]


def label(axes: Axes, lines: Sequence[Line2D]) -> None:
    """Write the label of each line to the right of the axes, next to the end of the line.

    The limits of the axes remain as they are now. Lines that are too many for labels get a legend
    to the right of the axes.
    """
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    figure = axes.get_figure(root=True)
    assert figure is not None
    box, size = axes.get_window_extent(), _font_size(axes)
    height, width = (each / figure.dpi for each in (box.height, box.width))
    texts = [str(line.get_label()) for line in lines]
    gap = _LINE * max(text.count("\n") + 1 for text in texts) * size / 72 / height
    if gap * (len(lines) - 1) > 1:
        rows = int(1 / gap) + 1
        columns = -(-len(lines) // rows)
        axes.legend(handles=lines, loc="upper left", bbox_to_anchor=(1, 1), ncols=columns)
        return
    last = [np.column_stack(line.get_data())[np.argmax(line.get_xdata())] for line in lines]
    ends = axes.transAxes.inverted().transform(axes.transData.transform(np.array(last, float)))
    heights = spread(np.clip(ends[:, 1], 0, 1), gap)
    for line, text, (x, y), place in zip(lines, texts, ends, heights, strict=True):
        right = 1 + _LEAD / width
        (lead,) = axes.plot([x, right], [np.clip(y, 0, 1), place], transform=axes.transAxes)
        lead.update_from(line)
        lead.set(transform=axes.transAxes, clip_on=False, marker="", label="")
        axes.annotate(
            text, (right, place), xycoords="axes fraction", va="center",
            xytext=(_PAD, 0), textcoords="offset points", fontsize=size, annotation_clip=False,
        )  # fmt: skip


def _font_size(axes: Axes) -> float:
    """Return the size of the labels of curves in points: that of the ticks."""
    return float(axes.xaxis.get_ticklabels()[0].get_fontsize())


def spread(heights: npt.ArrayLike, gap: float) -> npt.NDArray[np.float64]:
    """Return the heights nearest to the given ones that are at least ``gap`` apart.

    The heights are fractions of the axes and remain in [0, 1]. Nearest is in the sum of squares.

    Examples
    --------
    >>> spread([0.5, 0.5, 0.9], 0.2).round(2).tolist()
    [0.4, 0.6, 0.9]
    """
    wanted = np.asarray(heights, dtype=float)
    order = np.argsort(wanted, kind="stable")
    slots = gap * np.arange(len(wanted))
    # Without the slots, heights need only ascend: blocks of violators get their mean.
    blocks: list[list[float]] = []  # mean and size
    for value in wanted[order] - slots:
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (last, n), (before, m) = blocks.pop(), blocks.pop()
            blocks.append([(before * m + last * n) / (m + n), m + n])
    free = np.concatenate([np.full(int(size), mean) for mean, size in blocks])
    placed = np.clip(free, 0, 1 - slots[-1]) + slots
    result = np.empty(len(wanted))
    result[order] = placed
    return result


def setting_text(key: str, value: Any) -> str:
    r"""Return a setting and its value as text of Matplotlib.

    Examples
    --------
    >>> setting_text("tau", 4), setting_text("solver", "newton")
    ('$\\tau=4$', 'solver=newton')
    """
    if key == "algorithm":
        return style_label(str(value))
    shown = f"{value:.4g}" if isinstance(value, float) else f"{value}"
    if key in SYMBOLS and not isinstance(value, str):
        return f"${SYMBOLS[key]}={shown}$"
    return f"{key.removesuffix('.name')}={shown}".replace("$", r"\$")


def wrap(text: str, letters: int) -> str:
    """Break text of Matplotlib into lines of at most so many letters, as they appear."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        # An equals sign has spaces around it; a command is one letter.
        shown = re.sub(r"\\[a-z]+", "x", longer.replace("=", " = ")).replace("$", "")
        lines = [*lines[:-1], longer] if len(shown) <= letters else [*lines, word]
    return "\n".join(line for line in lines if line)


def style_label(algorithm: str) -> str:
    """Return the name of an algorithm in figures."""
    return styles_of([algorithm])[0]["label"].replace("$", r"\$")


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings and their values as text of Matplotlib."""
    return ", ".join(setting_text(key, value) for key, value in settings.items())


def title_of(settings: Mapping[str, Any]) -> str:
    """Return the main ones of settings, by Hydra's dotted names, as text of Matplotlib."""
    names = [settings[key] for key in ("algorithm", "environment.name") if key in settings]
    head = " on ".join(style_label(str(name)) for name in names)
    sizes = settings_text({key: settings[key] for key in _SIZES if key in settings})
    return ": ".join(part for part in (head, sizes) if part)


def errors_text(seeds: Collection[int]) -> str:
    """Return what the curves show, from the numbers of their seeds."""
    least, most = min(seeds), max(seeds)
    if most == 1:
        return "1 seed"
    return f"mean ± standard error, {most if least == most else f'{least} to {most}'} seeds"
