"""Algorithms by name: what the Central Server does in each round.

A new algorithm is a module with a subclass of :class:`~fldb_flower.algorithms.base.Algorithm`
and a line in the table.
"""

from __future__ import annotations

from fldb_flower.algorithms.alone import Alone
from fldb_flower.algorithms.base import Algorithm, Online
from fldb_flower.algorithms.gd import FLDBGD
from fldb_flower.algorithms.ogd import FLDBOGD
from fldb_flower.algorithms.ons import FLDBONS
from fldb_flower.arrays import Array
from fldb_flower.federation import Federation
from fldb_flower.settings import Settings

_TABLE: dict[str, type[Algorithm]] = {
    "fldb_ogd": FLDBOGD,
    "fldb_gd": FLDBGD,
    "fldb_ons": FLDBONS,
    "ldb": Alone,
    "random": Alone,
}


def make_algorithm(settings: Settings) -> Algorithm:
    """Return the algorithm that the settings name, at its beginning."""
    return _TABLE[settings.algorithm](settings)


def run_algorithm(federation: Federation, settings: Settings) -> Array:
    """Run the algorithm to the horizon; return its final theta_sync, (d,)."""
    algorithm = make_algorithm(settings)
    for turn in algorithm.rounds():
        algorithm.round(federation, turn)
    return algorithm.theta_sync


__all__ = [
    "FLDBGD",
    "FLDBOGD",
    "FLDBONS",
    "Algorithm",
    "Alone",
    "Online",
    "make_algorithm",
    "run_algorithm",
]
