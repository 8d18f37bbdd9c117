"""Benchmark section `privacy`: regret with noise, against the number of agents and epsilon."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fldb_flower.federation.history import History
from fldb_flower.settings import Settings, from_nested
from simulations.engines import vectorized
from simulations.pools import map_in_processes

COMMON: dict[str, Any] = {
    "horizon": 500,
    "num_arms": 10,
    "schedule": {"name": "geometric", "ratio": 1.5},  # 16 exchanges
}
CLIP, DELTA = 3.0, 1e-6
EPSILONS = (1.0, 3.0, 8.0)
NOISES = (("answer", 1), ("person", 1), ("person", 2))
"""Units, and parties that add noise: secure sums are per person."""
SEEDS: Mapping[int, int] = {30: 10, 100: 10, 300: 5, 1_000: 3}
"""Number of seeds by number of agents."""
PERSONAL_SEEDS: Mapping[int, int] = {30: 5, 100: 5, 300: 3, 1_000: 3}


class Case(NamedTuple):
    """One row of the table; ``unit`` and ``epsilon`` are "none" without noise.

    ``parties`` is how many add noise: 1, a trusted server; 2, server and helper (secure sums).
    """

    algorithm: str
    dimension: int
    sigma: float
    num_agents: int
    unit: str = "none"
    epsilon: float | str = "none"
    parties: int = 1


def cases() -> Iterator[Case]:
    """Yield all cases: FLDB-ONS with d=5 and d=16, then FLDB-Personal."""
    for d, size in itertools.product((5, 16), SEEDS):
        yield Case("fldb_ons", d, 0.0, size)
        noises = NOISES if d == 5 else NOISES[-1:]
        for (unit, parties), epsilon in itertools.product(noises, EPSILONS):
            yield Case("fldb_ons", d, 0.0, size, unit, epsilon, parties)
    for sigma, size in itertools.product((0.0, 0.3), PERSONAL_SEEDS):
        yield Case("alone", 5, sigma, size)
        yield Case("fldb_personal", 5, sigma, size)
        for epsilon in EPSILONS:
            yield Case("fldb_personal", 5, sigma, size, "person", epsilon, 2)


def settings_of(case: Case, seed: int) -> Settings:
    """Return the settings of one run.

    The width is the default. Noise is calibrated with differences of length 3, or the root mean
    squared length sqrt(2 d) for other d than 5.
    """
    values: dict[str, Any] = {
        **COMMON,
        "algorithm": case.algorithm,
        "dimension": case.dimension,
        "num_agents": case.num_agents,
        "environment": {"sigma": case.sigma},
        "seed": seed,
    }
    if case.epsilon != "none":
        clip = CLIP if case.dimension == 5 else "auto"
        values["privacy"] = {
            "epsilon": case.epsilon, "delta": DELTA, "unit": case.unit, "clip": clip,
            "parties": case.parties,
        }  # fmt: skip
    if case.algorithm == "alone":
        del values["schedule"]
    return from_nested(values, "the benchmark")


def regret(job: tuple[Case, int]) -> float:
    """Return the regret of one case and seed."""
    chosen = settings_of(*job)
    history = History(chosen.horizon)
    vectorized.run(chosen, history)
    return round(history.regret, 4)


def seeds_of(case: Case) -> int:
    """Return the number of seeds of a case."""
    return (SEEDS if case.algorithm == "fldb_ons" else PERSONAL_SEEDS)[case.num_agents]


def privacy(processes: int | None = None) -> pd.DataFrame:
    """Return the regret by seed with each unit and epsilon, and without noise.

    Large runs begin first, so that all processes end at about the same time.
    """
    rows = list(cases())
    jobs = [(case, seed) for case in rows for seed in range(seeds_of(case))]
    order = sorted(jobs, key=lambda job: -job[0].num_agents)
    found = dict(zip(order, map_in_processes(regret, order, processes), strict=True))
    table = [
        {**case._asdict(), "regret": [found[case, seed] for seed in range(seeds_of(case))]}
        for case in rows
    ]
    for row in table:
        row["mean"] = round(float(np.mean(row["regret"])), 2)
    return pd.DataFrame(table)
