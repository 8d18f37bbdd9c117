"""Table `groups`: FLDB-Personal and COLDB, with each method tuned by the same rule.

The width of a method is tuned by the rule of ``tuning.py``, with the threshold of COLDB's edges.
"""

from __future__ import annotations

import itertools
from statistics import fmean
from typing import Any

import pandas as pd

import measured
import tuning
from common import regret
from simulations.pools import map_in_processes

EDGES = (0.1, 0.2, 0.3, 0.5, 1.0)
METHODS: dict[str, dict[str, Any]] = {
    "alone": {"algorithm": "alone"},
    "common": {"algorithm": "fldb_personal", "tau": 1, "personal_variance": 1e-9},
    "coldb": {"algorithm": "coldb", "lambda": 1.0},
    "isotropic": {"algorithm": "fldb_personal", "tau": 1, "personal_structure": "isotropic"},
    "learned": {"algorithm": "fldb_personal", "tau": 1, "personal_structure": "learned"},
}


def _differing(**more: int) -> dict[str, Any]:
    sizes = {"num_agents": 50, "horizon": 200, "dimension": 10}
    return {**sizes, "environment": {"sigma": 0.9, **more}}


def _study(name: str, **more: int) -> dict[str, Any]:
    world = {"name": "duels", "path": name, **more}
    return {"num_arms": 4, "horizon": 30, "environment": world}


PROBLEMS: dict[str, dict[str, Any]] = {
    "3 clusters": _differing(clusters=3),
    "5 clusters": _differing(clusters=5),
    "1 direction": _differing(directions=1),
    "2 directions": _differing(directions=2),
    "FirstNames": _study("FirstNames"),
    "GermanParties2009": _study("GermanParties2009"),
    "CEMSChoice": _study("CEMSChoice"),
    "SoundQuality": _study("SoundQuality", max_people=200),
}

Job = tuple[str, str, dict[str, float], int]  # problem, method, tuned values, seed


def candidates(method: str) -> list[dict[str, float]]:
    """Return the values that are tried for a method."""
    if method != "coldb":
        return tuning.candidates(METHODS[method])
    pairs = itertools.product(tuning.WIDTHS, EDGES)
    return [{"beta_scale": width, "coldb_edge": edge} for width, edge in pairs]


def groups(seeds: int = 10) -> pd.DataFrame:
    """Return the chosen values and the regret by seed. Studies without a path are omitted."""
    possible = [name for name in PROBLEMS if measured.is_possible({"settings": PROBLEMS[name]})]
    cases = list(itertools.product(possible, METHODS))
    tried = [(case, values) for case in cases for values in candidates(case[1])]
    means = map(fmean, _by_seed([(*case, values) for case, values in tried], tuning.SEEDS))
    best: dict[tuple[str, str], tuple[float, dict[str, float]]] = {}
    for (case, values), mean in zip(tried, means, strict=True):
        if case not in best or mean < best[case][0]:
            best[case] = mean, values
    found = _by_seed([(*case, best[case][1]) for case in cases], range(seeds))
    return pd.DataFrame(
        {"problem": problem, "method": method, "tuned": best[problem, method][1], "regret": own}
        for (problem, method), own in zip(cases, found, strict=True)
    )


def _by_seed(cases: list[tuple[str, str, dict[str, float]]], seeds: range) -> list[list[float]]:
    found = iter(map_in_processes(_regret, [(*case, seed) for case in cases for seed in seeds]))
    return [[next(found) for _ in seeds] for _ in cases]


def _regret(job: Job) -> float:
    problem, method, values, seed = job
    own = {**PROBLEMS[problem], **METHODS[method], **values, "engine": {"workers": 1}}
    return regret(measured.settings_of({"settings": own}, seed))
