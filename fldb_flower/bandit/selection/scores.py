"""Building blocks of selection rules: rewards, norms, and tie-breaking robust to rounding."""

from __future__ import annotations

import math
from typing import TypeAlias

from fldb_flower.linalg.arrays import Array, namespace
from fldb_flower.linalg.linear import (
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
    """Return the predicted rewards of the arms, (agents, arms): ``theta^T phi(x)``.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.bandit.selection import rewards
    >>> features = np.array([[[1.0, 0.0], [0.5, 2.0]]])
    >>> rewards(features, np.array([2.0, 1.0]))
    array([[2., 3.]])
    """
    if theta.ndim == 1:
        flat = features.reshape((-1, features.shape[-1])) @ theta
        return flat.reshape(features.shape[:-1])
    return (features @ theta[:, :, None])[:, :, 0]


def norms(vectors: Array, whitener: Whitener) -> Array:
    """Return ``||x||_{W^-1}`` of vectors, (agents, arms, d) -> (agents, arms).

    Examples
    --------
    With W = 4 I, norms are half the lengths:

    >>> import numpy as np
    >>> from fldb_flower.bandit.selection import norms, whiten
    >>> norms(np.array([[[3.0, 4.0], [0.0, 2.0]]]), whiten(4.0 * np.eye(2)))
    array([[2.5, 1. ]])
    """
    xp = namespace(vectors)
    d = vectors.shape[-1]
    squares = whitened(vectors.reshape((-1, d)) if whitener.ndim < 3 else vectors, whitener)
    squares *= squares
    squares = squares @ xp.ones((d,), dtype=vectors.dtype, device=vectors.device)
    return xp.sqrt(squares).reshape(vectors.shape[:-1])


def pick(values: Array, arms: Array) -> Array:
    """Return one arm of each agent: (agents, arms, ...), (agents,) -> (agents, ...).

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.bandit.selection import pick
    >>> pick(np.array([[10.0, 11.0], [20.0, 21.0]]), np.array([1, 0]))
    array([11., 20.])
    """
    xp = namespace(values)
    agents, num_arms, *rest = values.shape
    places = xp.arange(0, agents * num_arms, num_arms, device=values.device) + arms
    return xp.take(values.reshape((-1, *rest)), places, axis=0)


def tie_breaks(features: Array, theta: Array, whitener: Whitener, width: Width) -> Array:
    """Return penalties of the arms, (arms,), that break ties in favour of the lowest number.

    Scores that differ by rounding errors only are ties, so that results do not depend on the order
    of summation. Raises as :func:`tie_step`.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.bandit.selection import tie_breaks, whiten
    >>> features = np.array([[[1.0, 0.0], [1.0, 0.0]]])  # equal arms
    >>> theta = np.array([0.3, 0.0])
    >>> scores = features @ theta - tie_breaks(features, theta, whiten(np.eye(2)), 1.0)
    >>> np.argmax(scores, axis=1)
    array([0])
    """
    xp = namespace(features)
    step = tie_step(features, theta, whitener, width)
    return step * xp.arange(features.shape[1], dtype=features.dtype, device=features.device)


def tie_step(features: Array, theta: Array, whitener: Whitener, width: Width) -> float:
    """Return the largest difference of two scores that is a tie.

    Scores are ``theta . phi(x) + width ||x||_{W^-1}``. The result is proportional to an upper bound
    of the scores, from norms that take one pass over the features. Rounding errors are smaller.

    Raises
    ------
    FloatingPointError
        A feature, theta or W is NaN or infinite, or the scores overflow.

    Examples
    --------
    Far below any difference that matters, and above 0:

    >>> import numpy as np
    >>> from fldb_flower.bandit.selection import tie_step, whiten
    >>> features = np.array([[[1.0, 0.0], [0.5, 2.0]]])
    >>> 0 < tie_step(features, np.ones(2), whiten(np.eye(2)), 1.0) < 1e-12
    True
    """
    width = width if isinstance(width, float) else float(namespace(width).max(width))
    flat = features.reshape((-1,))
    length, reach = math.sqrt(float(flat @ flat)), largest_norm(whitener)
    bound = length * (largest_frobenius(theta, 1) + width * reach)
    # Differences, whose norms are squared, are up to twice as long as features.
    if not math.isfinite(bound + (2.0 * length * reach) * (2.0 * length * reach)):
        raise FloatingPointError("a feature, theta or W is not a finite number, or too large")
    return TIE * bound
