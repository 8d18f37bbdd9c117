"""Public names and scales of features; scales make results independent of units."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fldb_flower.errors import DataError, one_line, shown
from fldb_flower.linalg.arrays import FloatArray, finite_number
from fldb_flower.system.files import read_file

_MOST_BYTES = 2**24
_LEAST, _LARGEST = 1e-100, 1e100  # limits of a scale
_VALID = "it must have the header feature,scale and a line per feature with a scale above 0"


@dataclass(frozen=True, eq=False)
class Features:
    """Public names and scales of the d features of arms.

    Estimates use features divided by their scales and do not depend on units: the scale of a
    feature in cm is 100 times its scale in m. Scales are computed from catalogues of arms or from
    offered arms, never from answers.

    Parameters
    ----------
    scales : ndarray of shape (d,)
        A typical deviation of each feature, in its unit; above 0.
    names : tuple of str, optional
        Names of the features.

    Examples
    --------
    Prices in euros and weights in kg:

    >>> from fldb_flower.bandit.features import Features
    >>> features = Features.of_arms([[1000.0, 1.0], [3000.0, 2.0]], ["price", "weight"])
    >>> features.scales
    array([1.e+03, 5.e-01])
    >>> features.scaled([2000.0, 1.0])
    array([2., 2.])
    """

    scales: FloatArray
    names: tuple[str, ...] | None = None

    @classmethod
    def of_arms(cls, arms: object, names: Sequence[str] | None = None) -> Features:
        """Return the standard deviation of each feature of arms, (K, d); 1 if it is constant."""
        array = np.asarray(arms, dtype=np.float64)
        largest = np.abs(array).max(axis=0)  # a power of 2 as the unit: squares do not overflow
        unit = np.exp2(np.frexp(largest)[1].astype(float))
        array = array / unit
        scales = unit * (array - array[:1]).std(axis=0)  # exactly 0 if all are equal
        return cls(_usable(scales), None if names is None else tuple(names))

    @classmethod
    def of_squares(cls, squares: FloatArray, names: Sequence[str] | None = None) -> Features:
        """Return scales from the mean squared differences of two arms, (d,)."""
        return cls(_usable(np.sqrt(0.5 * squares)), None if names is None else tuple(names))

    @classmethod
    def unscaled(cls, dimension: int) -> Features:
        """Return d features with a scale of 1, which change no number, and without names."""
        return cls(np.ones(dimension))

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return len(self.scales)

    def scaled(self, values: object) -> FloatArray:
        """Return features or differences without a unit, (..., d); their squares are finite."""
        array: FloatArray = np.asarray(values, dtype=np.float64) / self.scales
        return array.clip(-2.0 * _LARGEST, 2.0 * _LARGEST)

    def per_unit(self, theta: FloatArray) -> FloatArray:
        """Return coefficients per unit of the user, from those of scaled features, (..., d)."""
        return theta / self.scales

    def contrasts(self, names: Sequence[str] | None) -> FloatArray:
        """Return rows, (d, d), that map theta of scaled features to weights that comparisons show.

        They are the coefficients per unit. The indicators of one text column, such as
        ``colour=red``, sum to 1 in each arm, and only differences of their coefficients matter.
        Their weights are relative to the mean of the column.
        """
        columns = np.array([name.partition("=")[:2] for name in names or ()])
        rows = np.eye(self.dimension)
        for place, (column, sign) in enumerate(columns):
            same = (columns == (column, sign)).all(axis=1)
            if sign and same.sum() > 1:
                rows[place] -= same / same.sum()
        return rows / self.scales

    def to_json(self) -> str:
        """Return a string that :meth:`from_json` reads, with all digits."""
        names = None if self.names is None else list(self.names)
        return json.dumps({"scales": self.scales.tolist(), "names": names})

    @classmethod
    def from_json(cls, text: str) -> Features:
        """Return what :meth:`to_json` wrote; ValueError if it is something else."""
        try:
            value = json.loads(text)
            names, scales = value["names"], np.array(value["scales"], dtype=np.float64)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
            raise ValueError("features are not an object with scales and names") from None
        if scales.ndim != 1 or not ((scales >= _LEAST) & (scales <= _LARGEST)).all():
            raise ValueError(f"features have scales that are not from {_LEAST:g} to {_LARGEST:g}")
        if names is not None and (
            not isinstance(names, list)
            or len(names) != len(scales)
            or not all(isinstance(name, str) for name in names)
        ):
            raise ValueError("features must have one name per scale")
        return cls(scales, None if names is None else tuple(names))

    def expect(self, names: Sequence[str] | None, whose: str) -> None:
        """Raise DataError if the names differ from these, or are in another order."""
        if names is not None and self.names is not None and tuple(names) != self.names:
            raise DataError(
                f"{whose} has the features {one_line(', '.join(names))}; the federation has"
                f" {one_line(', '.join(self.names))}: names and order must be the same"
            )


def parse_features(text: Any, what: str) -> Features:
    """Return the features in a string from elsewhere; DataError if it has none."""
    try:
        return Features.from_json(text)
    except ValueError as reason:
        raise DataError(f"{what}: {reason}") from None


def mean_squares(arms: FloatArray) -> FloatArray:
    """Return the mean squared difference of two of at least two arms (K, d), per feature (d,)."""
    squares: FloatArray = 2.0 * (arms - arms[0]).var(axis=0, ddof=1)  # exactly 0 if all are equal
    return squares


def read_features(file: Path) -> Features:
    """Return the features that a CSV file declares, with the header ``feature,scale``."""
    try:
        text = read_file(file, _MOST_BYTES).decode("utf-8-sig")
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if any(row)]
    except OSError as error:
        raise DataError(f"{one_line(file)}: cannot be read ({error.strerror}); {_VALID}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{one_line(file)}: {one_line(error)}; {_VALID}") from None
    if not rows or [field.strip() for field in rows[0]] != ["feature", "scale"] or not rows[1:]:
        raise DataError(f"{one_line(file)}: {_VALID}")
    scales: dict[str, float] = {}
    for row in rows[1:]:
        name, scale = row[0].strip(), finite_number(row[-1].strip())
        if len(row) != 2 or not name or name in scales:
            raise DataError(f"{one_line(file)}: {shown(','.join(row))}: {_VALID}, each name once")
        if scale is None or not _LEAST <= scale <= _LARGEST:
            raise DataError(
                f"{one_line(file)}: the scale of {shown(name)} is {row[1][:40]!r}; {_VALID}"
            )
        scales[name] = scale
    return Features(np.array([*scales.values()]), tuple(scales))


def _usable(scales: FloatArray) -> FloatArray:
    return np.where((scales >= _LEAST) & (scales <= _LARGEST), scales, 1.0)
