"""Benchmark section `scale`: time and memory against N, d, K and T, one at a time."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pandas as pd

from fldb_flower.errors import SettingsError
from fldb_flower.linalg.arrays import arrays_on
from fldb_flower.runs.curves import points
from fldb_flower.runs.plots import save_figure
from fldb_flower.runs.styles import ALGORITHM_STYLES
from fldb_flower.settings import Settings, from_nested
from fldb_flower.system.progress import progress
from simulations.benchmark.memory import BASE, time_and_memory

_SOURCE = "the benchmark"  # of settings, in messages
VARIED: dict[str, tuple[dict[str, int], list[int]]] = {
    "num_agents": ({}, [100, 1_000, 10_000, 100_000, 1_000_000]),
    "horizon": ({"num_agents": 10_000}, [50, 100, 200, 400, 800]),
    "num_arms": ({}, [2, 5, 10, 50, 200]),
    "dimension": ({"num_agents": 100, "horizon": 50}, [5, 16, 64, 256, 384, 1024]),
}
_NAMES = {"num_agents": "agents $N$", "horizon": "iterations $T$", "num_arms": "arms $K$",
          "dimension": "features $d$"}  # fmt: skip


def scale(picture: Path | None = None) -> pd.DataFrame:
    """Run FLDB-ONS (tau=5) with one size varied at a time, and plot the table to a file.

    Each run is in a new process.
    """
    rows: list[dict[str, Any]] = []
    backends = ["numpy"]
    with contextlib.suppress(SettingsError):
        arrays_on("cuda")
        backends.append("cuda")
    runs = [
        (backend, name, size, {**BASE, **others, name: size, "backend": backend})
        for backend, (name, (others, sizes)) in itertools.product(backends, VARIED.items())
        for size in sizes
    ]
    with progress("scale", len(runs), "run") as done:
        for backend, name, size, values in runs:
            measured = _run(from_nested(values, _SOURCE))
            rows.append({"backend": backend, "varied": name, "size": size, **measured})
            done()
    table = pd.DataFrame(rows)
    if picture is not None:
        draw(table, picture)
    return table


def _run(chosen: Settings) -> dict[str, float]:
    duration, memory = time_and_memory(chosen)
    each = duration / chosen.num_agents / chosen.horizon
    return {
        "seconds": round(duration, 2),
        "us an agent and iteration": round(1e6 * each, 3),
        "peak MB": round(memory / 1e6),
    }


def draw(table: pd.DataFrame, picture: Path) -> None:
    """Plot time and memory against each size."""

    def paint(figure: Any) -> None:
        panels = figure.subplots(2, 2, sharey=True)
        lines: dict[str, Any] = {}
        for axes, (name, (_, sizes)) in zip(panels.flat, VARIED.items(), strict=True):
            styles = iter(ALGORITHM_STYLES.values())
            for backend, rows in table[table["varied"] == name].groupby("backend"):
                shown = {"time (s)": rows["seconds"], "peak memory (GB)": rows["peak MB"] / 1000}
                for kind, values in shown.items():
                    text = kind if backend == "numpy" else f"{kind}, {backend}"
                    lines[text] = points(axes, [rows["size"], values], next(styles), text)
            axes.loglog()
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axes.minorticks_off()
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_xlabel(_NAMES[name])
        figure.legend(lines.values(), lines, loc="outside upper center", ncols=len(lines))

    save_figure(picture, paint, width="page", height=4.6, formats=(picture.suffix[1:],))
