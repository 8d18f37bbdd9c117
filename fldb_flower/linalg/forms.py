r"""Forms of W and of Hessians: all entries, the diagonal, or a sketch.

The setting ``matrix_form`` selects an approximation for dimensions d in which d^2 numbers are too
many to send, store or factor. A matrix is one array, whose shape identifies the form:

- :class:`Full`, (d, d): the matrix;
- :class:`Diagonal`, (d,): the diagonal;
- :class:`Sketch`, (m + 1, d) with m + 1 < d: ``B^T B + c I``, the m rows of B and a row of c.

All represent positive semi-definite matrices. docs/scaling.md compares their regret and costs.
"""

from __future__ import annotations

import functools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from fldb_flower.linalg import linear
from fldb_flower.linalg.arrays import Array, FloatArray, namespace
from fldb_flower.linalg.whiteners import LowRank, Whitener, whiten, whitened
from fldb_flower.settings import Settings

TINY = 1e-150
"""Lower bound of diagonal entries in denominators."""


class Form(ABC):
    """Representation of symmetric positive semi-definite matrices.

    Parameters
    ----------
    dimension : int
        d, the number of features.
    shape : tuple of int
        Shape of the array that represents a matrix.
    size : int
        Number of values in a message.
    """

    def __init__(self, dimension: int, shape: tuple[int, ...], size: int) -> None:
        self.dimension, self.shape, self.size = dimension, shape, size

    def zeros(self) -> FloatArray:
        """Return the zero matrix."""
        return np.zeros(self.shape)

    @abstractmethod
    def identity(self, factor: float) -> FloatArray:
        """Return ``factor I``."""

    @abstractmethod
    def gram(self, rows: Array, weights: Array | None = None) -> Array:
        """Return ``sum_i weights_i x_i x_i^T`` over rows x_i (n, d), weights (n,) at least 0."""

    def total(self, matrices: Sequence[Array]) -> Array:
        """Return the sum of at least one matrix, in the order given."""
        return functools.reduce(operator.add, matrices)

    def scaled(self, matrix: Array, factor: float) -> Array:
        """Return ``factor M``, for a factor of at least 0."""
        return factor * matrix

    @abstractmethod
    def pack(self, matrix: Array) -> Array:
        """Return the values for a message, (size,)."""

    @abstractmethod
    def unpack(self, packed: FloatArray) -> FloatArray:
        """Undo :meth:`pack`."""

    def rotated(self, matrix: FloatArray) -> FloatArray:
        """Return the same matrix in a representation that depends on the matrix only."""
        return matrix

    @abstractmethod
    def solve(self, matrix: Array, vector: Array, ridge: float = 0.0) -> Array:
        """Return ``(M + ridge I)^-1 v``, (d,)."""

    @abstractmethod
    def times(self, matrix: Array, vector: Array) -> Array:
        """Return ``M v``, (d,)."""

    @abstractmethod
    def whiten(self, matrix: Array) -> Whitener:
        """Return C with ``||x||_{M^-1} = ||x C||_2``.

        Raises
        ------
        numpy.linalg.LinAlgError
            M is not positive definite.
        """

    @abstractmethod
    def trace(self, matrix: Array) -> float:
        """Return the trace."""


class Full(Form):
    """All entries: exact. A message holds the upper triangle, d (d + 1) / 2 values."""

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension, (dimension, dimension), dimension * (dimension + 1) // 2)

    def identity(self, factor: float) -> FloatArray:
        return np.eye(self.dimension) * factor

    def gram(self, rows: Array, weights: Array | None = None) -> Array:
        return rows.T @ (rows if weights is None else rows * weights[:, None])

    def pack(self, matrix: Array) -> Array:
        return pack_symmetric(matrix)

    def unpack(self, packed: FloatArray) -> FloatArray:
        return unpack_symmetric(packed, self.dimension)

    def solve(self, matrix: Array, vector: Array, ridge: float = 0.0) -> Array:
        if ridge:
            eye = namespace(matrix).eye(self.dimension, dtype=matrix.dtype)
            matrix = matrix + ridge * eye
        return linear.solve(matrix, vector)

    def times(self, matrix: Array, vector: Array) -> Array:
        return matrix @ vector

    def whiten(self, matrix: Array) -> Whitener:
        try:
            return whiten(matrix)
        except np.linalg.LinAlgError:
            return linear.whiten_singular(matrix)

    def trace(self, matrix: Array) -> float:
        return float(np.trace(matrix))


class Diagonal(Form):
    """The diagonal: d values. Exact if the matrix is diagonal."""

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension, (dimension,), dimension)

    def identity(self, factor: float) -> FloatArray:
        return np.full(self.dimension, factor)

    def gram(self, rows: Array, weights: Array | None = None) -> Array:
        squares = rows * rows
        return squares.sum(axis=0) if weights is None else weights @ squares

    def pack(self, matrix: Array) -> Array:
        return matrix

    def unpack(self, packed: FloatArray) -> FloatArray:
        return packed

    def solve(self, matrix: Array, vector: Array, ridge: float = 0.0) -> Array:
        return vector / (matrix + ridge)

    def times(self, matrix: Array, vector: Array) -> Array:
        return matrix * vector

    def whiten(self, matrix: Array) -> Whitener:
        if not matrix.min() > 0.0:
            raise np.linalg.LinAlgError("a diagonal entry is not above 0")
        return matrix**-0.5

    def trace(self, matrix: Array) -> float:
        return float(matrix.sum())


class Sketch(Form):
    r"""A sketch of rank m by frequent directions: 1 + m d values.

    With more than m rows, let delta be the (m + 1)-th largest squared singular value. All squared
    singular values are reduced by delta, those below 0 are dropped, and delta is added to c. The
    matrix X then satisfies ``B^T B <= X <= B^T B + c I``. A sketch is never smaller than X, so
    Newton steps do not overshoot; FLDB-ONS diverged without c. A matrix of rank at most m is exact.

    Rows of B are singular vectors, which can be single duels (if these are orthogonal). Devices
    therefore send them after :meth:`rotated`. ``rank`` is m, from 1 to d - 2.

    References
    ----------
    Ghashami, Liberty, Phillips and Woodruff, "Frequent Directions: Simple and Deterministic
    Matrix Sketching", SIAM J. Comput. 2016. The term c I: Luo, Chen, Zhang, Li and Zhang,
    "Robust Frequent Directions with Application in Online Learning", JMLR 2019.
    """

    def __init__(self, dimension: int, rank: int) -> None:
        super().__init__(dimension, (rank + 1, dimension), 1 + rank * dimension)
        self.rank = rank

    def identity(self, factor: float) -> FloatArray:
        matrix = self.zeros()
        matrix[-1] = factor
        return matrix

    def gram(self, rows: Array, weights: Array | None = None) -> Array:
        xp = namespace(rows)
        return self._reduced(rows if weights is None else rows * xp.sqrt(weights)[:, None], 0.0)

    def total(self, matrices: Sequence[Array]) -> Array:
        if len(matrices) == 1:
            return matrices[0]
        xp = namespace(matrices[0])
        rows = xp.concat([matrix[:-1] for matrix in matrices])
        return self._reduced(rows, sum(float(matrix[-1, 0]) for matrix in matrices))

    def scaled(self, matrix: Array, factor: float) -> Array:
        xp = namespace(matrix)
        return xp.concat([math.sqrt(factor) * matrix[:-1], factor * matrix[-1:]])

    def _reduced(self, rows: Array, constant: float) -> Array:
        """Return the sketch of ``rows^T rows + constant I``."""
        xp, m = namespace(rows), self.rank
        if rows.shape[0] > self.dimension:
            rows = xp.linalg.qr(rows).R  # d rows with the same rows^T rows
        # Squared singular values and left singular vectors: ten times faster than an SVD, and as
        # accurate as W itself.
        squares, left = xp.linalg.eigh(rows @ rows.T)  # ascending
        delta = max(float(squares[-m - 1]), 0.0) if squares.shape[0] > m else 0.0
        largest = xp.flip(squares)[:m]
        is_kept = largest > delta
        shares = xp.where(is_kept, 1.0 - delta / xp.where(is_kept, largest, 1.0), 0.0)
        matrix = xp.zeros(self.shape, dtype=rows.dtype, device=rows.device)
        kept = xp.sqrt(shares)[:, None] * (xp.flip(left, axis=1)[:, :m].T @ rows)
        matrix[: kept.shape[0]] = kept
        matrix[m] = constant + delta
        return matrix

    def rotated(self, matrix: FloatArray) -> FloatArray:
        # B is multiplied from the left by a uniformly random orthogonal matrix. The distribution
        # of the product depends on B^T B only.
        normal = np.random.default_rng().standard_normal((self.rank, self.rank))
        orthogonal, upper = np.linalg.qr(normal)
        orthogonal *= np.sign(np.diagonal(upper))  # makes it uniform (Mezzadri 2007)
        return np.vstack([orthogonal @ matrix[:-1], matrix[-1:]])

    def pack(self, matrix: Array) -> Array:
        return np.concatenate([matrix[-1, :1], matrix[:-1].ravel()])

    def unpack(self, packed: FloatArray) -> FloatArray:
        matrix = np.empty(self.shape)
        matrix[:-1] = packed[1:].reshape(self.rank, self.dimension)
        matrix[-1] = packed[0]
        return matrix

    def solve(self, matrix: Array, vector: Array, ridge: float = 0.0) -> Array:
        return whitened(vector[None], _power(matrix, -1.0, ridge))[0]

    def times(self, matrix: Array, vector: Array) -> Array:
        return matrix[:-1].T @ (matrix[:-1] @ vector) + matrix[-1] * vector

    def whiten(self, matrix: Array) -> Whitener:
        if not matrix[-1, 0] > 0.0:
            raise np.linalg.LinAlgError("c is not above 0")
        return _power(matrix, -0.5)

    def trace(self, matrix: Array) -> float:
        # An upper bound of the trace of the sketched matrix.
        return float(np.sum(matrix[:-1] ** 2)) + float(np.sum(matrix[-1]))


def _power(matrix: Array, exponent: float, ridge: float = 0.0) -> LowRank:
    """Return ``(B^T B + (c + ridge) I)^exponent``."""
    xp = namespace(matrix)
    _, lengths, directions = xp.linalg.svd(matrix[:-1], full_matrices=False)
    scale = float(matrix[-1, 0]) + ridge
    weights = (1.0 + lengths * lengths / scale) ** exponent - 1.0
    return LowRank(scale**exponent, directions.T, weights)


def units_of(matrices: FloatArray, least: float = TINY) -> FloatArray:
    """Return the square roots of diagonal entries, at least ``least``: (..., d, d) -> (..., d)."""
    diagonals = np.diagonal(matrices, axis1=-2, axis2=-1)
    return np.sqrt(np.maximum(diagonals, least))


def make_form(settings: Settings) -> Form:
    """Return the form that the setting ``matrix_form`` selects."""
    d = settings.dimension
    if settings.matrix_form == "diagonal":
        return Diagonal(d)
    return Sketch(d, settings.sketch_rank) if settings.matrix_form == "sketch" else Full(d)


def off_diagonal(form: Form) -> FloatArray:
    """Return the factor of each packed entry with which lengths are Frobenius norms.

    It is ``sqrt(2)`` off the diagonal: the other half of a symmetric matrix is not packed.
    """
    if not isinstance(form, Full):
        return np.ones(form.size)
    rows, columns = np.triu_indices(form.dimension)
    return np.where(rows == columns, 1.0, math.sqrt(2.0))


def form_of(matrix: Array) -> Form:
    """Return the form of a matrix from its shape."""
    return _form_of_shape(matrix.shape)


@functools.lru_cache
def _form_of_shape(shape: tuple[int, ...]) -> Form:
    *rows, d = shape
    if not rows:
        return Diagonal(d)
    return Full(d) if rows[0] == d else Sketch(d, rows[0] - 1)


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
