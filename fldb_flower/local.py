"""LDB's estimates: every agent alone, the exact minimiser of its own duels, all as one batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fldb_flower.errors import ConvergenceError
from fldb_flower.preference import logistic

FloatArray = NDArray[np.float64]

_TOLERANCE = 1e-10  # gradient norm per duel
_SETTLED = 1e-6  # a Newton step this short leaves an error of about its square
_SUFFICIENT = 0.5
_SHORTEST_CUT = 0.1
_MAX_EVALUATIONS = 200


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
        # Agent by agent, so that each agent's duels are one matrix.
        self._differences = np.empty((agents, 8, dimension))
        self._preferences = np.empty((agents, 8))

    def add(self, differences: FloatArray, preferences: FloatArray) -> None:
        """Add a duel of each agent, (agents, d) and (agents,), and find the new minimisers.

        Raises
        ------
        ConvergenceError
            An agent's minimiser was not found within 200 evaluations.
        """
        if self._count == self._preferences.shape[1]:
            self._differences = np.concatenate([self._differences] * 2, axis=1)
            self._preferences = np.concatenate([self._preferences] * 2, axis=1)
        self._differences[:, self._count] = differences
        self._preferences[:, self._count] = preferences
        self._count += 1
        self._minimise()

    def _minimise(self) -> None:
        active = np.arange(len(self.theta))
        theta = self.theta
        duels, answers = self._duels(active)
        gradient, hessian = self._derivatives(theta, duels, answers)
        begin, step, slope, length = theta, np.zeros_like(theta), np.zeros(len(theta)), None
        for _ in range(_MAX_EVALUATIONS):
            if length is not None:
                # Too long a step ends uphill: cut it where the line through both slopes is zero.
                end_slope = np.vecdot(gradient, step)
                long = end_slope > _SUFFICIENT * np.abs(slope)
                cut = np.where(long, slope / np.where(long, slope - end_slope, 1.0), 1.0)
                length = np.where(long, length * np.maximum(_SHORTEST_CUT, cut), 1.0)
            else:
                long, length = np.zeros(len(theta), dtype=bool), np.ones(len(theta))
            fresh = -np.linalg.solve(hessian, gradient[..., None])[..., 0]
            step = np.where(long[:, None], step, fresh)
            slope = np.where(long, slope, np.vecdot(gradient, fresh))
            begin = np.where(long[:, None], begin, theta)
            found = self._found(theta, gradient, fresh) & ~long
            if found.any():
                self.theta[active[found]] = (theta + fresh)[found]
                keep = ~found
                if not keep.any():
                    return
                active, begin, step, slope, length = (
                    array[keep] for array in (active, begin, step, slope, length)
                )
                duels, answers = self._duels(active)
            theta = begin + length[:, None] * step
            gradient, hessian = self._derivatives(theta, duels, answers)
        raise ConvergenceError(
            f"no minimiser for {len(active)} agents within {_MAX_EVALUATIONS} evaluations"
        )

    def _duels(self, agents: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        count = self._count
        if len(agents) == len(self.theta):
            return self._differences[:, :count], self._preferences[:, :count]
        return self._differences[agents, :count], self._preferences[agents, :count]

    def _derivatives(
        self, theta: FloatArray, duels: FloatArray, answers: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Gradients (agents, d) and Hessians (agents, d, d) of the agents' losses."""
        wins = logistic((duels @ theta[..., None])[..., 0])  # (agents, duels)
        gradient = ((wins - answers)[:, None, :] @ duels)[:, 0] + self._ridge * theta
        weighted = duels * (wins * (1.0 - wins))[..., None]
        hessian = duels.swapaxes(1, 2) @ weighted + self._ridge * np.eye(theta.shape[1])
        return gradient, hessian

    def _found(self, theta: FloatArray, gradient: FloatArray, step: FloatArray) -> NDArray[np.bool_]:
        flat = np.linalg.norm(gradient, axis=1) <= _TOLERANCE * self._count
        short = np.linalg.norm(step, axis=1) <= _SETTLED * (1.0 + np.linalg.norm(theta, axis=1))
        both: NDArray[np.bool_] = flat | short
        return both

    def state(self) -> dict[str, FloatArray]:
        """Return everything as arrays, for :meth:`restore`."""
        return {
            "theta": self.theta,
            "differences": self._differences[:, : self._count],
            "preferences": self._preferences[:, : self._count],
        }

    def restore(self, state: dict[str, FloatArray]) -> None:
        """Take back what :meth:`state` returned."""
        self.theta = np.array(state["theta"])
        self._count = state["preferences"].shape[1]
        if self._count:
            self._differences = np.array(state["differences"])
            self._preferences = np.array(state["preferences"])
