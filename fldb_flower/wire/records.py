"""Vectors of float64 as Flower's ArrayRecords, and back, from any sender.

The format is a plain ``.npy``. NumPy's reader parses the header as Python source, which
costs more than everything else in a small message, and allocates the announced size before
checking that the data is there. Here the header must be that of a vector of as many numbers as
follow. The result is a view of the message: nothing is copied, evaluated or unpickled.
"""

from __future__ import annotations

import functools
import io
import math
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fldb_flower.linalg.arrays import FloatArray

_STYPE = "numpy.ndarray"
_MIB = 2**20
_HEADER_BYTES = 128  # of a vector's .npy


@functools.lru_cache(maxsize=64)
def _header(size: int) -> bytes:
    """Return the ``.npy`` header of a vector."""
    buffer = io.BytesIO()
    layout = {"descr": "<f8", "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(buffer, layout)
    return buffer.getvalue()


def pack_vector(vector: FloatArray) -> ArrayRecord:
    """Return a record of one vector of float64."""
    record = ArrayRecord()  # with an argument, it copies every array
    data = _header(vector.size) + vector.tobytes()
    record["0"] = Array("float64", vector.shape, _STYPE, data)
    return record


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's arrays, numbers and texts, keys excluded."""
    total = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(array.data) for array in record.values())
            continue
        for value in record.values():
            values: list[Any] = value if isinstance(value, list) else [value]
            is_text = bool(values) and isinstance(values[0], str | bytes)  # as all of a list are
            total += sum(map(len, values)) if is_text else 8 * len(values)
    return total


def unpack_vector(record: Any, max_mb: float = math.inf) -> FloatArray:
    """Return the vector of a message's record, read-only.

    Raise ValueError unless the record is that of one vector of float64, of at most ``max_mb`` MiB.
    """
    arrays = list(record.values()) if isinstance(record, ArrayRecord) else []
    if len(arrays) != 1:
        raise ValueError(f"{type(record).__name__} with {len(arrays)} arrays instead of one")
    data = arrays[0].data
    if len(data) > max_mb * _MIB:
        raise ValueError(f"{len(data) / _MIB:.3g} MiB exceed max-message-mb={max_mb:g}")
    size, rest = divmod(len(data) - _HEADER_BYTES, 8)
    if rest or size < 0 or not data.startswith(_header(size)):
        raise ValueError("not a vector of float64 in the .npy format")
    return np.frombuffer(data, np.float64, offset=_HEADER_BYTES)
