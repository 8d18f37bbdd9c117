"""The algorithms as Flower strategies, by name."""

from __future__ import annotations

from fldb_flower.algorithms.ogd import fldb_ogd
from fldb_flower.algorithms.random import alone
from fldb_flower.arrays import Array
from fldb_flower.history import History
from fldb_flower.settings import Settings
from strategies.dueling import DuelingStrategy


class FLDBOGD(DuelingStrategy):
    """FLDB-OGD (paper, Algorithm 2); see :func:`fldb_flower.algorithms.ogd.fldb_ogd`."""

    def run(self) -> Array:
        """Run the algorithm."""
        return fldb_ogd(self, self.settings)


class Alone(DuelingStrategy):
    """Agents that do not collaborate: LDB, and pairs drawn at random."""

    def run(self) -> Array:
        """Let the agents play, and collect the regret."""
        return alone(self, self.settings)


_TABLE: dict[str, type[DuelingStrategy]] = {"fldb_ogd": FLDBOGD, "random": Alone}


def make_strategy(settings: Settings, history: History) -> DuelingStrategy:
    """Return the strategy that the settings' ``algorithm`` names."""
    return _TABLE[settings.algorithm](settings, history)


__all__ = ["FLDBOGD", "Alone", "DuelingStrategy", "make_strategy"]
