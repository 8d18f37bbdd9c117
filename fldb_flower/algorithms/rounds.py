"""What the algorithms share: the first iteration, and the iterations after the last round."""

from __future__ import annotations

import numpy as np

from fldb_flower.algorithms.estimation import Minimum, newton
from fldb_flower.arrays import Array
from fldb_flower.federation import Broadcast, Federation, Play
from fldb_flower.settings import Settings


def first_information(settings: Settings) -> Array:
    """``W_0 = (lambda / kappa_mu) I``, (d, d)."""
    return np.eye(settings.dimension) * (settings.ridge / settings.kappa_mu)


def first_minimum(
    federation: Federation, settings: Settings, information: Array, ridge: float
) -> Minimum:
    """Play t = 1 with theta_sync = 0, find the minimiser of its loss by exchanges, count it."""
    theta = np.zeros(settings.dimension)
    start = federation.exchange(Broadcast(Play(1, 1, theta, information), theta, hessian=True))
    minimum = newton(
        lambda trial: federation.exchange(Broadcast(None, trial, hessian=True)), start, theta, ridge
    )
    federation.acknowledge()
    return minimum


def finish(federation: Federation, play: Play) -> None:
    """Play the iterations after the last round, of which only the regret is reported."""
    if play.first <= play.last:
        federation.exchange(Broadcast(play, None))
        federation.acknowledge()
