"""Tables `refits` and `refit_times`: fits to own duels at geometric times."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd

from common import by_seed, median, processor_seconds, regret
from simulations.benchmark import draw_at_once, settings

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
    f"sigma={sigma:g}": {"num_agents": 20, "horizon": 300, "environment": {"sigma": sigma}}
    for sigma in (0.0, 0.3, 1.0)
} | {
    "sigma=0.3, d=20": {
        "num_agents": 20,
        "horizon": 200,
        "dimension": 20,
        "environment": {"sigma": 0.3},
    }
}
SIZES = (  # N, d, T
    (100, 5, 125),
    (100, 5, 500),
    (100, 5, 1000),
    (10, 20, 500),
    (10, 20, 1000),
)


def refits(seeds: int = 20) -> pd.DataFrame:
    """Return the final regret by seed, with fits after each duel and at geometric times."""
    pairs = list(itertools.product(CASES, ALGORITHMS))
    cases = [
        {"refit_ratio": ratio, **ALGORITHMS[name], **CASES[case]}
        for case, name in pairs
        for ratio in (1.0, RATIO)
    ]
    found = by_seed(_regret, cases, seeds)
    rows = [
        {"case": case, "algorithm": name, "regret": always, "regret_refits": geometric}
        for (case, name), always, geometric in zip(pairs, found[::2], found[1::2], strict=True)
    ]
    return pd.DataFrame(rows)


def _regret(job: tuple[dict[str, Any], int]) -> float:
    values, seed = job
    return regret(settings(**values, seed=seed))


def refit_times(repetitions: int = 3) -> pd.DataFrame:
    """Time both kinds of runs alternately with drawing the same number of random numbers.

    Times are those of the processor, in this process. ``gain`` is the ratio of the two runs.
    """
    rows = []
    for (agents, d, horizon), (name, values) in itertools.product(SIZES, ALGORITHMS.items()):
        size = {"num_agents": agents, "dimension": d, "horizon": horizon}
        runs = [settings(**size, **values, refit_ratio=ratio) for ratio in (1.0, RATIO)]
        spent = [
            (
                processor_seconds(draw_at_once, runs[0]),
                *(processor_seconds(regret, r) for r in runs),
            )
            for _ in range(repetitions)
        ]
        rows.append(
            {
                "algorithm": name,
                "N": agents,
                "d": d,
                "T": horizon,
                "x draws": median(always / draws for draws, always, _ in spent),
                "refits, x draws": median(geometric / draws for draws, _, geometric in spent),
                "gain": median(always / geometric for _, always, geometric in spent),
            }
        )
    return pd.DataFrame(rows)


def limits(repetitions: int, agents: int = 100, horizon: int = 500) -> list[dict[str, Any]]:
    """Return how times grow with T and N, and the time relative to fits after each duel."""
    rows = []
    for name, values in ALGORITHMS.items():
        base: dict[str, Any] = {**values, "num_agents": agents, "horizon": horizon}
        more = {"num_agents": 2 * agents}, {"horizon": 2 * horizon}, {"refit_ratio": 1.0}
        runs = [settings(**{**base, "refit_ratio": RATIO, **each}) for each in ({}, *more)]
        spent = [[processor_seconds(regret, run) for run in runs] for _ in range(repetitions)]
        figures = {
            f"time at N={2 * agents} / at N={agents}": (2.2, [e[1] / e[0] for e in spent]),
            f"time at T={2 * horizon} / at T={horizon}": (2.2, [e[2] / e[0] for e in spent]),
            "time / time with fits after each duel": (0.7, [e[0] / e[3] for e in spent]),
        }
        rows += [
            {"figure": f"{name}: {figure}", "ratio": median(ratios), "goal": goal}
            for figure, (goal, ratios) in figures.items()
        ]
    return rows
