"""Fixed-point numbers: floats and counts as elements of the field, and sums of them as floats.

A value x of a block with the scale ``2^k`` becomes the integer nearest to ``2^k x``. The sum of the
integers of all devices lies between ``-p / 2`` and ``p / 2``, so the field adds them exactly, in
any order. The sum as floats differs from the sum of the values by at most half a quantum,
``2^-k / 2``, for each device, and by the rounding to a float at the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fldb_flower.errors import DataError, SecureError
from fldb_flower.secure import field
from fldb_flower.secure.field import Elements, FloatArray, IntArray

LARGEST_SUM = (field.P - 1) // 2
"""The largest absolute value of a sum of integers."""

_LARGEST_COUNT = 2**53  # of a sum, which is exact as a float


@dataclass(frozen=True)
class Block:
    """Consecutive numbers of a vector with the same bound.

    Attributes
    ----------
    name : str
        Name of the block, for messages.
    size : int
        How many numbers it has.
    bound : float
        Upper bound of the absolute values of one device; it determines the scale. An integer, for
        counts.
    is_count : bool
        Whether the numbers are integers, which are encoded exactly.
    """

    name: str
    size: int
    bound: float
    is_count: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf:
            raise ValueError(f"{self.name} has the bound {self.bound}: must be positive")

    def largest(self, exponent: int) -> int:
        """Return the largest integer of one device, with the scale ``2^exponent``."""
        return math.floor(Fraction(self.bound) * Fraction(2) ** exponent + Fraction(1, 2))


@dataclass(frozen=True)
class Encoding:
    """Vectors of blocks of numbers, of which up to ``devices`` are added.

    Attributes
    ----------
    blocks : tuple of Block
        The blocks in the order of the vector.
    devices : int
        The largest number of vectors in a sum.

    Raises
    ------
    DataError
        Sums of counts may exceed 2^53.

    Examples
    --------
    >>> from fldb_flower.secure.encoding import Block, Encoding
    >>> from fldb_flower.secure.field import add
    >>> blocks = Block("gradient", 2, bound=8.0), Block("duels", 1, bound=100, is_count=True)
    >>> encoding = Encoding(blocks, devices=1000)
    >>> encoding.exponents
    (47, 0)
    >>> one, two = encoding.encode([-0.5, 1.25, 3]), encoding.encode([2.0, 0.1, 7])
    >>> encoding.decode(add(one, two), devices=2)
    array([ 1.5 ,  1.35, 10.  ])
    """

    blocks: tuple[Block, ...]
    devices: int

    def __post_init__(self) -> None:
        for block in self.blocks:
            if block.is_count and self.devices * block.bound > _LARGEST_COUNT:
                raise DataError(
                    f"{block.name} up to {block.bound:g} on {self.devices} devices: the sum may"
                    " exceed 2^53"
                )

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(block.size for block in self.blocks)

    @functools.cached_property
    def exponents(self) -> tuple[int, ...]:
        """The exponent of the scale of each block: the largest with which no sum overflows.

        It is 0 for counts.
        """
        return tuple(0 if block.is_count else self._exponent(block) for block in self.blocks)

    def _exponent(self, block: Block) -> int:
        # bound < 2^(exponent of bound), so this is at least the result.
        exponent = LARGEST_SUM.bit_length() - math.frexp(block.bound)[1] + 1
        while self.devices * block.largest(exponent) > LARGEST_SUM:
            exponent -= 1
        return exponent

    def quantise(self, numbers: FloatArray) -> IntArray:
        """Return the values of one device as integers, (n,) -> (n,).

        Raises
        ------
        DataError
            A value exceeds its bound or is not finite, a count is no integer, or the vector has
            another length.
        """
        values = np.asarray(numbers, dtype=np.float64)
        if values.shape != (self.size,):
            raise DataError(f"numbers of shape {values.shape} instead of {(self.size,)}")
        bounds = self._repeated([float(block.bound) for block in self.blocks])
        outside = np.flatnonzero(~(np.abs(values) <= bounds))  # NaN, too
        if len(outside):
            place = outside[0]
            raise DataError(
                f"{self._name(place)} = {values[place]:g}: must be from {-bounds[place]:g} to"
                f" {bounds[place]:g}"
            )
        integers = np.rint(np.ldexp(values, self._repeated(self.exponents)))
        are_counts = self._repeated([block.is_count for block in self.blocks])
        fractions = np.flatnonzero(are_counts & (integers != values))
        if len(fractions):
            place = fractions[0]
            raise DataError(f"{self._name(place)} = {values[place]:g}: must be an integer")
        result: IntArray = integers.astype(np.int64)
        return result

    def restore(self, integers: IntArray, devices: int | None = None) -> FloatArray:
        """Return a sum of integers as floats, (n,) -> (n,).

        Parameters
        ----------
        integers : IntArray
            The sum of the integers of several devices.
        devices : int, optional
            How many devices; by default, as many as the encoding allows.

        Raises
        ------
        SecureError
            The sum is larger than the bounds allow.
        """
        count = self.devices if devices is None else devices
        if not 0 <= count <= self.devices:
            raise SecureError(f"a sum over {count} devices, encoded for {self.devices}")
        if integers.shape != (self.size,):
            raise SecureError(f"a sum of shape {integers.shape} instead of {(self.size,)}")
        each = zip(self.blocks, self.exponents, strict=True)
        largest = [count * block.largest(exponent) for block, exponent in each]
        outside = np.flatnonzero(np.abs(integers) > self._repeated(largest))
        if len(outside):
            raise SecureError(
                f"the sum of {self._name(outside[0])} is larger than {count} devices within their"
                " bounds allow"
            )
        values: FloatArray = np.ldexp(integers.astype(np.float64), -self._repeated(self.exponents))
        return values

    def encode(self, numbers: FloatArray) -> Elements:
        """Return the values of one device as elements; raises as :meth:`quantise` does."""
        return field.from_integers(self.quantise(numbers))

    def elements(self, integers: IntArray) -> Elements:
        """Return integers of one device as elements.

        Raises
        ------
        DataError
            One is larger than its bound allows.
        """
        each = zip(self.blocks, self.exponents, strict=True)
        largest = self._repeated([block.largest(exponent) for block, exponent in each])
        outside = np.flatnonzero(np.abs(integers) > largest)
        if len(outside):
            raise DataError(f"{self._name(outside[0])} is larger than its bound allows")
        return field.from_integers(integers)

    def decode(self, values: Elements, devices: int | None = None) -> FloatArray:
        """Return a sum of encoded vectors as floats; raises as :meth:`restore` does."""
        return self.restore(field.to_integers(values), devices)

    def _repeated(self, of_blocks: Sequence[float]) -> NDArray[Any]:
        """Return a value of each block for each of its numbers, (n,)."""
        return np.repeat(of_blocks, [block.size for block in self.blocks])

    def _name(self, place: int) -> str:
        """Return the name of a number: that of its block, with the place in the block."""
        names = [
            f"{block.name}[{number}]" if block.size > 1 else block.name
            for block in self.blocks
            for number in range(block.size)
        ]
        return names[place]
