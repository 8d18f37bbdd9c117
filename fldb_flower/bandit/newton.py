"""Damped Newton steps: for many agents as one batch, and their line search for any problem.

The losses are convex, so the slope along a step shows whether the step passed the minimum. No loss
is evaluated.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fldb_flower.bandit.preference import residuals
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
    warm: Array  # whether an agent may restart at the prior's mean, (agents,) of bool
    duels: Array  # matrices that map points to logits, (agents, m, duels)
    answers: Array  # preferences, (agents, duels)
    weights: Array  # of the duels, (agents, duels)
    precision: Array  # Q of the prior, (agents, m, m)
    mean: Array  # of the prior, (agents, m)

    def derivatives(self, point: Array) -> tuple[Array, Array]:
        """Gradients (agents, m), and second derivatives in the logits (agents, duels)."""
        errors, curvatures = residuals(logits_of(point, self.duels), self.answers)
        errors, curvatures = self.weights * errors, self.weights * curvatures
        prior = times(self.precision, point - self.mean)
        return times(self.duels, errors) + prior, curvatures


def minimise(
    start: Array,
    duels: Array,
    answers: Array,
    precision: Array,
    mean: Array,
    *,
    weights: Array | None = None,
) -> Array:
    """Return the minimisers of ``loss + (point - mean)^T Q (point - mean) / 2``, (agents, m).

    Damped Newton steps from a warm start, doubled if they still descend steeply at their ends: a
    trial costs less than a Hessian. Agents leave the batch when they are done. An agent's duels are
    the columns of a matrix, (agents, m, duels), with answers (agents, duels) and optional weights
    of their losses. Q and the mean are one for each agent, or one for all. Raises LinAlgError if a
    minimiser was not found within 200 steps, or is not finite.
    """
    xp, found, (agents, m) = namespace(start), copy(start), start.shape
    active = xp.arange(agents, device=start.device)
    weights = xp.ones_like(answers) if weights is None else weights
    precision, mean = xp.broadcast_to(precision, (agents, m, m)), xp.broadcast_to(mean, (agents, m))
    warm = xp.any(start != 0, axis=1)
    batch = _Batch(start, warm, duels, answers, weights, precision, mean)
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
            active, batch = active[going], _Batch(*(each[going] for each in batch))
            step, slope = step[going], slope[going]
        batch, gradient, curvatures = _descend(batch, step, slope, number)
    raise np.linalg.LinAlgError(f"not reached in {MAX_STEPS} Newton steps")


def _newton_step(batch: _Batch, gradient: Array, curvatures: Array) -> tuple[Array, Array]:
    """Return the Newton steps, (agents, m), and the slopes along them, below 0, (agents,)."""
    xp, hessian = namespace(gradient), hessian_of(batch.duels, curvatures)
    hessian += batch.precision
    step = -solve(hessian, gradient)
    slope = xp.vecdot(gradient, step)
    wrong = ~(slope <= 0.0)  # the Hessian is singular to working precision
    if wrong.any():
        step[wrong] = -pseudo_solve(hessian[wrong], gradient[wrong])
        slope = xp.vecdot(gradient, step)
        if not xp.all(xp.isfinite(slope)):
            raise np.linalg.LinAlgError("a Newton step is not finite")
    return step, slope


def _changes_logits(steps: Array, batch: _Batch) -> Array:
    """Return whether steps change a logit, and with it the Hessian, by more than a little."""
    changes, logits = (logits_of(each, batch.duels) for each in (steps, batch.point))
    return namespace(steps).any(abs(changes) > _CHANGED * (1.0 + abs(logits)), axis=1)


def _descend(batch: _Batch, step: Array, slope: Array, number: int) -> tuple[_Batch, Array, Array]:
    """Return the batch after step ``number`` of suitable length, and its derivatives.

    A step is cut if it ends uphill, and doubled if it still descends steeply at its end. An
    agent whose warm start lies where the Hessian vanishes restarts at the prior's mean, once.
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
            step[lost], length[lost] = (batch.mean - batch.point)[lost], 1.0
            slope[lost] = -math.inf  # accept any slope there
            warm &= ~lost
    raise np.linalg.LinAlgError(f"the line search failed after {_MAX_TRIALS} trials")
