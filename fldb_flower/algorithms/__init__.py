"""Algorithms: what the server computes in each communication round.

They are declared in :data:`fldb_flower.catalogue.ALGORITHMS`. A new algorithm is a module with a
subclass of :class:`~fldb_flower.algorithms.base.Algorithm` and one line there.
"""

from __future__ import annotations

from collections.abc import Callable

from fldb_flower.algorithms.base import Algorithm, Online
from fldb_flower.algorithms.schedules import Round
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.federation.agents import require_better_arm
from fldb_flower.federation.exchange import Federation
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array
from fldb_flower.settings import Settings

__all__ = ["Algorithm", "Online"]


def make_algorithm(settings: Settings) -> Algorithm:
    """Return the settings' algorithm in its initial state."""
    algorithm: Algorithm = ALGORITHMS.load(settings.algorithm)(settings)
    return algorithm


def run_algorithm(federation: Federation, settings: Settings) -> Array:
    """Run the settings' algorithm to the horizon; return its final theta_sync, (d,)."""
    return run_rounds(federation, make_algorithm(settings))


def run_rounds(
    federation: Federation,
    algorithm: Algorithm,
    after_round: Callable[[], None] | None = None,
    attempt: Callable[[Round], bool] | None = None,
) -> Array:
    """Run the rounds that are left up to the horizon; return the final theta_sync, (d,).

    The federation's history has the rounds that were played before, and the algorithm is in the
    state after them. ``after_round`` is called after each round, once its uploads are counted.
    ``attempt`` runs a round, or returns False if the round must be repeated.
    """
    for round_ in algorithm.rounds():
        if round_.last <= federation.history.iteration:
            continue
        if attempt is None:
            algorithm.round(federation, round_)
        else:
            while not attempt(round_):
                pass
        history = federation.history
        if round_.first == 1 and isinstance(history, History) and history.regret == 0.0:
            require_better_arm(algorithm.settings)
        if after_round is not None:
            after_round()
    return algorithm.theta_sync
