"""The Central Server over Flower: a strategy for every algorithm."""

from __future__ import annotations

from typing import Any

from fldb_flower.errors import warn_renamed
from fldb_flower.federation.history import Counts
from fldb_flower.settings import Settings
from strategies.dueling import DuelingStrategy
from strategies.nodes import Nodes
from strategies.simulated_nodes import SimulatedNodes


class FLDBOGDStrategy(DuelingStrategy):
    """FLDB-OGD (paper, Algorithm 2)."""

    ALGORITHM = "fldb_ogd"


class FLDBGDStrategy(DuelingStrategy):
    """FLDB-GD (paper, Algorithm 4)."""

    ALGORITHM = "fldb_gd"


class FLDBONSStrategy(DuelingStrategy):
    """FLDB-ONS."""

    ALGORITHM = "fldb_ons"


class FLDBPersonalStrategy(DuelingStrategy):
    """FLDB-Personal."""

    ALGORITHM = "fldb_personal"


def make_strategy(
    settings: Settings, history: Counts, nodes: Nodes | None = None
) -> DuelingStrategy:
    """Return the strategy for the settings' algorithm; by default, nodes host simulated agents."""
    return DuelingStrategy(settings, history, nodes or SimulatedNodes(settings, history))


_FORMER = {
    "FLDBOGD": FLDBOGDStrategy,
    "FLDBGD": FLDBGDStrategy,
    "FLDBONS": FLDBONSStrategy,
    "Alone": DuelingStrategy,
}


def __getattr__(name: str) -> Any:
    if name not in _FORMER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(f"strategies.{name}", f"strategies.{_FORMER[name].__name__}")
    return _FORMER[name]


__all__ = [
    "DuelingStrategy",
    "FLDBGDStrategy",
    "FLDBOGDStrategy",
    "FLDBONSStrategy",
    "FLDBPersonalStrategy",
    "make_strategy",
]
