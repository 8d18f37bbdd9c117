"""Benchmark section `limits`: each goal of speed and memory as a ratio, measured in one run."""

from __future__ import annotations

from typing import Any

import pandas as pd

import deployment
import refits
from exchange import exchange_over_bare_message
from memory import cost_of_agents
from ray_shards import shards_on_ray
from small_runs import small_runs, sweep_jobs


def limits(repetitions: int = 9) -> pd.DataFrame:
    """Return the ratios, their goals and whether they are reached.

    Parameters
    ----------
    repetitions : int
        Number of timings of small runs and messages; longer ones are repeated less often.
    """
    few = max(1, repetitions // 3)
    rows: list[dict[str, Any]] = [
        *small_runs(repetitions),
        *sweep_jobs(few),
        *refits.limits(few),
        *cost_of_agents(few),
        *exchange_over_bare_message(repetitions),
        *shards_on_ray(few),
        *deployment.limits(),
    ]
    table = pd.DataFrame(rows)[["figure", "ratio", "goal"]]
    return table.assign(reached=table["ratio"] <= table["goal"])
