"""Damped Newton steps: for many agents as one batch, and their line search for any problem.

The losses are convex, so the slope along a step shows whether the step passed the minimum. No loss
is evaluated.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fldb_flower.bandit.preference import residuals, win_residuals
from fldb_flower.linalg.arrays import Array, copy, namespace
from fldb_flower.linalg.linear import pseudo_solve, solve

RESTART = 0.5
"""A warm start is abandoned if a step from it is cut to less than this length."""

_LARGEST_SLOPE = 0.5  # at the end of a step, in units of the slope at its start
_SMALLEST_CUT = 0.1
_VERIFIED = 1e-13  # Newton decrement per duel below which the next step may be the last
_EXACT = 1e-20  # with which the expansion before that step is that after it
_CHANGED = 1e-6  # change of a logit, relative if that is above 1, with which it is not
_FLAT = 0.1  # of the slope at the start: a step that ends with a steeper descent is doubled
_STEEP = 10  # after so many steps, such as in the tail of mu, only the square of it is flat, etc.
_BLOCK = 2**16  # features of duels that fit in a processor's cache
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
    xp, (agents, m, count) = namespace(duels), duels.shape
    step = max(_BLOCK // max(m * count, 1), 1) if xp is np else agents
    if agents <= step:
        return (duels * curvatures[:, None, :]) @ duels.swapaxes(1, 2)
    starts = range(0, agents, step)
    parts = (hessian_of(duels[i : i + step], curvatures[i : i + step]) for i in starts)
    return xp.concat(list(parts))


class Minimum(NamedTuple):
    """Minimisers, and the expansions ``x^T H x / 2 - b^T x`` of the losses there, without prior."""

    point: Array  # (agents, m)
    hessian: Array  # H, (agents, m, m)
    linear: Array  # b, (agents, m)


class Loss(NamedTuple):
    """The losses of each agent's own duels."""

    duels: Array  # matrices that map points to logits, (agents, m, duels)
    answers: Array | None = None  # preferences, (agents, duels); None if all are 1
    weights: Array | None = None  # of the duels, (agents, duels); None if all are 1
    # Sums of the duels' squared lengths, (agents,). If they are known, one pass less is needed.
    squares: Array | None = None

    def only(self, agents: Array) -> Loss:
        """Return the losses of some of the agents, (agents,) of bool."""
        return Loss(*(None if each is None else each[agents] for each in self))


class _Batch(NamedTuple):
    """Agents whose minimiser is not yet found."""

    point: Array  # current points, (agents, m)
    warm: Array  # whether an agent may restart at the prior's mean, (agents,) of bool
    precision: Array  # Q of the prior, (agents, m, m)
    mean: Array  # of the prior, (agents, m)
    loss: Loss

    def derivatives(self, point: Array) -> tuple[Array, Array]:
        """Gradients (agents, m), and second derivatives in the logits (agents, duels)."""
        duels, answers, weights, _ = self.loss
        logits = logits_of(point, duels)
        both = win_residuals(logits) if answers is None else residuals(logits, answers)
        errors, curvatures = both if weights is None else (weights * each for each in both)
        return times(duels, errors) + self.prior_gradient(point), curvatures

    def only(self, agents: Array) -> _Batch:
        """Return the batch of some of the agents, (agents,) of bool."""
        *arrays, loss = self
        point, warm, precision, mean = (each[agents] for each in arrays)
        return _Batch(point, warm, precision, mean, loss.only(agents))

    def prior_gradient(self, point: Array) -> Array:
        """Return the gradients of the prior's term, (agents, m)."""
        return times(self.precision, point - self.mean)


def minimise(start: Array, loss: Loss, precision: Array, mean: Array) -> Minimum:
    """Return the minimisers of ``loss + (point - mean)^T Q (point - mean) / 2``, (agents, m).

    Damped Newton steps from a warm start, doubled if they still descend steeply at their ends: a
    trial costs less than a Hessian. Agents leave the batch when they are done. Q and the mean are
    one for each agent, or one for all. Raises LinAlgError if a minimiser was not found within 200
    steps, or is not finite.
    """
    xp, (agents, m), count = namespace(start), start.shape, max(loss.duels.shape[2], 1)
    precision, mean = xp.broadcast_to(precision, (agents, m, m)), xp.broadcast_to(mean, (agents, m))
    warm = xp.any(start != 0, axis=1)
    batch = _Batch(start, warm, precision, mean, loss)
    found = Minimum(xp.empty_like(start), xp.empty_like(precision), xp.empty_like(start))
    active, ready = xp.arange(agents, device=start.device), xp.zeros_like(warm)
    gradient, curvatures = batch.derivatives(start)
    for number in range(MAX_STEPS):
        hessian = hessian_of(loss.duels, curvatures)
        step, slope = _newton_step(hessian + batch.precision, gradient)
        exact = slope >= -_EXACT * count
        small = slope >= -_VERIFIED * count if number else exact
        if small.any():  # the decrement is also small where mu' is
            small = _keeps_logits(step, batch.point, loss, small)
        done = ready | (small & exact)
        if done.any():
            step[ready & ~small] = 0.0  # rounding errors
            slopes = gradient - batch.prior_gradient(batch.point)
            linear = times(hessian, batch.point) - slopes
            for old, new in zip(found, (batch.point + step, hessian, linear), strict=True):
                old[active[done]] = new[done]
            if done.all():
                return found
            active, step, slope, small = (each[~done] for each in (active, step, slope, small))
            batch = batch.only(~done)
            loss = batch.loss
        slope[small], ready = -math.inf, small  # the last step is not damped
        batch, gradient, curvatures = _descend(batch, step, slope, number)
    raise np.linalg.LinAlgError(f"not reached in {MAX_STEPS} Newton steps")


def _newton_step(hessian: Array, gradient: Array) -> tuple[Array, Array]:
    """Return the Newton steps, (agents, m), and the slopes along them, below 0, (agents,)."""
    xp = namespace(gradient)
    step = -solve(hessian, gradient)
    slope = xp.vecdot(gradient, step)
    wrong = ~(slope <= 0.0)  # the Hessian is singular to working precision
    if wrong.any():
        step[wrong] = -pseudo_solve(hessian[wrong], gradient[wrong])
        slope = xp.vecdot(gradient, step)
        if not xp.all(xp.isfinite(slope)):
            raise np.linalg.LinAlgError("a Newton step is not finite")
    return step, slope


def _keeps_logits(steps: Array, points: Array, loss: Loss, small: Array) -> Array:
    """Return which of the small steps change no logit, and so no Hessian, by more than a little."""
    xp = namespace(steps)
    if loss.squares is not None:
        bounds = xp.vecdot(steps, steps) * loss.squares
        if not (small & ~(bounds <= _CHANGED**2)).any():
            return small
    changes, logits = (logits_of(each, loss.duels) for each in (steps, points))
    return small & xp.all(abs(changes) <= _CHANGED * (1.0 + abs(logits)), axis=1)


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
