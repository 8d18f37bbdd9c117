"""Table `liars`: regret with a dishonest device in secure sums."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from common import by_seed
from fldb_flower.algorithms import run_algorithm
from fldb_flower.bandit.limits import units_of
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.federation.exchange import Broadcast, Upload, sizes_and_weights
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.secure.protocol import KINDS
from fldb_flower.settings import Settings, from_nested
from simulations.engines.vectorized import DirectFederation
from strategies.secure import FAR

COMMON: dict[str, Any] = {
    "algorithm": "fldb_ons", "horizon": 300, "schedule": {"name": "geometric", "ratio": 1.5},
}  # fmt: skip
SIZES = (100, 300, 1_000)
LIES = ("none", "person", "range")


class Case(NamedTuple):
    """One row of the table: the number of devices, epsilon, and the lie of one device."""

    num_agents: int
    epsilon: float
    lie: str


class Dishonest(DirectFederation):
    """Agents with the noise of secure sums, and one device that sends false numbers.

    Its vector has the opposite of the true theta as gradient, and nothing else.
    """

    def __init__(self, settings: Settings, history: History, lie: str) -> None:
        super().__init__(settings, history)
        self._settings = settings
        theta = Synthetic(settings, range(1)).theta
        self._direction: FloatArray = theta / np.linalg.norm(theta)
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


def regret(job: tuple[Case, int]) -> float:
    """Return the regret of one case and seed."""
    case, seed = job
    values = {**COMMON, "num_agents": case.num_agents, "seed": seed}
    privacy = {"epsilon": case.epsilon, "parties": 2, "clip": 3.0}
    settings = from_nested({**values, "privacy": privacy}, "the benchmark")
    history = History(settings.horizon)
    federation = Dishonest(settings, history, case.lie)
    try:
        run_algorithm(federation, settings)
    finally:
        federation.close()
    return round(history.regret, 4)


def liars() -> pd.DataFrame:
    """Run FLDB-ONS with the noise of secure sums and one dishonest device; return regret by seed.

    - *none*: all devices are honest.
    - *person*: a vector of length 1, as the report of any person may have.
    - *range*: the longest vector that passes the check of the answer ``trial``.
    """
    cases = [Case(*each) for each in itertools.product(SIZES, (3.0,), LIES)]
    found = zip(cases, by_seed(regret, cases, 10), strict=True)
    return pd.DataFrame({**case._asdict(), "regret": own} for case, own in found)
