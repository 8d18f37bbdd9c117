"""The Central Server over Flower: a strategy for every algorithm."""

from __future__ import annotations

from fldb_flower.federation.history import Counts
from fldb_flower.settings import Settings
from strategies.dueling import DuelingStrategy
from strategies.nodes import Nodes
from strategies.simulated_nodes import SimulatedNodes


class FLDBOGDStrategy(DuelingStrategy):
    """FLDB-OGD (paper, Algorithm 2).

    Examples
    --------
    The settings must name the same algorithm:

    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings
    >>> from strategies import FLDBOGDStrategy
    >>> from strategies.simulated_nodes import SimulatedNodes
    >>> settings, history = Settings(algorithm="fldb_ons", horizon=20), History(20)
    >>> FLDBOGDStrategy(settings, history, SimulatedNodes(settings, history))
    Traceback (most recent call last):
    fldb_flower.errors.SettingsError: algorithm=fldb_ons: FLDBOGDStrategy needs ...
    """

    ALGORITHM = "fldb_ogd"


class FLDBGDStrategy(DuelingStrategy):
    """FLDB-GD (paper, Algorithm 4).

    Examples
    --------
    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings
    >>> from strategies import FLDBGDStrategy
    >>> from strategies.simulated_nodes import SimulatedNodes
    >>> settings, history = Settings(algorithm="fldb_gd", horizon=20), History(20)
    >>> strategy = FLDBGDStrategy(settings, history, SimulatedNodes(settings, history))
    >>> type(strategy.algorithm).__name__
    'FLDBGD'
    """

    ALGORITHM = "fldb_gd"


class FLDBONSStrategy(DuelingStrategy):
    """FLDB-ONS.

    Examples
    --------
    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings
    >>> from strategies import FLDBONSStrategy
    >>> from strategies.simulated_nodes import SimulatedNodes
    >>> settings, history = Settings(algorithm="fldb_ons", horizon=20), History(20)
    >>> strategy = FLDBONSStrategy(settings, history, SimulatedNodes(settings, history))
    >>> type(strategy.algorithm).__name__
    'FLDBONS'
    """

    ALGORITHM = "fldb_ons"


class FLDBPersonalStrategy(DuelingStrategy):
    """FLDB-Personal.

    Examples
    --------
    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings
    >>> from strategies import FLDBPersonalStrategy
    >>> from strategies.simulated_nodes import SimulatedNodes
    >>> settings, history = Settings(algorithm="fldb_personal", horizon=20), History(20)
    >>> strategy = FLDBPersonalStrategy(settings, history, SimulatedNodes(settings, history))
    >>> type(strategy.algorithm).__name__
    'FLDBPersonal'
    """

    ALGORITHM = "fldb_personal"


def make_strategy(
    settings: Settings, history: Counts, nodes: Nodes | None = None
) -> DuelingStrategy:
    """Return the strategy for the settings' algorithm; by default, nodes host simulated agents.

    Examples
    --------
    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings
    >>> from strategies import make_strategy
    >>> strategy = make_strategy(Settings(algorithm="fldb_ons", horizon=20), History(20))
    >>> strategy.settings.algorithm
    'fldb_ons'
    """
    return DuelingStrategy(settings, history, nodes or SimulatedNodes(settings, history))


__all__ = [
    "DuelingStrategy",
    "FLDBGDStrategy",
    "FLDBOGDStrategy",
    "FLDBONSStrategy",
    "FLDBPersonalStrategy",
    "make_strategy",
]
