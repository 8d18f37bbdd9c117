"""NumPy arrays and torch tensors behind one interface.

Numerical functions of this package follow the `array API standard
<https://data-apis.org/array-api>`_. They accept NumPy arrays or torch tensors and return the same
kind. The standard defines no static type for both, hence :data:`Array`.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from fldb_flower.errors import SettingsError, extra_missing

Array: TypeAlias = Any
"""A NumPy array or a torch tensor; docstrings give the shape."""

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

LARGEST = 1e150
"""The square of a larger number may overflow."""


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def finite_number(text: str) -> float | None:
    """Return a decimal number; None for other texts, such as those that only Python reads."""
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None


def namespace(array: Array) -> ModuleType:
    """Return the module with the array API's functions for an array.

    NumPy 2 implements the standard, so the check of the type is a shortcut: it saves 3 microseconds
    per call, a tenth of the time of a run.
    """
    if type(array) is np.ndarray:
        return np
    found: ModuleType = array_api_compat.array_namespace(array)
    return found


@dataclass(frozen=True)
class Arrays:
    """A backend: creates NumPy arrays, or torch tensors on one device.

    ``xp`` has the array API's functions. ``options`` are the ``dtype`` (float64) and, for torch,
    the ``device`` of new arrays.
    """

    xp: ModuleType = np
    options: dict[str, Any] = field(default_factory=lambda: {"dtype": np.float64})

    def make(self, numbers: Array) -> Array:
        """Return an array on this backend, without a copy if it is there already."""
        if isinstance(numbers, np.ma.MaskedArray):
            numbers = np.asarray(numbers)
        if self.xp is np or type(numbers) is not np.ndarray:
            return numbers
        if numbers.dtype != np.float64:  # indices, booleans
            return self.xp.asarray(numbers, device=self.options["device"])
        writable = numbers if numbers.flags.writeable else numbers.copy()  # torch requires it
        return self.xp.asarray(writable).to(**self.options)

    def empty(self, *shape: int) -> Array:
        """Return an uninitialized array."""
        return self.xp.empty(shape, **self.options)

    def zeros(self, *shape: int) -> Array:
        """Return an array of zeros."""
        return self.xp.zeros(shape, **self.options)

    def eye(self, size: int) -> Array:
        """Return the identity matrix."""
        return self.xp.eye(size, **self.options)

    def arange(self, stop: int) -> Array:
        """Return the integers 0 .. stop - 1."""
        return self.xp.arange(stop, dtype=self.xp.int64, device=self.options.get("device"))


def has_masked(values: Any, depth: int = 3) -> bool:
    """Return whether entries of an array are masked, also in lists of lists of arrays."""
    if isinstance(values, np.ndarray) and values.dtype.hasobject:
        values = values.tolist()
    if isinstance(values, list | tuple):
        return depth > 0 and any(has_masked(each, depth - 1) for each in values)
    return isinstance(values, np.ma.MaskedArray) and bool(np.ma.is_masked(values))


def copy(array: Array) -> Array:
    """Return a copy of an array."""
    return array.copy() if type(array) is np.ndarray else array.clone()


def to_numpy(array: Array) -> NDArray[Any]:
    """Return an array as a NumPy array in main memory."""
    found: NDArray[Any] = array if type(array) is np.ndarray else array.cpu().numpy()
    return found


def arrays_on(backend: str) -> Arrays:
    """Return the arrays of a backend: numpy, or PyTorch on cpu or cuda."""
    if backend == "numpy":
        return Arrays()
    torch = import_torch(f"backend={backend}", "backend=numpy")
    if backend == "cuda" and not torch.cuda.is_available():
        raise SettingsError(
            f"backend=cuda: PyTorch {torch.__version__} finds no GPU in this process; use"
            " backend=numpy, or with Flower give each client a share of a GPU: engine.num_gpus=0.1,"
            ' or flwr run --federation-config "client-resources-num-gpus=0.1"'
        )
    xp: ModuleType = importlib.import_module("array_api_compat.torch")
    return Arrays(xp, {"dtype": torch.float64, "device": torch.device(backend)})


def import_torch(what: str, instead: str) -> Any:
    """Return the module torch; a SettingsError names what needs it, and an alternative."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise extra_missing(what, "torch", instead) from None


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
    """Return copies of the arrays and numbers of a named tuple, by name, without None."""
    return {
        name: to_numpy(copy(value)) if hasattr(value, "shape") else np.array(value)
        for name, value in values._asdict().items()
        if value is not None
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
