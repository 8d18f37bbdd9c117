"""The strategy that runs any of the algorithms over Flower."""

from __future__ import annotations

from fldb_flower.federation.history import History
from fldb_flower.settings import Settings
from strategies.dueling import DuelingStrategy
from strategies.nodes import Nodes
from strategies.simulated_nodes import SimulatedNodes


def make_strategy(
    settings: Settings, history: History, members: Nodes | None = None
) -> DuelingStrategy:
    """Return the strategy that runs the settings' algorithm over Flower.

    Parameters
    ----------
    settings, history, members
        See :class:`DuelingStrategy`. The members are nodes of simulated agents by default.
    """
    if members is None:
        members = SimulatedNodes(settings, history)
    return DuelingStrategy(settings, history, members)


__all__ = ["DuelingStrategy", "make_strategy"]
