r"""Selection rules as pure functions, each with its formula and source, and their building blocks.

All have the signature ``rule(features, theta, whitener, width, noise)``:

- features: the arms, (agents, arms, d);
- theta: the estimate, (d,), or one per agent, (agents, d);
- whitener: ``C`` with ``||x||_{W^-1} = ||x C||_2``, see :mod:`~fldb_flower.linalg.linear`; W
  is the matrix of the estimate, W_sync or the Hessian A of FLDB-ONS;
- width: the norm's factor (:func:`~fldb_flower.bandit.theory.width`), or one per agent,
  (agents,);
- noise: standard draws, in the shape that the rule documents; deterministic rules ignore it.

They return the indices of the first and the second arm, (agents,) each. The two may be equal: that
duel carries no information, but its regret counts. Ties go to the lowest index, for pairs to the
lowest first and then the lowest second arm. Scores that differ only by rounding errors
are ties (:func:`tie_step`). Rules raise ``FloatingPointError`` if a feature, theta or W is NaN
or infinite.

docs/selection.md compares their regret and lists where they differ from their sources.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from fldb_flower.linalg.arrays import Array, namespace
from fldb_flower.linalg.linear import (
    Whitener,
    largest_frobenius,
    largest_norm,
    transposed,
    whitened,
)

Pair = tuple[Array, Array]

_TIE = 1e-14  # relative difference below which scores are ties

Width: TypeAlias = float | Array
"""Width of the confidence interval: one for all agents, or one for each, (agents,)."""


def ucb(
    features: Array, theta: Array, whitener: Whitener, width: Width, _noise: Array | None = None
) -> Pair:
    r"""Return the paper's pair (Algorithm 1, lines 4 and 5).

    ``first = argmax theta . phi(x)``; ``second = argmax theta . (phi(x) - phi(first))
    + width ||phi(x) - phi(first)||_{W^-1}``.

    Parameters
    ----------
    features : Array
        Features of the arms, (agents, arms, d).
    theta : Array
        The estimate, (d,), or one per agent, (agents, d).
    whitener : Whitener
        C with ``||x||_{W^-1} = ||x C||_2``; see :func:`~fldb_flower.bandit.selection.whiten`.
    width : float or Array
        Factor on the norm, for all agents or for each, (agents,).

    Returns
    -------
    tuple of Array
        Indices of the first and the second arm, (agents,) each. They may be equal.

    Raises
    ------
    FloatingPointError
        A feature, theta or W is NaN or infinite.

    Examples
    --------
    One agent with arms of reward 1, 0.5 and 0. W is the identity. The leads over the best arm are
    -0.5 and -1, and the distances to it 0.5 and 3, so the width decides about the second arm:

    >>> import numpy as np
    >>> from fldb_flower.bandit.selection import ucb, whiten
    >>> features = np.array([[[1.0, 0.0], [0.5, 0.0], [0.0, np.sqrt(8)]]])
    >>> theta, whitener = np.array([1.0, 0.0]), whiten(np.eye(2))
    >>> ucb(features, theta, whitener, 0.1)
    (array([0]), array([0]))
    >>> ucb(features, theta, whitener, 1.0)
    (array([0]), array([2]))
    """
    xp = namespace(features)
    ties = tie_breaks(features, theta, whitener, width)
    predicted = rewards(features, theta)
    predicted -= ties
    first = xp.argmax(predicted, axis=1)
    return first, _challenger(features, predicted, first, whitener, width)


def _challenger(
    features: Array, predicted: Array, first: Array, whitener: Whitener, width: Width
) -> Array:
    """Return the arm with the largest upper confidence bound of its lead over ``first``."""
    xp = namespace(features)
    # phi(first) - phi(x); repeated and in place, it is twice as fast as with broadcasting.
    relative = xp.repeat(pick(features, first), features.shape[1], axis=0)
    relative -= features.reshape(relative.shape)
    # theta . phi(first) is the same for all arms of an agent, so it does not change the argmax.
    scores = norms(relative.reshape(features.shape), whitener)
    scores *= column(width)
    scores += predicted
    return xp.argmax(scores, axis=1)


def colstim(features: Array, theta: Array, whitener: Whitener, width: Width, noise: Array) -> Pair:
    r"""Return CoLSTIM's pair: a randomly perturbed leader and its challenger.

    ``first = argmax theta . phi(x) + eps_x ||phi(x)||_{W^-1}`` with ``eps_x`` the noise clipped
    to ``[-width, width]``; ``second`` as in :func:`ucb`. The noise is standard Gumbel,
    (agents, arms).

    References
    ----------
    Bengs, Saha and Huellermeier, "Stochastic Contextual Dueling Bandits under Linear
    Stochastic Transitivity Models", ICML 2022, Algorithm 1.

    Examples
    --------
    The noise of the second arm is clipped to 1. Its perturbed reward, 0.5 + 1 * 0.5, is below that
    of the first:

    >>> import numpy as np
    >>> from fldb_flower.bandit.selection import colstim, whiten
    >>> features = np.array([[[1.2, 0.0], [0.5, 0.0]]])
    >>> noise = np.array([[0.0, 9.0]])
    >>> colstim(features, np.array([1.0, 0.0]), whiten(np.eye(2)), 1.0, noise)
    (array([0]), array([0]))
    """
    xp = namespace(features)
    ties = tie_breaks(features, theta, whitener, width)
    predicted = rewards(features, theta)
    predicted -= ties
    perturbation = xp.clip(noise, -column(width), column(width)) * norms(features, whitener)
    first = xp.argmax(predicted + perturbation, axis=1)
    return first, _challenger(features, predicted, first, whitener, width)


def thompson(features: Array, theta: Array, whitener: Whitener, width: Width, noise: Array) -> Pair:
    r"""Return the best arms of two independent draws from a Gaussian posterior.

    ``first = argmax theta_1 . phi(x)`` and ``second = argmax theta_2 . phi(x)`` with
    ``theta_j = theta + width C n_j``, that is ``theta_j ~ N(theta, width^2 W^-1)``. The noise n is
    standard normal, (agents, 2, d). With width 0, the rule never explores.

    References
    ----------
    Li, Zhao and Gu, "Feel-Good Thompson Sampling for Contextual Dueling Bandits", ICML 2024,
    for the two independent draws; the posterior differs.

    Examples
    --------
    With theta = 0 and W = I, the drawn thetas are the noise, here (1, 0) and (0, 1):

    >>> import numpy as np
    >>> from fldb_flower.bandit.selection import thompson, whiten
    >>> features = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> noise = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> thompson(features, np.zeros(2), whiten(np.eye(2)), 1.0, noise)
    (array([0]), array([1]))
    """
    xp = namespace(features)
    deviations = whitened(noise, transposed(whitener))  # (agents, 2, d): row j is C n_j
    reach = math.sqrt(float(xp.max(noise * noise)) * noise.shape[-1])  # >= ||n_j||
    ties = tie_breaks(features, theta, whitener, width * reach)
    sampled = (theta if theta.ndim == 1 else theta[:, None, :]) + column(width, 2) * deviations
    scores = features @ xp.matrix_transpose(sampled)  # (agents, arms, 2)
    chosen = xp.argmax(scores - ties[:, None], axis=1)
    return chosen[:, 0], chosen[:, 1]


def maxpairucb(
    features: Array, theta: Array, whitener: Whitener, width: Width, _noise: Array | None = None
) -> Pair:
    r"""Return the pair with the largest upper confidence bound of its sum of rewards.

    ``argmax over (x, x') of theta . (phi(x) + phi(x')) + width ||phi(x) - phi(x')||_{W^-1}``.

    The score is symmetric, so the first arm is the one with the lower number. The rule computes
    K (K + 1) / 2 norms per agent; :func:`ucb` computes K.

    References
    ----------
    Di, Jin, Wu, Zhao, Farnoud and Gu, "Variance-Aware Regret Bounds for Stochastic Contextual
    Dueling Bandits", ICLR 2024: the selection within a layer of VACDB, called MaxPairUCB there.

    Examples
    --------
    With theta = 0, the sums of rewards are 0, and the pair with the largest distance is selected:

    >>> import numpy as np
    >>> from fldb_flower.bandit.selection import maxpairucb, whiten
    >>> features = np.array([[[0.0], [1.0], [3.0]]])
    >>> maxpairucb(features, np.zeros(1), whiten(np.eye(1)), 1.0)
    (array([0]), array([2]))
    """
    step = tie_step(features, theta, whitener, width)
    predicted = rewards(features, theta)
    scores = _pair_norms(features, whitener)
    for first, row in enumerate(scores):
        scores[first] = column(width) * row + predicted[:, first:] + predicted[:, first : first + 1]
    return _best_pair(scores, step)


def maxinp(
    features: Array, theta: Array, whitener: Whitener, width: Width, _noise: Array | None = None
) -> Pair:
    r"""Return the most informative pair among the arms that may be best.

    The candidates are the arms x with ``theta . (phi(x) - phi(x'))
    + width ||phi(x) - phi(x')||_{W^-1} >= 0`` for all x'; the pair is
    ``argmax over candidates (x, x') of ||phi(x) - phi(x')||_{W^-1}``. A single candidate is
    both arms. The first arm is the one with the lower number.

    References
    ----------
    Saha, "Optimal Algorithms for Stochastic Contextual Preference Bandits", NeurIPS 2021,
    "Maximum-Informative-Pair".

    Examples
    --------
    The arms have rewards 0, 2 and 3. With width 0.5, both leads of the last arm are certain, for
    example 2 - 3 + 0.5 * 1 < 0. With width 1.5, all arms are candidates:

    >>> import numpy as np
    >>> from fldb_flower.bandit.selection import maxinp, whiten
    >>> features = np.array([[[0.0], [2.0], [3.0]]])
    >>> maxinp(features, np.ones(1), whiten(np.eye(1)), 0.5)
    (array([2]), array([2]))
    >>> maxinp(features, np.ones(1), whiten(np.eye(1)), 1.5)
    (array([0]), array([2]))
    """
    xp = namespace(features)
    step = tie_step(features, theta, whitener, width)
    predicted = rewards(features, theta)
    pair_norms = _pair_norms(features, whitener)
    candidates = _candidates(predicted, pair_norms, width, step)
    for first, row in enumerate(pair_norms):
        both = candidates[:, first:] & candidates[:, first : first + 1]
        pair_norms[first] = xp.where(both, row, -xp.inf)
    return _best_pair(pair_norms, tie_step(features, xp.zeros_like(theta), whitener, 1.0))


def _candidates(predicted: Array, pair_norms: list[Array], width: Width, step: float) -> Array:
    """Return which arms no other arm beats with confidence: (agents, arms), of bool."""
    xp = namespace(predicted)
    beaten = xp.zeros_like(predicted, dtype=xp.bool)
    for first, row in enumerate(pair_norms):
        lead = predicted[:, first : first + 1] - predicted[:, first:]
        margin = column(width) * row + step
        beaten[:, first:] |= lead > margin
        beaten[:, first] |= xp.any(-lead > margin, axis=1)
    return ~beaten


def _pair_norms(features: Array, whitener: Whitener) -> list[Array]:
    """Return ``||phi(x) - phi(x')||_{W^-1}``: for each x, those of all x' >= x, (agents, arms - x).

    Expanding the square (the Gram matrix) would be inaccurate for close arms.
    """
    return [
        norms(features[:, first:] - features[:, first : first + 1], whitener)
        for first in range(features.shape[1])
    ]


def _best_pair(scores: list[Array], step: float) -> Pair:
    """Return the pair with the largest score, in the layout of :func:`_pair_norms`."""
    xp = namespace(scores[0])
    agents, num_arms = scores[0].shape
    places = {"dtype": scores[0].dtype, "device": scores[0].device}
    ties = step * xp.arange(num_arms, **places)
    best = xp.full((agents,), -xp.inf, **places)
    pairs = xp.zeros((agents,), dtype=xp.int64, device=scores[0].device)
    for first, row in enumerate(scores):
        seconds = xp.argmax(row - ties[: num_arms - first], axis=1)
        values = pick(row, seconds)
        better = values > best + step
        best = xp.where(better, values, best)
        pairs = xp.where(better, first * num_arms + first + seconds, pairs)
    return pairs // num_arms, pairs % num_arms


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

    Scores that differ only by rounding errors are ties. Results then do not depend on the order of
    summation. Raises the errors of :func:`tie_step`.

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
    It is far below any relevant difference, and above 0:

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
    return _TIE * bound
