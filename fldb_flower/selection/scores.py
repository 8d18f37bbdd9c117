"""What selection rules are made of: rewards, norms, and a tie rule that rounding obeys."""

from __future__ import annotations

import math
import sys

from fldb_flower.arrays import Array, namespace

TIE = 1e-14
"""Relative difference below which scores are ties, in double precision."""

_EPSILON = sys.float_info.epsilon


def whiten(information: Array) -> Array:
    """Return ``C`` with ``||x||_{W^-1} = ||x C||_2``: the inverse of W's upper Cholesky factor.

    The triangular factor is inverted, not W, so the relative error is that of a Cholesky
    solve, and the arms of all agents then cost one matrix product. Since ``W^-1 = C C^T``,
    ``C n`` with n standard normal has covariance ``W^-1``.

    Parameters
    ----------
    information : Array
        W, symmetric positive definite, (..., d, d).
    """
    xp = namespace(information)
    return xp.linalg.inv(xp.linalg.cholesky(information, upper=True))


def rewards(features: Array, theta: Array) -> Array:
    """Predicted rewards ``theta . phi(x)``: (agents, arms)."""
    if theta.ndim == 1:
        flat = features.reshape((-1, features.shape[-1])) @ theta
        return flat.reshape(features.shape[:-1])
    return (features @ theta[:, :, None])[:, :, 0]


def norms(vectors: Array, whitener: Array) -> Array:
    """``||x||_{W^-1}`` of vectors (agents, arms, d): (agents, arms)."""
    xp = namespace(vectors)
    d = vectors.shape[-1]
    flat = vectors.reshape((-1, d)) if whitener.ndim == 2 else vectors
    whitened = flat @ whitener
    whitened *= whitened
    squares = whitened @ xp.ones((d,), dtype=vectors.dtype, device=vectors.device)
    return xp.sqrt(squares).reshape(vectors.shape[:-1])


def pick(values: Array, arms: Array) -> Array:
    """Take one arm of each agent: (agents, arms, ...), (agents,) -> (agents, ...)."""
    xp = namespace(values)
    agents, num_arms, *rest = values.shape
    places = xp.arange(0, agents * num_arms, num_arms, device=values.device) + arms
    return xp.take(values.reshape((-1, *rest)), places, axis=0)


def tie_breaks(features: Array, theta: Array, whitener: Array, width: float) -> Array:
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


def tie_step(features: Array, theta: Array, whitener: Array, width: float) -> float:
    """Largest difference of two scores ``theta . phi(x) + width ||x||_{W^-1}`` that is a tie.

    Larger than rounding errors and smaller than any real difference: it scales with a bound
    on the scores, from norms that cost one pass over the features.

    Raises
    ------
    FloatingPointError
        A feature, theta or W is NaN or infinite.
    """
    bound = _norm(features) * (_largest_norm(theta, 1) + width * _largest_norm(whitener, 2))
    if not math.isfinite(bound):
        raise FloatingPointError("a feature is not a finite number")
    xp = namespace(features)
    return TIE * bound * float(xp.finfo(features.dtype).eps) / _EPSILON


def _norm(array: Array) -> float:
    flat = array.reshape((-1,))
    return math.sqrt(float(flat @ flat))


def _largest_norm(parameter: Array, ndim: int) -> float:
    """Norm of a shared parameter of ``ndim`` axes, or the largest of one for each agent."""
    if parameter.ndim == ndim:
        return _norm(parameter)
    xp = namespace(parameter)
    flat = parameter.reshape((parameter.shape[0], -1))
    return math.sqrt(float(xp.max(xp.sum(flat * flat, axis=1))))
