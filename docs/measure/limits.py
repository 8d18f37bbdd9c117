"""Table `limits`: each goal of speed and memory as a ratio, measured in one run."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

import deployment
import exchange
import memory
import refits
from common import median
from fldb_flower.algorithms import run_algorithm
from fldb_flower.federation.history import History
from fldb_flower.system.process import one_blas_thread
from simulations.benchmark import ALGORITHMS, draw_at_once, seconds, settings
from simulations.engines import vectorized
from simulations.engines.ray_workers import connected
from simulations.engines.vectorized import DirectFederation


def limits() -> pd.DataFrame:
    """Return the ratios, their goals and whether they are reached."""
    rows: list[dict[str, Any]] = [
        *small_runs(9),
        *sweep_jobs(3),
        *refits.limits(3),
        *memory.cost_of_agents(3),
        *exchange.limits(9),
        *shards_on_ray(3),
        *deployment.limits(),
    ]
    table = pd.DataFrame(rows)[["figure", "ratio", "goal"]]
    return table.assign(reached=table["ratio"] <= table["goal"])


def small_runs(repetitions: int) -> list[dict[str, Any]]:
    """Time runs with N=100 and T=500 alternately with drawing as many random numbers."""
    rows = []
    for name in ("FLDB-OGD", "FLDB-ONS", "FLDB-ONS geometric 1.5"):
        chosen, ratios = settings(**ALGORITHMS[name]), []
        for _ in range(repetitions + 1):  # the first is not counted
            draws = seconds(draw_at_once, chosen)
            ratios.append(seconds(vectorized.run, chosen, History(chosen.horizon)) / draws)
        figure = f"{name}, N=100, x draws"
        rows.append({"figure": figure, "ratio": median(ratios[1:]), "goal": 2.5})
    return rows


def sweep_jobs(repetitions: int) -> list[dict[str, Any]]:
    """Time the jobs of `fldb sweep` relative to the runs in them, in one process.

    The difference between a sweep of 21 jobs and one of a single job excludes the start and the
    picture at the end.
    """
    ratios = []
    for _ in range(repetitions):
        (first, _), (all_, runs) = _sweep(1), _sweep(21)
        ratios.append((all_ - first) / 20 / statistics.mean(runs))
    return [{"figure": "job of a sweep, x its run", "ratio": median(ratios), "goal": 1.5}]


def _sweep(jobs: int) -> tuple[float, list[float]]:
    """Return the seconds that a sweep over seeds takes, and those of its runs."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "simulations.run", "-m", "algorithm=fldb_ons", "tau=1"]
        command += [f"seed=range({jobs})", f"hydra.sweep.dir={folder}"]
        took = seconds(lambda: subprocess.run(command, check=True, capture_output=True))
        summaries = [json.loads(path.read_text()) for path in Path(folder).glob("*/summary.json")]
    return took, [summary["runtime_seconds"] for summary in summaries]


def shards_on_ray(repetitions: int) -> list[dict[str, Any]]:
    """Time runs on Ray and in local processes alternately, without the start of either."""
    with connected():
        _sharded("ray")  # imports and caches
        ratios = [_sharded("ray") / _sharded("auto") for _ in range(repetitions)]
    return [{"figure": "shards on Ray / local processes", "ratio": median(ratios), "goal": 1.2}]


def _sharded(workers: str) -> float:
    sizes = {"algorithm": "fldb_ons", "num_agents": 50_000, "horizon": 50, "tau": 5}
    chosen = settings(**sizes, engine={"workers": workers})
    with (
        one_blas_thread(),
        closing(DirectFederation(chosen, History(chosen.horizon))) as federation,
    ):
        return seconds(run_algorithm, federation, chosen)
