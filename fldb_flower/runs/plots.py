"""Plots: how they are drawn and saved, and the plot of one run."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fldb_flower.errors import one_line
from fldb_flower.federation.history import History
from fldb_flower.runs.curves import REGRET, Curve, regret, title_of, wrap
from fldb_flower.settings import Settings, to_dotted, unused
from fldb_flower.system.files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS = {"column": 3.25, "page": 6.75}
"""Widths of figures in inches: one column of a paper with two, and its page."""
DPI = 240
"""Pixels per inch of PNG images."""
FORMATS: dict[str, tuple[str, ...]] = {
    "png": (),
    "svg": ("Date", "Creator"),
    "pdf": ("CreationDate", "Producer"),
}
"""Formats of figures, and the metadata that depend on the date or Matplotlib's version."""
_COLORS = 128  # of a PNG image
_LOG = logging.getLogger("fldb_flower")
_BACKEND = "MPLBACKEND"


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
) -> list[Path]:
    """Draw a figure, save it in :data:`FORMATS`, and return the files; log a failure in one line.

    The height is in inches, and the width one of :data:`WIDTHS`. The figure does not depend on the
    user's Matplotlib backend, ``matplotlibrc`` or style, and the same data gives the same bytes.
    Only this module imports Matplotlib.
    """
    paths = [path.with_suffix(f".{each}") for each in formats]
    try:
        with style():
            from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
            from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second

            figure = Figure(figsize=(WIDTHS[width], height), layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure)
            for each, kind in zip(paths, formats, strict=True):
                content = io.BytesIO()
                if kind == "png":
                    _save_png(figure, content)
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
    palette = image.quantize(_COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.save(content, format="png", dpi=(DPI, DPI))


@contextlib.contextmanager
def style() -> Iterator[None]:
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
        yield


def axes_for(ax: Axes | None) -> Axes:
    """Return the given axes, or those of a new figure of pyplot, which notebooks display."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # noqa: PLC0415 - takes half a second

    return plt.subplots(layout="constrained")[1]
