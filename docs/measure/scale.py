"""Benchmark section `scale`: time and memory against N, d, K and T, one at a time."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pandas as pd

from fldb_flower.errors import SettingsError
from fldb_flower.linalg.arrays import arrays_on
from fldb_flower.settings import Settings, from_nested
from fldb_flower.system.progress import progress
from memory import BASE, time_and_memory

_SOURCE = "the benchmark"  # of settings, in messages
VARIED: dict[str, tuple[dict[str, int], list[int]]] = {
    "num_agents": ({}, [100, 1_000, 10_000, 100_000, 1_000_000]),
    "horizon": ({"num_agents": 10_000}, [50, 100, 200, 400, 800]),
    "num_arms": ({}, [2, 5, 10, 50, 200]),
    "dimension": ({"num_agents": 100, "horizon": 50}, [5, 16, 64, 256, 384, 1024]),
}


def scale() -> pd.DataFrame:
    """Run FLDB-ONS (tau=5) with one size varied at a time.

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
    return pd.DataFrame(rows)


def _run(chosen: Settings) -> dict[str, float]:
    duration, memory = time_and_memory(chosen)
    each = duration / chosen.num_agents / chosen.horizon
    return {
        "seconds": round(duration, 2),
        "us an agent and iteration": round(1e6 * each, 3),
        "peak MB": round(memory / 1e6),
    }
