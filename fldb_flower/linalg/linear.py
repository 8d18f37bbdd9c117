"""Symmetric matrices: their forms, linear systems and inverse roots, also of almost singular ones.

A diagonal is an array (d,); other matrices are (d, d), or one for each agent, (agents, d, d). The
setting ``matrix_form`` selects the diagonal for dimensions d in which d^2 numbers are too many to
send, store or factor; docs/large-d.md compares regret and costs. Functions that take a matrix tell
its form from its shape.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import NamedTuple, TypeAlias

import numpy as np

from fldb_flower.linalg.arrays import Array, FloatArray, namespace
from fldb_flower.settings import Settings

Whitener: TypeAlias = Array
"""C with ``||x||_{W^-1} = ||x C||_2``: (d, d); one per agent, (agents, d, d); a diagonal, (d,)."""

_TINY = sys.float_info.min  # lower bound of a diagonal entry, so that dividing by it is defined
_INDEFINITE = 1e-6  # an eigenvalue of the scaled matrix below minus this is no rounding error
_SMALL = 16  # size from which an inverse is computed by halves, and LAPACK is used for forms
_LARGE = 1e300  # corner of a bordered matrix, above any form: the matrix is positive definite
_CACHED = 2**13  # numbers of an array of which several fit in a processor's cache


def solve(matrices: Array, vectors: Array, ridge: float = 0.0) -> Array:
    """Return ``(M + ridge I)^-1 v`` for vectors (..., d).

    If a matrix is singular to working precision, return the solution of :func:`pseudo_solve`.
    """
    if matrices.ndim == 1:
        return vectors / (matrices + ridge)
    xp = namespace(matrices)
    if ridge:
        matrices = matrices + ridge * xp.eye(matrices.shape[-1], dtype=matrices.dtype)
    try:
        return xp.linalg.solve(matrices, vectors[..., None])[..., 0]
    except (np.linalg.LinAlgError, RuntimeError) as error:
        # torch.linalg.LinAlgError is a RuntimeError; its class is not imported without torch.
        if type(error).__name__ not in {"LinAlgError", "_LinAlgError"}:
            raise
        return pseudo_solve(matrices, vectors)


def shifted_forms(matrices: Array, shifts: Array, x: Array, y: Array) -> Array:
    """Return ``x^T (M + D)^-1 x`` and ``x^T (M + D)^-1 y`` for many diagonals D, (2, n, h).

    The matrices are positive semi-definite, (n, d, d), the vectors x and y (n, d), and the
    diagonals positive, (d, n, h). Small matrices are eliminated for all D at once, by blocks.
    """
    xp, (d, n, h) = namespace(matrices), shifts.shape
    if xp is not np or d > _SMALL:
        # The Cholesky factor of [[M + D, .], [x^T, .], [y^T, .]] ends with solutions for x and y.
        table = xp.zeros((n, d + 2, d + 2), dtype=x.dtype, device=x.device)
        table[:, :d, :d], table[:, d, :d], table[:, d + 1, :d] = matrices, x, y
        table[:, d:, d:] = _LARGE * xp.eye(2, dtype=x.dtype, device=x.device)
        places, found = xp.arange(d, device=x.device), []
        diagonal = (1.0 + 4.0 * d * xp.finfo(x.dtype).eps) * xp.linalg.diagonal(matrices)
        for shift in xp.moveaxis(shifts, 2, 0):
            table[:, places, places] = diagonal + shift.T
            try:
                right = xp.linalg.cholesky(table)[:, d:, :d]
                left = right[:, 0]
            except (np.linalg.LinAlgError, RuntimeError):  # rounding errors of M exceed D
                right, left = table[:, d:, :d], solve(table[:, :d, :d], x)
            found.append(xp.sum(left[:, None] * right, axis=2))
        return xp.moveaxis(xp.stack(found, axis=-1), 1, 0)
    if n > (step := max(_CACHED // h, 1)):
        blocks = [slice(start, start + step) for start in range(0, n, step)]
        return np.concat([shifted_forms(matrices[i], shifts[:, i], x[i], y[i]) for i in blocks], 1)
    table = np.empty((d, d + 2, n, 1))
    table[:, :d, :, 0], table[:, d, :, 0] = np.moveaxis(matrices, 0, -1), x.T
    table[:, d + 1, :, 0] = y.T
    rows, forms = [table[row, row:] for row in range(d)], 0.0
    for place, (pivots, shift) in enumerate(zip(rows, shifts, strict=True)):
        factors = pivots[1:-1] / (pivots[0] + shift)
        for row in range(place + 1, d):
            change = factors[row - place - 1] * pivots[row - place :]
            rows[row] = np.subtract(rows[row], change, out=change)
        forms = forms + factors[-1] * pivots[-2:]
    return forms


def pseudo_solve(matrices: Array, vectors: Array) -> Array:
    """Return ``M^+ v``; eigenvalues within rounding errors of 0 count as 0."""
    xp = namespace(matrices)
    units, values, directions, floor = _spectrum(matrices)
    is_known = values > floor
    inverse = xp.where(is_known, 1.0 / xp.where(is_known, values, 1.0), 0.0)
    seen = (xp.matrix_transpose(directions) @ (vectors / units)[..., None])[..., 0]
    return (directions @ (inverse * seen)[..., None])[..., 0] / units


def _spectrum(matrices: Array) -> tuple[Array, Array, Array, Array]:
    """Return the eigendecomposition of matrices scaled to a diagonal of 1.

    These are the roots of the diagonals (..., d), ascending eigenvalues (..., d), eigenvectors as
    columns (..., d, d), and the bound below which an eigenvalue is a rounding error (..., 1). With
    the scaling, features of different magnitude do not make a matrix singular.
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


def whiten(information: Array) -> Whitener:
    """Return ``C`` with ``||x||_{W^-1} = ||x C||_2``: the inverse of W's upper Cholesky factor.

    Because the factor is inverted and not W, the relative error is that of a Cholesky solve. The
    norms of all agents' arms then take one matrix product. Since ``W^-1 = C C^T``, ``C n`` has
    covariance ``W^-1`` if n is standard normal.

    If a matrix is singular to working precision, eigenvalues below the bound of rounding errors are
    replaced by it. Norms in these directions are too small, but much larger than in all others.

    Raises
    ------
    numpy.linalg.LinAlgError
        A matrix is not positive definite.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.bandit.selection import whiten
    >>> whiten(np.diag([4.0, 25.0]))
    array([[0.5, 0. ],
           [0. , 0.2]])
    """
    if information.ndim == 1:
        if not information.min() > 0.0:
            raise np.linalg.LinAlgError("a diagonal entry is not above 0")
        return information**-0.5
    try:
        return _inverse(namespace(information).linalg.cholesky(information, upper=True))
    except (np.linalg.LinAlgError, RuntimeError):
        return _whiten_singular(information)


def _inverse(factor: Array) -> Array:
    """Invert upper triangular matrices by blocks: six times faster for d=384."""
    xp, middle = namespace(factor), factor.shape[-1] // 2
    if middle < _SMALL:
        return xp.linalg.inv(factor)
    inverse = xp.zeros_like(factor)
    inverse[..., :middle, :middle] = first = _inverse(factor[..., :middle, :middle])
    inverse[..., middle:, middle:] = last = _inverse(factor[..., middle:, middle:])
    inverse[..., :middle, middle:] = -first @ factor[..., :middle, middle:] @ last
    return inverse


def _whiten_singular(matrices: Array) -> Array:
    xp = namespace(matrices)
    units, values, directions, floor = _spectrum(matrices)
    if bool(xp.any(values[..., 0] < -_INDEFINITE)) or not bool(xp.all(values[..., -1] > 0.0)):
        raise np.linalg.LinAlgError("a matrix is not positive definite")
    lengths = xp.sqrt(xp.where(values > floor, values, floor))
    return directions / units[..., :, None] / lengths[..., None, :]


def add_to_whiteners(whiteners: Array, differences: Array) -> None:
    r"""Add ``u u^T`` to each agent's W, given as ``C`` with ``W^-1 = C C^T``, in place.

    ``C <- C (I - v v^T / (s (1 + s)))`` with ``v = C^T u`` and ``s = sqrt(1 + |v|^2)``, in
    O(d^2). After 10^5 updates, norms are accurate to 1e-9 or to rounding errors of ``x C``, even
    if the sum W is not positive definite in floating point. C is (agents, d, d), u (agents, d).
    Potter's measurement update of a square root of the covariance (1963), in G. J. Bierman,
    "Factorization Methods for Discrete Sequential Estimation", 1977.
    """
    seen = (differences[:, None, :] @ whiteners)[:, 0]  # v
    xp = namespace(seen)
    size = xp.sqrt(1.0 + xp.vecdot(seen, seen))
    shift = (whiteners @ seen[..., None])[..., 0] / (size * (1.0 + size))[:, None]
    whiteners -= shift[:, :, None] * seen[:, None, :]


def whitened(vectors: Array, whitener: Whitener) -> Array:
    """Return ``x C`` for rows x, (n, d); with one C for each agent, (agents, n, d)."""
    return vectors * whitener if whitener.ndim == 1 else vectors @ whitener


def transposed(whitener: Whitener) -> Whitener:
    """Return ``C^T``."""
    return whitener if whitener.ndim == 1 else namespace(whitener).matrix_transpose(whitener)


def largest_norm(whitener: Whitener) -> float:
    """Return an upper bound of ``||x C||_2`` over all x of norm 1 and all agents."""
    return largest_frobenius(whitener, min(whitener.ndim, 2))


def largest_frobenius(arrays: Array, axes: int) -> float:
    """Return the largest Frobenius norm of arrays with so many axes, stacked along the others."""
    if arrays.ndim == axes:  # one array, in less time
        flat = arrays.reshape((-1,))
        return math.sqrt(float(flat @ flat))
    xp = namespace(arrays)
    flat = arrays.reshape((-1, math.prod(arrays.shape[-axes:])))
    return math.sqrt(float(xp.max(xp.vecdot(flat, flat))))


TINY = 1e-150
"""Lower bound of diagonal entries in denominators."""


class Form(NamedTuple):
    """A form of symmetric positive semi-definite matrices of d features."""

    dimension: int
    is_diagonal: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that represents a matrix."""
        return (self.dimension,) * (1 if self.is_diagonal else 2)

    @property
    def size(self) -> int:
        """Number of values in a message; of a symmetric matrix, the upper triangle."""
        return self.dimension if self.is_diagonal else self.dimension * (self.dimension + 1) // 2

    def zeros(self) -> FloatArray:
        """Return the zero matrix."""
        return np.zeros(self.shape)

    def identity(self, factor: float) -> FloatArray:
        """Return ``factor I``."""
        ones = np.ones(self.dimension) if self.is_diagonal else np.eye(self.dimension)
        return ones * factor

    def gram(self, rows: Array, weights: Array | None = None) -> Array:
        """Return ``sum_i weights_i x_i x_i^T`` over rows x_i (n, d), weights (n,) at least 0."""
        if not self.is_diagonal:
            return rows.T @ (rows if weights is None else rows * weights[:, None])
        squares = rows * rows
        return squares.sum(axis=0) if weights is None else weights @ squares

    def unpack(self, packed: FloatArray) -> FloatArray:
        """Undo :func:`pack`."""
        return packed if self.is_diagonal else unpack_symmetric(packed, self.dimension)

    def off_diagonal(self) -> FloatArray:
        """Return the factor of each packed entry with which lengths are Frobenius norms.

        It is ``sqrt(2)`` off the diagonal: the other half of a symmetric matrix is not packed.
        """
        if self.is_diagonal:
            return np.ones(self.dimension)
        rows, columns = np.triu_indices(self.dimension)
        return np.where(rows == columns, 1.0, math.sqrt(2.0))


def make_form(settings: Settings) -> Form:
    """Return the form that the setting ``matrix_form`` selects."""
    return Form(settings.dimension, settings.matrix_form == "diagonal")


def form_of(matrix: Array) -> Form:
    """Return the form of a matrix from its shape."""
    return Form(matrix.shape[-1], matrix.ndim == 1)


def pack(matrix: Array) -> Array:
    """Return the values for a message, (size,)."""
    return matrix if matrix.ndim == 1 else pack_symmetric(matrix)


def times(matrix: Array, vector: Array) -> Array:
    """Return ``M v``, (d,)."""
    return matrix * vector if matrix.ndim == 1 else matrix @ vector


def trace(matrix: Array) -> float:
    """Return the trace."""
    return float(matrix.sum() if matrix.ndim == 1 else np.trace(matrix))


def roots_of_diagonals(matrices: FloatArray, least: float = TINY) -> FloatArray:
    """Return the square roots of diagonal entries, at least ``least``: (..., d, d) -> (..., d)."""
    diagonals = np.diagonal(matrices, axis1=-2, axis2=-1)
    return np.sqrt(np.maximum(diagonals, least))


_triangle = functools.lru_cache(np.triu_indices)


def pack_symmetric(matrix: Array) -> Array:
    """Return the upper triangle of symmetric matrices: (..., d, d) -> (..., d (d + 1) / 2)."""
    rows, columns = _triangle(matrix.shape[-1])
    return matrix[..., rows, columns]


def unpack_symmetric(packed: FloatArray, d: int) -> FloatArray:
    """Undo :func:`pack_symmetric`: (..., d (d + 1) / 2) -> (..., d, d)."""
    rows, columns = _triangle(d)
    matrix = np.empty((*packed.shape[:-1], d, d))
    matrix[..., rows, columns] = packed
    matrix[..., columns, rows] = packed
    return matrix
