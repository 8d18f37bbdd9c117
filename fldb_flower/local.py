"""LDB's estimates: every agent alone, the exact minimiser of its own duels, all as one batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fldb_flower.errors import ConvergenceError
from fldb_flower.preference import logistic

FloatArray = NDArray[np.float64]

_SETTLED = 1e-13  # Newton decrement per duel: theta's error is about 1e-12 after such a step
_SUFFICIENT = 0.5
_SHORTEST_CUT = 0.1
_LOST = 0.5  # a warm start whose step is cut to less than this is given up for theta = 0
_MAX_STEPS = 200
_MAX_CUTS = 60


class LocalEstimates:
    """Estimates theta_i of a block of agents that do not communicate.

    Each is the minimiser of the agent's own loss with ridge lambda (paper, Eq. 1 with N = 1),
    by the damped Newton method of :func:`fldb_flower.algorithms.estimation.newton`, warm-started.
    Agents that are done leave the batch.

    Parameters
    ----------
    agents, dimension : int
        Sizes.
    ridge : float
        lambda, above 0.
    """

    def __init__(self, agents: int, dimension: int, ridge: float) -> None:
        self._ridge = ridge
        self.theta = np.zeros((agents, dimension))
        self._count = 0
        # Each agent's duels are a matrix (d, duels), fast to weight and to multiply.
        self._differences = np.empty((agents, dimension, 8))
        self._preferences = np.empty((agents, 8))

    def add(self, differences: FloatArray, preferences: FloatArray) -> None:
        """Add a duel of each agent, (agents, d) and (agents,), and find the new minimisers.

        Raises
        ------
        ConvergenceError
            An agent's minimiser was not found within 200 Newton steps.
        """
        if self._count == self._preferences.shape[1]:
            self._differences = np.concatenate([self._differences] * 2, axis=2)
            self._preferences = np.concatenate([self._preferences] * 2, axis=1)
        self._differences[:, :, self._count] = differences
        self._preferences[:, self._count] = preferences
        self._count += 1
        self._minimise()

    def _minimise(self) -> None:
        active = np.arange(len(self.theta))
        theta = self.theta.copy()
        warm: NDArray[np.bool_] = np.any(theta != 0, axis=1)
        duels, answers = self._duels(active)
        gradient, hessian = self._derivatives(theta, duels, answers)
        for _ in range(_MAX_STEPS):
            step = np.asarray(-np.linalg.solve(hessian, gradient[..., None])[..., 0], np.float64)
            decrement = -_dots(gradient, step)
            going = decrement > _SETTLED * self._count
            self.theta[active] = theta + step
            if not going.any():
                return
            if not going.all():
                active, warm = active[going], warm[going]
                theta, step, gradient = theta[going], step[going], gradient[going]
                duels, answers = self._duels(active)
            theta, gradient, hessian = self._descend(theta, step, gradient, warm, duels, answers)
        raise ConvergenceError(
            f"no minimiser for {len(active)} agents within {_MAX_STEPS} Newton steps"
        )

    def _descend(  # noqa: PLR0917
        self,
        theta: FloatArray,
        step: FloatArray,
        gradient: FloatArray,
        warm: NDArray[np.bool_],
        duels: FloatArray,
        answers: FloatArray,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Step from theta, less far where that ends uphill; return the point and derivatives.

        Agents lost far out, where the Hessian has vanished, go back to 0, once: ``warm``.
        """
        slope = _dots(gradient, step)  # below 0
        length = np.ones(len(theta))
        for _ in range(_MAX_CUTS):
            trial = theta + length[:, None] * step
            end_gradient, hessian = self._derivatives(trial, duels, answers)
            end_slope = _dots(end_gradient, step)
            long = end_slope > _SUFFICIENT * np.abs(slope)
            if not long.any():
                return trial, end_gradient, hessian
            # Cut where the straight line through both slopes crosses zero.
            crossing = slope[long] / (slope[long] - end_slope[long])
            length[long] *= np.maximum(_SHORTEST_CUT, crossing)
            lost = warm & (length < _LOST)
            step[lost], slope[lost], length[lost] = -theta[lost], -np.inf, 1.0  # whatever its slope
            warm &= ~lost
        raise ConvergenceError(
            f"no minimiser: a Newton step was too long even cut {_MAX_CUTS} times"
        )

    def _duels(self, agents: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        count = self._count
        if len(agents) == len(self.theta):
            return self._differences[..., :count], self._preferences[:, :count]
        return self._differences[agents, :, :count], self._preferences[agents, :count]

    def _derivatives(
        self, theta: FloatArray, duels: FloatArray, answers: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Gradients (agents, d) and Hessians (agents, d, d) of the agents' losses."""
        wins = logistic((theta[:, None, :] @ duels)[:, 0])  # (agents, duels)
        gradient = (duels @ (wins - answers)[..., None])[..., 0] + self._ridge * theta
        weighted = duels * (wins * (1.0 - wins))[:, None, :]
        hessian = weighted @ duels.swapaxes(1, 2) + self._ridge * np.eye(theta.shape[1])
        return gradient, hessian

    def state(self) -> dict[str, FloatArray]:
        """Return everything as arrays of their own, for :meth:`restore`."""
        return {
            "theta": self.theta.copy(),
            "differences": self._differences[..., : self._count].copy(),
            "preferences": self._preferences[:, : self._count].copy(),
        }

    def restore(self, state: dict[str, FloatArray]) -> None:
        """Take back what :meth:`state` returned."""
        self.theta = np.array(state["theta"])
        self._count = state["preferences"].shape[1]
        if self._count:
            self._differences = np.array(state["differences"])
            self._preferences = np.array(state["preferences"])


def _dots(left: FloatArray, right: FloatArray) -> FloatArray:
    """Inner product of each agent's two vectors: (agents, d), (agents, d) -> (agents,)."""
    dots: FloatArray = np.einsum("ij,ij->i", left, right)
    return dots
