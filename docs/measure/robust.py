"""Tables `robust` and `liars`: regret with dishonest nodes, and in secure sums."""

from __future__ import annotations

import itertools
import math
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from common import by_seed
from fldb_flower.algorithms import run_algorithm
from fldb_flower.algorithms.robust import combine
from fldb_flower.bandit import preference
from fldb_flower.bandit.limits import units_of
from fldb_flower.environments import max_difference
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.federation.exchange import Broadcast, Upload, sizes_and_weights
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.secure.protocol import KINDS
from fldb_flower.settings import AUTO, Settings, from_nested
from simulations.engines.vectorized import DirectFederation
from strategies.secure import FAR

COMMON = {"num_agents": 100, "num_arms": 10, "dimension": 5, "horizon": 300}
ALGORITHMS: tuple[tuple[str, int, float | str], ...] = (  # each with a tau and a width
    ("fldb_ons", 1, 1.0),
    ("fldb_ons", 10, 1.0),
    ("fldb_ons", 10, AUTO),
    ("fldb_ogd", 1, 1.0),
)
LIARS = ((0, "turned"), (1, "turned"), (10, "turned"), (1, "loud"), (10, "loud"))
COMBINATIONS = ("none", "trimmed")
SECURE: dict[str, Any] = {
    "algorithm": "fldb_ons", "horizon": 300, "schedule": {"name": "geometric", "ratio": 1.5},
}  # fmt: skip
SIZES = (100, 300, 1_000)
LIES = ("none", "person", "range")


class Case(NamedTuple):
    """A row of `robust`: an algorithm, dishonest nodes among 100 of one agent, a combination."""

    algorithm: str
    tau: int
    beta_scale: float | str
    liars: int
    lie: str
    robust: str


class SecureCase(NamedTuple):
    """A row of `liars`: the number of devices, epsilon, and the lie of one device."""

    num_agents: int
    epsilon: float
    lie: str


class Dishonest(DirectFederation):
    """A federation some of whose agents send false numbers, of the true theta's direction."""

    def __init__(self, settings: Settings, history: History) -> None:
        super().__init__(settings, history)
        self._settings = settings
        theta = Synthetic(settings, range(1)).theta
        self._direction: FloatArray = theta / np.linalg.norm(theta)


class LyingAgents(Dishonest):
    """A federation with one upload per agent, in which the first agents lie.

    ``turned`` reports the opposite of each answer. ``loud`` reports for each duel that an arm along
    the true theta lost, with the largest possible difference. Both are plausible.
    """

    def __init__(
        self, settings: Settings, history: History, liars: int = 0, lie: str = "turned"
    ) -> None:
        super().__init__(settings, history)
        self._liars, self._lie = liars, lie

    def collect(self, broadcast: Broadcast) -> Upload:
        """Return the sum of the uploads, some of which are false."""
        whole: Upload = super().collect(broadcast._replace(final=False))  # so that duels are kept
        if broadcast.theta_hat is None:
            return whole
        how = self._settings.robust if broadcast.robust else "none"
        return combine(self.uploads(broadcast), how)._replace(outcomes=whole.outcomes)

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
            x[:, : self._liars] = max_difference(self._settings) * self._direction
            y[:, : self._liars] = 0.0
        return x, y


class LyingDevice(Dishonest):
    """Agents with the noise of secure sums, and one device that sends false numbers.

    Its vector has the opposite of the true theta as gradient, and nothing else.
    """

    def __init__(self, settings: Settings, history: History, lie: str) -> None:
        super().__init__(settings, history)
        self._length = {"none": 0.0, "person": 1.0, "range": longest_lie(settings)}[lie]

    def collect(self, broadcast: Broadcast) -> Upload:
        """Return the sum with the false numbers."""
        upload: Upload = super().collect(broadcast)
        if not self._length or not broadcast.learns:
            return upload
        unit = units_of(*sizes_and_weights(broadcast, self._settings))["gradient"]
        return upload._replace(gradient=upload.gradient + self._length * unit * self._direction)


def longest_lie(settings: Settings) -> float:
    """Return the largest length that a sum can have by the numbers of one device.

    Along one value, the answer ``trial`` does not show it, and the sum is not shortened.
    """
    d, agents = settings.dimension, settings.num_agents
    deviation = math.sqrt(2.0) * ReleasePlan(settings).multiplier
    shown = agents + FAR * KINDS["trial"] * deviation
    return min(shown, agents + deviation * (math.sqrt(d + d * (d + 1) + 1) + FAR))


def regret(case: Case | SecureCase, seed: int) -> float:
    """Return the regret of one run."""
    federation: Dishonest
    if isinstance(case, Case):
        names = ("algorithm", "tau", "beta_scale", "robust")
        values = COMMON | {name: getattr(case, name) for name in names}
        settings = from_nested({**values, "seed": seed}, "the benchmark")
        federation = LyingAgents(settings, History(settings.horizon), case.liars, case.lie)
    else:
        privacy = {"epsilon": case.epsilon, "parties": 2, "clip": 3.0}
        values = {**SECURE, "num_agents": case.num_agents, "privacy": privacy}
        settings = from_nested({**values, "seed": seed}, "the benchmark")
        federation = LyingDevice(settings, History(settings.horizon), case.lie)
    with closing(federation):
        run_algorithm(federation, settings)
    return round(federation.history.regret, 4)


def _table(cases: list[Any]) -> pd.DataFrame:
    found = zip(cases, by_seed(_regret_of, cases, 10), strict=True)
    return pd.DataFrame({**case._asdict(), "regret": own} for case, own in found)


def _regret_of(job: tuple[Any, int]) -> float:
    return regret(*job)


def robust() -> pd.DataFrame:
    """Run each algorithm with each kind of lie and each combination; return regret by seed."""
    every = itertools.product(ALGORITHMS, LIARS, COMBINATIONS)
    return _table([Case(*algorithm, *liars, how) for algorithm, liars, how in every])


def liars() -> pd.DataFrame:
    """Run FLDB-ONS with the noise of secure sums and one dishonest device; return regret by seed.

    - *none*: all devices are honest.
    - *person*: a vector of length 1, as the report of any person may have.
    - *range*: the longest vector that passes the check of the answer ``trial``.
    """
    return _table([SecureCase(*each) for each in itertools.product(SIZES, (3.0,), LIES)])
