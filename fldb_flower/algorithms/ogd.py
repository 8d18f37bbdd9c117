"""FLDB-OGD: online gradient descent, one exchange a round (Algorithms 1 and 2)."""

from __future__ import annotations

import math

from fldb_flower import theory
from fldb_flower.algorithms.rounds import finish, first_information, first_minimum
from fldb_flower.arrays import Array
from fldb_flower.federation import Broadcast, Federation, Play
from fldb_flower.schedules import round_ends
from fldb_flower.settings import Settings


def fldb_ogd(federation: Federation, settings: Settings) -> Array:
    r"""Run FLDB-OGD and return the final theta_sync, (d,).

    At t = 1 the minimiser of the first iteration's loss is found by exchanges:
    ``theta_hat^(1) = theta_sync``. Round t_c then takes the gradient of the fresh duels at
    theta_hat^(t_c) and (Algorithm 2, lines 3 to 6)::

        theta_hat^(t_c + 1)  = project(theta_hat^(t_c) - gradient / (alpha * step))
        theta_sync           = mean of theta_hat^(1), ..., theta_hat^(t_c + 1)
        W_sync              += W_new

    ``step`` is the iteration t that ends the round (``step_index=iteration``) or t_c
    (``round``). With tau = 1, round 1 is t = 1 itself: the gradient vanishes at its
    minimiser, and theta_hat^(2) = theta_hat^(1).

    Raises
    ------
    ConvergenceError
        The first minimiser was not found.
    """
    information = first_information(settings)
    first = first_minimum(federation, settings, information, settings.ridge)
    information = information + first.upload.information
    theta_hat = theta_sync = first.theta
    ball = _Ball(first.theta, theory.projection_radius(settings), settings.projection_center)

    played = 1
    for t_c, end in enumerate(round_ends(settings), start=1):
        if end > played:
            play = Play(played + 1, end, theta_sync, information)
            upload = federation.exchange(Broadcast(play, theta_hat))
            federation.acknowledge()
            step = end if settings.step_index == "iteration" else t_c
            theta_hat = ball.project(
                theta_hat - upload.gradient / (settings.alpha * step), theta_hat
            )
            information = information + upload.information
            played = end
        theta_sync = theta_sync + (theta_hat - theta_sync) / (t_c + 1)
    finish(federation, Play(played + 1, settings.horizon, theta_sync, information))
    return theta_sync


class _Ball:
    """The set S that theta_hat is projected onto (paper, Sec. 3.2)."""

    def __init__(self, initial: Array, radius: float, center: str) -> None:
        self._initial = initial
        self._radius = radius
        self._fixed = center == "initial"

    def project(self, theta: Array, current: Array) -> Array:
        center = self._initial if self._fixed else current
        offset = theta - center
        distance = math.sqrt(float(offset @ offset))
        return theta if distance <= self._radius else center + (self._radius / distance) * offset
