"""The benchmark's section for forms: what a smaller W costs in regret, and saves in bytes."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pandas as pd

from fldb_flower.environments import make_environment
from fldb_flower.errors import SettingsError
from fldb_flower.history import History
from fldb_flower.settings import from_nested
from simulations.engines import vectorized

COMMON = {"num_agents": 50, "num_arms": 10, "horizon": 200, "tau": 5}
WORLDS: dict[str, dict[str, Any]] = {
    "independent features, d=64": {"dimension": 64},
    "sentences, d=384": {"dimension": 384, "environment": {"name": "sentences"}},
}
FORMS: dict[str, dict[str, Any]] = {
    "full": {},
    "sketch, m=32": {"information": "sketch", "sketch_rank": 32},
    "sketch, m=16": {"information": "sketch", "sketch_rank": 16},
    "sketch, m=4": {"information": "sketch", "sketch_rank": 4},
    "diagonal": {"information": "diagonal"},
}


def forms(seeds: int = 10) -> pd.DataFrame:
    """Run both online algorithms with each form; mean regret and standard error over seeds.

    Random pairs are there for comparison. A world whose packages are missing is left out.

    Parameters
    ----------
    seeds : int
        Runs of each kind, at least 2.
    """
    rows = []
    for world, values in WORLDS.items():
        try:
            make_environment(from_nested({**COMMON, **values}, "the benchmark"), range(1))
        except SettingsError as error:
            print(f"left out: {world}: {error}", file=sys.stderr)
            continue
        cases = [("random", "", {"algorithm": "random"})]
        for algorithm in ("fldb_ogd", "fldb_ons"):
            cases += [
                (algorithm, name, {"algorithm": algorithm, **form}) for name, form in FORMS.items()
            ]
        for algorithm, name, form in cases:
            rows.append({"world": world, "algorithm": algorithm, "information": name,
                         **_measure({**COMMON, **values, **form}, seeds)})  # fmt: skip
            print(rows[-1], file=sys.stderr, flush=True)
    return pd.DataFrame(rows)


def _measure(values: dict[str, Any], seeds: int) -> dict[str, Any]:
    regrets, begin = [], time.perf_counter()
    for seed in range(seeds):
        history = History(values["horizon"])
        vectorized.run(from_nested({**values, "seed": seed}, "the benchmark"), history)
        regrets.append(history.regret)
    error = np.std(regrets, ddof=1) / np.sqrt(seeds)
    uploads = max(history.exchanges, 1) * values["num_agents"]
    return {
        "regret": f"{np.mean(regrets):.1f} +- {error:.1f}",
        "KB up": round(history.uploaded_bytes / uploads / 1000, 1),
        "exchanges": history.exchanges,
        "s": round((time.perf_counter() - begin) / seeds, 2),
    }
