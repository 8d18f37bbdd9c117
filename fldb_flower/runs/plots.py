"""Plots: how they are drawn and saved, and the plot of one run."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fldb_flower.errors import one_line
from fldb_flower.federation.history import History
from fldb_flower.settings import Settings
from fldb_flower.system.files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOG = logging.getLogger("fldb_flower")
_BACKEND = "MPLBACKEND"


def describe(settings: Settings) -> str:
    """Return the main settings of a run in one line."""
    periodic, ratio = settings.schedule.name == "periodic", settings.schedule.ratio
    schedule = f"tau={settings.tau}" if periodic else f"geometric ratio={ratio:g}"
    return (
        f"{settings.algorithm} on {settings.environment.name}: N={settings.num_agents},"
        f" T={settings.horizon}, K={settings.num_arms}, d={settings.dimension}, {schedule},"
        f" {settings.selection}, seed={settings.seed}"
    )


def plot_regret(path: Path, history: History, settings: Settings) -> bool:
    """Plot the average cumulative regret against the iterations; see :func:`save_figure`."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.plot(np.arange(1, history.horizon + 1), history.cumulative_regret, linewidth=2)
        axes.set_xlabel("iteration")
        axes.set_ylabel("cumulative regret, average per agent\n(units of latent reward)")
        axes.set_title(textwrap.fill(describe(settings), 72), fontsize=10)
        axes.set_xlim(0, history.horizon)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)

    return save_figure(path, draw, size=(6.4, 4.2))


def save_figure(
    path: Path, draw: Callable[[Figure], None], *, size: tuple[float, float], dpi: int = 150
) -> bool:
    """Save a figure as PNG. If that fails, log one line and return False.

    The figure does not depend on the user's Matplotlib backend, ``matplotlibrc`` or style. The same
    data gives the same bytes. Only this module imports Matplotlib. ``size`` is the width and height
    in inches.
    """
    try:
        with _default_style():
            from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
            from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second

            figure = Figure(figsize=size, layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure)
            content = io.BytesIO()
            figure.savefig(content, format="png", dpi=dpi, metadata={"Software": None})
        replace_file(path, content.getvalue())
    except Exception as error:  # results do not depend on the plot
        _LOG.warning("%s", one_line(f"no plot {path}: {type(error).__name__}: {error}"))
        return False
    return True


@contextlib.contextmanager
def _default_style() -> Iterator[None]:
    """Import Matplotlib with any backend set, and use its default style in the block."""
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
        yield


def axes_for(ax: Axes | None) -> Axes:
    """Return the given axes, or those of a new figure of pyplot, which notebooks display."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # noqa: PLC0415 - takes half a second

    return plt.subplots(layout="constrained")[1]
