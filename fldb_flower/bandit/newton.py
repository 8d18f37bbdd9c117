"""Damped Newton steps: for many agents as one batch, and their line search for any problem.

The losses are convex, so the slope along a step shows whether the step passed the minimum. No loss
is evaluated.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fldb_flower.bandit.preference import residuals
from fldb_flower.errors import ConvergenceError
from fldb_flower.linalg.arrays import Array, copy, namespace
from fldb_flower.linalg.linear import pseudo_solve, solve

RESTART = 0.5
"""A warm start is abandoned if a step from it is cut to less than this length."""

_LARGEST_SLOPE = 0.5  # at the end of a step, in units of the slope at its start
_SMALLEST_CUT = 0.1
_VERIFIED = 1e-13  # Newton decrement per duel below which the next step may be the last
_CHANGED = 1e-6  # change of a logit, relative if that is above 1, with which it is not
_FLAT = 0.1  # of the slope at the start: a step that ends with a steeper descent is doubled
_STEEP = 10  # after so many steps, such as in the tail of mu, only the square of it is flat, etc.
MAX_STEPS = 200
_CAREFUL = 100, 0.1  # after so many steps, which may be a cycle, steps end with a smaller slope
_MAX_TRIALS = 60


def is_too_long(slope: Array, end_slope: Array, largest: float = _LARGEST_SLOPE) -> Array:
    """Return whether steps end uphill, with more than a share of the (negative) first slope."""
    return ~(end_slope <= largest * abs(slope))  # True for NaN


def shortened(length: Array, slope: Array, end_slope: Array) -> Array:
    """Return lengths of steps that were too long, cut by at most a factor of 10.

    The new length is where the straight line through both slopes crosses zero.
    """
    crossing = slope / (slope - end_slope)
    return length * namespace(crossing).clip(crossing, _SMALLEST_CUT, None)


class Prior(NamedTuple):
    """The term ``(point - mean)^T Q (point - mean) / 2`` of each agent's objective.

    Q is one matrix for each agent, (agents, d, d), or a number: that multiple of I for all agents,
    with points of any dimension and the mean 0.
    """

    precision: Array
    mean: Array = 0.0
    name: str = ""  # of Q in error messages
    remedy: str = ""  # what to use if there is no minimum

    def only(self, agents: Array) -> Prior:
        """Return the prior of some agents."""
        if isinstance(self.precision, float):
            return self
        return self._replace(precision=self.precision[agents], mean=self.mean[agents])

    def gradient(self, point: Array) -> Array:
        """Return ``Q (point - mean)``, for points (agents, d)."""
        if isinstance(self.precision, float):
            return self.precision * point
        return times(self.precision, point - self.mean)

    def add_to(self, hessians: Array) -> None:
        """Add Q to Hessians of the loss, (agents, d, d), in place."""
        added = self.precision
        if isinstance(added, float):
            d, like = hessians.shape[-1], {"dtype": hessians.dtype, "device": hessians.device}
            added = added * namespace(hessians).eye(d, **like)
        hessians += added


def times(matrices: Array, vectors: Array) -> Array:
    """Return the products of each agent's matrix and vector."""
    return (matrices @ vectors[..., None])[..., 0]


def logits_of(points: Array, duels: Array) -> Array:
    """Return the logits of each agent's duels, the columns of (agents, d, duels), at its point."""
    return (points[:, None, :] @ duels)[:, 0]


def hessian_of(duels: Array, curvatures: Array) -> Array:
    """Return ``sum_i curvature_i x_i x_i^T`` over each agent's duels, (agents, d, d)."""
    return (duels * curvatures[:, None, :]) @ duels.swapaxes(1, 2)


class _Batch(NamedTuple):
    """Agents whose minimiser is not yet found."""

    point: Array  # current points, (agents, m)
    warm: Array  # whether an agent may restart at the prior's minimum, (agents,) of bool
    duels: Array  # matrices that map points to logits, (agents, m, duels)
    answers: Array  # preferences, (agents, duels)
    prior: Prior
    weights: Array | None = None  # of the duels, (agents, duels)

    def only(self, agents: Array) -> _Batch:
        point, warm, duels, answers = (array[agents] for array in self[:4])
        weights = None if self.weights is None else self.weights[agents]
        return _Batch(point, warm, duels, answers, self.prior.only(agents), weights)

    def derivatives(self, point: Array) -> tuple[Array, Array]:
        """Gradients (agents, m), and second derivatives in the logits (agents, duels)."""
        errors, curvatures = residuals(logits_of(point, self.duels), self.answers)
        if self.weights is not None:
            errors, curvatures = self.weights * errors, self.weights * curvatures
        return times(self.duels, errors) + self.prior.gradient(point), curvatures


def minimise(
    start: Array,
    duels: Array,
    answers: Array,
    prior: Prior,
    weights: Array | None = None,
) -> Array:
    """Return the minimisers of loss and prior, (agents, m), from a warm start.

    Damped Newton steps, doubled if they still descend steeply at their ends: a trial costs less
    than a Hessian. Agents leave the batch when they are done. An agent's duels are the columns of a
    matrix, (agents, m, duels), with answers (agents, duels) and optional weights of their losses.
    Raises ConvergenceError if a minimiser was not found within 200 steps, or is not finite.
    """
    xp, found = namespace(start), copy(start)
    active = xp.arange(len(start), device=start.device)
    batch = _Batch(start, xp.any(start != 0, axis=1), duels, answers, prior, weights)
    gradient, curvatures = batch.derivatives(start)
    for number in range(MAX_STEPS):
        step, slope = _newton_step(batch, gradient, curvatures)
        going = slope < -_VERIFIED * max(duels.shape[2], 1)
        if not going.all():  # the decrement is also small where mu' is
            going |= _changes_logits(step, batch)
        found[active] = batch.point + step
        if not going.any():
            return found
        if not going.all():
            active, batch = active[going], batch.only(going)
            step, slope = step[going], slope[going]
        batch, gradient, curvatures = _descend(batch, step, slope, number)
    raise not_found(f"not reached in {MAX_STEPS} Newton steps", duels, prior)


def not_found(reason: str, duels: Array, prior: Prior) -> ConvergenceError:
    """Return the error for a minimiser that was not found."""
    xp = namespace(duels)
    longest = float(xp.max(xp.abs(duels)))
    return ConvergenceError(
        f"no minimiser of an agent's own loss: {reason} ({prior.name}, differences of"
        f" features up to {longest:.1e}); use {prior.remedy}, or scale the features to about 1"
    )


def _newton_step(batch: _Batch, gradient: Array, curvatures: Array) -> tuple[Array, Array]:
    """Return the Newton steps, (agents, m), and the slopes along them, below 0, (agents,)."""
    xp, hessian = namespace(gradient), hessian_of(batch.duels, curvatures)
    batch.prior.add_to(hessian)
    step = -solve(hessian, gradient)
    slope = xp.vecdot(gradient, step)
    wrong = ~(slope <= 0.0)  # the Hessian is singular to working precision
    if wrong.any():
        step[wrong] = -pseudo_solve(hessian[wrong], gradient[wrong])
        slope = xp.vecdot(gradient, step)
        if not xp.all(xp.isfinite(slope)):
            raise not_found("a Newton step is not finite", batch.duels, batch.prior)
    return step, slope


def _changes_logits(steps: Array, batch: _Batch) -> Array:
    """Return whether steps change a logit, and with it the Hessian, by more than a little."""
    changes, logits = (logits_of(each, batch.duels) for each in (steps, batch.point))
    return namespace(steps).any(abs(changes) > _CHANGED * (1.0 + abs(logits)), axis=1)


def _descend(batch: _Batch, step: Array, slope: Array, number: int) -> tuple[_Batch, Array, Array]:
    """Return the batch after step ``number`` of suitable length, and its derivatives.

    A step is cut if it ends uphill, and doubled if it still descends steeply at its end. An
    agent whose warm start lies where the Hessian vanishes restarts at the prior's minimum, once.
    """
    xp, largest = namespace(step), _LARGEST_SLOPE if number < _CAREFUL[0] else _CAREFUL[1]
    length, flat = xp.ones_like(slope), _FLAT ** (1 + number // _STEEP)
    lengthen = length > 0  # False after a step was too long
    warm = copy(batch.warm)
    for _ in range(_MAX_TRIALS):
        trial = batch.point + length[:, None] * step
        gradient, curvatures = batch.derivatives(trial)
        end_slope = xp.vecdot(gradient, step)
        long = is_too_long(slope, end_slope, largest)
        lengthen &= ~long
        short = lengthen & (end_slope < flat * slope)
        if not (long | short).any():
            return batch._replace(point=trial, warm=warm), gradient, curvatures
        length[short] *= 2.0
        length[long] = shortened(length[long], slope[long], end_slope[long])
        lost = warm & (length < RESTART)
        if lost.any():
            step[lost], length[lost] = (batch.prior.mean - batch.point)[lost], 1.0
            slope[lost] = -math.inf  # accept any slope there
            warm &= ~lost
    raise not_found(f"the line search failed after {_MAX_TRIALS} trials", batch.duels, batch.prior)
