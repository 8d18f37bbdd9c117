"""Benchmark sections `refits` and `refit_times`: fits to own duels at geometric times."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import numpy as np
import pandas as pd

from fldb_flower.federation.history import History
from fldb_flower.settings import Settings
from simulations import measured
from simulations.benchmark.algorithms import draw_at_once, settings
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
    **{
        name: {
            "num_arms": 4,
            "horizon": 30,
            "environment": {"name": "duels", "path": name, "max_people": 50},
        }
        for name in ("FirstNames", "GermanParties2009", "CEMSChoice")
    },
}
SIZES: tuple[dict[str, int], ...] = (
    {"num_agents": 100, "dimension": 5, "horizon": 125},
    {"num_agents": 100, "dimension": 5, "horizon": 500},
    {"num_agents": 100, "dimension": 5, "horizon": 1000},
    {"num_agents": 10, "dimension": 20, "horizon": 500},
    {"num_agents": 3, "dimension": 64, "horizon": 500},
)


def refits(paths: measured.Paths, seeds: int = 20) -> pd.DataFrame:
    """Return the final regret by seed, with fits after each duel and at geometric times.

    Studies of real people without a path are omitted.
    """
    cases = [
        name for name in CASES if paths.get("duels") or "name" not in CASES[name]["environment"]
    ]
    pairs = list(itertools.product(cases, ALGORITHMS))
    jobs = [
        _settings_of(case, name, ratio, seed, paths)
        for (case, name), ratio, seed in itertools.product(pairs, (1.0, RATIO), range(seeds))
    ]
    found = np.reshape(map_in_processes(_regret, jobs), (-1, 2, seeds)).tolist()
    return pd.DataFrame(
        [
            {"case": case, "algorithm": name, "regret": always, "regret_refits": geometric}
            for (case, name), (always, geometric) in zip(pairs, found, strict=True)
        ]
    )


def _settings_of(case: str, name: str, ratio: float, seed: int, paths: measured.Paths) -> Settings:
    run = {"settings": {"tau": 1, "refit_ratio": ratio, **ALGORITHMS[name], **CASES[case]}}
    return measured.settings_of(run, seed, "the benchmark", paths)


def _regret(chosen: Settings) -> float:
    history = History(chosen.horizon)
    vectorized.run(chosen, history)
    return round(float(history.regret), 4)


def refit_times(repetitions: int) -> pd.DataFrame:
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


def limits(repetitions: int = 3) -> list[dict[str, Any]]:
    """Return the growth of the time with T and N, and the time relative to fits after each duel."""
    rows = []
    for name, values in ALGORITHMS.items():
        base = {**values, "num_agents": 100, "refit_ratio": RATIO}
        runs = {
            "base": settings(**base, horizon=500),
            "twice T": settings(**base, horizon=1000),
            "twice N": settings(**{**base, "num_agents": 200}, horizon=500),
            "always": settings(**{**base, "refit_ratio": 1.0}, horizon=500),
        }
        spent = [
            {key: _spent(_regret, run) for key, run in runs.items()} for _ in range(repetitions)
        ]
        for figure, over, under, goal in (
            ("time at T=1000 / time at T=500", "twice T", "base", 2.2),
            ("time at N=200 / time at N=100", "twice N", "base", 2.2),
            ("time at T=500 / time with fits after each duel", "base", "always", 0.7),
        ):
            ratio = _median(each[over] / each[under] for each in spent)
            rows.append({"figure": f"{name}: {figure}", "ratio": ratio, "goal": goal})
    return rows


def _spent(function: Any, chosen: Settings) -> float:
    """Return the processor time of a call."""
    begin = time.process_time()
    function(chosen)
    return time.process_time() - begin


def _median(ratios: Any) -> float:
    return round(statistics.median(ratios), 2)
