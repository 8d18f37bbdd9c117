"""What a sweep leaves behind: one table of its jobs, their curves, and a picture."""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from tqdm import tqdm

from fldb_flower.plots import save_figure
from fldb_flower.results import SUMMARY
from simulations.runs import Run, find_runs, group_by_seed, varying

_LOG = logging.getLogger("fldb_flower")
_SECONDS_BETWEEN_LOOKS = 0.5
TABLE, CURVES, PICTURE = "sweep.csv", "curves.csv", "sweep.png"
_COLUMNS = ("final_regret", "exchanges", "rounds", "uploaded_bytes", "downloaded_bytes")

jobs_without_result: list[str] = []
"""Of the sweep just ended; `simulations.run` exits with 1 if there are any."""


class SummariseSweep(Callback):
    """Hydra callback: shows how far a sweep is, and summarises it when its last job has ended."""

    def __init__(self) -> None:
        self._bar: _Bar | None = None

    def on_multirun_start(self, config: DictConfig, **_kwargs: Any) -> None:
        """Show a progress bar if somebody is watching."""
        if sys.stderr.isatty():
            self._bar = _Bar(Path(config.hydra.sweep.dir), list(config.hydra.overrides.task))

    def on_multirun_end(self, config: DictConfig, **_kwargs: Any) -> None:
        """Write the sweep's table, curves and picture into its directory."""
        if self._bar is not None:
            self._bar.close()
        folder = Path(config.hydra.sweep.dir)
        runs, _ = find_runs([folder])
        # Launchers keep files of their own in hidden folders.
        jobs = {path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."}
        jobs_without_result.extend(sorted(str(path) for path in jobs - {run.path for run in runs}))
        if runs:
            summarise(runs, folder)
            _LOG.info("%d runs: %s, %s and %s in %s", len(runs), TABLE, CURVES, PICTURE, folder)


class _Bar:
    """A bar over a sweep's jobs, fed by looking for results: jobs may run in any process."""

    def __init__(self, folder: Path, overrides: Sequence[str]) -> None:
        self._folder = folder
        self._tqdm = tqdm(total=count_jobs(overrides), unit="job", file=sys.stderr)
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN_LOOKS):
            self._look()

    def _look(self) -> None:
        self._tqdm.n = sum(1 for _ in self._folder.glob(f"*/{SUMMARY}"))
        self._tqdm.refresh()

    def close(self) -> None:
        """Show the last count and leave the bar standing."""
        self._ended.set()
        self._watcher.join()
        self._look()
        self._tqdm.close()


def count_jobs(overrides: Sequence[str]) -> int:
    """Return how many jobs a sweep has: the product of its overrides' choices."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return math.prod(
        sum(1 for _ in override.sweep_string_iterator()) if override.is_sweep_override() else 1
        for override in parsed
    )


def summarise(runs: Sequence[Run], folder: Path) -> None:
    """Write ``sweep.csv``, ``curves.csv`` and ``sweep.png`` of some runs into a folder."""
    keys = varying(runs)
    table(runs, keys, folder).to_csv(folder / TABLE, index=False, lineterminator="\n")
    curves(runs, keys).to_csv(folder / CURVES, index=False, lineterminator="\n")
    picture(runs, keys, folder / PICTURE)


def table(runs: Sequence[Run], keys: Sequence[str], folder: Path) -> pd.DataFrame:
    """One row a job: its directory, what was swept, regret, exchanges, bytes and seconds."""
    return pd.DataFrame(
        {
            "job": str(run.path.relative_to(folder)),
            **{key: run.settings.get(key) for key in keys},
            **{name: run.summary[name] for name in (*_COLUMNS, "runtime_seconds")},
        }
        for run in runs
    )


def curves(runs: Sequence[Run], keys: Sequence[str]) -> pd.DataFrame:
    """One row for each iteration of each job: what was swept, and its regret by then."""
    parts = []
    for run in runs:
        part = run.curve[["iteration", "cumulative_regret"]].copy()
        for place, key in enumerate(keys):
            part.insert(place, key, run.settings.get(key))
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def picture(runs: Sequence[Run], keys: Sequence[str], path: Path) -> None:
    """Draw mean and standard error over seeds, a curve for each value of what was swept."""
    labels = [key for key in keys if key != "seed"]
    groups = group_by_seed(runs)

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for group in groups:
            names = ", ".join(f"{key}={group[0].settings.get(key)}" for key in labels)
            draw_mean(axes, [run.curve.cumulative_regret.to_numpy() for run in group], label=names)
        axes.set_xlabel("iteration")
        axes.set_ylabel("cumulative regret, average per agent")
        seeds = max(len(group) for group in groups)
        axes.set_title(f"mean ± standard error of {seeds} seeds", fontsize=10)
        axes.grid(alpha=0.3)
        if labels:
            axes.legend(fontsize=8, ncols=1 + len(groups) // 8)

    save_figure(path, draw, size=(7.2, 4.6))


def draw_mean(axes: Any, values: Sequence[Any], *, label: str, **style: Any) -> None:
    """Draw the mean of some curves and, of several, the standard error as a band."""
    rows = np.array(values)
    mean, steps = rows.mean(axis=0), np.arange(1, rows.shape[1] + 1)
    (line,) = axes.plot(steps, mean, label=label, **style)
    if len(rows) > 1:
        error = rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
        band = {"alpha": 0.2, "linewidth": 0, "color": line.get_color()}
        axes.fill_between(steps, mean - error, mean + error, **band)
