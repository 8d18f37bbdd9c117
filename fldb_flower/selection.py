"""Selection rules: which two of K arms to show.

A rule is a pure function of one iteration's ``features`` (agents, arms, d), an estimate
``theta``, the ``whitener`` of the information matrix (see :func:`whiten`) and the
exploration ``width = beta_scale * beta_t / kappa_mu``; it returns the two arms' numbers,
each of shape (agents,). ``theta`` (d,) and ``whitener`` (d, d) are shared by all agents, or
one for each: (agents, d) and (agents, d, d).

Ties go to the lowest number, and scores that only rounding errors tell apart are ties: the
order in which a processor sums must not decide a duel (:func:`tie_breaks`).
"""

from __future__ import annotations

import math

from fldb_flower.arrays import Array, namespace

TIE = 1e-14


def whiten(information: Array) -> Array:
    """Return ``C`` with ``||x||_{W^-1} = ||x C||_2``: the inverse of W's upper Cholesky factor.

    The triangular factor is inverted, not W, so the relative error is that of a Cholesky
    solve, and the arms of all agents then cost one matrix product.

    Parameters
    ----------
    information : Array
        W, symmetric positive definite, (..., d, d).
    """
    xp = namespace(information)
    return xp.linalg.inv(xp.linalg.cholesky(information, upper=True))


def tie_breaks(features: Array, theta: Array, whitener: Array, width: float) -> Array:
    """What to subtract from the arms' scores so that ties go to the lowest number: (arms,).

    The steps are larger than rounding errors and smaller than any real difference. They
    scale with a bound on the scores, from norms that cost one pass over the features.

    Raises
    ------
    FloatingPointError
        A feature, theta or W is NaN or infinite.
    """
    xp = namespace(features)
    bound = _norm(features) * (_norm(theta) + width * _norm(whitener))
    if not math.isfinite(bound):
        raise FloatingPointError("a feature is not a finite number")
    return (TIE * bound) * xp.arange(features.shape[1], dtype=features.dtype)


def _norm(array: Array) -> float:
    flat = array.reshape((-1,))
    return math.sqrt(float(flat @ flat))


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
    squares = whitened @ xp.ones((d,), dtype=vectors.dtype)
    return xp.sqrt(squares).reshape(vectors.shape[:-1])


def pick(values: Array, arms: Array) -> Array:
    """Take one arm of each agent: (agents, arms, ...), (agents,) -> (agents, ...)."""
    xp = namespace(values)
    agents, num_arms, *rest = values.shape
    places = xp.arange(0, agents * num_arms, num_arms) + arms
    return xp.take(values.reshape((-1, *rest)), places, axis=0)


def ucb(features: Array, theta: Array, whitener: Array, width: float) -> tuple[Array, Array]:
    r"""Return the paper's pair (Algorithm 1, lines 4 and 5).

    ``first = argmax theta . phi(x)``; ``second = argmax theta . (phi(x) - phi(first))
    + width ||phi(x) - phi(first)||_{W^-1}``. Both may be the same arm: that duel carries no
    information, and its regret still counts.
    """
    xp = namespace(features)
    predicted = rewards(features, theta)
    predicted -= tie_breaks(features, theta, whitener, width)
    first = xp.argmax(predicted, axis=1)
    relative = features - pick(features, first)[:, None, :]
    # theta . phi(first) is the same for all of an agent's arms and does not move the argmax.
    scores = norms(relative, whitener)
    scores *= width
    scores += predicted
    return first, xp.argmax(scores, axis=1)
