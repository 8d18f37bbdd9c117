"""The Central Server over Flower: a strategy for every algorithm."""

from __future__ import annotations

from fldb_flower.federation.history import Counts
from fldb_flower.settings import Settings
from strategies.channel import Channel
from strategies.dueling import THETA, DuelingStrategy


class FLDBOGDStrategy(DuelingStrategy):
    """FLDB-OGD (paper, Algorithm 2).

    Examples
    --------
    The settings must name the same algorithm:

    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings
    >>> from strategies import FLDBOGDStrategy
    >>> FLDBOGDStrategy(Settings(algorithm="fldb_ons", horizon=20), History(20))
    Traceback (most recent call last):
    fldb_flower.errors.SettingsError: algorithm=fldb_ons: FLDBOGDStrategy needs ...
    """

    ALGORITHM = "fldb_ogd"


class FLDBGDStrategy(DuelingStrategy):
    """FLDB-GD (paper, Algorithm 4).

    Examples
    --------
    >>> from strategies import FLDBGDStrategy
    >>> FLDBGDStrategy.ALGORITHM
    'fldb_gd'
    """

    ALGORITHM = "fldb_gd"


class FLDBONSStrategy(DuelingStrategy):
    """FLDB-ONS.

    Examples
    --------
    >>> from strategies import FLDBONSStrategy
    >>> FLDBONSStrategy.ALGORITHM
    'fldb_ons'
    """

    ALGORITHM = "fldb_ons"


class FLDBPersonalStrategy(DuelingStrategy):
    """FLDB-Personal.

    Examples
    --------
    >>> from strategies import FLDBPersonalStrategy
    >>> FLDBPersonalStrategy.ALGORITHM
    'fldb_personal'
    """

    ALGORITHM = "fldb_personal"


_STRATEGIES = {each.ALGORITHM: each for each in DuelingStrategy.__subclasses__()}


def make_strategy(
    settings: Settings, history: Counts, channel: Channel | None = None
) -> DuelingStrategy:
    """Return the strategy for the settings' algorithm; by default, nodes host simulated agents.

    Algorithms without a strategy of their own, also registered ones, have a `DuelingStrategy`.

    Examples
    --------
    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings
    >>> from strategies import make_strategy
    >>> type(make_strategy(Settings(algorithm="fldb_ogd", horizon=20), History(20))).__name__
    'FLDBOGDStrategy'
    """
    strategy = _STRATEGIES.get(settings.algorithm, DuelingStrategy)
    return strategy(settings, history, channel)


__all__ = [
    "THETA",
    "DuelingStrategy",
    "FLDBGDStrategy",
    "FLDBOGDStrategy",
    "FLDBONSStrategy",
    "FLDBPersonalStrategy",
    "make_strategy",
]
