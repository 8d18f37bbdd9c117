"""Memory of this process and its children, and what a simulated agent costs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from fldb_flower.federation.history import History
from fldb_flower.settings import Settings, from_nested
from simulations.benchmark import seconds
from simulations.engines import vectorized
from simulations.pools import map_in_processes

BASE = {"algorithm": "fldb_ons", "num_agents": 1000, "num_arms": 10, "dimension": 5, "horizon": 100}
BYTES_AN_AGENT = 100
_SOURCE = "the benchmark"  # of settings, in messages
_PERIOD = 0.03  # seconds between two samples


class PeakMemory:
    """The peak memory in bytes of this process and its children, sampled while the block runs.

    Pages that processes share are counted once (Linux' proportional set size).
    """

    def __init__(self) -> None:
        self.peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while True:
            children = [child.pid for child in multiprocessing.active_children()]
            self.peak = max(self.peak, sum(map(_memory, [os.getpid(), *children])))
            if self._ended.wait(_PERIOD):
                return


def _memory(process: int | None) -> int:
    """Return the bytes of a process; 0 if it has ended, or without Linux."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def time_and_memory(chosen: Settings) -> tuple[float, int]:
    """Return the seconds and the peak memory in bytes of a vectorized run, in a new process."""
    # Processes of a Pool may not start processes.
    spawn = multiprocessing.get_context("spawn")
    (measured,) = map_in_processes(_measure, [chosen], 1, spawn)
    return measured


def _measure(chosen: Settings) -> tuple[float, int]:
    short = from_nested({**BASE, "horizon": 3}, _SOURCE)
    vectorized.run(short, History(short.horizon))  # imports and caches
    with PeakMemory() as memory:
        duration = seconds(vectorized.run, chosen, History(chosen.horizon))
    return duration, memory.peak


def cost_of_agents(
    repetitions: int = 2, sizes: tuple[int, int] = (100_000, 1_000_000), horizon: int = 20
) -> list[dict[str, Any]]:
    """Compare FLDB-ONS (tau=5) with few and with many agents: memory and time an agent.

    Each run is in a new process. The peak memory beside a fixed part is the slope between the two
    sizes. ``ratio`` is in units of 100 bytes, and of the time if it were proportional to N.
    """
    runs = [
        [from_nested({**BASE, "num_agents": size, "horizon": horizon}, _SOURCE) for size in sizes]
    ] * repetitions
    measured = [[time_and_memory(each) for each in pair] for pair in runs]
    few, many = sizes
    slopes = [(large[1] - small[1]) / (many - few) for small, large in measured]
    times = [large[0] / small[0] * few / many for small, large in measured]
    used = statistics.median(slopes)
    return [
        {
            "figure": f"bytes an agent / {BYTES_AN_AGENT}",
            "ratio": round(used / BYTES_AN_AGENT, 2),
            "goal": 1.0,
            "bytes": round(used),
        },
        {
            "figure": f"time of {many:,} agents / {many // few} x {few:,} agents",
            "ratio": round(statistics.median(times), 2),
            "goal": 1.1,
        },
    ]
