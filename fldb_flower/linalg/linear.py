"""Linear equations with positive definite matrices that may be singular to working precision."""

from __future__ import annotations

import sys

import numpy as np

from fldb_flower.linalg.arrays import Array, namespace

_TINY = sys.float_info.min  # of a diagonal entry: all others of the row are 0 then
_INDEFINITE = 1e-6  # of an eigenvalue below 0, in units of the diagonal: no rounding error


def solve(matrices: Array, vectors: Array) -> Array:
    """Return ``M^-1 v`` of positive definite matrices (..., d, d) and vectors (..., d).

    Where rounding errors have made a matrix singular, the solution is sought among the
    directions that it still tells apart; see :func:`spectrum`.
    """
    xp = namespace(matrices)
    try:
        return xp.linalg.solve(matrices, vectors[..., None])[..., 0]
    except (np.linalg.LinAlgError, RuntimeError) as error:
        if not is_singular(error):
            raise
        return pseudo_solve(matrices, vectors)


def is_singular(error: Exception) -> bool:
    """Whether NumPy or PyTorch, whose class is another, found a matrix to be singular."""
    return isinstance(error, np.linalg.LinAlgError) or type(error).__name__ == "_LinAlgError"


def pseudo_solve(matrices: Array, vectors: Array) -> Array:
    """Return ``M^+ v``: directions that rounding errors hide are left out."""
    xp = namespace(matrices)
    units, values, directions, floor = spectrum(matrices)
    is_known = values > floor
    inverse = xp.where(is_known, 1.0 / xp.where(is_known, values, 1.0), 0.0)
    seen = (xp.matrix_transpose(directions) @ (vectors / units)[..., None])[..., 0]
    return (directions @ (inverse * seen)[..., None])[..., 0] / units


def spectrum(matrices: Array) -> tuple[Array, Array, Array, Array]:
    """Return eigenvalues and eigenvectors in units in which the diagonal is 1.

    Those units are the ones of the features, so that features of different size do not make a
    matrix singular.

    Returns
    -------
    tuple of Array
        Units (..., d); eigenvalues in ascending order (..., d); eigenvectors as columns
        (..., d, d); and what eigenvalues must exceed to be more than rounding errors (..., 1).

    Raises
    ------
    numpy.linalg.LinAlgError
        A number is not finite.
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


def whiten_singular(matrix: Array) -> Array:
    """Return C with ``||x||_{M^-1} = ||x C||`` of a matrix whose lowest eigenvalues are lost.

    Rounding errors take the place of what they hide: norms in those directions are smaller than
    they should be, but far larger than in all others.

    Raises
    ------
    numpy.linalg.LinAlgError
        The matrix is not finite, or has eigenvalues that are surely below 0.
    """
    xp = namespace(matrix)
    units, values, directions, floor = spectrum(matrix)
    if float(values[0]) < -_INDEFINITE or not float(values[-1]) > 0.0:
        raise np.linalg.LinAlgError("a matrix is not positive definite")
    lengths = xp.sqrt(xp.where(values > floor, values, floor))
    return directions / units[:, None] / lengths
