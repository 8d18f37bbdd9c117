r"""A vector as a Flower ArrayRecord, and back, whoever wrote it.

What is written is a plain ``.npy``. NumPy's own reader parses the header as Python source, which
costs more than all else in a small message, and allocates what it announces before looking
whether it is there. Here the header is compared with that of a float64 vector; another must
be what ``np.save`` writes for numbers in C order, and announce just the bytes that follow. What is
read is a view of the message: nothing is allocated, evaluated or unpickled.
"""

from __future__ import annotations

import functools
import io
import math
import re
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fldb_flower.linalg.forms import Vector

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
    """Return what ``np.save`` writes before the numbers of a vector, float64 by default."""
    buffer = io.BytesIO()
    layout = {"descr": descr, "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(buffer, layout)
    return buffer.getvalue()


def pack_vector(vector: Vector) -> ArrayRecord:
    """Return a record of one array."""
    data = _header(vector.size, vector.dtype.str) + vector.tobytes()
    return ArrayRecord({"0": Array(vector.dtype.name, vector.shape, _STYPE, data)})


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's arrays, numbers and texts, without their names."""
    total = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(array.data) for array in record.values())
            continue
        for value in record.values():
            values = value if isinstance(value, list) else [value]
            texts = [each for each in values if isinstance(each, str | bytes)]
            total += sum(map(len, texts)) + 8 * (len(values) - len(texts))
    return total


def unpack_vector(record: Any, max_mb: float = math.inf) -> Vector:
    """Return the record's only array, of whatever shape and kind of numbers it is; read-only.

    Parameters
    ----------
    record : Any
        What a message holds; it need not be a record.
    max_mb : float
        ``max_message_mb``: what is larger is not read.

    Raises
    ------
    ValueError
        It is no record of one such array, or too large.
    """
    arrays = list(record.values()) if isinstance(record, ArrayRecord) else []
    if len(arrays) != 1:
        raise ValueError(f"{type(record).__name__} with {len(arrays)} arrays instead of one")
    data = arrays[0].data
    if len(data) > max_mb * _MIB:
        raise ValueError(f"{len(data) / _MIB:.3g} MiB are more than max-message-mb={max_mb:g}")
    size, rest = divmod(len(data) - _HEADER_BYTES, 8)  # if it is what pack_vector wrote
    if rest == 0 and size >= 0 and data.startswith(_header(size)):
        return np.frombuffer(data, np.float64, offset=_HEADER_BYTES)
    return _read_array(data)


def _read_array(data: bytes) -> Vector:
    header = _HEADER.match(data)
    if header is None or header.end() != 10 + int.from_bytes(data[8:10], "little"):
        raise ValueError("not an array of numbers in C order, as np.save writes it")
    shape = tuple(int(length) for length in header[2].split(b",") if length.strip())
    try:
        dtype = np.dtype(header[1].decode("ascii"))
    except TypeError:
        raise ValueError(f"there are no numbers of type {header[1].decode('ascii')}") from None
    announced, present = math.prod(shape) * dtype.itemsize, len(data) - header.end()
    if announced != present:
        raise ValueError(f"an array of {shape} of {dtype} in {present} bytes")
    array: Vector = np.frombuffer(data, dtype, offset=header.end()).reshape(shape)
    return array
