"""The algorithms as Flower strategies, by name."""

from __future__ import annotations

from fldb_flower import algorithms
from fldb_flower.federation.history import History
from fldb_flower.settings import Settings
from strategies.dueling import DuelingStrategy
from strategies.nodes import Nodes
from strategies.simulated_nodes import SimulatedNodes


class FLDBOGDStrategy(DuelingStrategy):
    """FLDB-OGD (paper, Algorithm 2) over Flower."""

    ALGORITHM = algorithms.FLDBOGD


class FLDBGDStrategy(DuelingStrategy):
    """FLDB-GD (paper, Algorithm 4) over Flower."""

    ALGORITHM = algorithms.FLDBGD


class FLDBONSStrategy(DuelingStrategy):
    """FLDB-ONS, ours, over Flower."""

    ALGORITHM = algorithms.FLDBONS


class IndependentStrategy(DuelingStrategy):
    """Agents that do not collaborate: LDB, and pairs drawn at random."""

    ALGORITHM = algorithms.Alone


_TABLE: dict[str, type[DuelingStrategy]] = {
    "fldb_ogd": FLDBOGDStrategy,
    "fldb_gd": FLDBGDStrategy,
    "fldb_ons": FLDBONSStrategy,
    "ldb": IndependentStrategy,
    "random": IndependentStrategy,
}


def make_strategy(
    settings: Settings, history: History, members: Nodes | None = None
) -> DuelingStrategy:
    """Return the strategy that the settings' ``algorithm`` names.

    Parameters
    ----------
    settings, history, members
        See :class:`DuelingStrategy`. The members are nodes of simulated agents by default.
    """
    if members is None:
        members = SimulatedNodes(settings, history)
    return _TABLE[settings.algorithm](settings, history, members)


__all__ = [
    "DuelingStrategy",
    "FLDBGDStrategy",
    "FLDBOGDStrategy",
    "FLDBONSStrategy",
    "IndependentStrategy",
    "make_strategy",
]
