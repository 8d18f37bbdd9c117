"""FLDB-OGD: online gradient descent, one exchange a round (Algorithms 1 and 2)."""

from __future__ import annotations

import math

import numpy as np

from fldb_flower.algorithms.base import Online
from fldb_flower.algorithms.schedules import Round
from fldb_flower.algorithms.solvers import Minimum
from fldb_flower.bandit import theory
from fldb_flower.federation.exchange import Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.settings import Settings


class FLDBOGD(Online):
    r"""The paper's FLDB-OGD.

    At t = 1 the minimiser of the first iteration's loss is found by exchanges:
    ``theta_hat^(1) = theta_sync``. Round t_c then takes the gradient of the fresh duels at
    theta_hat^(t_c) and (Algorithm 2, lines 3 to 6)::

        theta_hat^(t_c + 1)  = project(theta_hat^(t_c) - gradient / (alpha * step))
        theta_sync           = mean of theta_hat^(1), ..., theta_hat^(t_c + 1)
        W_sync              += W_new

    ``step`` is the iteration t that ends the round (``step_index=iteration``) or t_c
    (``round``). With tau = 1, round 1 is t = 1 itself: the gradient vanishes at its
    minimiser, and theta_hat^(2) = theta_hat^(1).
    """

    STATE = (*Online.STATE, "initial")

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.initial: Array = np.zeros(settings.dimension)  # theta_hat^(1)
        self._radius = theory.projection_radius(settings)

    @property
    def first_ridge(self) -> float:
        """Ridge lambda."""
        return self.settings.ridge

    def begin(self, minimum: Minimum) -> None:
        """Remember where the ball is."""
        self.initial = minimum.theta

    def step(self, upload: Upload, turn: Round) -> None:
        """Take a gradient step, project, and average."""
        step = turn.last if self.settings.step_index == "iteration" else turn.number
        self.theta_hat = self._project(
            self.theta_hat - upload.gradient / (self.settings.alpha * step)
        )
        self.theta_sync = self.theta_sync + (self.theta_hat - self.theta_sync) / (turn.number + 1)

    def remedy(self) -> str:
        """Name what the step size depends on."""
        return (
            f"alpha={self.settings.alpha:g} makes steps too long (a larger one makes them shorter),"
            f" or {super().remedy()}"
        )

    def _project(self, theta: Array) -> Array:
        """Project onto the set S, a ball (paper, Sec. 3.2)."""
        fixed = self.settings.projection_center == "initial"
        center = self.initial if fixed else self.theta_hat
        offset = theta - center
        distance = math.sqrt(float(offset @ offset))
        return theta if distance <= self._radius else center + (self._radius / distance) * offset
