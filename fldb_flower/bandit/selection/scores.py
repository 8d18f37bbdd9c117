"""Building blocks of selection rules: rewards, norms, and tie-breaking robust to rounding."""

from __future__ import annotations

import math
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
"""Relative difference below which scores are ties."""

Width: TypeAlias = float | Array
"""Width of the confidence interval: one for all agents, or one for each, (agents,)."""


def column(width: Width, axes: int = 1) -> Width:
    """Return the width with additional axes, for multiplication with agents' arms."""
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
    """Return one arm of each agent: (agents, arms, ...), (agents,) -> (agents, ...)."""
    xp = namespace(values)
    agents, num_arms, *rest = values.shape
    places = xp.arange(0, agents * num_arms, num_arms, device=values.device) + arms
    return xp.take(values.reshape((-1, *rest)), places, axis=0)


def tie_breaks(features: Array, theta: Array, whitener: Whitener, width: Width) -> Array:
    """Return penalties of the arms, (arms,), that break ties in favour of the lowest number.

    Scores that differ by rounding errors only are ties, so that results do not depend on the order
    of summation. Raises as :func:`tie_step`.
    """
    xp = namespace(features)
    step = tie_step(features, theta, whitener, width)
    return step * xp.arange(features.shape[1], dtype=features.dtype, device=features.device)


def tie_step(features: Array, theta: Array, whitener: Whitener, width: Width) -> float:
    """Return the largest difference of scores ``theta . phi(x) + width ||x||_{W^-1}`` in a tie.

    It is proportional to an upper bound of the scores, from norms that take one pass over the
    features. Rounding errors are smaller.

    Raises
    ------
    FloatingPointError
        A feature, theta or W is NaN or infinite, or the scores overflow.
    """
    width = width if isinstance(width, float) else float(namespace(width).max(width))
    flat = features.reshape((-1,))
    length, reach = math.sqrt(float(flat @ flat)), largest_norm(whitener)
    bound = length * (largest_frobenius(theta, 1) + width * reach)
    # Differences, whose norms are squared, are up to twice as long as features.
    if not math.isfinite(bound + (2.0 * length * reach) * (2.0 * length * reach)):
        raise FloatingPointError("a feature, theta or W is not a finite number, or too large")
    return TIE * bound
