"""A vector as a Flower ArrayRecord, without parsing headers.

NumPy's ``.npy`` header is parsed as Python source, which costs more than all else in a small
message. The headers of float64 vectors are known beforehand, so they are compared instead.
What is written is a plain ``.npy``; what is read may be any, and nothing is ever unpickled.
"""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from fldb_flower.messages import Vector

_STYPE = "numpy.ndarray"
_HEADER_BYTES = 128  # of a vector's .npy


@functools.lru_cache(maxsize=64)
def _header(size: int) -> bytes:
    """Return what ``np.save`` writes before the numbers of a float64 vector."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(size), allow_pickle=False)
    return buffer.getvalue()[:_HEADER_BYTES]


def pack_vector(vector: Vector) -> ArrayRecord:
    """Return a record of one array."""
    data = _header(vector.size) + vector.tobytes()
    return ArrayRecord({"0": Array("float64", vector.shape, _STYPE, data)})


def unpack_vector(record: Any) -> Vector:
    """Return the record's only array, of whatever shape and dtype it is.

    Raises
    ------
    ValueError
        It is not a record of one NumPy array.
    """
    (array,) = record.values()
    size = (len(array.data) - _HEADER_BYTES) // 8  # if it is what pack_vector wrote
    if array.shape == (size,) and array.data.startswith(_header(size)):
        return np.frombuffer(array.data, np.float64, offset=_HEADER_BYTES)
    vector: Vector = np.lib.format.read_array(io.BytesIO(array.data), allow_pickle=False)
    return vector
