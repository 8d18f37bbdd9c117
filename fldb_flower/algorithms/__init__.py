"""Algorithms by name: what the Central Server does in each round.

A new algorithm is a module with a subclass of :class:`~fldb_flower.algorithms.base.Algorithm`
and a line in the table.
"""

from __future__ import annotations

from collections.abc import Callable

from fldb_flower.algorithms.alone import Alone
from fldb_flower.algorithms.base import Algorithm, Online
from fldb_flower.algorithms.gd import FLDBGD
from fldb_flower.algorithms.ogd import FLDBOGD
from fldb_flower.algorithms.ons import FLDBONS
from fldb_flower.algorithms.schedules import Round
from fldb_flower.federation.exchange import Federation
from fldb_flower.linalg.arrays import Array
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
    """Run the settings' algorithm to the horizon; return its final theta_sync, (d,)."""
    return run_rounds(federation, make_algorithm(settings))


def run_rounds(
    federation: Federation,
    algorithm: Algorithm,
    after_round: Callable[[], None] | None = None,
    attempt: Callable[[Round], bool] | None = None,
) -> Array:
    """Run the rounds that are left, to the horizon; return the final theta_sync, (d,).

    Parameters
    ----------
    federation : Federation
        Its history knows which rounds were played already.
    algorithm : Algorithm
        As those rounds left it.
    after_round : callable, optional
        Called after each round, when all that the agents sent is counted.
    attempt : callable, optional
        Plays and learns from a round, or returns False if it has to be begun anew.
    """
    for turn in algorithm.rounds():
        if turn.last <= federation.history.iteration:
            continue
        if attempt is None:
            algorithm.round(federation, turn)
        else:
            while not attempt(turn):
                pass
        if after_round is not None:
            after_round()
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
    "run_rounds",
]
