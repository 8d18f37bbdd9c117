"""Linear systems of positive definite matrices that may be singular to working precision."""

from __future__ import annotations

import sys

import numpy as np

from fldb_flower.linalg.arrays import Array, namespace
from fldb_flower.linalg.whiteners import whiten

_TINY = sys.float_info.min  # lower bound of a diagonal entry, so that dividing by it is defined
_INDEFINITE = 1e-6  # an eigenvalue of the scaled matrix below minus this is no rounding error


def solve(matrices: Array, vectors: Array) -> Array:
    """Return ``M^-1 v`` of positive definite matrices (..., d, d) and vectors (..., d).

    If a matrix is singular to working precision, return the solution of :func:`pseudo_solve`.
    """
    xp = namespace(matrices)
    try:
        return xp.linalg.solve(matrices, vectors[..., None])[..., 0]
    except (np.linalg.LinAlgError, RuntimeError) as error:
        # torch.linalg.LinAlgError is a RuntimeError; its class is not imported without torch.
        if type(error).__name__ not in {"LinAlgError", "_LinAlgError"}:
            raise
        return pseudo_solve(matrices, vectors)


def pseudo_solve(matrices: Array, vectors: Array) -> Array:
    """Return ``M^+ v``; eigenvalues within rounding errors of 0 count as 0."""
    xp = namespace(matrices)
    units, values, directions, floor = spectrum(matrices)
    is_known = values > floor
    inverse = xp.where(is_known, 1.0 / xp.where(is_known, values, 1.0), 0.0)
    seen = (xp.matrix_transpose(directions) @ (vectors / units)[..., None])[..., 0]
    return (directions @ (inverse * seen)[..., None])[..., 0] / units


def spectrum(matrices: Array) -> tuple[Array, Array, Array, Array]:
    """Return the eigendecomposition of matrices scaled to a diagonal of 1.

    With the scaling, features of different magnitude do not make a matrix singular.

    Returns
    -------
    tuple of Array
        Roots of the diagonals (..., d); eigenvalues of the scaled matrices in ascending order
        (..., d); eigenvectors as columns (..., d, d); the bound below which an eigenvalue is a
        rounding error (..., 1).

    Raises
    ------
    numpy.linalg.LinAlgError
        An entry is not finite.
    """
    xp = namespace(matrices)
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        units = xp.sqrt(xp.clip(xp.linalg.diagonal(matrices), _TINY, None))
        scaled = matrices / units[..., :, None] / units[..., None, :]
    if not bool(xp.all(xp.isfinite(scaled))):
        raise np.linalg.LinAlgError("a matrix is not finite")
    values, directions = xp.linalg.eigh(scaled)
    floor = scaled.shape[-1] * float(xp.finfo(scaled.dtype).eps) * values[..., -1:]
    return units, values, directions, floor


def whiten_safely(matrices: Array) -> Array:
    """Return :func:`~fldb_flower.linalg.whiteners.whiten` of matrices, (agents, d, d).

    If a matrix is singular to working precision, return those of :func:`whiten_singular`.
    """
    try:
        return whiten(matrices)
    except (np.linalg.LinAlgError, RuntimeError):
        return namespace(matrices).stack([whiten_singular(matrix) for matrix in matrices])


def whiten_singular(matrix: Array) -> Array:
    """Return C with ``||x||_{M^-1} = ||x C||_2`` for a matrix singular to working precision.

    Eigenvalues below the bound of rounding errors are replaced by it. Norms in these directions
    are too small, but much larger than in all others.

    Raises
    ------
    numpy.linalg.LinAlgError
        An entry is not finite, or an eigenvalue is below 0 by more than rounding errors.
    """
    xp = namespace(matrix)
    units, values, directions, floor = spectrum(matrix)
    if float(values[0]) < -_INDEFINITE or not float(values[-1]) > 0.0:
        raise np.linalg.LinAlgError("a matrix is not positive definite")
    lengths = xp.sqrt(xp.where(values > floor, values, floor))
    return directions / units[:, None] / lengths
