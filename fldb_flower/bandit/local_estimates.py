"""Estimates of LDB's agents: a maximum likelihood estimate for each, computed as one batch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fldb_flower.bandit.newton import RESTART, is_too_long, shortened
from fldb_flower.bandit.preference import logistic
from fldb_flower.errors import ConvergenceError
from fldb_flower.linalg.arrays import Array, Arrays, copy, namespace, to_numpy
from fldb_flower.linalg.linear import pseudo_solve, solve

_VERIFIED = 1e-13  # Newton decrement per duel below which the next step is not verified
_FLAT = 0.1  # of the slope at the start: a step that ends with a steeper descent is doubled
MAX_STEPS = 200
_MAX_TRIALS = 60
_NEW_DIRECTION = 1e-13  # of a duel's length: a shorter remainder is a rounding error


class _Batch(NamedTuple):
    """Agents whose minimiser is not yet found."""

    point: Array  # current points, (agents, m)
    warm: Array  # whether an agent may restart at 0, (agents,) of bool
    duels: Array  # matrices that map points to logits, (agents, m, duels)
    answers: Array  # preferences, (agents, duels)

    def only(self, agents: Array) -> _Batch:
        """Return some agents of the batch."""
        return _Batch(*(array[agents] for array in self))


class LocalEstimates:
    """Estimates theta_i of a block of agents that do not communicate.

    Each is the minimiser of the agent's own loss with ridge lambda (paper, Eq. 1 with N = 1).
    It is computed by damped Newton steps from a warm start (:mod:`fldb_flower.bandit.newton`).
    A step that still descends steeply at its end is doubled, because another trial costs less than
    another Hessian. Agents leave the batch when their minimiser is found.

    The minimiser lies in the span of the duels. While there are at most d duels, the variables are
    coordinates in an orthonormal basis of that span; later they are theta itself.

    Parameters
    ----------
    agents, dimension : int
        Number of agents and of features.
    ridge : float
        lambda, above 0.
    arrays : Arrays, optional
        Backend of the duels and the estimates; NumPy by default.
    """

    def __init__(
        self, agents: int, dimension: int, ridge: float, arrays: Arrays | None = None
    ) -> None:
        self._ridge = ridge
        self._arrays = arrays or Arrays()
        self.theta = self._arrays.zeros(agents, dimension)
        self._count = 0
        # Basis of the span, (agents, d, m); a column is 0 if its duel added no direction.
        # None: the variables are theta itself.
        self._basis: Array | None = self._arrays.zeros(agents, dimension, 0)
        # An agent's duels are the columns of a matrix (m or d, duels).
        self._duels = self._arrays.zeros(agents, 0, 8)
        self._preferences = self._arrays.empty(agents, 8)

    def add(self, differences: Array, preferences: Array) -> None:
        """Add one duel of each agent, (agents, d) and (agents,), and update the minimisers.

        Raises
        ------
        ConvergenceError
            An agent's minimiser was not found within 200 Newton steps, or is not finite.
        """
        try:
            self._add(differences, preferences)
        except np.linalg.LinAlgError as error:
            raise self._not_found(str(error)) from None

    def _add(self, differences: Array, preferences: Array) -> None:
        if self._basis is not None and self._count == self.theta.shape[1]:
            self._duels, self._basis = self._basis @ self._duels, None
        if self._count == self._preferences.shape[1]:
            self._duels = self._arrays.xp.concat([self._duels] * 2, axis=2)
            self._preferences = self._arrays.xp.concat([self._preferences] * 2, axis=1)
        column = differences if self._basis is None else self._coordinates(differences)
        self._duels[:, :, self._count] = column
        self._preferences[:, self._count] = preferences
        self._count += 1
        duels, answers = self._duels[..., : self._count], self._preferences[:, : self._count]
        if self._basis is None:
            self.theta = self._minimise(self.theta, duels, answers)
            return
        start = (self.theta[:, None, :] @ self._basis)[:, 0]
        found = self._minimise(start, duels, answers)
        self.theta = (self._basis @ found[..., None])[..., 0]

    def _coordinates(self, differences: Array) -> Array:
        """Return a duel's coordinates, (agents, m); the last one is along a new basis vector."""
        xp = self._arrays.xp
        coordinates, rest = 0.0, differences
        for _ in range(2):  # Gram-Schmidt orthogonalization, twice because of rounding errors
            seen = (rest[:, None, :] @ self._basis)[:, 0]
            coordinates = coordinates + seen
            rest = rest - (self._basis @ seen[..., None])[..., 0]
        length, whole = (xp.sqrt(_dots(vector, vector)) for vector in (rest, differences))
        is_new = length > _NEW_DIRECTION * whole
        length = xp.where(is_new, length, 0.0)
        direction = xp.where(is_new[:, None], rest / xp.where(is_new, length, 1.0)[:, None], 0.0)
        self._basis = xp.concat([self._basis, direction[..., None]], axis=2)
        row = self._arrays.zeros(len(self.theta), 1, self._duels.shape[2])
        self._duels = xp.concat([self._duels, row], axis=1)
        return xp.concat([coordinates, length[:, None]], axis=1)

    def _minimise(self, start: Array, duels: Array, answers: Array) -> Array:
        """Return the minimisers, (agents, m), from a warm start."""
        xp = self._arrays.xp
        found, active = copy(start), self._arrays.arange(len(start))
        batch = _Batch(start, xp.any(start != 0, axis=1), duels, answers)
        gradient, curvatures = self._derivatives(start, duels, answers)
        for _ in range(MAX_STEPS):
            hessian = self._hessian(batch.duels, curvatures)
            step = -solve(hessian, gradient)
            slope = _dots(gradient, step)  # below 0
            wrong = ~(slope <= 0.0)  # the Hessian is singular to working precision
            if wrong.any():
                step[wrong] = -pseudo_solve(hessian[wrong], gradient[wrong])
                slope = _dots(gradient, step)
                if not xp.all(xp.isfinite(slope)):
                    raise self._not_found("a Newton step is not finite")
            going = slope < -_VERIFIED * self._count
            found[active] = batch.point + step
            if not going.any():
                return found
            if not going.all():
                active, batch = active[going], batch.only(going)
                step, slope = step[going], slope[going]
            batch, gradient, curvatures = self._descend(batch, step, slope)
        raise self._not_found(f"not reached in {MAX_STEPS} Newton steps")

    def _not_found(self, reason: str) -> ConvergenceError:
        longest = float(self._arrays.xp.max(self._arrays.xp.abs(self._duels[..., : self._count])))
        return ConvergenceError(
            f"no minimiser of an agent's own loss: {reason} (lambda={self._ridge:g}, differences of"
            f" features up to {longest:.1e}); use a larger lambda, or scale the features to about 1"
        )

    def _descend(self, batch: _Batch, step: Array, slope: Array) -> tuple[_Batch, Array, Array]:
        """Return the batch after a step of suitable length, and its derivatives.

        A step is cut if it ends uphill, and doubled if it still descends steeply at its end. An
        agent whose warm start lies where the Hessian vanishes restarts at 0, once.
        """
        xp = self._arrays.xp
        length = xp.ones_like(slope)
        lengthen = length > 0  # False after a step was too long
        warm = copy(batch.warm)
        for _ in range(_MAX_TRIALS):
            trial = batch.point + length[:, None] * step
            gradient, curvatures = self._derivatives(trial, batch.duels, batch.answers)
            end_slope = _dots(gradient, step)
            long = is_too_long(slope, end_slope)
            lengthen &= ~long
            short = lengthen & (end_slope < _FLAT * slope)
            if not (long | short).any():
                return batch._replace(point=trial, warm=warm), gradient, curvatures
            length[short] *= 2.0
            length[long] = shortened(length[long], slope[long], end_slope[long])
            lost = warm & (length < RESTART)
            step[lost], length[lost] = -batch.point[lost], 1.0
            slope[lost] = -math.inf  # accept any slope at 0
            warm &= ~lost
        raise self._not_found(f"the line search failed after {_MAX_TRIALS} trials")

    def _derivatives(self, point: Array, duels: Array, answers: Array) -> tuple[Array, Array]:
        """Gradients (agents, m), and second derivatives in the logits (agents, duels)."""
        wins = logistic((point[:, None, :] @ duels)[:, 0])
        gradient = (duels @ (wins - answers)[..., None])[..., 0]
        return gradient + self._ridge * point, wins * (1.0 - wins)

    def _hessian(self, duels: Array, curvatures: Array) -> Array:
        """Hessians of the agents' losses, (agents, m, m)."""
        hessian = (duels * curvatures[:, None, :]) @ duels.swapaxes(1, 2)
        hessian += self._ridge * self._arrays.eye(hessian.shape[-1])
        return hessian

    def state(self) -> dict[str, Array]:
        """Return a copy of the state, for :meth:`restore`."""
        basis = self._arrays.zeros(len(self.theta), 0, 0) if self._basis is None else self._basis
        return {
            "theta": to_numpy(copy(self.theta)),
            "duels": to_numpy(copy(self._duels[..., : self._count])),
            "preferences": to_numpy(copy(self._preferences[:, : self._count])),
            "basis": to_numpy(copy(basis)),
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned."""
        make = self._arrays.make
        self.theta = make(np.array(state["theta"]))
        basis = make(np.array(state["basis"]))
        self._basis = basis if basis.shape[1] else None
        self._count = state["preferences"].shape[1]
        if self._count:
            self._duels = make(np.array(state["duels"]))
            self._preferences = make(np.array(state["preferences"]))


def _dots(left: Array, right: Array) -> Array:
    """Inner product of each agent's two vectors: (agents, d), (agents, d) -> (agents,)."""
    return namespace(left).vecdot(left, right)
