"""Checks of what :class:`fldb_flower.bandit.learner.DuelingBandit` is given."""

from __future__ import annotations

import os
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fldb_flower.catalogue import SELECTIONS
from fldb_flower.errors import one_line, shown
from fldb_flower.linalg.arrays import FloatArray, has_masked

_LARGEST = 1e100  # sums of squares are then finite


class Duels(NamedTuple):
    """Answered duels: differences (n, d), preferences (n,) and weights (n,)."""

    differences: FloatArray
    preferences: FloatArray
    weights: FloatArray

    def and_also(self, more: Duels) -> Duels:
        """Return the duels of both."""
        return Duels(*(np.concatenate(each) for each in zip(self, more, strict=True)))


def checked_duels(
    x: ArrayLike, y: ArrayLike, weights: ArrayLike | None, dimension: int | None
) -> Duels:
    """Return duels as arrays of float64.

    Raises
    ------
    ValueError
        An argument is invalid; the message names it.
    """
    rows = checked_arms(x, dimension, "X")
    answers = _column(y, "y", len(rows))
    if wrong := [value for value in answers.tolist() if not 0.0 <= value <= 1.0]:
        raise ValueError(
            f"y contains {wrong[0]:g}: must be 1 (first arm preferred), 0 (second),"
            " 0.5 (tie), or between 0 and 1"
        )
    if weights is None:
        return Duels(rows, answers, np.ones(len(rows)))
    factors = _column(weights, "sample_weight", len(rows))
    if (factors < 0).any():
        raise ValueError(f"sample_weight contains {factors.min():g}: must be at least 0")
    if not factors.any():
        raise ValueError("sample_weight is zero for every duel: at least one must be above 0")
    return Duels(rows, answers, factors)


def checked_arms(arms: ArrayLike, dimension: int | None, name: str) -> FloatArray:
    """Return features (n, d) as float64; the error names the argument ``name``."""
    array = _numbers(arms, name)
    if array.ndim != 2:
        raise ValueError(
            f"{name} has shape {array.shape}: must be (n, d), a row per arm or duel."
            " Reshape your data, such as with reshape(1, -1) for one row"
        )
    if array.shape[0] == 0:
        raise ValueError(f"{name} has 0 sample(s) (shape={array.shape}): needs at least one row")
    if array.shape[1] == 0:
        raise ValueError(
            f"{name} has 0 feature(s) (shape={array.shape}) while a minimum of 1 is required in a"
            " row"
        )
    if dimension is not None and array.shape[1] != _checked_dimension(dimension):
        raise ValueError(
            f"{name} has {array.shape[1]} features, but DuelingBandit is expecting"
            f" {shown(dimension)} features as input"
        )
    return array


def checked_arm(arm: ArrayLike, dimension: int | None, name: str) -> FloatArray:
    """Return features (d,) of one arm."""
    array = _numbers(arm, name)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}: must be (d,), the features of one arm")
    row: FloatArray = checked_arms(array[None], dimension, name)[0]
    return row


def checked_preferred(preferred: Any) -> float:
    """Return the preference of one duel."""
    is_number = isinstance(preferred, Real | np.bool)
    if not is_number or not 0.0 <= preferred <= 1.0:
        raise ValueError(
            f"preferred={shown(preferred)}: must be 1 (first arm preferred), 0 (second), 0.5"
            " (tie), or between 0 and 1"
        )
    return float(preferred)


def checked_number(name: str, value: Any, *, positive: bool = False) -> float:
    """Return a parameter that is a number of at least 0, or above 0."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0.0 <= value <= _LARGEST or (positive and not float(value)):
        limit = "above 0" if positive else "at least 0"
        raise ValueError(
            f"{name}={shown(value)}: must be a number, {limit} and at most {_LARGEST:g}"
        )
    return float(value)


def checked_selection(name: Any) -> str:
    """Return the name of a selection rule."""
    if not isinstance(name, str) or name not in SELECTIONS:
        raise ValueError(f"selection={shown(name)}: must be one of {', '.join(SELECTIONS)}")
    return name


def checked_seed(state: Any) -> int:
    """Return the seed of a ``random_state``: an integer, None, or a generator of NumPy."""
    if state is None:
        return int.from_bytes(os.urandom(8), "little")
    if isinstance(state, np.random.Generator):
        return int(state.integers(2**63))
    if isinstance(state, np.random.RandomState):
        return int(state.randint(2**31))
    if isinstance(state, Integral) and not isinstance(state, bool) and int(state) >= 0:
        return int(state)
    raise ValueError(
        f"random_state={shown(state)}: must be a whole number, at least 0, a generator of NumPy or"
        " None"
    )


def _checked_dimension(dimension: Any) -> int:
    if not isinstance(dimension, Integral) or isinstance(dimension, bool) or int(dimension) < 1:
        raise ValueError(f"dimension={shown(dimension)}: must be a whole number, at least 1")
    return int(dimension)


def _column(values: ArrayLike, name: str, length: int) -> FloatArray:
    if values is None:
        raise ValueError(f"requires {name} to be passed, but the target {name} is None")
    array = _numbers(values, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (length,):
        raise ValueError(f"{name} has shape {array.shape}: must be ({length},), one for each duel")
    return array


def _numbers(values: Any, name: str) -> FloatArray:
    if values is None:
        raise ValueError(f"{name} is None: must be an array of numbers")
    if hasattr(values, "toarray") and not isinstance(values, np.ndarray):
        raise ValueError(f"{name} is a sparse matrix, which is not supported: use .toarray()")
    if has_masked(values):
        raise ValueError(f"{name} has masked entries: leave these out, or fill them with numbers")
    try:
        array = np.asarray(values)
        texts = [array.item(0)] if array.dtype.kind in "SU" and array.size else []
        if array.dtype == object:
            texts = [each for each in array.flat if isinstance(each, str | bytes)]
        if texts:
            raise TypeError(f"{shown(texts[0])} is a text")
        if np.iscomplexobj(array):
            raise ValueError(f"Complex data not supported: {name} must contain real numbers")
        if array.dtype.kind in "mM":
            raise TypeError(f"its type is {array.dtype}; convert dates and durations to numbers")
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        if "Complex" in str(error):
            raise
        raise ValueError(f"{name} must contain numbers: {one_line(error)}") from None
    except OverflowError:  # an integer or a fraction
        large = next(each for each in array.flat if abs(each) > _LARGEST)
        raise _too_large(name, large) from None
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN or infinity: must contain finite numbers")
    if array.size and np.abs(array).max() > _LARGEST:
        raise _too_large(name, float(np.abs(array).max()))
    return array


def _too_large(name: str, value: Any) -> ValueError:
    return ValueError(
        f"{name} contains numbers above {_LARGEST:g} in absolute value, such as {shown(value)}"
    )
