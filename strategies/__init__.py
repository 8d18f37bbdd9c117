"""The algorithms as Flower strategies, by name."""

from __future__ import annotations

from fldb_flower import algorithms
from fldb_flower.arrays import Array
from fldb_flower.history import History
from fldb_flower.settings import Settings
from strategies.dueling import DuelingStrategy


class FLDBOGD(DuelingStrategy):
    """FLDB-OGD (paper, Algorithm 2); see :func:`fldb_flower.algorithms.fldb_ogd`."""

    def run(self) -> Array:
        """Run the algorithm."""
        return algorithms.fldb_ogd(self, self.settings)


class FLDBGD(DuelingStrategy):
    """FLDB-GD (paper, Algorithm 4); see :func:`fldb_flower.algorithms.fldb_gd`."""

    def run(self) -> Array:
        """Run the algorithm."""
        return algorithms.fldb_gd(self, self.settings)


class FLDBONS(DuelingStrategy):
    """FLDB-ONS, ours; see :func:`fldb_flower.algorithms.fldb_ons`."""

    def run(self) -> Array:
        """Run the algorithm."""
        return algorithms.fldb_ons(self, self.settings)


class Alone(DuelingStrategy):
    """Agents that do not collaborate: LDB, and pairs drawn at random."""

    def run(self) -> Array:
        """Let the agents play, and collect the regret."""
        return algorithms.alone(self, self.settings)


_TABLE: dict[str, type[DuelingStrategy]] = {
    "fldb_ogd": FLDBOGD,
    "fldb_gd": FLDBGD,
    "fldb_ons": FLDBONS,
    "ldb": Alone,
    "random": Alone,
}


def make_strategy(settings: Settings, history: History) -> DuelingStrategy:
    """Return the strategy that the settings' ``algorithm`` names."""
    return _TABLE[settings.algorithm](settings, history)


__all__ = ["FLDBGD", "FLDBOGD", "FLDBONS", "Alone", "DuelingStrategy", "make_strategy"]
