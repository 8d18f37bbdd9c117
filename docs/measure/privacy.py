"""Table `privacy`: regret with noise, against the number of agents and epsilon."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from common import by_seed, regret
from fldb_flower.settings import Settings, from_nested

EPSILONS = (1.0, 3.0, 8.0)
NOISES = (("answer", 1), ("person", 1), ("person", 2))
"""Units, and parties that add noise: secure sums are per person."""
SEEDS = {30: 10, 100: 10, 300: 5, 1_000: 3}
"""Number of seeds by number of agents."""
PERSONAL_SEEDS = {30: 5, 100: 5, 300: 3, 1_000: 3}


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
    """Return the settings of one run, of 16 exchanges.

    The width is the default. Noise is calibrated with differences of length 3, or the root mean
    squared length sqrt(2 d) for other d than 5.
    """
    values: dict[str, Any] = {
        "horizon": 500,
        "num_arms": 10,
        "algorithm": case.algorithm,
        "dimension": case.dimension,
        "num_agents": case.num_agents,
        "environment": {"sigma": case.sigma},
        "seed": seed,
    }
    if case.algorithm != "alone":
        values["schedule"] = {"name": "geometric", "ratio": 1.5}
    if case.algorithm == "fldb_personal":  # as with noise
        values["personal_structure"] = "isotropic"
    if case.epsilon != "none":
        values["privacy"] = {
            "epsilon": case.epsilon,
            "unit": case.unit,
            "clip": 3.0 if case.dimension == 5 else "auto",
            "parties": case.parties,
        }
    return from_nested(values, "a measurement")


def _regret(job: tuple[Case, int]) -> float:
    return regret(settings_of(*job))


def privacy() -> pd.DataFrame:
    """Return the regret by seed with each unit and epsilon, and without noise."""
    rows = sorted(cases(), key=lambda case: -case.num_agents)  # so that no processor waits
    seeds = [
        (SEEDS if case.algorithm == "fldb_ons" else PERSONAL_SEEDS)[case.num_agents]
        for case in rows
    ]
    found = dict(zip(rows, by_seed(_regret, rows, seeds), strict=True))
    return pd.DataFrame(
        {**case._asdict(), "regret": found[case], "mean": round(fmean(found[case]), 2)}
        for case in cases()
    )
