"""Plots: curves with their standard errors and labels, how they are saved, and that of one run."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fldb_flower.errors import one_line
from fldb_flower.federation.history import History
from fldb_flower.runs.styles import Style, style_of, styles_of
from fldb_flower.settings import Settings, to_dotted, unused
from fldb_flower.system.files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

WIDTHS = {"column": 3.25, "page": 6.75}
"""Widths of figures in inches: one column of a paper with two, and its page."""
DPI = 240
"""Pixels per inch of PNG images."""
FORMATS: dict[str, tuple[str, ...]] = {
    "png": (),
    "svg": ("Date", "Creator"),
    "pdf": ("CreationDate", "Producer"),
    "pgf": (),
}
"""Formats of figures, and the metadata that depend on the date or Matplotlib's version."""
_COLORS = 256  # colors of a PNG image
_LOG = logging.getLogger("fldb_flower")
_BACKEND = "MPLBACKEND"


SYMBOLS = {
    "num_agents": "N", "horizon": "T", "num_arms": "K", "dimension": "d", "tau": r"\tau",
    "environment.sigma": r"\sigma", "lambda": r"\lambda", "kappa_mu": r"\kappa_\mu",
    "delta": r"\delta", "alpha": r"\alpha", "privacy.epsilon": r"\varepsilon",
}  # fmt: skip
"""Symbols of settings in the paper, in TeX."""

_SIZES = ("num_agents", "horizon", "num_arms", "dimension", "tau", "schedule.ratio")
ITERATION, REGRET = "iteration $t$", "average cumulative regret"
MARKER_CODES = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-down": "v",
    "triangle-up": "^", "triangle-left": "<", "triangle-right": ">", "cross": "P",
}  # fmt: skip
"""Matplotlib's codes of the markers of styles."""
_THIN: dict[str, Any] = {"elinewidth": 0.8, "capthick": 0.8}  # error bars
_MAX_BANDS = 5  # with more curves, error bars at a few points
_BARS = 5  # number of error bars per curve
_MAX_POINTS = 1000  # largest number of points of a curve
MAX_LABELS = 40
"""Largest number of curves of a plot that have labels."""
_LINE = 1.5  # height of a line of a label in font sizes
_LEADER: dict[str, Any] = {"color": "0.6", "linewidth": 0.6, "zorder": 2}
_LEAD, _SAMPLE, _PAD = 0.12, 0.42, 2  # ends of leader and sample in inches, and the gap in points
_DECADES = 2.5  # with more, only powers of ten are labelled
_NARROW = 5  # ratio of the limits of a logarithmic axis up to which the ticks are evenly spaced


class Curve(NamedTuple):
    """The cumulative regret of one run, (iterations,), or of several, (seeds, iterations).

    The algorithm, or the label of a tuned curve, determines the style, and without a label also the
    label. ``look`` has arguments of Matplotlib that replace those of the style.
    """

    algorithm: str
    values: npt.ArrayLike
    label: str = ""
    look: Mapping[str, Any] = MappingProxyType({})


def regret(axes: Axes, curves: Sequence[Curve]) -> None:
    """Plot the mean regret of curves and its standard error, with up to 40 labels.

    Up to five curves have bands for the errors. More curves have error bars at a few points.
    """
    styles = styles_of([curve.algorithm for curve in curves])
    lines = []
    for place, (curve, style) in enumerate(zip(curves, styles, strict=True)):
        rows = np.atleast_2d(np.asarray(curve.values, dtype=float))
        horizon, look = rows.shape[1], {**line_style(style), **curve.look}
        color = look["color"]
        kept = np.unique(np.linspace(0, horizon - 1, min(horizon, _MAX_POINTS)).astype(int))
        x, y = kept + 1, rows.mean(axis=0)[kept]
        text = curve.label or style["label"]
        lines += axes.plot(x, y, label=text, zorder=3, **look)
        if len(rows) < 2:
            continue
        error = rows.std(axis=0, ddof=1)[kept] / np.sqrt(len(rows))
        if len(curves) <= _MAX_BANDS:
            axes.fill_between(
                x, y - error, y + error, color=color, alpha=0.15, linewidth=0, zorder=1
            )
            for edge in (y - error, y + error):
                axes.plot(x, edge, color=color, alpha=0.5, linewidth=0.4, zorder=1)
        else:  # bars of different curves at different iterations
            shares = np.arange(1, _BARS + 1) - 0.1 - 0.8 * place / len(curves)
            at = np.unique(np.rint(shares / _BARS * (len(x) - 1)).astype(int))
            axes.errorbar(x[at], y[at], error[at], fmt="none", ecolor=color, zorder=2, **_THIN)
    label_axes(axes)
    if 1 < len(curves) <= MAX_LABELS:
        label(axes, lines)


def label_axes(axes: Axes) -> None:
    """Name the axes of the regret, which start at 0."""
    axes.set_xlabel(ITERATION)
    axes.set_ylabel(REGRET)
    axes.set_xlim(0, max(float(np.max(line.get_xdata())) for line in axes.lines))
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    else:
        log_ticks(axes.yaxis)


def points(axes: Axes, values: Sequence[Any], style: Style, text: str) -> Line2D:
    """Plot points joined by a line, from rows x, y and their errors, if any; return the line.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from fldb_flower.runs.plots import log_ticks, points
    >>> from fldb_flower.runs.styles import style_of
    >>> axes = plt.figure().subplots()
    >>> line = points(axes, [[1, 2, 4], [20.0, 30.0, 90.0]], style_of("fldb_ons"), "FLDB-ONS")
    >>> axes.set_yscale("log")
    >>> log_ticks(axes.yaxis)
    """
    look: dict[str, Any] = {**line_style(style), **_THIN, "zorder": 3}
    look["marker"] = MARKER_CODES[style["marker"]]
    line: Line2D = axes.errorbar(*values, **look).lines[0]
    line.set_label(text)
    return line


def line_style(style: Mapping[str, Any]) -> dict[str, Any]:
    """Return the color and the dash pattern of a style as arguments of Matplotlib."""
    return {"color": style["color"], "linestyle": (0, style["dash"]) if style["dash"] else "-"}


def label(axes: Axes, lines: Sequence[Line2D]) -> None:
    """Write the label of each line to the right of the axes, next to the end of the line.

    A grey leader joins the end of a line to its label, which has a sample of the line. The limits
    of the axes remain as they are now. Lines that are too many for labels get a legend to the right
    of the axes.
    """
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    figure = axes.get_figure(root=True)
    assert figure is not None
    box, size = axes.get_window_extent(), axes.xaxis.get_ticklabels()[0].get_fontsize()
    height, width = (each / figure.dpi for each in (box.height, box.width))
    texts = [str(line.get_label()) for line in lines]
    gap = _LINE * max(text.count("\n") + 1 for text in texts) * float(size) / 72 / height
    top = 1 - gap / 2  # a label is below the title
    if gap * (len(lines) - 1) > top:
        columns = -(-len(lines) // (int(1 / gap) + 1))
        axes.legend(handles=lines, loc="upper left", bbox_to_anchor=(1, 1), ncols=columns)
        return
    from matplotlib.patches import ConnectionPatch  # noqa: PLC0415 - takes half a second

    last = [np.column_stack(line.get_data())[np.argmax(line.get_xdata())] for line in lines]
    ends = axes.transAxes.inverted().transform(axes.transData.transform(np.array(last, float)))
    ends = np.clip(ends, 0, 1)
    left, right = 1 + _LEAD / width, 1 + _SAMPLE / width
    places = top * spread(np.minimum(ends[:, 1] / top, 1), gap / top)
    joined: dict[str, Any] = {"coordsA": axes.transAxes, "coordsB": axes.transAxes, **_LEADER}
    for line, text, end, place in zip(lines, texts, ends, places, strict=True):
        axes.add_artist(ConnectionPatch(tuple(end), (left, place), clip_on=False, **joined))
        (sample,) = axes.plot([left, right], [place, place], transform=axes.transAxes)
        sample.update_from(line)
        marker = line.get_marker() if line.get_markevery() else ""
        sample.set(transform=axes.transAxes, clip_on=False, label="", marker=marker, markevery=[0])
        axes.annotate(
            text, (right, place), xycoords="axes fraction", va="center",
            xytext=(_PAD, 0), textcoords="offset points", fontsize=size, annotation_clip=False,
        )  # fmt: skip


def log_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers, such as 1, 2, 5, 10; large ones as powers.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from fldb_flower.runs.plots import log_ticks
    >>> axes = plt.figure().subplots()
    >>> axes.set_xscale("log")
    >>> log_ticks(axes.xaxis)
    """
    from matplotlib import ticker  # noqa: PLC0415 - takes half a second

    low, high = sorted(axis.get_view_interval())
    steps = (1.0, 2.0, 5.0) if high < 10**_DECADES * low else (1.0,)
    many = ticker.LogLocator(subs=steps, numticks=20)
    axis.set_major_locator(many if high > _NARROW * low else ticker.AutoLocator())
    powers = ticker.LogFormatterSciNotation()

    def text(value: float, _: float) -> str:
        return f"{value:,g}" if 1e-4 < value < 1e6 else powers(value)

    axis.set_major_formatter(text)
    axis.set_ticks([], minor=True)


def spread(heights: npt.ArrayLike, gap: float) -> npt.NDArray[np.float64]:
    """Return the heights in [0, 1] nearest to the given ones that are at least ``gap`` apart."""
    wanted = np.asarray(heights, dtype=float)
    order = np.argsort(wanted, kind="stable")
    slots = gap * np.arange(len(wanted))
    # Without the slots, heights need only ascend: blocks of violators get their mean.
    blocks: list[list[float]] = []
    for value in wanted[order] - slots:
        blocks.append([value])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    ascending = np.concatenate([np.full(len(block), np.mean(block)) for block in blocks])
    result = np.empty(len(wanted))
    result[order] = np.clip(ascending, 0, 1 - slots[-1]) + slots
    return result


def setting_text(key: str, value: Any) -> str:
    r"""Return a setting and its value as text of Matplotlib, such as ``$\tau=4$``."""
    if key == "algorithm":
        return style_of(str(value))["label"].replace("$", r"\$")
    shown = f"{value:.4g}" if isinstance(value, float) else f"{value}"
    if key in SYMBOLS and not isinstance(value, str):
        return f"${SYMBOLS[key]}={shown}$"
    return f"{key.removesuffix('.name')}={shown}".replace("$", r"\$")


def wrap(text: str, letters: int) -> str:
    """Break text of Matplotlib into lines of at most ``letters`` visible letters."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        # An equals sign has spaces around it; a command is one letter.
        shown = re.sub(r"\\[a-z]+", "x", longer.replace("=", " = ")).replace("$", "")
        lines = [*lines[:-1], longer] if len(shown) <= letters else [*lines, word]
    return "\n".join(line for line in lines if line)


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings and their values as text of Matplotlib."""
    return ", ".join(setting_text(key, value) for key, value in settings.items())


def title_of(settings: Mapping[str, Any]) -> str:
    """Return the main settings, given by dotted names, as text of Matplotlib."""
    names = [settings[key] for key in ("algorithm", "environment.name") if key in settings]
    head = " on ".join(setting_text("algorithm", name) for name in names)
    sizes = settings_text({key: settings[key] for key in _SIZES if key in settings})
    return ": ".join(part for part in (head, sizes) if part)


def errors_text(seeds: Collection[int]) -> str:
    """Return a description of the curves, from the numbers of their seeds."""
    least, most = min(seeds), max(seeds)
    if most == 1:
        return "1 seed"
    return f"mean ± standard error, {most if least == most else f'{least} to {most}'} seeds"


def describe(settings: Settings) -> str:
    """Return the main settings of a run in one line, without those that have no effect."""
    parts = {
        "num_agents": f"N={settings.num_agents}",
        "horizon": f"T={settings.horizon}",
        "num_arms": f"K={settings.num_arms}",
        "dimension": f"d={settings.dimension}",
        "tau": f"tau={settings.tau}",
        "schedule.ratio": f"geometric ratio={settings.schedule.ratio:g}",
        "selection": settings.selection,
        "seed": f"seed={settings.seed}",
    }
    ignored = unused(to_dotted(settings))
    main = ", ".join(text for name, text in parts.items() if name not in ignored)
    return f"{settings.algorithm} on {settings.environment.name}: {main}"


def plot_regret(path: Path, history: History, settings: Settings) -> None:
    """Plot the average cumulative regret of a run against the iterations."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        regret(axes, [Curve(settings.algorithm, history.cumulative_regret)])
        values = to_dotted(settings)
        used = {key: value for key, value in values.items() if key not in unused(values)}
        selection = f", {settings.selection}" if "selection" in used else ""
        axes.set_title(wrap(f"{title_of(used)}{selection}, seed {settings.seed}", 42))
        axes.set_ylabel(f"{REGRET}\n(units of latent reward)")

    save_figure(path, draw, height=2.4)


def save_figure(
    path: Path,
    draw: Callable[[Figure], None],
    *,
    height: float,
    width: str = "column",
    formats: Sequence[str] = ("png",),
    font: str = "",
) -> list[Path]:
    """Draw a figure, save it in :data:`FORMATS`, and return the files; log a failure in one line.

    The height is in inches, and the width one of :data:`WIDTHS`. ``font`` is one of :func:`fonts`,
    by default that of the style. The figure does not depend on the user's Matplotlib backend,
    ``matplotlibrc`` or style, and the same data gives the same bytes. Only this module imports
    Matplotlib.
    """
    paths = [path.with_suffix(f".{each}") for each in formats]
    try:
        with style(font):
            from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
            from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second

            figure = Figure(figsize=(WIDTHS[width], height), layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure)
            for each, kind in zip(paths, formats, strict=True):
                content = io.BytesIO()
                if kind == "png":
                    _save_png(figure, content)
                elif kind == "pgf":
                    _save_pgf(figure, content)
                else:
                    figure.savefig(content, format=kind, metadata=dict.fromkeys(FORMATS[kind]))
                replace_file(each, content.getvalue())
    except Exception as error:  # results do not depend on the plot
        names = ", ".join(map(str, paths))
        _LOG.warning("%s", one_line(f"no plot {names}: {type(error).__name__}: {error}"))
        return []
    return paths


def _save_png(figure: Figure, content: io.BytesIO) -> None:
    """Save a PNG image with a palette, which takes less time and half of the bytes."""
    from PIL import Image  # noqa: PLC0415 - Matplotlib needs it, too

    pixels = io.BytesIO()
    figure.savefig(pixels, format="raw", dpi=DPI)
    size = [int(inches * DPI) for inches in figure.get_size_inches()]
    image = Image.frombytes("RGBA", (size[0], size[1]), pixels.getvalue()).convert("RGB")
    palette = image.quantize(_COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    palette.save(content, format="png", dpi=(DPI, DPI))


def _save_pgf(figure: Figure, content: io.BytesIO) -> None:
    """Save drawing commands for LaTeX, which writes the texts in the font of the document.

    LaTeX is not needed here: the texts are measured in the font of the figure.
    """
    from matplotlib.backend_bases import RendererBase  # noqa: PLC0415
    from matplotlib.backends.backend_pgf import RendererPgf  # noqa: PLC0415

    class Renderer(RendererPgf):
        get_text_width_height_descent = RendererBase.get_text_width_height_descent

    commands = io.StringIO()
    renderer: Any = Renderer
    figure.draw(renderer(figure, commands))
    size = "".join(f"{{{inches:f}in}}" for inches in figure.get_size_inches())
    content.write(
        "% Include this file by \\input, after \\usepackage{pgf} in the preamble.\n"
        "\\begingroup\\makeatletter\\begin{pgfpicture}%\n"
        f"\\pgfpathrectangle{{\\pgfpointorigin}}{{\\pgfqpoint{size}}}%\n"
        "\\pgfusepath{use as bounding box, clip}%\n"
        f"{commands.getvalue()}\\end{{pgfpicture}}\\makeatother\\endgroup\n".encode()
    )


def fonts() -> list[str]:
    """Return the names of the fonts that figures can have."""
    with style():
        from matplotlib.font_manager import get_font_names  # noqa: PLC0415

        return sorted(get_font_names())


@contextlib.contextmanager
def style(font: str = "") -> Iterator[None]:
    """Use the style of the figures in the block, ``figure_style.yaml``, and then the user's."""
    if "matplotlib" not in sys.modules:
        # The import fails if the backend is not installed, such as Jupyter's.
        backend = os.environ.pop(_BACKEND, None)
        try:
            import matplotlib  # noqa: PLC0415
        finally:
            if backend is not None:
                os.environ[_BACKEND] = backend
        if backend is not None:
            with contextlib.suppress(ValueError):
                matplotlib.rcParams["backend"] = backend
    import matplotlib as mpl  # noqa: PLC0415

    with mpl.rc_context():
        mpl.rcdefaults()
        sheet = Path(__file__).with_name("figure_style.yaml")
        mpl.rcParams.update(mpl.rc_params_from_file(sheet, use_default_template=False))
        if font:
            names = {f"mathtext.{each}": font for each in ("rm", "cal", "sf", "tt")}
            names |= {"mathtext.it": f"{font}:italic", "mathtext.fontset": "custom"}
            mpl.rcParams.update(names | {"font.family": font})  # type: ignore[arg-type]
        yield


def axes_for(ax: Axes | None) -> Axes:
    """Return the given axes, or those of a new pyplot figure, which notebooks display."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # noqa: PLC0415 - takes half a second

    return plt.subplots(layout="constrained")[1]
