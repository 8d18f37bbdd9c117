"""`fldb benchmark`: time each algorithm on this machine.

The table shows the seconds of runs with N=100, T=500, K=10, d=5 and tau=1 on the vectorized engine,
and the medians of their ratios to lower bounds, measured alternately. The lower bounds are drawing
as many random numbers as a run, at once or from the streams of each agent, and passing over all
duels in each iteration.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from fldb_flower.system import startup

    startup.begin()

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from fldb_flower.bandit.preference import derivatives
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.federation.history import History
from fldb_flower.settings import Settings, from_nested
from fldb_flower.system.commands import Parser, bounded, ending_in_one_line
from fldb_flower.system.progress import progress
from simulations.engines import vectorized

ALGORITHMS: dict[str, dict[str, Any]] = {
    "random": {"algorithm": "random"},
    "FLDB-OGD": {"algorithm": "fldb_ogd"},
    "FLDB-ONS": {"algorithm": "fldb_ons"},
    "FLDB-ONS geometric 1.5": {"algorithm": "fldb_ons", "schedule": {"name": "geometric"}},
    "FLDB-GD newton": {"algorithm": "fldb_gd"},
    "LDB": {"algorithm": "ldb"},
}


def settings(**values: Any) -> Settings:
    """Return settings; the defaults are N=100, T=500, K=10, d=5, tau=1."""
    return from_nested({"tau": 1, **values}, "the benchmark")


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the duration of one call."""
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


def draw_at_once(chosen: Settings) -> None:
    """Draw as many random numbers as a run, from one NumPy generator: a lower bound."""
    generator = np.random.default_rng(chosen.seed)
    shape = (chosen.num_agents, chosen.num_arms, chosen.dimension)
    for _ in range(chosen.horizon):
        generator.standard_normal(shape)
        generator.random(chosen.num_agents)


def draw_by_agent(chosen: Settings) -> None:
    """Draw the random numbers of a run as the engine does, from the streams of each agent."""
    streams = AgentStreams(chosen.seed, range(chosen.num_agents))
    for _ in range(0, chosen.horizon, 64):
        streams.standard_normal("arms", 64, chosen.num_arms, chosen.dimension)
        streams.random("preferences", 64)


def pass_over_duels(chosen: Settings) -> None:
    """Compute gradient and Hessian of all duels in each iteration: a lower bound for FLDB-GD."""
    generator = np.random.default_rng(chosen.seed)
    count, d = chosen.num_agents, chosen.dimension
    duels = generator.standard_normal((count * chosen.horizon, d))
    wins = (generator.random(len(duels)) < 0.5) * 1.0
    theta = np.ones(d)
    for t in range(1, chosen.horizon + 1):
        derivatives(theta, duels[: t * count], wins[: t * count])


def algorithms(repetitions: int = 9) -> pd.DataFrame:
    """Time each algorithm alternately with the lower bounds."""
    base = settings()
    floors = {"draws": draw_at_once, "own draws": draw_by_agent, "pass": pass_over_duels}
    rows = []
    for name, values in ALGORITHMS.items():
        chosen, times, floor_times = settings(**values), [], []
        for _ in range(repetitions):
            history = History(chosen.horizon)
            floor_times.append([seconds(floor, base) for floor in floors.values()])
            times.append(seconds(vectorized.run, chosen, history))
        ratios = np.median(np.array(times)[:, None] / np.array(floor_times), axis=0)
        rows.append(
            {
                "algorithm": name,
                "seconds": round(float(np.median(times)), 3),
                **{f"x {key}": round(float(r), 2) for key, r in zip(floors, ratios, strict=True)},
                "exchanges": history.exchanges,
                "MB up": round(history.uploaded_bytes / 1e6, 2),
                "MB down": round(history.downloaded_bytes / 1e6, 2),
                "regret": round(history.regret, 1),
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    """Run the command."""
    parser = Parser(description=__doc__)
    parser.add_argument(
        "--repetitions", type=bounded(int, 1, 1000), default=9, metavar="N",
        help="number of timings (default: %(default)s)",
    )  # fmt: skip
    asked = parser.parse_args()
    with ending_in_one_line(), progress("benchmark"):
        table = algorithms(asked.repetitions)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
