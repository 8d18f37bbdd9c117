r"""Limits on the contribution of one person, for differential privacy (unit=person).

A person's parts of an upload are multiplied by the same factor c, at most 1, such that::

    sum over parts of w_p |part_p|^2 / size_p^2 <= 1

for any data, and thus for any adjacent data sets. The person's statistics then have the weight c in
the sums: a Newton step is still that of a sum of losses, and shares are still those of a product of
likelihoods. Limits on each part would have a larger sensitivity and distort the step. The weights
w_p sum to 1. Those of vectors are twice those of matrices, whose noise is averaged over directions
(:mod:`fldb_flower.linalg.noisy`). ``size_p`` is a typical size, not an upper bound: noise is
proportional to it. For n answers with differences of length L in random directions and the mean
curvature mu' = 1/8, at the true theta::

    |g| = L sqrt(n / 8),    ||W||_F = L^2 sqrt(n + n (n - 1) / d),    ||H||_F = ||W||_F / 8

The first holds because the residual of an answer has the variance mu'(z), and the second because
the squared scalar product of two random unit vectors is 1 / d on average. The triangle inequality
alone would give ``n L`` for the gradient of n answers, but residuals have both signs.

Of FLDB-Personal, ``M = H (I + v H)^-1``, and ``m - M theta`` has the covariance M given theta::

    ||M||_F = ||H||_F / (1 + v ||H||_F / sqrt(d)),    |m - M theta| = sqrt(d mu),
    mu = h / (1 + v h),    h = n L^2 / (8 d)

The log losses of the n-th answer under two values of v differ about as much as the predicted
logits. These differ by the order of the posterior deviation of theta_i, ``1 / sqrt(n)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fldb_flower.linalg.arrays import Array, namespace

_CURVATURE = 1.0 / 8.0  # mean of mu' that typical sizes assume
_EXCESS = 0.5  # length of the excess log losses of the n-th answer, times sqrt(n), as measured
_UNUSED = 0.01  # weight of a part that the algorithm does not use
_VECTORS = {"gradient", "shift"}


def typical_sizes(answers: float, longest: float, dimension: int) -> dict[str, float]:
    """Return the typical norms of a person's statistics, by part."""
    matrix = longest**2 * math.sqrt(answers + answers * (answers - 1) / dimension)
    return {
        "gradient": longest * math.sqrt(_CURVATURE * answers),
        "information": matrix,
        "hessian": _CURVATURE * matrix,
    }


def typical_share_sizes(
    answers: float, fresh: int, longest: float, dimension: int, variance: float
) -> dict[str, float]:
    """Return the typical norms of a person's share, by part, for v in squared units of theta.

    ``answers`` is the total weight of the person's answers, and ``fresh`` the number of those whose
    log losses are new.
    """
    hessian = typical_sizes(answers, longest, dimension)["hessian"]
    each = answers * _CURVATURE * longest**2 / dimension
    return {
        "precision": hessian / (1.0 + variance * hessian / math.sqrt(dimension)),
        "shift": math.sqrt(dimension * each / (1.0 + variance * each)),
        "losses": _EXCESS * fresh / math.sqrt(answers),
    }


def weights_of(parts: Iterable[str], unused: Iterable[str] = ()) -> dict[str, float]:
    """Return the weights of parts in the squared length of a person's vector; they sum to 1."""
    unused = set(unused)
    shares = {part: 2.0 if part in _VECTORS else 1.0 for part in parts}
    used = sum(share for part, share in shares.items() if part not in unused)
    left = 1.0 - _UNUSED * len(unused)
    return {
        part: _UNUSED if part in unused else left * share / used for part, share in shares.items()
    }


def units_of(sizes: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Return the divisor of each part in a person's vector, whose length is at most 1."""
    return {part: size / math.sqrt(weights[part]) for part, size in sizes.items()}


def factors(parts: Mapping[str, Array], units: Mapping[str, float]) -> Array:
    """Return the factor c of each person, (agents,)."""
    squares: Array | float = 0.0
    for name, part in parts.items():
        flat = part.reshape(len(part), -1) / units[name]
        squares = squares + namespace(flat).vecdot(flat, flat)
    xp = namespace(squares)
    lengths = xp.sqrt(squares)
    return 1.0 / xp.where(lengths <= 1.0, 1.0, lengths)  # NaN is not within the limit
