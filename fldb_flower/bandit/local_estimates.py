"""What LDB's agents learn, each alone from its own duels, all as one batch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fldb_flower.bandit.preference import logistic
from fldb_flower.errors import ConvergenceError
from fldb_flower.linalg.arrays import Array, Arrays, copy, namespace, to_numpy
from fldb_flower.linalg.linear import pseudo_solve, solve

_SETTLED = 1e-13  # Newton decrement per duel: theta's error is about 1e-12 after such a step
_SUFFICIENT = 0.5
_SHORT = 0.1  # of the slope left: the step is doubled
_SHORTEST_CUT = 0.1
_LOST = 0.5  # a warm start whose step is cut to less than this is given up for theta = 0
_MAX_STEPS = 200
_MAX_TRIALS = 60
_NEW = 1e-13  # of a duel's length: what is shorter is a rounding error


class _Batch(NamedTuple):
    """Agents whose minimiser is sought.

    Attributes
    ----------
    point : Array
        Where they are, (agents, m).
    warm : Array
        Whether they may go back to 0, (agents,) of bool.
    duels : Array
        What takes points to logits, (agents, m, duels).
    answers : Array
        Preferences, (agents, duels).
    """

    point: Array
    warm: Array
    duels: Array
    answers: Array

    def only(self, agents: Array) -> _Batch:
        """Return some agents of the batch."""
        return _Batch(*(array[agents] for array in self))


class LocalEstimates:
    """Estimates theta_i of a block of agents that do not communicate.

    Each is the minimiser of the agent's own loss with ridge lambda (paper, Eq. 1 with N = 1),
    by the damped Newton method of :func:`fldb_flower.algorithms.solvers.newton`, warm-started.
    Steps that end well downhill are doubled too, as another trial costs less than another
    Hessian: of a new duel's logit, a plain Newton step covers about 1 of 10. Agents that are
    done leave the batch.

    The minimiser lies in the span of the duels. While there are no more duels than features, the
    search is for its coordinates in an orthonormal basis of that span, as many as there are duels;
    from then on for theta itself.

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
        self.theta = self._arrays.zeros(agents, dimension)
        self._count = 0
        # Of the span: (agents, d, m), 0 where a duel brought no new direction. None: all of space.
        self._basis: Array | None = self._arrays.zeros(agents, dimension, 0)
        # Each agent's duels are a matrix (m or d, duels), fast to weight and to multiply.
        self._duels = self._arrays.zeros(agents, 0, 8)
        self._preferences = self._arrays.empty(agents, 8)

    def add(self, differences: Array, preferences: Array) -> None:
        """Add a duel of each agent, (agents, d) and (agents,), and find the new minimisers.

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
        """Return a duel's coordinates, (agents, m), the last along what is new in it.

        By Gram and Schmidt; twice, after which rounding errors no longer matter.
        """
        xp = self._arrays.xp
        coordinates, rest = 0.0, differences
        for _ in range(2):
            seen = (rest[:, None, :] @ self._basis)[:, 0]
            coordinates = coordinates + seen
            rest = rest - (self._basis @ seen[..., None])[..., 0]
        length, whole = (xp.sqrt(_dots(vector, vector)) for vector in (rest, differences))
        is_new = length > _NEW * whole
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
        for _ in range(_MAX_STEPS):
            hessian = self._hessian(batch.duels, curvatures)
            step = -solve(hessian, gradient)
            slope = _dots(gradient, step)  # below 0
            wrong = ~(slope <= 0.0)  # a Hessian that rounding errors have made singular
            if wrong.any():
                step[wrong] = -pseudo_solve(hessian[wrong], gradient[wrong])
                slope = _dots(gradient, step)
                if not xp.all(xp.isfinite(slope)):
                    raise self._not_found("a Newton step is not finite")
            going = slope < -_SETTLED * self._count
            found[active] = batch.point + step
            if not going.any():
                return found
            if not going.all():
                active, batch = active[going], batch.only(going)
                step, slope = step[going], slope[going]
            batch, gradient, curvatures = self._descend(batch, step, slope)
        raise self._not_found(f"{_MAX_STEPS} Newton steps did not reach it")

    def _not_found(self, reason: str) -> ConvergenceError:
        longest = float(self._arrays.xp.max(self._arrays.xp.abs(self._duels[..., : self._count])))
        return ConvergenceError(
            f"no minimiser of an agent's own loss: {reason}; with lambda={self._ridge:g} and"
            f" differences of features up to {longest:.1e}, a larger lambda or features nearer to 1"
            " help"
        )

    def _descend(self, batch: _Batch, step: Array, slope: Array) -> tuple[_Batch, Array, Array]:
        """Step less far where that ends uphill, farther where still well downhill.

        Agents lost far out, where the Hessian has vanished, go back to 0, once. Returns the
        batch where it is then, and its derivatives.
        """
        xp = self._arrays.xp
        length = xp.ones_like(slope)
        lengthen = length > 0  # until a step was too long
        warm = copy(batch.warm)
        for _ in range(_MAX_TRIALS):
            trial = batch.point + length[:, None] * step
            gradient, curvatures = self._derivatives(trial, batch.duels, batch.answers)
            end_slope = _dots(gradient, step)
            long = end_slope > _SUFFICIENT * xp.abs(slope)
            lengthen &= ~long
            short = lengthen & (end_slope < _SHORT * slope)
            if not (long | short).any():
                return batch._replace(point=trial, warm=warm), gradient, curvatures
            length[short] *= 2.0
            # Cut where the straight line through both slopes crosses zero.
            crossing = slope[long] / (slope[long] - end_slope[long])
            length[long] *= xp.clip(crossing, _SHORTEST_CUT, None)
            lost = warm & (length < _LOST)
            step[lost], length[lost] = -batch.point[lost], 1.0
            slope[lost] = -math.inf  # whatever it is
            warm &= ~lost
        raise self._not_found(f"no length of a Newton step was right in {_MAX_TRIALS} trials")

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
        """Return everything as arrays of their own, for :meth:`restore`."""
        basis = self._arrays.zeros(len(self.theta), 0, 0) if self._basis is None else self._basis
        return {
            "theta": to_numpy(copy(self.theta)),
            "duels": to_numpy(copy(self._duels[..., : self._count])),
            "preferences": to_numpy(copy(self._preferences[:, : self._count])),
            "basis": to_numpy(copy(basis)),
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Take back what :meth:`state` returned."""
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
