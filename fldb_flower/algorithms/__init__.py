"""Algorithms: what the server computes in each communication round.

They are declared in :data:`fldb_flower.catalogue.ALGORITHMS`. A new algorithm is a module with a
subclass of :class:`~fldb_flower.algorithms.base.Algorithm` and one line there.
"""

from __future__ import annotations

from collections.abc import Callable

from fldb_flower.algorithms.base import Algorithm, Online
from fldb_flower.algorithms.schedules import Round
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.federation.exchange import Federation
from fldb_flower.federation.history import History
from fldb_flower.federation.offers import require_better_arm
from fldb_flower.linalg.arrays import Array
from fldb_flower.settings import Settings


def make_algorithm(settings: Settings) -> Algorithm:
    """Return the settings' algorithm in its initial state.

    Examples
    --------
    >>> from fldb_flower.algorithms import make_algorithm
    >>> from fldb_flower.settings import Settings
    >>> algorithm = make_algorithm(Settings(algorithm="fldb_ons", dimension=2))
    >>> algorithm.theta_sync
    array([0., 0.])
    """
    algorithm: Algorithm = ALGORITHMS.load(settings.algorithm)(settings)
    return algorithm


def run_algorithm(federation: Federation, settings: Settings) -> Array:
    """Run the settings' algorithm to the horizon; return its final theta_sync, (d,).

    Examples
    --------
    >>> from fldb_flower.algorithms import run_algorithm
    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings
    >>> from simulations.engines.vectorized import DirectFederation
    >>> settings = Settings(num_agents=10, horizon=20, dimension=3, tau=1)
    >>> history = History(settings.horizon)
    >>> theta = run_algorithm(DirectFederation(settings, history), settings)
    >>> theta.shape, history.iteration, history.rounds
    ((3,), 20, 20)
    """
    return run_rounds(federation, make_algorithm(settings))


def run_rounds(
    federation: Federation,
    algorithm: Algorithm,
    after_round: Callable[[], None] | None = None,
    attempt: Callable[[Round], bool] | None = None,
) -> Array:
    """Run the remaining rounds up to the horizon; return the final theta_sync, (d,).

    Parameters
    ----------
    federation : Federation
        Its history holds the rounds that were played before.
    algorithm : Algorithm
        In the state after those rounds.
    after_round : callable, optional
        Called after each round, once its uploads are counted.
    attempt : callable, optional
        Runs a round, or returns False if the round must be repeated.

    Examples
    --------
    >>> from fldb_flower.algorithms import make_algorithm, run_rounds
    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings
    >>> from simulations.engines.vectorized import DirectFederation
    >>> settings = Settings(num_agents=10, horizon=8, dimension=3, tau=4)
    >>> history = History(settings.horizon)
    >>> federation = DirectFederation(settings, history)
    >>> def report():
    ...     print("played", history.iteration)
    >>> theta = run_rounds(federation, make_algorithm(settings), after_round=report)
    played 1
    played 4
    played 8
    """
    for round_ in algorithm.rounds():
        if round_.last <= federation.history.iteration:
            continue
        if attempt is None:
            algorithm.round(federation, round_)
        else:
            while not attempt(round_):
                pass
        _check_regret(federation, algorithm, round_)
        if after_round is not None:
            after_round()
    return algorithm.theta_sync


def _check_regret(federation: Federation, algorithm: Algorithm, round_: Round) -> None:
    """Raise a DataError if no arm is better than another: the first round then has no regret."""
    history = federation.history
    if round_.first == 1 and isinstance(history, History) and history.regret == 0.0:
        require_better_arm(algorithm.settings)


__all__ = ["Algorithm", "Online", "make_algorithm", "run_algorithm", "run_rounds"]
