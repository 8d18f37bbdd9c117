"""LDB's estimates: every agent alone, the exact minimiser of its own duels, all as one batch."""

from __future__ import annotations

import math

import numpy as np

from fldb_flower.arrays import Array, Arrays, copy, namespace, to_numpy
from fldb_flower.errors import ConvergenceError
from fldb_flower.preference import logistic

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
    arrays : Arrays, optional
        What duels and estimates are.
    """

    def __init__(
        self, agents: int, dimension: int, ridge: float, arrays: Arrays | None = None
    ) -> None:
        self._ridge = ridge
        self._arrays = arrays or Arrays()
        self._identity = self._arrays.eye(dimension)
        self.theta = self._arrays.zeros(agents, dimension)
        self._count = 0
        # Each agent's duels are a matrix (d, duels), fast to weight and to multiply.
        self._differences = self._arrays.empty(agents, dimension, 8)
        self._preferences = self._arrays.empty(agents, 8)

    def add(self, differences: Array, preferences: Array) -> None:
        """Add a duel of each agent, (agents, d) and (agents,), and find the new minimisers.

        Raises
        ------
        ConvergenceError
            An agent's minimiser was not found within 200 Newton steps.
        """
        if self._count == self._preferences.shape[1]:
            self._differences = self._arrays.xp.concat([self._differences] * 2, axis=2)
            self._preferences = self._arrays.xp.concat([self._preferences] * 2, axis=1)
        self._differences[:, :, self._count] = differences
        self._preferences[:, self._count] = preferences
        self._count += 1
        self._minimise()

    def _minimise(self) -> None:
        xp = self._arrays.xp
        active = self._arrays.arange(len(self.theta))
        theta = copy(self.theta)
        warm = xp.any(theta != 0, axis=1)
        duels, answers = self._duels(active)
        gradient, hessian = self._derivatives(theta, duels, answers)
        for _ in range(_MAX_STEPS):
            step = -xp.linalg.solve(hessian, gradient[..., None])[..., 0]
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
        theta: Array,
        step: Array,
        gradient: Array,
        warm: Array,
        duels: Array,
        answers: Array,
    ) -> tuple[Array, Array, Array]:
        """Step from theta, less far where that ends uphill; return the point and derivatives.

        Agents lost far out, where the Hessian has vanished, go back to 0, once: ``warm``.
        """
        slope = _dots(gradient, step)  # below 0
        xp = self._arrays.xp
        length = self._arrays.zeros(len(theta)) + 1.0
        for _ in range(_MAX_CUTS):
            trial = theta + length[:, None] * step
            end_gradient, hessian = self._derivatives(trial, duels, answers)
            end_slope = _dots(end_gradient, step)
            long = end_slope > _SUFFICIENT * xp.abs(slope)
            if not long.any():
                return trial, end_gradient, hessian
            # Cut where the straight line through both slopes crosses zero.
            crossing = slope[long] / (slope[long] - end_slope[long])
            length[long] *= xp.clip(crossing, _SHORTEST_CUT, None)
            lost = warm & (length < _LOST)
            step[lost], length[lost] = -theta[lost], 1.0
            slope[lost] = -math.inf  # whatever it is
            warm &= ~lost
        raise ConvergenceError(
            f"no minimiser: a Newton step was too long even cut {_MAX_CUTS} times"
        )

    def _duels(self, agents: Array) -> tuple[Array, Array]:
        count = self._count
        if len(agents) == len(self.theta):
            return self._differences[..., :count], self._preferences[:, :count]
        return self._differences[agents, :, :count], self._preferences[agents, :count]

    def _derivatives(self, theta: Array, duels: Array, answers: Array) -> tuple[Array, Array]:
        """Gradients (agents, d) and Hessians (agents, d, d) of the agents' losses."""
        wins = logistic((theta[:, None, :] @ duels)[:, 0])  # (agents, duels)
        gradient = (duels @ (wins - answers)[..., None])[..., 0] + self._ridge * theta
        weighted = duels * (wins * (1.0 - wins))[:, None, :]
        hessian = weighted @ duels.swapaxes(1, 2) + self._ridge * self._identity
        return gradient, hessian

    def state(self) -> dict[str, Array]:
        """Return everything as arrays of their own, for :meth:`restore`."""
        return {
            "theta": to_numpy(copy(self.theta)),
            "differences": to_numpy(copy(self._differences[..., : self._count])),
            "preferences": to_numpy(copy(self._preferences[:, : self._count])),
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Take back what :meth:`state` returned."""
        self.theta = self._arrays.make(np.array(state["theta"]))
        self._count = state["preferences"].shape[1]
        if self._count:
            self._differences = self._arrays.make(np.array(state["differences"]))
            self._preferences = self._arrays.make(np.array(state["preferences"]))


def _dots(left: Array, right: Array) -> Array:
    """Inner product of each agent's two vectors: (agents, d), (agents, d) -> (agents,)."""
    return namespace(left).vecdot(left, right)
