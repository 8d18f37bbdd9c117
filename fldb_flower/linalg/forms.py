"""Forms of W and of Hessians: all entries, (d, d), or the diagonal, (d,).

The setting ``matrix_form`` selects the diagonal for dimensions d in which d^2 numbers are too many
to send, store or factor. docs/scaling.md compares their regret and costs. The functions that take a
matrix tell its form from its shape.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from fldb_flower.linalg.arrays import Array, FloatArray
from fldb_flower.settings import Settings

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
