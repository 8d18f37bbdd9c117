"""Algorithms by name: each is an ordinary function of a federation.

A new algorithm is a module with such a function and a line in the table.
"""

from __future__ import annotations

from collections.abc import Callable

from fldb_flower.algorithms.alone import alone
from fldb_flower.algorithms.gd import fldb_gd
from fldb_flower.algorithms.ogd import fldb_ogd
from fldb_flower.algorithms.ons import fldb_ons
from fldb_flower.arrays import Array
from fldb_flower.federation import Federation
from fldb_flower.settings import Settings

_TABLE: dict[str, Callable[[Federation, Settings], Array]] = {
    "fldb_ogd": fldb_ogd,
    "fldb_gd": fldb_gd,
    "fldb_ons": fldb_ons,
    "ldb": alone,
    "random": alone,
}


def run_algorithm(federation: Federation, settings: Settings) -> Array:
    """Run the algorithm that the settings name; return its final estimate, (d,)."""
    return _TABLE[settings.algorithm](federation, settings)


__all__ = ["alone", "fldb_gd", "fldb_ogd", "fldb_ons", "run_algorithm"]
