"""Tables `changing` and `changing_device`: half-lives, when a taste changes its sign."""

from __future__ import annotations

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from clients.preference_agent import PreferenceAgent
from common import by_seed
from fldb_flower.bandit.preference import logistic
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.settings import NONE, from_nested, unflatten
from simulations.engines import vectorized

AGENTS, HORIZON, CHANGE = 50, 800, 400
SEEDS = {"fldb_ons": 60, "fldb_personal": 20}
PERSONS = 20
HALF_LIVES: dict[str, tuple[Any, ...]] = {
    "fldb_ons": (NONE, 100, 175, 250), "fldb_personal": (NONE, 100, 175, 250)
}  # fmt: skip
ANSWERS, MOST, ARMS = 400, 300, (10, 3)  # before and after the change of a person's taste


def regrets(case: tuple[tuple[str, Any], int]) -> list[float]:
    """Return the regret after the change, and that of the run without a change."""
    (algorithm, half_life), seed = case
    found = []
    for change_at in (CHANGE + 1, 0):
        values = {
            "algorithm": algorithm, "half_life": half_life, "seed": seed, "num_agents": AGENTS,
            "horizon": HORIZON, "environment.name": "changing", "environment.change_at": change_at,
        }  # fmt: skip
        chosen = from_nested(unflatten(values), "a measurement")
        history = History(HORIZON)
        vectorized.run(chosen, history)
        found.append(history)
    changed, unchanged = (each.cumulative_regret for each in found)
    return [changed[-1] - changed[CHANGE - 1], unchanged[-1]]


def changing() -> pd.DataFrame:
    """Return the regret with half-lives, and its ratio to the regret without, by paired seeds."""
    cases = [(name, half_life) for name, values in HALF_LIVES.items() for half_life in values]
    counts = [SEEDS[name] for name, _ in cases]
    rows, without = [], np.zeros((1, 2))
    for (name, half_life), found in zip(cases, by_seed(regrets, cases, counts), strict=True):
        values = np.array(found)
        if half_life == NONE:
            without = values
        row: dict[str, Any] = {"algorithm": name, "half_life": half_life, "seeds": len(found)}
        for place, part in enumerate(("after", "unchanged")):
            row |= {part: [round(each, 2) for each in values[:, place]]}
            ratio = values[:, place].mean() / without[:, place].mean()
            rest = values[:, place] - ratio * without[:, place]
            error = rest.std(ddof=1) / np.sqrt(len(found)) / without[:, place].mean()
            row |= {f"{part}_ratio": round(ratio, 3), f"{part}_error": round(error, 3)}
        rows.append(row)
    return pd.DataFrame(rows)


def answers_until_right(case: tuple[tuple[str, float | None], int]) -> int:
    """Return after how many answers a device's weight of the first feature has the new sign."""
    (pairs, half_life), seed = case
    rng = np.random.default_rng(seed)
    arms, theta = rng.standard_normal(ARMS), np.array([2.0, 0.0, 0.0])

    def answer(agent: PreferenceAgent, theta: FloatArray) -> None:
        shown = arms if pairs == "proposed" else arms[rng.permutation(len(arms))[:2]]
        duel = agent.propose(shown)
        first = rng.random() < logistic((shown[duel.first] - shown[duel.second]) @ theta)
        agent.record(duel.id, "first" if first else "second")

    with (
        TemporaryDirectory() as folder,
        PreferenceAgent(Path(folder) / "duels.db", half_life=half_life) as agent,
    ):
        for _ in range(ANSWERS):
            answer(agent, theta)
        number = 0
        while agent.explain().weights[0] >= 0 and number < MOST:
            answer(agent, -theta)
            number += 1
    return number


def changing_device() -> pd.DataFrame:
    """Return the median number of answers of a device after which the sign is right."""
    cases = [(pairs, half_life) for pairs in ("proposed", "random") for half_life in (None, 100.0)]
    results = zip(cases, by_seed(answers_until_right, cases, PERSONS), strict=True)
    return pd.DataFrame([
        {
            "pairs": pairs, "half_life": half_life or NONE, "median": statistics.median(found),
            "answers": sorted(found),
        }
        for (pairs, half_life), found in results
    ])  # fmt: skip
