"""What LDB's agents learn, each alone from its own duels, all as one batch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fldb_flower.arrays import Array, Arrays, copy, namespace, to_numpy
from fldb_flower.errors import ConvergenceError
from fldb_flower.preference import logistic

_SETTLED = 1e-13  # Newton decrement per duel: theta's error is about 1e-12 after such a step
_SUFFICIENT = 0.5
_SHORT = 0.1  # of the slope left: the step is doubled
_SHORTEST_CUT = 0.1
_LOST = 0.5  # a warm start whose step is cut to less than this is given up for theta = 0
_MAX_STEPS = 200
_MAX_TRIALS = 60


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
    by the damped Newton method of :func:`fldb_flower.algorithms.estimation.newton`, warm-started.
    Steps that end well downhill are doubled too, as another trial costs less than another
    Hessian: of a new duel's logit, a plain Newton step covers about 1 of 10. Agents that are
    done leave the batch.

    The minimiser is a combination of the duels, ``theta = D a`` with D of shape (d, duels).
    While there are no more duels than features the search is for a, which takes their inner
    products ``G = D^T D`` and no other sum over features: the gradient ``D r`` is represented
    by ``r = mu(G a) - y + lambda a``, and Newton's step in a by ``-(S G + lambda I)^-1 r``, S the
    diagonal of curvatures. From then on it is for theta.

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
        # Each agent's duels are a matrix (d, duels), fast to weight and to multiply.
        self._differences = self._arrays.empty(agents, dimension, 8)
        self._preferences = self._arrays.empty(agents, 8)
        self._weights = self._arrays.zeros(agents, 0)  # a
        self._products = self._arrays.zeros(agents, 0, 0)  # G

    @property
    def _few(self) -> bool:
        """Whether the search is for a."""
        return self._count <= int(self.theta.shape[1])

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
        duels, answers = self._differences[..., : self._count], self._preferences[:, : self._count]
        if self._few:
            self._border(differences, duels)
            self._weights = self._minimise(self._weights, self._products, answers)
            self.theta = (duels @ self._weights[..., None])[..., 0]
        else:
            self._forget_products()
            self.theta = self._minimise(self.theta, duels, answers)

    def _border(self, differences: Array, duels: Array) -> None:
        """Add the newest duel's weight, 0, and its inner products with all duels."""
        agents, before = self._weights.shape
        weights = self._arrays.zeros(agents, before + 1)
        weights[:, :before] = self._weights
        products = self._arrays.empty(agents, before + 1, before + 1)
        products[:, :before, :before] = self._products
        products[:, before] = (differences[:, None, :] @ duels)[:, 0]
        products[:, :before, before] = products[:, before, :before]
        self._weights, self._products = weights, products

    def _forget_products(self) -> None:
        agents = len(self.theta)
        self._weights = self._arrays.zeros(agents, 0)
        self._products = self._arrays.zeros(agents, 0, 0)

    def _minimise(self, start: Array, duels: Array, answers: Array) -> Array:
        """Return the minimisers, (agents, m), from a warm start."""
        xp = self._arrays.xp
        found, active = copy(start), self._arrays.arange(len(start))
        batch = _Batch(start, xp.any(start != 0, axis=1), duels, answers)
        gradient, curvatures = self._derivatives(start, duels, answers)
        for _ in range(_MAX_STEPS):
            hessian = self._hessian(batch.duels, curvatures)
            step = -xp.linalg.solve(hessian, gradient[..., None])[..., 0]
            along = self._along(step, batch.duels)
            slope = _dots(gradient, along)  # below 0
            going = slope < -_SETTLED * self._count
            found[active] = batch.point + step
            if not going.any():
                return found
            if not going.all():
                active, batch = active[going], batch.only(going)
                step, along, slope = step[going], along[going], slope[going]
            batch, gradient, curvatures = self._descend(batch, step, along, slope)
        raise ConvergenceError(
            f"no minimiser for {len(active)} agents within {_MAX_STEPS} Newton steps"
        )

    def _descend(
        self, batch: _Batch, step: Array, along: Array, slope: Array
    ) -> tuple[_Batch, Array, Array]:
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
            end_slope = _dots(gradient, along)
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
        raise ConvergenceError(
            f"no minimiser: no length of a Newton step was right in {_MAX_TRIALS} trials"
        )

    def _derivatives(self, point: Array, duels: Array, answers: Array) -> tuple[Array, Array]:
        """Gradients (agents, m) at a point, and second derivatives in the logits (agents, duels).

        Gradients are represented as the class says.
        """
        wins = logistic((point[:, None, :] @ duels)[:, 0])
        residuals = wins - answers
        gradient = residuals if self._few else (duels @ residuals[..., None])[..., 0]
        return gradient + self._ridge * point, wins * (1.0 - wins)

    def _hessian(self, duels: Array, curvatures: Array) -> Array:
        """Return what takes a step to the gradient's change, (agents, m, m)."""
        if self._few:
            hessian = curvatures[:, :, None] * duels
        else:
            hessian = (duels * curvatures[:, None, :]) @ duels.swapaxes(1, 2)
        hessian += self._ridge * self._arrays.eye(hessian.shape[-1])
        return hessian

    def _along(self, step: Array, duels: Array) -> Array:
        """Return what a gradient is multiplied by for the slope along a step, (agents, m).

        Where the search is for a, ``D r`` times ``D step`` is ``r`` times ``G step``.
        """
        return (duels @ step[..., None])[..., 0] if self._few else step

    def state(self) -> dict[str, Array]:
        """Return everything as arrays of their own, for :meth:`restore`."""
        return {
            "theta": to_numpy(copy(self.theta)),
            "differences": to_numpy(copy(self._differences[..., : self._count])),
            "preferences": to_numpy(copy(self._preferences[:, : self._count])),
            "weights": to_numpy(copy(self._weights)),
            "products": to_numpy(copy(self._products)),
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Take back what :meth:`state` returned."""
        make = self._arrays.make
        self.theta = make(np.array(state["theta"]))
        self._weights = make(np.array(state["weights"]))
        self._products = make(np.array(state["products"]))
        self._count = state["preferences"].shape[1]
        if self._count:
            self._differences = make(np.array(state["differences"]))
            self._preferences = make(np.array(state["preferences"]))


def _dots(left: Array, right: Array) -> Array:
    """Inner product of each agent's two vectors: (agents, d), (agents, d) -> (agents,)."""
    return namespace(left).vecdot(left, right)
