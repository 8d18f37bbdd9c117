"""Minimisers of the losses of many agents, each with its own duels and prior, as one batch."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from fldb_flower.bandit.newton import LARGEST_SLOPE, RESTART, is_too_long, shortened
from fldb_flower.bandit.preference import residuals
from fldb_flower.errors import ConvergenceError
from fldb_flower.linalg.arrays import Array, Arrays, copy, namespace
from fldb_flower.linalg.linear import pseudo_solve, solve

_VERIFIED = 1e-13  # Newton decrement per duel below which the next step may be the last
_CHANGED = 1e-6  # change of a logit, relative if that is above 1, with which it is not
_FLAT = 0.1  # of the slope at the start: a step that ends with a steeper descent is doubled
_STEEP = 10  # after so many steps, such as in the tail of mu, only the square of it is flat, etc.
MAX_STEPS = 200
_CAREFUL = 100, 0.1  # after so many steps, which may be a cycle, steps end with a smaller slope
_MAX_TRIALS = 60


def with_room(columns: Array, arrays: Arrays) -> Array:
    """Return an array with room for 8, 16, 32, ... columns, as if they were added one by one.

    Rounding errors of products of few columns depend on how far their rows are apart in memory. A
    restored state has the same distances, so that it continues with identical numbers.
    """
    count, room = columns.shape[-1], 8
    while room < count:
        room *= 2
    padded = arrays.zeros(*columns.shape[:-1], room)
    padded[..., :count] = arrays.make(columns)
    return padded


class Prior(Protocol):
    """The quadratic term of each agent's objective, besides the loss of its duels."""

    @property
    def name(self) -> str:
        """Name in error messages."""
        ...

    @property
    def remedy(self) -> str:
        """What to use if there is no minimum, in error messages."""
        ...

    def only(self, agents: Array) -> Prior:
        """Return the prior of some agents."""
        ...

    def gradient(self, point: Array) -> Array:
        """Return the gradient of the term at points (agents, m)."""
        ...

    def add_curvature(self, hessians: Array) -> None:
        """Add the Hessian of the term to Hessians (agents, m, m), in place."""
        ...

    def offset(self, point: Array) -> Array:
        """Return the steps from points to the minimum of the term."""
        ...


class Ridge(NamedTuple):
    """The term ``ridge / 2 |point|^2``."""

    ridge: float
    arrays: Arrays

    @property
    def name(self) -> str:
        """The setting's name and value."""
        return f"lambda={self.ridge:g}"

    @property
    def remedy(self) -> str:
        """The setting that makes the minimum nearer."""
        return "a larger lambda"

    def only(self, agents: Array) -> Ridge:
        """Return itself: all agents have the same ridge."""
        return self

    def gradient(self, point: Array) -> Array:
        """Return ``ridge * point``."""
        return self.ridge * point

    def add_curvature(self, hessians: Array) -> None:
        """Add ``ridge I``."""
        hessians += self.ridge * self.arrays.eye(hessians.shape[-1])

    def offset(self, point: Array) -> Array:
        """Return the steps to 0."""
        return -point


class _Batch(NamedTuple):
    """Agents whose minimiser is not yet found."""

    point: Array  # current points, (agents, m)
    warm: Array  # whether an agent may restart at the prior's minimum, (agents,) of bool
    duels: Array  # matrices that map points to logits, (agents, m, duels)
    answers: Array  # preferences, (agents, duels)
    prior: Prior
    weights: Array | None = None  # of the duels, (agents, duels)

    def only(self, agents: Array) -> _Batch:
        """Return some agents of the batch."""
        point, warm, duels, answers = (array[agents] for array in self[:4])
        weights = None if self.weights is None else self.weights[agents]
        return _Batch(point, warm, duels, answers, self.prior.only(agents), weights)


def minimise(
    start: Array,
    duels: Array,
    answers: Array,
    prior: Prior,
    arrays: Arrays,
    *,
    weights: Array | None = None,
) -> Array:
    """Return the minimisers of loss and prior, (agents, m), from a warm start.

    Damped Newton steps (:mod:`fldb_flower.bandit.newton`), doubled if they still descend steeply at
    their ends: a trial costs less than a Hessian. Agents leave the batch when they are done.

    Parameters
    ----------
    start : Array
        Points to start from, (agents, m).
    duels : Array
        An agent's duels are the columns of a matrix: (agents, m, duels).
    answers : Array
        Preferences, (agents, duels).
    prior : Prior
        The quadratic term.
    arrays : Arrays
        Backend of all arrays.
    weights : Array, optional
        Factors of the duels' losses, (agents, duels); 1 by default.

    Raises
    ------
    ConvergenceError
        A minimiser was not found within 200 Newton steps, or is not finite.
    """
    found, active = copy(start), arrays.arange(len(start))
    batch = _Batch(start, arrays.xp.any(start != 0, axis=1), duels, answers, prior, weights)
    gradient, curvatures = _derivatives(start, batch)
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


def _newton_step(batch: _Batch, gradient: Array, curvatures: Array) -> tuple[Array, Array]:
    """Return the Newton steps, (agents, m), and the slopes along them, below 0, (agents,)."""
    hessian, xp = _hessian(batch, curvatures), namespace(gradient)
    step = -solve(hessian, gradient)
    slope = _dots(gradient, step)
    wrong = ~(slope <= 0.0)  # the Hessian is singular to working precision
    if wrong.any():
        step[wrong] = -pseudo_solve(hessian[wrong], gradient[wrong])
        slope = _dots(gradient, step)
        if not xp.all(xp.isfinite(slope)):
            raise not_found("a Newton step is not finite", batch.duels, batch.prior)
    return step, slope


def not_found(reason: str, duels: Array, prior: Prior) -> ConvergenceError:
    """Return the error for a minimiser that was not found."""
    xp = namespace(duels)
    longest = float(xp.max(xp.abs(duels)))
    return ConvergenceError(
        f"no minimiser of an agent's own loss: {reason} ({prior.name}, differences of"
        f" features up to {longest:.1e}); use {prior.remedy}, or scale the features to about 1"
    )


def _descend(batch: _Batch, step: Array, slope: Array, number: int) -> tuple[_Batch, Array, Array]:
    """Return the batch after step ``number`` of suitable length, and its derivatives.

    A step is cut if it ends uphill, and doubled if it still descends steeply at its end. An
    agent whose warm start lies where the Hessian vanishes restarts at the prior's minimum, once.
    """
    xp, largest = namespace(step), LARGEST_SLOPE if number < _CAREFUL[0] else _CAREFUL[1]
    length, flat = xp.ones_like(slope), _FLAT ** (1 + number // _STEEP)
    lengthen = length > 0  # False after a step was too long
    warm = copy(batch.warm)
    for _ in range(_MAX_TRIALS):
        trial = batch.point + length[:, None] * step
        gradient, curvatures = _derivatives(trial, batch)
        end_slope = _dots(gradient, step)
        long = is_too_long(slope, end_slope, largest)
        lengthen &= ~long
        short = lengthen & (end_slope < flat * slope)
        if not (long | short).any():
            return batch._replace(point=trial, warm=warm), gradient, curvatures
        length[short] *= 2.0
        length[long] = shortened(length[long], slope[long], end_slope[long])
        lost = warm & (length < RESTART)
        if lost.any():
            step[lost], length[lost] = batch.prior.offset(batch.point)[lost], 1.0
            slope[lost] = -math.inf  # accept any slope there
            warm &= ~lost
    raise not_found(f"the line search failed after {_MAX_TRIALS} trials", batch.duels, batch.prior)


def _derivatives(point: Array, batch: _Batch) -> tuple[Array, Array]:
    """Gradients (agents, m), and second derivatives in the logits (agents, duels)."""
    errors, curvatures = residuals(_logits(point, batch), batch.answers)
    if batch.weights is not None:
        errors, curvatures = batch.weights * errors, batch.weights * curvatures
    gradient = (batch.duels @ errors[..., None])[..., 0]
    return gradient + batch.prior.gradient(point), curvatures


def _changes_logits(steps: Array, batch: _Batch) -> Array:
    """Return whether steps change a logit, and with it the Hessian, by more than a little."""
    logits, xp = _logits(batch.point, batch), namespace(steps)
    return xp.any(abs(_logits(steps, batch)) > _CHANGED * (1.0 + abs(logits)), axis=1)


def _logits(points: Array, batch: _Batch) -> Array:
    """Logits of the duels at points, (agents, duels)."""
    return (points[:, None, :] @ batch.duels)[:, 0]


def _hessian(batch: _Batch, curvatures: Array) -> Array:
    """Hessians of the agents' objectives, (agents, m, m)."""
    hessian = (batch.duels * curvatures[:, None, :]) @ batch.duels.swapaxes(1, 2)
    batch.prior.add_curvature(hessian)
    return hessian


def _dots(left: Array, right: Array) -> Array:
    """Inner product of each agent's two vectors: (agents, d), (agents, d) -> (agents,)."""
    return namespace(left).vecdot(left, right)
