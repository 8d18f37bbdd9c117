"""What selection rules are made of: rewards, norms, and a tie rule that rounding obeys."""

from __future__ import annotations

import math
import sys
from typing import TypeAlias

from fldb_flower.linalg.arrays import Array, namespace
from fldb_flower.linalg.whiteners import (
    LowRank,
    Whitener,
    largest_frobenius,
    largest_norm,
    whitened,
)

TIE = 1e-14
"""Relative difference below which scores are ties, in double precision."""

Width: TypeAlias = float | Array
"""Of the confidence interval: for all agents, or one for each, (agents,)."""

_EPSILON = sys.float_info.epsilon


def column(width: Width, axes: int = 1) -> Width:
    """Return the width with axes after that of agents, to multiply their arms by."""
    return width if isinstance(width, float) else width.reshape((-1, *[1] * axes))


def rewards(features: Array, theta: Array) -> Array:
    """Predicted rewards ``theta . phi(x)``: (agents, arms)."""
    if theta.ndim == 1:
        flat = features.reshape((-1, features.shape[-1])) @ theta
        return flat.reshape(features.shape[:-1])
    return (features @ theta[:, :, None])[:, :, 0]


def norms(vectors: Array, whitener: Whitener) -> Array:
    """``||x||_{W^-1}`` of vectors (agents, arms, d): (agents, arms)."""
    xp = namespace(vectors)
    d = vectors.shape[-1]
    shared = isinstance(whitener, LowRank) or whitener.ndim < 3
    squares = whitened(vectors.reshape((-1, d)) if shared else vectors, whitener)
    squares *= squares
    squares = squares @ xp.ones((d,), dtype=vectors.dtype, device=vectors.device)
    return xp.sqrt(squares).reshape(vectors.shape[:-1])


def pick(values: Array, arms: Array) -> Array:
    """Take one arm of each agent: (agents, arms, ...), (agents,) -> (agents, ...)."""
    xp = namespace(values)
    agents, num_arms, *rest = values.shape
    places = xp.arange(0, agents * num_arms, num_arms, device=values.device) + arms
    return xp.take(values.reshape((-1, *rest)), places, axis=0)


def tie_breaks(features: Array, theta: Array, whitener: Whitener, width: Width) -> Array:
    """Return what to subtract from scores so that ties go to the lowest number: (arms,).

    Scores that only rounding errors tell apart are ties: the order in which a processor
    sums must not decide a duel.

    Raises
    ------
    FloatingPointError
        A feature, theta or W is NaN or infinite.
    """
    xp = namespace(features)
    step = tie_step(features, theta, whitener, width)
    return step * xp.arange(features.shape[1], dtype=features.dtype, device=features.device)


def tie_step(features: Array, theta: Array, whitener: Whitener, width: Width) -> float:
    """Largest difference of two scores ``theta . phi(x) + width ||x||_{W^-1}`` that is a tie.

    Larger than rounding errors and smaller than any real difference: it scales with a bound
    on the scores, from norms that cost one pass over the features.

    Raises
    ------
    FloatingPointError
        A feature, theta or W is NaN or infinite, or the scores overflow.
    """
    width = width if isinstance(width, float) else float(namespace(width).max(width))
    length, reach = _norm(features), largest_norm(whitener)
    bound = length * (largest_frobenius(theta, 1) + width * reach)
    # Norms of differences are squared, and these are up to twice as long as features.
    if not math.isfinite(bound + (2.0 * length * reach) * (2.0 * length * reach)):
        raise FloatingPointError("a feature, theta or W is not a finite number, or too large")
    xp = namespace(features)
    return TIE * bound * float(xp.finfo(features.dtype).eps) / _EPSILON


def _norm(array: Array) -> float:
    flat = array.reshape((-1,))
    return math.sqrt(float(flat @ flat))
