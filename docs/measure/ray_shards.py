"""The time of shards on Ray, relative to processes of our own."""

from __future__ import annotations

import statistics
from contextlib import closing
from typing import Any

from fldb_flower.algorithms import run_algorithm
from fldb_flower.federation.history import History
from fldb_flower.system.process import one_blas_thread
from simulations.benchmark import seconds, settings
from simulations.engines.ray_cluster import connected
from simulations.engines.vectorized import DirectFederation

SIZES = {"algorithm": "fldb_ons", "num_agents": 50_000, "horizon": 50, "tau": 5}
GOAL = 1.2


def shards_on_ray(repetitions: int = 3) -> list[dict[str, Any]]:
    """Time runs on Ray and in local processes alternately, without the start of either.

    Ray starts once, on this machine. The ratio is the median over the repetitions.
    """
    times = []
    with connected():
        _run("ray")  # imports and caches
        for _ in range(repetitions):
            times.append((_run("ray"), _run("auto")))
    ratio = statistics.median(on_ray / local for on_ray, local in times)
    return [{"figure": "shards on Ray / local processes", "ratio": round(ratio, 2), "goal": GOAL}]


def _run(workers: str) -> float:
    chosen = settings(**SIZES, engine={"workers": workers})
    with (
        one_blas_thread(),
        closing(DirectFederation(chosen, History(chosen.horizon))) as federation,
    ):
        return seconds(run_algorithm, federation, chosen)
