"""The picture of one run."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fldb_flower.history import History
from fldb_flower.settings import Settings


def describe(settings: Settings) -> str:
    """Return the settings that identify a run, in one sentence."""
    schedule = (
        f"tau={settings.tau}"
        if settings.schedule.name == "periodic"
        else f"geometric ratio={settings.schedule.ratio:g}"
    )
    return (
        f"{settings.algorithm} on {settings.environment.name}: N={settings.num_agents},"
        f" T={settings.horizon}, K={settings.num_arms}, d={settings.dimension}, {schedule},"
        f" {settings.selection}, seed={settings.seed}"
    )


def plot_regret(path: Path, history: History, settings: Settings) -> None:
    """Draw average cumulative regret against iterations to a PNG file."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(np.arange(1, history.horizon + 1), history.cumulative_regret, linewidth=2)
    axes.set_xlabel("iteration")
    axes.set_ylabel("cumulative regret, average per agent\n(units of latent reward)")
    axes.set_title(textwrap.fill(describe(settings), 72), fontsize=10)
    axes.set_xlim(0, history.horizon)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    # A fixed Software tag: the same run gives the same bytes.
    figure.savefig(path, dpi=150, metadata={"Software": None})
