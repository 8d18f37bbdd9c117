"""Statistics of one person as a vector of length at most 1, and sums of such vectors as uploads.

Each part of the statistics is divided by its unit, which the server chooses and sends. The vector
has all parts, and the number of duels. Of a symmetric matrix it has the triangle, with entries off
the diagonal multiplied by ``sqrt(2)``, so that its length is the Frobenius norm. Noise of standard
deviation s in each value is then noise of s in entries of the diagonal and of ``s / sqrt(2)`` in
the others, as :class:`~fldb_flower.federation.exchange.Noise` has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fldb_flower.bandit.estimate import VARIANCES, ShareChange
from fldb_flower.errors import DataError
from fldb_flower.federation.exchange import Broadcast, Noise, Upload
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.forms import Form, pack

DUELS = "num_duels"
"""The part with the number of duels: the new ones, or with shares all of the person's."""

_MATRICES = ("information", "hessian", "precision")


def parts_of(broadcast: Broadcast) -> tuple[str, ...]:
    """Return the names of the parts that a broadcast requests, in the order of the vector."""
    if broadcast.shares:
        return ("shift", "precision", "losses", DUELS)
    return ("gradient", "information", *(["hessian"] if broadcast.hessian else []), DUELS)


def size_of(broadcast: Broadcast, form: Form) -> int:
    """Return the number of values of the vector."""
    return sum(_size(part, form) for part in parts_of(broadcast))


def check_units(units: object, broadcast: Broadcast) -> dict[str, float]:
    """Return the unit of each part; raise DataError unless they are positive and finite."""
    names = parts_of(broadcast)
    if not isinstance(units, dict) or set(units) != set(names):
        raise DataError(f"the units must be of {', '.join(names)}")
    for name, unit in units.items():
        if type(unit) is not float or not 0.0 < unit < math.inf:
            raise DataError(f"the unit of {name} must be a positive number")
    return units


def vector_of(
    upload: Upload, broadcast: Broadcast, units: Mapping[str, float], form: Form
) -> FloatArray:
    """Return the statistics of one person in the units of each part; it may be longer than 1."""
    holder = upload if upload.shares is None else upload.shares
    values = []
    for name in parts_of(broadcast):
        value = upload.num_duels if name == DUELS else getattr(holder, name)
        if name in _MATRICES:
            value = pack(value) * form.off_diagonal()
        values.append(np.ravel(value) / units[name])
    return np.concatenate(values)


def count_of(vector: FloatArray, units: Mapping[str, float]) -> float:
    """Return the number of duels in a sum of vectors, which noise may make negative."""
    return float(vector[-1]) * units[DUELS]


def upload_of(
    vector: FloatArray,
    deviation: float,
    broadcast: Broadcast,
    units: Mapping[str, float],
    form: Form,
) -> Upload:
    """Return the sum of the vectors of several persons, with noise, as an upload.

    Parameters
    ----------
    vector : FloatArray
        The sum of :func:`vector_of`, plus noise, (n,).
    deviation : float
        Standard deviation of the noise of each value.
    broadcast : Broadcast
        The request.
    units : mapping of str to float
        Of each part.
    form : Form
        Of matrices.
    """
    values, noise, start = {}, {}, 0
    for name in parts_of(broadcast):
        end = start + _size(name, form)
        value = vector[start:end] * units[name]
        if name in _MATRICES:
            value = form.unpack(value / form.off_diagonal())
        values[name], noise[name], start = value, deviation * units[name], end
    duels = max(0, round(float(values.pop(DUELS)[0])))
    gradient = values.pop("gradient", np.zeros(form.dimension))
    information = values.pop("information", form.zeros())
    hessian = values.pop("hessian", None)
    shares = ShareChange(**values, squares=0.0, members=0.0) if broadcast.shares else None
    return Upload(duels, gradient, information, hessian, None, (), shares, Noise(**noise))


def _size(part: str, form: Form) -> int:
    if part in _MATRICES:
        return form.size
    return {"losses": len(VARIANCES), DUELS: 1}.get(part, form.dimension)
