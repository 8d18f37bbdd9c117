"""Linear systems and norms with matrices that are singular because of rounding errors."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fldb_flower.linalg.linear import pseudo_solve, shifted_forms, solve, whiten

property_test = hypothesis_settings(deadline=None, derandomize=True, max_examples=50)
scales = st.sampled_from([1e-150, 1e-8, 1.0, 1e8, 1e150])


@property_test
@given(scales, scales)
def test_a_singular_matrix_by_hand(first, second):
    """``x x^T`` with x = (s, t): in units of s and t, M is all ones, and M^+ a quarter of it."""
    x = np.array([first, second])
    matrix = np.outer(x, x)
    vector = np.array([3.0 * first, 5.0 * second])
    expected = np.array([2.0 / first, 2.0 / second])
    np.testing.assert_allclose(pseudo_solve(matrix, vector), expected, rtol=1e-12)
    exactly = np.array([[1.0, 1.0], [1.0, 1.0]])
    np.testing.assert_allclose(solve(exactly, np.array([3.0, 5.0])), [2.0, 2.0], rtol=1e-12)


@property_test
@given(st.integers(1, 8), st.integers(0, 10**6), scales)
def test_definite_matrices_are_solved_as_by_elimination(d, seed, scale):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-4, 5, (2 * d, d)).astype(float)
    matrix = rows.T @ rows + np.eye(d)
    vector = rng.integers(-4, 5, d).astype(float)
    exact = eliminate(matrix, vector)
    for solved in (solve(matrix * scale, vector * scale), pseudo_solve(matrix, vector)):
        np.testing.assert_allclose(solved, exact, rtol=1e-9, atol=1e-9)


def eliminate(matrix, vector):
    """Solve exactly with fractions; the matrix is positive definite and needs no pivoting."""
    rows = [[Fraction(x) for x in (*row, y)] for row, y in zip(matrix, vector, strict=True)]
    for place, pivot in enumerate(rows):
        pivot[:] = [x / pivot[place] for x in pivot]
        for row in rows:
            if row is not pivot:
                row[:] = [x - row[place] * y for x, y in zip(row, pivot, strict=True)]
    return np.array([float(row[-1]) for row in rows])


def test_a_batch_with_one_singular_matrix():
    matrices = np.array([np.eye(2), np.ones((2, 2)), [[2.0, 0.0], [0.0, 4.0]]])
    vectors = np.array([[1.0, 2.0], [3.0, 5.0], [2.0, 4.0]])
    np.testing.assert_allclose(solve(matrices, vectors), [[1, 2], [2, 2], [1, 1]], rtol=1e-12)


@property_test
@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 4), st.integers(0, 10**6), scales)
def test_forms_with_many_diagonals_are_those_of_each_inverse(d, rank, diagonals, seed, scale):
    """Singular matrices, too: the diagonals are positive."""
    rng = np.random.default_rng(seed)
    roots, shifts = rng.normal(size=(3, d, rank)), 10.0 ** rng.uniform(-2, 2, (d, 3, diagonals))
    x, y = rng.normal(size=(2, 3, d))
    units = scale ** np.where(np.arange(d) % 2, 0.5, 0.0)  # of the features
    matrices = (roots @ roots.swapaxes(1, 2)) * units[:, None] * units
    found = shifted_forms(matrices, shifts * (units**2)[:, None, None], x * units, y * units)
    for agent in range(3):
        for number in range(diagonals):
            whole = roots[agent] @ roots[agent].T + np.diag(shifts[:, agent, number])
            exact = x[agent] @ np.linalg.inv(whole) @ np.array([x[agent], y[agent]]).T
            np.testing.assert_allclose(found[:, agent, number], exact, rtol=1e-9, atol=1e-9)


def test_forms_of_a_matrix_that_rounding_errors_make_indefinite():
    """diag(1, ..., 1, -1e-6) + 1e-7 I is indefinite; the forms are those of its inverse."""
    d = 20
    matrix = np.diag(np.r_[np.ones(d - 1), -1e-6])
    x, y = np.arange(1.0, d + 1)[None], np.ones((1, d))
    found = shifted_forms(matrix[None], np.full((d, 1, 1), 1e-7), x, y)
    values = np.r_[np.full(d - 1, 1 + 1e-7), -9e-7]
    expected = [(x[0] ** 2 / values).sum(), (x[0] / values).sum()]
    np.testing.assert_allclose(found[:, 0, 0], expected, rtol=1e-9)


def test_forms_of_many_matrices_are_those_of_each():
    """``(M + D)^-1`` of diagonal matrices by hand, for 3,000 agents with 11 diagonals."""
    values, vectors = np.random.default_rng(0).random((2, 3000, 2))
    shifts = 1.0 + np.arange(22.0).reshape(2, 1, 11) + np.zeros((2, 3000, 11))
    found = shifted_forms(values[:, :, None] * np.eye(2), shifts, vectors, values)
    inverses = 1.0 / (values[..., None] + shifts.swapaxes(0, 1))
    for form, right in zip(found, (vectors, values), strict=True):
        expected = ((vectors * right)[..., None] * inverses).sum(axis=1)
        np.testing.assert_allclose(form, expected, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-140, 1.0, 1e8, 1e140])
def test_norms_where_the_ridge_is_lost(scale):
    """400 equal duels x: ``||x||`` is 1 / 20, and the norm of an unseen direction is very large."""
    x = scale * np.array([3.0, 0.0, 4.0])
    whitener = whiten(400.0 * np.outer(x, x) + 1e-30 * scale**2 * np.eye(3))
    assert np.linalg.norm(x @ whitener) == pytest.approx(1 / 20, rel=1e-6)
    unseen = scale * np.array([4.0, 0.0, -3.0])
    assert np.linalg.norm(unseen @ whitener) > 1e5
    assert np.linalg.norm(scale * np.array([0.0, 5.0, 0.0]) @ whitener) > 1e5


def test_matrices_that_are_not_positive_definite_have_no_inverse_root():
    for matrix in (np.array([[1.0, 2.0], [2.0, 1.0]]), -np.eye(2), np.zeros((2, 2)), -np.ones(2)):
        with pytest.raises(np.linalg.LinAlgError):
            whiten(matrix)
