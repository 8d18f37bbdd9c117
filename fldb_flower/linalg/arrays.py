"""The arrays that the mathematics is written against.

Every numerical function of this package keeps to the `array API standard
<https://data-apis.org/array-api>`_: it takes NumPy arrays or torch tensors and answers in
kind. The standard has no static type for "an array of some library", hence
:data:`Array`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeAlias

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from fldb_flower.errors import SettingsError, extra_missing

Array: TypeAlias = Any
"""A NumPy array or a torch tensor of floats; docstrings give its shape."""


def namespace(array: Array) -> ModuleType:
    """Return the array API functions for an array.

    NumPy 2 follows the standard itself; asking it directly saves 3 microseconds a call,
    which is a tenth of a whole run.
    """
    if type(array) is np.ndarray:
        return np
    found: ModuleType = array_api_compat.array_namespace(array)
    return found


LARGEST = 1e150
"""Larger numbers overflow when they are squared."""


@dataclass(frozen=True)
class Arrays:
    """Where arrays are made: in NumPy, or as torch tensors on a device.

    Attributes
    ----------
    xp : module
        The array API's functions.
    options : dict
        ``dtype`` (and ``device``) of real numbers; float64 wherever there is one.
    """

    xp: ModuleType = np
    options: dict[str, Any] = field(default_factory=lambda: {"dtype": np.float64})

    def make(self, numbers: Array) -> Array:
        """Return numbers here: as they are, if they are here already."""
        if self.xp is np or type(numbers) is not np.ndarray:
            return numbers
        if numbers.dtype != np.float64:  # places, truth values
            return self.xp.asarray(numbers, device=self.options["device"])
        writable = numbers if numbers.flags.writeable else numbers.copy()  # torch has no other kind
        return self.xp.asarray(writable).to(**self.options)

    def empty(self, *shape: int) -> Array:
        """Return an array to fill in."""
        return self.xp.empty(shape, **self.options)

    def zeros(self, *shape: int) -> Array:
        """Return zeros."""
        return self.xp.zeros(shape, **self.options)

    def eye(self, size: int) -> Array:
        """Return the identity."""
        return self.xp.eye(size, **self.options)

    def arange(self, stop: int) -> Array:
        """Return the places 0 .. stop - 1."""
        return self.xp.arange(stop, dtype=self.xp.int64, device=self.options.get("device"))


def copy(array: Array) -> Array:
    """Return an array of its own."""
    return array.copy() if type(array) is np.ndarray else array.clone()


def to_numpy(array: Array) -> NDArray[Any]:
    """Return an array as NumPy's, in main memory; float64 where it was single precision."""
    if type(array) is np.ndarray:
        return array
    found: NDArray[Any] = array.cpu().numpy()
    return found.astype(np.float64) if found.dtype == np.float32 else found


def arrays_on(backend: str) -> Arrays:
    """Return the arrays of a backend: numpy, or PyTorch on cpu or cuda.

    Raises
    ------
    SettingsError
        PyTorch is not installed, or finds no such device.
    """
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
    """Import PyTorch, or name what needs it and what works without.

    Raises
    ------
    SettingsError
        It is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise extra_missing(what, "torch", instead) from None
