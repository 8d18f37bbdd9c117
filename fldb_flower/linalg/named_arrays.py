"""Named arrays, which hold the state of a component: nested, and packed into bytes."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fldb_flower.linalg.arrays import copy, to_numpy


def join_parts(parts: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of several parts in one dict, with names ``"part.name"``."""
    return {
        f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()
    }


def part_of(arrays: Mapping[str, NDArray[Any]], part: str) -> dict[str, NDArray[Any]]:
    """Return one part of what :func:`join_parts` returned."""
    prefix = f"{part}."
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def fields_of(values: NamedTuple) -> dict[str, NDArray[Any]]:
    """Return copies of the arrays and numbers of a named tuple, by name."""
    return {
        name: to_numpy(copy(value)) if hasattr(value, "shape") else np.array(value)
        for name, value in values._asdict().items()
    }


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return named arrays as bytes: the header's length, the header as JSON, the arrays."""
    layout = tuple((name, array.dtype.str, array.shape) for name, array in arrays.items())
    return b"".join([_header(layout), *(array.tobytes() for array in arrays.values())])


@functools.lru_cache(maxsize=64)
def _header(layout: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    header = json.dumps(layout).encode()
    return len(header).to_bytes(8, "little") + header


def unpack_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Undo :func:`pack_arrays`; the arrays are read-only views of ``data``."""
    start = 8 + int.from_bytes(data[:8], "little")
    arrays = {}
    for name, dtype, shape in json.loads(data[8:start]):
        array = np.frombuffer(data, dtype, math.prod(shape), start).reshape(shape)
        arrays[name] = array
        start += array.nbytes
    return arrays
