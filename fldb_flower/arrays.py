"""The arrays that the mathematics is written against.

Every numerical function of this package keeps to the `array API standard
<https://data-apis.org/array-api>`_: it takes NumPy arrays or torch tensors and answers in
kind. The standard has no static type for "an array of some library", hence
:data:`Array`.
"""

from types import ModuleType
from typing import Any, TypeAlias

import array_api_compat
import numpy as np

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
