"""The fit of one agent to duels of any scale, with its covariance."""

from __future__ import annotations

import math

import numpy as np

from fldb_flower.bandit.learner_checks import Duels
from fldb_flower.bandit.local_newton import Ridge, minimise
from fldb_flower.bandit.preference import residuals
from fldb_flower.errors import ConvergenceError
from fldb_flower.linalg.arrays import Arrays, FloatArray

_EPS = np.finfo(float).eps
_LEAST = 1e-290  # of a scaled ridge; with a smaller one, probabilities underflow
_WORST = 1e6  # condition number of a root of the Hessian
_ACCURACY = 1e-8  # of a logit, relative if it is above 1


def fit_one(duels: Duels, ridge: float, start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the minimiser (d,) of loss and ridge, and C (d, d) with inverse Hessian ``C C^T``.

    Units of features and weights are powers of 2, which scale without rounding errors, such that
    the largest feature, the largest weight and the ridge are at most 1. C is from the QR
    decomposition of a root of the Hessian, which has the root of the Hessian's condition number.

    Raises
    ------
    ConvergenceError
        The result is not accurate to about 1e-8, or not within the range of float64.
    """
    used = duels.weights > 0.0
    rows, answers, weights = (each[used] for each in duels)
    root = (_exponent(weights.max()) + 1) // 2  # of the unit of weights, 4^root
    unit = max(_exponent(np.abs(rows).max()), (_exponent(ridge) + 1) // 2 - root)
    rows, weights = np.ldexp(rows, -unit), np.ldexp(weights, -2 * root)
    scaled = math.ldexp(ridge, -2 * (root + unit))
    if scaled < _LEAST:
        raise _inaccurate(duels, ridge)
    with np.errstate(over="ignore"):
        start = np.ldexp(start, unit)
    start = np.where(np.isfinite(start), start, 0.0)
    try:
        point = minimise(
            start[None], rows.T[None], answers[None], Ridge(scaled, Arrays()), Arrays(),
            weights=weights[None],
        )[0]  # fmt: skip
        for is_last in (False, True):
            slopes, curvatures = residuals(rows @ point, answers)
            factor = _inverse_root(rows, weights * curvatures, scaled)
            if not is_last:
                gradient = (weights * slopes) @ rows + scaled * point
                point -= factor @ (gradient @ factor)
    except (ConvergenceError, np.linalg.LinAlgError):
        raise _inaccurate(duels, ridge) from None
    sizes = np.abs(rows), np.abs(point), np.abs(factor)
    terms = np.abs(slopes) + curvatures * (sizes[0] @ sizes[1])
    noise = _EPS * ((weights * terms) @ sizes[0] + scaled * sizes[1])  # of the gradient
    changes = sizes[0] @ (sizes[2] @ (noise @ sizes[2]))
    if (changes > _ACCURACY * (1.0 + np.abs(rows @ point))).any():
        raise _inaccurate(duels, ridge)
    theta, whitener = np.ldexp(point, -unit), np.ldexp(factor, -(root + unit))
    variances = (whitener * whitener).sum(axis=1)
    is_in_range = (np.ldexp(theta, unit) == point).all() and np.isfinite(variances).all()
    if not (is_in_range and variances.min() > np.finfo(float).tiny):
        raise _inaccurate(duels, ridge)
    return theta, whitener


def _inverse_root(rows: FloatArray, curvatures: FloatArray, ridge: float) -> FloatArray:
    """Return upper triangular C with ``(sum_i curvature_i x_i x_i^T + ridge I)^-1 = C C^T``."""
    d = rows.shape[1]
    parts = np.sqrt(curvatures)[:, None] * rows, math.sqrt(ridge) * np.eye(d)
    upper = np.linalg.qr(np.concatenate(parts), mode="r")
    lengths = np.linalg.norm(upper, axis=0)
    inverse = np.linalg.inv(upper / lengths)
    if not np.linalg.norm(inverse) * math.sqrt(d) <= _WORST:
        raise np.linalg.LinAlgError("the Hessian is almost singular")
    factor: FloatArray = inverse * np.sign(np.diagonal(upper)) / lengths[:, None]
    return factor


def _exponent(number: float) -> int:
    """Return the least k with ``number < 2^k``; a very small one for 0."""
    return math.frexp(number)[1] if number else -2000


def _inaccurate(duels: Duels, ridge: float) -> ConvergenceError:
    longest, heaviest = np.abs(duels.differences).max(), duels.weights.max()
    return ConvergenceError(
        f"ridge={ridge:g} gives no accurate estimate with differences of features up to"
        f" {longest:.1e} and weights up to {heaviest:.1e}: scale the features to about 1, or use a"
        f" ridge nearer to {heaviest * longest * longest:.0e}"
    )
