"""Tables `populations` and `conditions`: FLDB-Personal where agents differ along directions."""

from __future__ import annotations

import itertools
import math
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from common import by_seed, regret
from fldb_flower.algorithms import run_rounds
from fldb_flower.algorithms.personal import FLDBPersonal
from fldb_flower.bandit.streams import make_streams, shared_generator
from fldb_flower.catalogue import ENVIRONMENTS
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.federation.exchange import ShareUpload
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array
from fldb_flower.settings import Settings
from simulations.benchmark import settings
from simulations.engines import inprocess
from simulations.engines.vectorized import DirectFederation

SEEDS = 10
STRUCTURES = ("isotropic", "learned", "known")


class Case(NamedTuple):
    """Agents ``theta_i = theta + B z_i + rest`` with B of ``rank``, or with V = ``variance`` I."""

    dimension: int
    num_agents: int
    rank: int = 0
    variance: float = 0.0

    @property
    def name(self) -> str:
        """The words of a table."""
        kind = f"rank {self.rank}" if self.rank else f"V = {self.variance:g} I"
        kind = kind if self.rank or self.variance else "one theta"
        return f"d={self.dimension}, {kind}, N={self.num_agents}"


CASES = (
    Case(10, 100, rank=2), Case(20, 100, rank=2), Case(10, 30, rank=2), Case(5, 100, rank=5),
    Case(5, 10, rank=5), Case(5, 100), Case(10, 100, variance=0.8), Case(10, 1000, rank=2),
)  # fmt: skip


@ENVIRONMENTS.register("population")
class Population(Synthetic):
    """Agents of a case, at T=200: theta and the entries of B are N(0, 4 / d)."""

    case = CASES[0]

    def __init__(self, chosen: Settings, agents: range) -> None:
        super().__init__(chosen, agents)
        d, case = chosen.dimension, self.case
        generator, streams = (
            shared_generator(chosen.seed, "population"),
            make_streams(chosen, agents),
        )
        self._theta = self.theta = generator.standard_normal(d) * 2.0 / math.sqrt(d)
        basis = generator.standard_normal((d, case.rank)) * 2.0 / math.sqrt(d)
        rest = 0.04 / d if case.rank else case.variance
        along = streams.standard_normal("along", 1, max(case.rank, 1))[:, 0, : case.rank]
        every = streams.standard_normal("every", 1, d)[:, 0]
        self._offsets = along @ basis.T + math.sqrt(rest) * every
        self.covariance = basis @ basis.T + max(rest, 1e-9) * np.eye(d)


class Known(FLDBPersonal):
    """FLDB-Personal with the true V."""

    def _structure(
        self, change: ShareUpload, precision: Array, scale: float, answers: float
    ) -> tuple[dict[str, Array], float, float]:
        arrays, _, _ = super()._structure(change, precision, scale, answers)
        covariance = scale * Population(self.settings, range(1)).covariance
        mean = float(np.trace(covariance)) / len(covariance)
        arrays |= {"shape": covariance / mean, "mix": np.zeros(1)}
        return arrays, mean, float(np.linalg.eigvalsh(covariance)[0])


def populations(seeds: int = SEEDS) -> pd.DataFrame:
    """Compare an isotropic V, a learned one and the true one; return regret by seed."""
    pairs = list(itertools.product(CASES, STRUCTURES))
    found = zip(pairs, by_seed(_regret, pairs, seeds), strict=True)
    return pd.DataFrame(
        {"case": case.name, "structure": structure, "regret": own}
        for (case, structure), own in found
    )


def _regret(job: tuple[tuple[Case, str], int]) -> float:
    (case, structure), seed = job
    Population.case = case
    kind = "learned" if structure == "known" else structure
    chosen = settings(
        algorithm="fldb_personal", personal_structure=kind, seed=seed, horizon=200,
        dimension=case.dimension, num_agents=case.num_agents,
        environment={"name": "population"}, engine={"workers": 1},
    )  # fmt: skip
    history = History(chosen.horizon)
    algorithm = (Known if structure == "known" else FLDBPersonal)(chosen)
    with closing(DirectFederation(chosen, history)) as federation:
        run_rounds(federation, algorithm)
    return round(history.regret, 4)


CONDITIONS: dict[str, dict[str, Any]] = {
    "tau=5": {"tau": 5},
    "tau=20": {"tau": 20},
    "geometric": {"schedule": {"name": "geometric"}},
    "10% of the agents in each round": {
        "fraction_train": 0.1, "engine": {"name": "inprocess", "num_nodes": 50}
    },
}  # fmt: skip


def conditions(seeds: int = SEEDS) -> pd.DataFrame:
    """Compare both structures with other schedules and partial participation, by seed."""
    pairs = list(itertools.product(CONDITIONS, STRUCTURES[:2]))
    found = zip(pairs, by_seed(_regret_under, pairs, seeds), strict=True)
    return pd.DataFrame(
        {"case": case, "structure": structure, "regret": own} for (case, structure), own in found
    )


def _regret_under(job: tuple[tuple[str, str], int]) -> float:
    (case, structure), seed = job
    world = {"sigma": math.sqrt(0.8), "directions": 2}
    values = {"num_agents": 50, "horizon": 200, "dimension": 10, "environment": world}
    values |= {"engine": {"workers": 1}, **CONDITIONS[case]}
    chosen = settings(algorithm="fldb_personal", personal_structure=structure, seed=seed, **values)
    if chosen.engine.name == "vectorized":
        return regret(chosen)
    history = History(chosen.horizon)
    inprocess.play(chosen, history)
    return round(history.regret, 4)
