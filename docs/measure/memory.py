"""Table `scale`: time and memory of a run against N, d, K and T, one at a time."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pandas as pd

from common import median
from fldb_flower.errors import SettingsError
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import arrays_on
from fldb_flower.settings import Settings, from_nested
from simulations.benchmark import seconds
from simulations.engines import vectorized
from simulations.pools import map_in_processes

BASE = {"algorithm": "fldb_ons", "num_agents": 1000, "num_arms": 10, "dimension": 5, "horizon": 100}
VARIED: dict[str, tuple[dict[str, int], list[int]]] = {
    "num_agents": ({}, [100, 1_000, 10_000, 100_000, 1_000_000]),
    "horizon": ({"num_agents": 10_000}, [50, 100, 200, 400, 800]),
    "num_arms": ({}, [2, 5, 10, 50, 200]),
    "dimension": ({"num_agents": 100, "horizon": 50}, [5, 16, 64, 256, 384, 1024]),
}
BYTES_AN_AGENT = 100
_PERIOD = 0.03  # seconds between two samples of the memory


def scale() -> pd.DataFrame:
    """Run FLDB-ONS (tau=5) with one size varied at a time, each run in a new process."""
    rows: list[dict[str, Any]] = []
    backends = ["numpy"]
    with contextlib.suppress(SettingsError):
        arrays_on("cuda")
        backends.append("cuda")
    for backend, (name, (others, sizes)) in itertools.product(backends, VARIED.items()):
        for size in sizes:
            chosen = from_nested({**BASE, **others, name: size, "backend": backend}, "scale")
            duration, memory = time_and_memory(chosen)
            each = duration / chosen.num_agents / chosen.horizon
            rows.append(
                {
                    "backend": backend,
                    "varied": name,
                    "size": size,
                    "seconds": round(duration, 2),
                    "us an agent and iteration": round(1e6 * each, 3),
                    "peak MB": round(memory / 1e6),
                }
            )
    return pd.DataFrame(rows)


def cost_of_agents(repetitions: int) -> list[dict[str, Any]]:
    """Compare FLDB-ONS (tau=5) with few and with many agents: memory and time an agent.

    The peak memory beside a fixed part is the slope between the two sizes. ``ratio`` is in units of
    100 bytes, and of the time if it were proportional to N.
    """
    few, many = 100_000, 1_000_000
    runs = [from_nested({**BASE, "num_agents": n, "horizon": 20}, "limits") for n in (few, many)]
    measured = [[time_and_memory(each) for each in runs] for _ in range(repetitions)]
    used = median(((b[1] - a[1]) / (many - few) for a, b in measured), 0)
    growth = median(b[0] / a[0] * few / many for a, b in measured)
    name = f"time of {many:,} agents / {many // few} x {few:,} agents"
    return [
        {"figure": f"bytes an agent / {BYTES_AN_AGENT}", "ratio": used / 100, "goal": 1.0},
        {"figure": name, "ratio": growth, "goal": 1.1},
    ]


def time_and_memory(chosen: Settings) -> tuple[float, int]:
    """Return the seconds and the peak memory in bytes of a vectorized run, in a new process."""
    # Processes of a Pool may not start processes.
    spawn = multiprocessing.get_context("spawn")
    (measured,) = map_in_processes(_measure, [chosen], 1, spawn)
    return measured


def _measure(chosen: Settings) -> tuple[float, int]:
    short = from_nested({**BASE, "horizon": 3}, "scale")
    vectorized.run(short, History(short.horizon))  # imports and caches
    peak, ended = [0], threading.Event()
    thread = threading.Thread(target=_follow, args=(peak, ended), daemon=True)
    thread.start()
    duration = seconds(vectorized.run, chosen, History(chosen.horizon))
    ended.set()
    thread.join()
    return duration, max(peak)


def _follow(peak: list[int], ended: threading.Event) -> None:
    """Sample the memory of this process and its children until an event; pages count once."""
    while not ended.wait(_PERIOD) or len(peak) == 1:
        children = [child.pid for child in multiprocessing.active_children()]
        peak.append(sum(map(_memory, [os.getpid(), *children])))


def _memory(process: int | None) -> int:
    """Return the bytes of a process (Linux' proportional set size); 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
