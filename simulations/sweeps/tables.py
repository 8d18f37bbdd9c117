"""The results of a sweep: a table of its jobs, their curves, and a plot."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fldb_flower.runs.plots import save_figure
from simulations.saved_runs import Run, group_by_seed, one_per_seed, predictions, relevant, varying

TABLE, CURVES, PICTURE = "sweep.csv", "curves.csv", "sweep.png"
_COLUMNS = ("exchanges", "rounds", "uploaded_bytes", "downloaded_bytes")
_MAX_ROWS = 60  # of the printed table


def report(
    runs: Sequence[Run], failed: Sequence[str], folder: Path, swept: Collection[str] = ()
) -> None:
    """Write and print the tables of a sweep, and report the jobs without a result.

    The tables have a column for each swept setting, even if only one of its values has a result.
    Tables of an earlier sweep are removed.
    """
    for name in (TABLE, CURVES, PICTURE):
        (folder / name).unlink(missing_ok=True)
    if runs:
        keys = _columns(runs, swept)
        table(runs, keys, folder).to_csv(folder / TABLE, index=False, lineterminator="\n")
        curves(runs, keys).to_csv(folder / CURVES, index=False, lineterminator="\n")
        picture(runs, keys, folder / PICTURE)
        print(statistics_text(runs, swept))
        files = [name for name in (TABLE, CURVES, PICTURE) if (folder / name).exists()]
        print(f"results of {len(runs)} jobs: {', '.join(files)} in {folder}")
    for line in failed:
        print(f"error: job {line}", file=sys.stderr)


def _columns(runs: Sequence[Run], swept: Collection[str]) -> list[str]:
    """Return the settings that were swept or differ, in the order of ``config.yaml``."""
    chosen = {*varying(runs), *swept}
    return [key for key in dict.fromkeys(k for run in runs for k in run.settings) if key in chosen]


def table(runs: Sequence[Run], keys: Sequence[str], folder: Path) -> pd.DataFrame:
    """Return one row per job: directory, swept settings, regret, exchanges, bytes and seconds.

    Log loss and accuracy follow the regret, if some of the jobs predicted answers.
    """
    return pd.DataFrame(
        {
            "job": str(run.path.relative_to(folder)),
            **{key: run.settings.get(key) for key in keys},
            "final_regret": run.summary["final_regret"],
            **{name: run.summary.get(name) for name in predictions(runs)},
            **{name: run.summary[name] for name in (*_COLUMNS, "runtime_seconds")},
        }
        for run in runs
    )


def statistics(runs: Sequence[Run], swept: Collection[str] = ()) -> pd.DataFrame:
    """Return one row per configuration: varying settings, and the final regret over the seeds.

    The standard error is that of the mean, ``deviation / sqrt(seeds)``. It is NaN for one seed.
    Log loss and accuracy, if some of the runs predicted answers, are means as well. A setting that
    a configuration does not use is None.
    """
    keys = [key for key in _columns(runs, swept) if key != "seed"]
    rows = []
    for group in map(one_per_seed, group_by_seed(runs)):
        final = pd.Series([run.summary["final_regret"] for run in group], dtype=float)
        numbers = {"mean": final.mean(), "std. error": final.sem(), "median": final.median()}
        for name in predictions(runs):
            values = [run.summary.get(name) for run in group]
            numbers[name] = pd.Series(values, dtype=float).mean()
        used = relevant(group[0].settings)
        chosen = {key: used.get(key) for key in keys}
        rows.append({**chosen, **numbers, "seeds": len(group)})
    return pd.DataFrame(rows)


def statistics_text(runs: Sequence[Run], swept: Collection[str] = ()) -> str:
    """Return :func:`statistics` as aligned text, limited to 60 rows."""
    table = statistics(runs, swept)
    text = table.head(_MAX_ROWS).to_string(
        index=False, na_rep="-", float_format=lambda value: f"{value:.6g}"
    )
    left = len(table) - _MAX_ROWS
    more = f"\n... and {left} more configurations in {TABLE}" if left > 0 else ""
    return f"final regret by configuration:\n{text}{more}"


def curves(runs: Sequence[Run], keys: Sequence[str]) -> pd.DataFrame:
    """Return one row per iteration of each job: swept settings and cumulative regret."""
    parts = [run.curve.assign(**{key: run.settings.get(key) for key in keys}) for run in runs]
    columns = [*keys, "iteration", "cumulative_regret"]
    return pd.concat(parts, ignore_index=True)[columns]


def picture(runs: Sequence[Run], keys: Sequence[str], path: Path) -> None:
    """Plot mean and standard error over the seeds, with a curve per configuration."""
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
    """Plot the mean of curves, and their standard error as a band if there are several."""
    rows = np.array(values)
    mean, steps = rows.mean(axis=0), np.arange(1, rows.shape[1] + 1)
    (line,) = axes.plot(steps, mean, label=label, **style)
    if len(rows) > 1:
        error = rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
        band = {"alpha": 0.2, "linewidth": 0, "color": line.get_color()}
        axes.fill_between(steps, mean - error, mean + error, **band)
