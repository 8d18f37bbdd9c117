r"""Matrices with Gaussian noise of a known size: estimates that are positive semi-definite.

The noise of differential privacy has the same distribution in every orthonormal basis: in a
symmetric (d, d) matrix, entries of the diagonal have standard deviation s and others
``s / sqrt(2)``. Its coordinates in an orthonormal basis of the symmetric matrices (Frobenius norm)
are independent, each with standard deviation s. Its eigenvalues are within about ``sqrt(2 d) s``.
"""

from __future__ import annotations

import numpy as np

from fldb_flower.linalg.arrays import Array, FloatArray


def shrunk(vector: Array, deviation: float) -> Array:
    """Return a vector that was observed with noise, multiplied by what noise does not explain.

    Noise alone has a mean squared length of ``k s^2`` in k coordinates, so the factor is ``max(0, 1
    - k s^2 / |x|^2)``: the positive-part estimator of James and Stein (1961) up to its constant ``k
    - 2``. The mean squared error is smaller than without the factor for k of at least 3.
    """
    return _share(vector, vector.size, deviation) * vector


def denoised(matrix: Array, deviation: float) -> FloatArray:
    """Return an estimate of a positive semi-definite matrix that was observed with noise.

    ``deviation`` is that of entries of the diagonal. The multiple of I with the same trace is kept,
    because its error is small: the mean eigenvalue has standard deviation ``deviation / sqrt(d)``.
    The rest R, with ``k = d (d + 1) / 2 - 1`` coordinates (``d - 1`` of a diagonal), is multiplied
    by ``max(0, 1 - k s^2 / ||R||^2)``, as in :func:`shrunk`. Negative eigenvalues become 0. If all
    is noise, the result is a multiple of I, or 0. Without noise, it is the matrix.
    """
    d = len(matrix)
    identity = np.ones(d) if matrix.ndim == 1 else np.eye(d)
    whole = float(matrix.sum() if matrix.ndim == 1 else np.trace(matrix)) / d
    level = max(whole, 0.0) * identity
    rest = matrix - whole * identity
    coordinates = d - 1 if matrix.ndim == 1 else d * (d + 1) // 2 - 1
    estimate = level + _share(rest, coordinates, deviation) * rest
    if matrix.ndim == 1:
        positive: FloatArray = np.maximum(estimate, 0.0)
        return positive
    values, vectors = np.linalg.eigh(estimate)
    return _symmetric((vectors * np.maximum(values, 0.0)) @ vectors.T)


def observed(
    curvature: Array, spread: float, vector: Array, variance: float
) -> tuple[Array, Array]:
    """Return the precision and the linear term of a point that was observed with noise.

    A vector ``g = H x + e`` is observed, where e has covariance ``R = spread H + variance I``, and
    H is positive semi-definite, (d, d), or its diagonal. The log likelihood of x is ``g^T R^-1 H x
    - x^T H R^-1 H x / 2`` up to a constant, so the results are ``H R^-1 H`` and ``H R^-1 g``. They
    vanish with H: an observation that is all noise has no weight. Without noise and with spread 1
    they are H and g.
    """
    if curvature.ndim == 1:
        gain = curvature / (spread * curvature + variance)
        return gain * curvature, gain * vector
    values, vectors = np.linalg.eigh(curvature)  # H and R have the same eigenvectors
    values = np.maximum(values, 0.0)
    gain = values / (spread * values + variance)
    precision = _symmetric((vectors * (gain * values)) @ vectors.T)
    return precision, vectors @ (gain * (vectors.T @ vector))


def blurred(
    precision: Array, linear: Array, curvature: Array, least: float
) -> tuple[FloatArray, FloatArray]:
    """Return the precision and the linear term of a point after a further error.

    A point is known with precision K and linear term k, so its mean is ``K^-1 k``. With a further,
    independent error of covariance ``H^-1``, the mean is the same, and the results are ``(K^-1 +
    H^-1)^-1 = H (H + K)^-1 K`` and ``H (H + K)^-1 k``. K may be singular. With ``H = S^2`` and the
    eigenvectors U and eigenvalues b of ``S^-1 K S^-1``, they are ``S U diag(b / (1 + b)) U^T S``
    and ``S U diag(1 / (1 + b)) U^T S^-1 k``.

    Eigenvalues of H below ``least``, the standard deviation of the noise in H, are raised to it:
    one that noise has made 0 would erase what is known in its direction.
    """
    values, basis = np.linalg.eigh(curvature)
    root = np.sqrt(np.maximum(values, least))
    inner = basis.T @ precision @ basis / np.outer(root, root)
    seen, turn = np.linalg.eigh(_symmetric(inner))
    seen = np.maximum(seen, 0.0)
    outer = (basis * root) @ turn
    left = outer / (1.0 + seen)
    return _symmetric((left * seen) @ outer.T), left @ (turn.T @ (basis.T @ linear / root))


def _share(values: Array, coordinates: int, deviation: float) -> float:
    """Return the share of squared values that noise in so many coordinates does not explain."""
    size = float(np.vdot(values, values))
    return max(0.0, 1.0 - coordinates * deviation**2 / size) if size > 0.0 else 0.0


def _symmetric(matrix: FloatArray) -> FloatArray:
    return (matrix + matrix.T) / 2.0
