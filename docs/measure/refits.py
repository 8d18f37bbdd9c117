"""Benchmark sections `refits` and `refit_times`: fits to own duels at geometric times."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from fldb_flower.federation.history import History
from fldb_flower.settings import Settings
from simulations.benchmark import draw_at_once, settings
from simulations.engines import vectorized
from simulations.pools import map_in_processes

RATIO = 1.2  # refit_ratio of the runs that are compared with those of ratio 1
ALGORITHMS: dict[str, dict[str, Any]] = {
    "LDB": {"algorithm": "ldb"},
    "alone": {"algorithm": "alone"},
    "FLDB-Personal, geometric": {
        "algorithm": "fldb_personal",
        "schedule": {"name": "geometric", "ratio": 1.5},
    },
}
CASES: dict[str, dict[str, Any]] = {
    **{
        f"sigma={sigma:g}": {"num_agents": 20, "horizon": 300, "environment": {"sigma": sigma}}
        for sigma in (0.0, 0.3, 1.0)
    },
    "sigma=0.3, d=20": {
        "num_agents": 20,
        "horizon": 200,
        "dimension": 20,
        "environment": {"sigma": 0.3},
    },
}
SIZES: tuple[dict[str, int], ...] = (
    {"num_agents": 100, "dimension": 5, "horizon": 125},
    {"num_agents": 100, "dimension": 5, "horizon": 500},
    {"num_agents": 100, "dimension": 5, "horizon": 1000},
    {"num_agents": 10, "dimension": 20, "horizon": 500},
    {"num_agents": 10, "dimension": 20, "horizon": 1000},
)


def refits(seeds: int = 20) -> pd.DataFrame:
    """Return the final regret by seed, with fits after each duel and at geometric times."""
    pairs = list(itertools.product(CASES, ALGORITHMS))
    jobs = [
        settings(seed=seed, refit_ratio=ratio, **ALGORITHMS[name], **CASES[case])
        for (case, name), ratio, seed in itertools.product(pairs, (1.0, RATIO), range(seeds))
    ]
    found = np.reshape(map_in_processes(_regret, jobs), (-1, 2, seeds)).tolist()
    return pd.DataFrame(
        [
            {"case": case, "algorithm": name, "regret": always, "regret_refits": geometric}
            for (case, name), (always, geometric) in zip(pairs, found, strict=True)
        ]
    )


def _regret(chosen: Settings) -> float:
    history = History(chosen.horizon)
    vectorized.run(chosen, history)
    return round(float(history.regret), 4)


def refit_times(repetitions: int = 3) -> pd.DataFrame:
    """Time both kinds of runs alternately with drawing the same number of random numbers.

    Times are those of the processor, in this process. ``gain`` is the ratio of the two runs.
    """
    rows = []
    for size, (name, values) in itertools.product(SIZES, ALGORITHMS.items()):
        runs = [settings(**size, **values, refit_ratio=ratio) for ratio in (1.0, RATIO)]
        spent = [
            (_spent(draw_at_once, runs[0]), *(_spent(_regret, run) for run in runs))
            for _ in range(repetitions)
        ]
        rows.append(
            {
                "algorithm": name,
                "N": size["num_agents"],
                "d": size["dimension"],
                "T": size["horizon"],
                "x draws": _median(always / draws for draws, always, _ in spent),
                "refits, x draws": _median(geometric / draws for draws, _, geometric in spent),
                "gain": _median(always / geometric for _, always, geometric in spent),
            }
        )
    return pd.DataFrame(rows)


def limits(repetitions: int = 3, agents: int = 100, horizon: int = 500) -> list[dict[str, Any]]:
    """Return how times grow with T and N, and the time relative to fits after each duel."""
    rows = []
    for name, values in ALGORITHMS.items():
        base: dict[str, Any] = {**values, "num_agents": agents, "horizon": horizon}
        more = {"num_agents": 2 * agents}, {"horizon": 2 * horizon}, {"refit_ratio": 1.0}
        runs = [settings(**{**base, "refit_ratio": RATIO, **each}) for each in ({}, *more)]
        spent = [[_spent(_regret, run) for run in runs] for _ in range(repetitions)]
        figures = {
            f"time at N={2 * agents} / at N={agents}": (2.2, [e[1] / e[0] for e in spent]),
            f"time at T={2 * horizon} / at T={horizon}": (2.2, [e[2] / e[0] for e in spent]),
            "time / time with fits after each duel": (0.7, [e[0] / e[3] for e in spent]),
        }
        rows += [
            {"figure": f"{name}: {figure}", "ratio": _median(ratios), "goal": goal}
            for figure, (goal, ratios) in figures.items()
        ]
    return rows


def _spent(function: Any, chosen: Settings) -> float:
    """Return the processor time of a call."""
    begin = time.process_time()
    function(chosen)
    return time.process_time() - begin


def _median(ratios: Iterable[float]) -> float:
    return round(statistics.median(ratios), 2)
