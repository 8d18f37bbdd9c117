"""Learning from one more duel between two fits to all own duels: O(d^2) per agent.

Agents that keep their own duels fit theta_i to all of them (:mod:`fldb_flower.bandit.newton`)
after each duel, or only after a growing number of duels (``refit_ratio``). Between two fits, the
losses of the earlier duels are replaced by their second-order expansions, so that an agent's
objective is a quadratic plus the loss of the newest duel. Its minimiser is exact: theta_i moves
along one direction, and its logit solves an equation in one variable.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fldb_flower.bandit.preference import residuals
from fldb_flower.linalg.arrays import Array, namespace
from fldb_flower.linalg.linear import add_to_whiteners

_FITTED_PER_FEATURE = 8  # duels that are fitted one by one, for each feature
_TOLERANCE = 1e-9  # of a step relative to the logit; the error after it is its square
_MAX_STEPS = 800  # about 5, and one more each time that x^T P^-1 x grows by a factor of e


def next_fit(duels: int, ratio: float, dimension: int) -> int:
    """Return the number of duels of the next fit, after a fit to so many duels.

    With a ratio above 1, the first ``8 d`` duels are still fitted one by one: their expansions are
    the least accurate, and fits to few duels are cheap.
    """
    is_early = duels < _FITTED_PER_FEATURE * dimension
    return duels + 1 if is_early else max(duels + 1, math.ceil(ratio * duels))


class Expansion(NamedTuple):
    """The second-order expansion of the losses of one duel per agent, at the new minimisers."""

    logits: Array  # z = theta . x, (agents,)
    slopes: Array  # mu(z) - y
    curvatures: Array  # mu'(z)


def learn_duel(theta: Array, whiteners: Array, differences: Array, preferences: Array) -> Expansion:
    """Add the loss of one duel to each agent's quadratic, and update its minimiser, in place.

    With the precision P of the quadratic, the new minimiser is ``theta + (y - mu(z)) P^-1 x``. Then
    ``P <- P + mu'(z) x x^T``. The minimisers are (agents, d), the whiteners C with ``P^-1 = C C^T``
    (agents, d, d), and the duels x and answers y (agents, d) and (agents,).
    """
    xp = namespace(theta)
    seen = (differences[:, None, :] @ whiteners)[:, 0]
    start, variances = xp.vecdot(theta, differences), xp.vecdot(seen, seen)
    logits = _minimisers(start, variances, preferences)
    slopes, curvatures = residuals(logits, preferences)
    theta -= slopes[:, None] * (whiteners @ seen[..., None])[..., 0]
    add_to_whiteners(whiteners, xp.sqrt(curvatures)[:, None] * differences)
    return Expansion(logits, slopes, curvatures)


def after_duel(theta: Array, whiteners: Array, differences: Array, preferences: Array) -> Array:
    """Return theta after one Newton step for one more duel; see :func:`learn_duel`."""
    xp = namespace(theta)
    seen = (differences[:, None, :] @ whiteners)[:, 0]
    slopes, curvatures = residuals(xp.vecdot(theta, differences), preferences)
    lengths = slopes / (1.0 + curvatures * xp.vecdot(seen, seen))
    return theta - lengths[:, None] * (whiteners @ seen[..., None])[..., 0]


def _minimisers(start: Array, variances: Array, preferences: Array) -> Array:
    """Return the z that minimise ``(z - start)^2 / (2 variance)`` plus the loss of the answer.

    The root of ``z - start + variance (mu(z) - y)``, which increases, is convex below 0 and concave
    above. Newton steps from 0 therefore approach it from one side. Signs are changed so that y is
    at most 1/2: small values of mu(z) are accurate, and those of 1 - mu(z) are not.
    """
    xp = namespace(start)
    signs = xp.where(preferences > 0.5, -1.0, 1.0)
    start, answers = signs * start, 0.5 + signs * (preferences - 0.5)
    logits = 0.0 * start
    for _ in range(_MAX_STEPS):
        slopes, curvatures = residuals(logits, answers)
        value = logits - start + variances * slopes
        step = value / (1.0 + variances * curvatures)
        logits = logits - step
        if not bool(xp.any(xp.abs(step) > _TOLERANCE * (1.0 + xp.abs(logits)))):
            break
    return signs * logits
