"""FLDB-OGD: online gradient descent, one exchange per round (Algorithms 1 and 2)."""

from __future__ import annotations

import math

import numpy as np

from fldb_flower.algorithms.base import Online, State
from fldb_flower.algorithms.schedules import Round
from fldb_flower.algorithms.solvers import Minimum
from fldb_flower.bandit import theory
from fldb_flower.federation.exchange import Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.noisy import shrunk
from fldb_flower.settings import Settings


class FLDBOGD(Online):
    r"""The paper's FLDB-OGD.

    At t = 1, theta_hat^(1) = theta_sync is the minimiser of the loss of the first iteration's
    duels. Round t_c then takes the gradient of its fresh duels at theta_hat^(t_c) (Algorithm 2,
    lines 3 to 6)::

        theta_hat^(t_c + 1)  = project(theta_hat^(t_c) - gradient / (alpha * step))
        theta_sync           = mean of theta_hat^(1), ..., theta_hat^(t_c + 1)
        W_sync              += W_new

    ``step`` is the iteration t at the end of the round (``step_index=iteration``) or t_c
    (``round``). With tau = 1, round 1 is t = 1 itself: the gradient vanishes at the minimiser,
    so theta_hat^(2) = theta_hat^(1).

    With ``first_round=step``, theta_hat^(1) is ``-2 (lambda I + W_1 / 4)^-1 g`` with the gradient g
    of the first duels at 0, from one exchange. It is also the center of the projection.

    With privacy, the length of the gradient is reduced by the share that noise explains
    (:func:`~fldb_flower.linalg.noisy.shrunk`). A step is then never longer than with the noisy
    gradient, and theta does not change if the gradient is only noise. Steps
    ``1 / (alpha * step)`` are small, so the noise of the first estimate matters most.

    The state also has ``initial``, theta_hat^(1).
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.arrays["initial"] = np.zeros(settings.dimension)
        self._radius = theory.projection_radius(settings)

    @property
    def first_ridge(self) -> float:
        """Ridge lambda."""
        return self.settings.ridge

    def begin(self, minimum: Minimum) -> State:
        """Return theta_hat^(1), the center of the projection."""
        return {"initial": minimum.theta}

    def step(self, upload: Upload, round_: Round) -> State:
        """Take a gradient step, project, and average."""
        step = round_.last if self.settings.step_index == "iteration" else round_.number
        gradient = upload.gradient
        if upload.noise is not None:
            gradient = shrunk(gradient, upload.noise.gradient)
        theta = self._project(self.theta_hat - gradient / (self.settings.alpha * step))
        mean = self.theta_sync + (theta - self.theta_sync) / (round_.number + 1)
        return {"theta_hat": theta, "theta_sync": mean}

    def remedy(self) -> str:
        """Return the settings of the step size."""
        return (
            f"alpha={self.settings.alpha:g} makes steps too long (increase it),"
            f" or {super().remedy()}"
        )

    def _project(self, theta: Array) -> Array:
        """Project onto the set S, a ball (paper, Sec. 3.2)."""
        fixed = self.settings.projection_center == "initial"
        center = self.arrays["initial"] if fixed else self.theta_hat
        offset = theta - center
        distance = math.sqrt(float(offset @ offset))
        return theta if distance <= self._radius else center + (self._radius / distance) * offset
