"""Rows of the benchmark's section `limits`: small runs, and jobs of sweeps of them."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fldb_flower.federation.history import History
from simulations.benchmark import ALGORITHMS, draw_at_once, seconds, settings
from simulations.engines import vectorized

RUNS = ("FLDB-OGD", "FLDB-ONS", "FLDB-ONS geometric 1.5")
RUN_GOAL, JOB_GOAL = 2.5, 1.5


def small_runs(repetitions: int) -> list[dict[str, Any]]:
    """Time runs with N=100 and T=500 alternately with drawing as many random numbers."""
    rows = []
    for name in RUNS:
        chosen, ratios = settings(**ALGORITHMS[name]), []
        for _ in range(repetitions + 1):  # the first is not counted
            draws = seconds(draw_at_once, chosen)
            ratios.append(seconds(vectorized.run, chosen, History(chosen.horizon)) / draws)
        ratio = round(statistics.median(ratios[1:]), 2)
        rows.append({"figure": f"{name}, N=100, x draws", "ratio": ratio, "goal": RUN_GOAL})
    return rows


def sweep_jobs(repetitions: int, jobs: int = 20) -> list[dict[str, Any]]:
    """Time the jobs of `fldb sweep` relative to the runs in them, in one process.

    The difference between a sweep of ``jobs + 1`` jobs and one of a single job excludes the start
    and the picture at the end.
    """
    ratios = []
    for _ in range(repetitions):
        (first, _), (all_, runs) = _sweep(1), _sweep(jobs + 1)
        ratios.append((all_ - first) / jobs / statistics.mean(runs))
    ratio = round(statistics.median(ratios), 2)
    return [{"figure": "job of a sweep, x its run", "ratio": ratio, "goal": JOB_GOAL}]


def _sweep(jobs: int) -> tuple[float, list[float]]:
    """Return the seconds that a sweep over seeds takes, and those of its runs."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "simulations.run", "-m", "algorithm=fldb_ons", "tau=1"]
        command += [f"seed=range({jobs})", f"hydra.sweep.dir={folder}"]
        took = seconds(lambda: subprocess.run(command, check=True, capture_output=True))
        summaries = [json.loads(path.read_text()) for path in Path(folder).glob("*/summary.json")]
    return took, [summary["runtime_seconds"] for summary in summaries]
