r"""Vectors as Flower's ArrayRecords, and back, from any sender.

The format is a plain ``.npy``. NumPy's reader parses the header as Python source, which
costs more than everything else in a small message, and allocates the announced size before
checking that the data is there. Here the header is compared with that of a float64 vector; any
other must have the form that ``np.save`` writes for numbers in C order, and announce exactly the
bytes that follow. The result is a view of the message: nothing is copied, evaluated or unpickled.
"""

from __future__ import annotations

import functools
import io
import math
import re
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fldb_flower.linalg.arrays import FloatArray

_STYPE = "numpy.ndarray"
_MIB = 2**20
_HEADER_BYTES = 128  # of a vector's .npy
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<>|][biufc]\d{1,2})', 'fortran_order': False,"
    rb" 'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n",
    re.DOTALL,
)


@functools.lru_cache(maxsize=64)
def _header(size: int, descr: str = "<f8") -> bytes:
    """Return the ``.npy`` header of a vector."""
    buffer = io.BytesIO()
    layout = {"descr": descr, "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(buffer, layout)
    return buffer.getvalue()


@functools.lru_cache(maxsize=8)
def _names(dtype: np.dtype[Any]) -> tuple[str, str]:
    return dtype.name, dtype.str  # NumPy composes them in each call


def pack_vector(vector: FloatArray) -> ArrayRecord:
    """Return a record of one array."""
    name, descr = _names(vector.dtype)
    data = _header(vector.size, descr) + vector.tobytes()
    record = ArrayRecord()  # with an argument, it copies every array
    record["0"] = Array(name, vector.shape, _STYPE, data)
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
    """Return the only array of a message's record, of any shape and numeric dtype; read-only.

    Raises
    ------
    ValueError
        The record does not hold exactly one such array, or one of more than ``max_mb`` MiB.
    """
    arrays = list(record.values()) if isinstance(record, ArrayRecord) else []
    if len(arrays) != 1:
        raise ValueError(f"{type(record).__name__} with {len(arrays)} arrays instead of one")
    data = arrays[0].data
    if len(data) > max_mb * _MIB:
        raise ValueError(f"{len(data) / _MIB:.3g} MiB exceed max-message-mb={max_mb:g}")
    size, rest = divmod(len(data) - _HEADER_BYTES, 8)  # if pack_vector wrote it
    if rest == 0 and size >= 0 and data.startswith(_header(size)):
        return np.frombuffer(data, np.float64, offset=_HEADER_BYTES)
    return _read_array(data)


def _read_array(data: bytes) -> FloatArray:
    header = _HEADER.match(data)
    if header is None or header.end() != 10 + int.from_bytes(data[8:10], "little"):
        raise ValueError("not a .npy array of numbers in C order")
    shape = tuple(int(length) for length in header[2].split(b",") if length.strip())
    try:
        dtype = np.dtype(header[1].decode("ascii"))
    except TypeError:
        raise ValueError(f"no numeric dtype: {header[1].decode('ascii')}") from None
    announced, present = math.prod(shape) * dtype.itemsize, len(data) - header.end()
    if announced != present:
        raise ValueError(f"an array of {shape} of {dtype} in {present} bytes")
    array: FloatArray = np.frombuffer(data, dtype, offset=header.end()).reshape(shape)
    return array
