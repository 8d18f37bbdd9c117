"""Table `robust`: regret with dishonest nodes whose uploads are plausible."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from common import by_seed
from fldb_flower.algorithms import run_algorithm
from fldb_flower.algorithms.robust import combine
from fldb_flower.bandit import preference
from fldb_flower.environments import max_difference
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.settings import AUTO, Settings, from_nested
from simulations.engines.vectorized import DirectFederation

COMMON = {"num_agents": 100, "num_arms": 10, "dimension": 5, "horizon": 300}
ALGORITHMS: tuple[tuple[str, int, float | str], ...] = (  # each with a tau and a width
    ("fldb_ons", 1, 1.0),
    ("fldb_ons", 10, 1.0),
    ("fldb_ons", 10, AUTO),
    ("fldb_ogd", 1, 1.0),
)
LIARS = ((0, "turned"), (1, "turned"), (10, "turned"), (1, "loud"), (10, "loud"))
COMBINATIONS = ("none", "trimmed")


class Case(NamedTuple):
    """One row of the table: an algorithm, dishonest nodes among 100 of one agent, a combination."""

    algorithm: str
    tau: int
    beta_scale: float | str
    liars: int
    lie: str
    robust: str


class LyingAgents(DirectFederation):
    """A federation with one upload per agent, in which the first agents lie.

    ``turned`` reports the opposite of each answer. ``loud`` reports for each duel that an arm along
    the true theta lost, with the largest possible difference. Both are plausible.
    """

    def __init__(
        self, settings: Settings, history: History, liars: int = 0, lie: str = "turned"
    ) -> None:
        super().__init__(settings, history)
        self._settings, self._liars, self._lie = settings, liars, lie
        self._longest = max_difference(settings)

    def collect(self, broadcast: Broadcast) -> Upload:
        """Return the sum of the uploads, some of which are false."""
        whole: Upload = super().collect(broadcast._replace(final=False))  # so that duels are kept
        if broadcast.theta_hat is None:
            return whole
        uploads = self.uploads(broadcast)
        how = self._settings.robust if broadcast.robust else "none"
        return combine(uploads, how)._replace(outcomes=whole.outcomes)

    def uploads(self, broadcast: Broadcast) -> list[Upload]:
        """Return the upload of each agent."""
        differences, preferences = self._reported()
        uploads = []
        for agent in range(self._settings.num_agents):
            x, y = differences[:, agent], preferences[:, agent]
            gradient, hessian = preference.derivatives(broadcast.theta_hat, x, y)
            hessian = hessian if broadcast.hessian else None
            uploads.append(Upload(len(x), gradient, preference.gram(x), hessian, None, ()))
        return uploads

    def _reported(self) -> tuple[FloatArray, FloatArray]:
        """Return the fresh duels as reported: (iterations, agents, d), (iterations, agents)."""
        # Few agents are played in this process.
        (block,) = (block for group in self.workers.groups for block in group.blocks)
        agents = self._settings.num_agents
        x, y = (np.array(each) for each in block.log.fresh())
        x, y = x.reshape(-1, agents, self._settings.dimension), y.reshape(-1, agents)
        if self._lie == "turned":
            y[:, : self._liars] = 1 - y[:, : self._liars]
        else:
            theta = Synthetic(self._settings, range(1)).theta
            x[:, : self._liars] = self._longest * theta / np.linalg.norm(theta)
            y[:, : self._liars] = 0.0
        return x, y


def regret(case: Case, seed: int, **values: Any) -> float:
    """Return the regret of one run."""
    names = ("algorithm", "tau", "beta_scale", "robust")
    chosen = {name: getattr(case, name) for name in names} | {"seed": seed}
    settings = from_nested({**COMMON, **chosen, **values}, "the benchmark")
    history = History(settings.horizon)
    run_algorithm(LyingAgents(settings, history, case.liars, case.lie), settings)
    return round(history.regret, 4)


def robust() -> pd.DataFrame:
    """Run each algorithm with each kind of lie and each combination; return regret by seed."""
    cases = [
        Case(*algorithm, *liars, combination)
        for algorithm, liars, combination in itertools.product(ALGORITHMS, LIARS, COMBINATIONS)
    ]
    found = zip(cases, by_seed(_regret_of, cases, 10), strict=True)
    return pd.DataFrame({**case._asdict(), "regret": own} for case, own in found)


def _regret_of(job: tuple[Case, int]) -> float:
    return regret(*job)
