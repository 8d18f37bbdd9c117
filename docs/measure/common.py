"""What the measurements share: times, medians, and regret by seed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fldb_flower.federation.history import History
from fldb_flower.settings import Settings
from simulations.engines import vectorized
from simulations.pools import map_in_processes


def regret(chosen: Settings) -> float:
    """Return the final regret of a run."""
    history = History(chosen.horizon)
    vectorized.run(chosen, history)
    return round(history.regret, 4)


def by_seed(
    function: Callable[[Any], Any], cases: Sequence[Any], seeds: int | Sequence[int]
) -> list[list[Any]]:
    """Return ``function((case, seed))`` for the seeds 0, 1, ... of each case, on all processors."""
    counts = [seeds] * len(cases) if isinstance(seeds, int) else seeds
    jobs = [
        (case, seed) for case, count in zip(cases, counts, strict=True) for seed in range(count)
    ]
    found = iter(map_in_processes(function, jobs))
    return [[next(found) for _ in range(count)] for count in counts]


def processor_seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the processor time of a call, which other processes affect less than its duration."""
    begin = time.process_time()
    function(*arguments)
    return time.process_time() - begin


def median(values: Iterable[float], digits: int = 2) -> float:
    """Return the rounded median."""
    return round(float(statistics.median(values)), digits)
