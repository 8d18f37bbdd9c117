r"""The forms that W and Hessians take: every entry, the diagonal, or a sketch.

Where d^2 numbers are too many to send, to keep or to factor, an approximation takes their place
(the setting ``information``). A matrix is one array in each form, and its shape says which:

- :class:`Full`, (d, d): the matrix itself;
- :class:`Diagonal`, (d,): its diagonal, as if no two features had anything to do with each other;
- :class:`Sketch`, (m + 1, d) with m + 1 < d: ``B^T B + c I``, the m rows of B and then a row of c.

All stand for matrices that are positive semi-definite.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fldb_flower.linalg import linear
from fldb_flower.linalg.arrays import Array, namespace
from fldb_flower.linalg.whiteners import LowRank, Whitener, whiten, whitened
from fldb_flower.settings import Settings

Vector = NDArray[np.float64]

TINY = 1e-150
"""No diagonal entry is counted as less where it divides."""


class Form(ABC):
    """How a symmetric positive semi-definite matrix is written down.

    Parameters
    ----------
    dimension : int
        d, the number of features.

    Attributes
    ----------
    shape : tuple of int
        Of the array that stands for a matrix.
    size : int
        How many numbers travel for it.
    """

    shape: tuple[int, ...]
    size: int

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def zeros(self) -> Vector:
        """Return the zero matrix."""
        return np.zeros(self.shape)

    @abstractmethod
    def identity(self, factor: float) -> Vector:
        """Return ``factor I``."""

    @abstractmethod
    def gram(self, rows: Array, weights: Array | None = None) -> Array:
        """Return ``sum_i weights_i x_i x_i^T`` over rows x_i (n, d), weights (n,) at least 0."""

    def total(self, matrices: Sequence[Array]) -> Array:
        """Return the sum of at least one matrix, in the order given."""
        return functools.reduce(operator.add, matrices)

    @abstractmethod
    def pack(self, matrix: Array) -> Vector:
        """Return the numbers that travel, (size,)."""

    @abstractmethod
    def unpack(self, packed: Vector) -> Vector:
        """Undo :meth:`pack`."""

    def cover(self, matrix: Vector, unit: float) -> Vector:
        """Return the matrix, large enough to be definite although its numbers were rounded.

        Parameters
        ----------
        matrix : ndarray
            Each number of which was changed by a share of at most ``unit``.
        """
        return matrix

    def turned(self, matrix: Vector) -> Vector:
        """Return the same matrix, written in a way that tells nothing else about its rows."""
        return matrix

    @abstractmethod
    def solve(self, matrix: Array, vector: Array, ridge: float = 0.0) -> Array:
        """Return ``(M + ridge I)^-1 v``, (d,)."""

    @abstractmethod
    def whiten(self, matrix: Array) -> Whitener:
        """Return C with ``||x||_{M^-1} = ||x C||_2``, as selection rules want it.

        Raises
        ------
        numpy.linalg.LinAlgError
            M is not positive definite.
        """

    @abstractmethod
    def trace(self, matrix: Array) -> float:
        """Return the trace."""


class Full(Form):
    """Every entry: exact. Its upper triangle travels: d (d + 1) / 2 numbers."""

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension)
        self.shape = (dimension, dimension)
        self.size = dimension * (dimension + 1) // 2

    def identity(self, factor: float) -> Vector:
        """See :class:`Form`."""
        return np.eye(self.dimension) * factor

    def gram(self, rows: Array, weights: Array | None = None) -> Array:
        """See :class:`Form`."""
        return rows.T @ (rows if weights is None else rows * weights[:, None])

    def pack(self, matrix: Array) -> Vector:
        """See :class:`Form`."""
        return pack_symmetric(matrix)

    def unpack(self, packed: Vector) -> Vector:
        """See :class:`Form`."""
        return unpack_symmetric(packed, self.dimension)

    def cover(self, matrix: Vector, unit: float) -> Vector:
        """See :class:`Form`.

        The sum of a row's rounding errors is added to its diagonal entry, in units in which the
        diagonal is 1: errors and what is added are diagonally dominant together.
        """
        units = units_of(matrix)
        errors = unit * (np.abs(matrix) @ (1.0 / units))
        covered: Vector = matrix + np.diag(units * errors)
        return covered

    def solve(self, matrix: Array, vector: Array, ridge: float = 0.0) -> Array:
        """See :class:`Form`."""
        xp = namespace(matrix)
        return linear.solve(matrix + ridge * xp.eye(self.dimension, dtype=matrix.dtype), vector)

    def whiten(self, matrix: Array) -> Whitener:
        """See :class:`Form`."""
        try:
            return whiten(matrix)
        except np.linalg.LinAlgError:
            return linear.whiten_singular(matrix)

    def trace(self, matrix: Array) -> float:
        """See :class:`Form`."""
        return float(np.trace(matrix))


class Diagonal(Form):
    """The diagonal: d numbers. Exact where features are independent of each other."""

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension)
        self.shape = (dimension,)
        self.size = dimension

    def identity(self, factor: float) -> Vector:
        """See :class:`Form`."""
        return np.full(self.dimension, factor)

    def gram(self, rows: Array, weights: Array | None = None) -> Array:
        """See :class:`Form`."""
        xp = namespace(rows)
        squares = rows * rows
        return xp.sum(squares, axis=0) if weights is None else weights @ squares

    def pack(self, matrix: Array) -> Vector:
        """See :class:`Form`."""
        packed: Vector = matrix
        return packed

    def unpack(self, packed: Vector) -> Vector:
        """See :class:`Form`."""
        return packed

    def solve(self, matrix: Array, vector: Array, ridge: float = 0.0) -> Array:
        """See :class:`Form`."""
        return vector / (matrix + ridge)

    def whiten(self, matrix: Array) -> Whitener:
        """See :class:`Form`."""
        if not matrix.min() > 0.0:
            raise np.linalg.LinAlgError("the diagonal is not above 0")
        return matrix**-0.5

    def trace(self, matrix: Array) -> float:
        """See :class:`Form`."""
        return float(matrix.sum())


class Sketch(Form):
    r"""A sketch of rank m by frequent directions: 1 + m d numbers.

    Where there are more rows, they are cut back to m by their singular value decomposition: all
    squared singular values fall by delta, that of place m + 1, and those below 0 are dropped.
    Then what was there before lies between ``B^T B`` and ``B^T B + delta I``; delta is added to
    c. So a sketch is never less than the matrix it stands for, and more by at most c in any
    direction: Newton steps do not overshoot. (With c left out, as in plain frequent directions,
    FLDB-ONS diverged; with delta / 2, which halves the error, its regret was up to a tenth larger.)
    A matrix of rank at most m is kept exactly.

    Rows are singular vectors, which can be the duels themselves, as where these are orthogonal.
    Before they leave a device, :meth:`turned` mixes them at random.

    References
    ----------
    Ghashami, Liberty, Phillips and Woodruff, "Frequent Directions: Simple and Deterministic
    Matrix Sketching", SIAM J. Comput. 2016. What is cut off as a multiple of I: Luo, Chen, Zhang,
    Li and Zhang, "Robust Frequent Directions with Application in Online Learning", JMLR 2019.

    Parameters
    ----------
    dimension : int
        d, at least 3.
    rank : int
        m, from 1 to d - 2.
    """

    def __init__(self, dimension: int, rank: int) -> None:
        super().__init__(dimension)
        self.rank = rank
        self.shape = (rank + 1, dimension)
        self.size = 1 + rank * dimension

    def identity(self, factor: float) -> Vector:
        """See :class:`Form`."""
        matrix = self.zeros()
        matrix[-1] = factor
        return matrix

    def gram(self, rows: Array, weights: Array | None = None) -> Array:
        """See :class:`Form`."""
        xp = namespace(rows)
        return self._cut(rows if weights is None else rows * xp.sqrt(weights)[:, None], 0.0)

    def total(self, matrices: Sequence[Array]) -> Array:
        """See :class:`Form`; the rows of all are cut back once."""
        if len(matrices) == 1:
            return matrices[0]
        xp = namespace(matrices[0])
        rows = xp.concat([matrix[:-1] for matrix in matrices])
        return self._cut(rows, sum(float(matrix[-1, 0]) for matrix in matrices))

    def _cut(self, rows: Array, constant: float) -> Array:
        """Return ``rows^T rows + constant I``, of m rows."""
        xp, m = namespace(rows), self.rank
        if rows.shape[0] > self.dimension:
            rows = xp.linalg.qr(rows).R  # as many rows as features say the same
        # The squares of singular values, and how rows turn into singular vectors: ten times
        # faster than those themselves, and as exact as W is when it is written out.
        squares, turns = xp.linalg.eigh(rows @ rows.T)  # ascending
        delta = max(float(squares[-m - 1]), 0.0) if squares.shape[0] > m else 0.0
        largest = xp.flip(squares)[:m]
        is_kept = largest > delta
        shares = xp.where(is_kept, 1.0 - delta / xp.where(is_kept, largest, 1.0), 0.0)
        matrix = xp.zeros(self.shape, dtype=rows.dtype, device=rows.device)
        kept = xp.sqrt(shares)[:, None] * (xp.flip(turns, axis=1)[:, :m].T @ rows)
        matrix[: kept.shape[0]] = kept
        matrix[m] = constant + delta
        return matrix

    def turned(self, matrix: Vector) -> Vector:
        """See :class:`Form`.

        B is multiplied by a random orthogonal matrix, from the left. Uniformly drawn as it is, what
        becomes of B depends on ``B^T B`` alone, and on luck.
        """
        drawn = np.random.default_rng().standard_normal((self.rank, self.rank))
        orthogonal, upper = np.linalg.qr(drawn)
        orthogonal *= np.sign(np.diagonal(upper))  # uniform only with this (Mezzadri 2007)
        return np.vstack([orthogonal @ matrix[:-1], matrix[-1:]])

    def pack(self, matrix: Array) -> Vector:
        """See :class:`Form`."""
        return np.concatenate([matrix[-1, :1], matrix[:-1].ravel()])

    def unpack(self, packed: Vector) -> Vector:
        """See :class:`Form`."""
        matrix = np.empty(self.shape)
        matrix[:-1] = packed[1:].reshape(self.rank, self.dimension)
        matrix[-1] = packed[0]
        return matrix

    def solve(self, matrix: Array, vector: Array, ridge: float = 0.0) -> Array:
        """See :class:`Form`."""
        inverse = _power(matrix, -1.0, ridge)
        return whitened(vector[None], inverse)[0]

    def whiten(self, matrix: Array) -> Whitener:
        """See :class:`Form`."""
        if not matrix[-1, 0] > 0.0:
            raise np.linalg.LinAlgError("c is not above 0")
        return _power(matrix, -0.5)

    def trace(self, matrix: Array) -> float:
        """See :class:`Form`; at least that of what the sketch stands for."""
        return float(np.sum(matrix[:-1] ** 2)) + float(np.sum(matrix[-1]))


def _power(matrix: Array, exponent: float, ridge: float = 0.0) -> LowRank:
    """Return ``(B^T B + (c + ridge) I)^exponent``."""
    xp = namespace(matrix)
    _, lengths, directions = xp.linalg.svd(matrix[:-1], full_matrices=False)
    scale = float(matrix[-1, 0]) + ridge
    weights = (1.0 + lengths * lengths / scale) ** exponent - 1.0
    return LowRank(scale**exponent, directions.T, weights)


def units_of(matrices: Vector) -> Vector:
    """Return the root of each diagonal entry: (..., d, d) -> (..., d)."""
    diagonals = np.diagonal(matrices, axis1=-2, axis2=-1)
    roots: Vector = np.sqrt(np.maximum(diagonals, TINY))
    return roots


def make_form(settings: Settings) -> Form:
    """Return the form that the setting ``information`` names."""
    d = settings.dimension
    if settings.matrix_form == "diagonal":
        return Diagonal(d)
    return Sketch(d, settings.sketch_rank) if settings.matrix_form == "sketch" else Full(d)


def form_of(matrix: Array) -> Form:
    """Return the form of a matrix, by its shape."""
    return _form_of_shape(matrix.shape)


@functools.lru_cache
def _form_of_shape(shape: tuple[int, ...]) -> Form:
    *rows, d = shape
    if not rows:
        return Diagonal(d)
    return Full(d) if rows[0] == d else Sketch(d, rows[0] - 1)


@functools.lru_cache
def _triangle(d: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    rows, columns = np.triu_indices(d)
    return rows, columns


def pack_symmetric(matrix: Array) -> Vector:
    """Return the upper triangle of symmetric matrices: (..., d, d) -> (..., d (d + 1) / 2)."""
    rows, columns = _triangle(matrix.shape[-1])
    packed: Vector = matrix[..., rows, columns]
    return packed


def unpack_symmetric(packed: Vector, d: int) -> Vector:
    """Undo :func:`pack_symmetric`: (..., d (d + 1) / 2) -> (..., d, d)."""
    rows, columns = _triangle(d)
    matrix = np.empty((*packed.shape[:-1], d, d))
    matrix[..., rows, columns] = packed
    matrix[..., columns, rows] = packed
    return matrix
