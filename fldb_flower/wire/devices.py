"""What server and devices say to each other beside statistics, and where a round leads.

A broadcast to a device holds, beside a :class:`~fldb_flower.wire.codec.BroadcastHeader`
(``first = last`` is the round, ``counted`` the last answer that the server has counted):

- ``device``: whose duels ``counted`` speaks of; a device with another id only introduces itself;
- ``upto``: the last answer to cover, where a round asks about the same duels again; else -1;
- ``duels``: how many duels of all devices the estimate rests on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class DeviceUploadHeader(NamedTuple):
    """The numbers beside a device's statistics.

    Attributes
    ----------
    num_duels : int
        Answers that the statistics are sums over.
    start, end : int
        They are the answers after ``start`` up to ``end``, numbered on the device.
    predicted, agreed : int
        How many of them were predicted when they were proposed (and were no tie), and how
        many of those as the person decided.
    """

    num_duels: int
    start: int
    end: int
    predicted: int
    agreed: int

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> DeviceUploadHeader:
        """Read the numbers of a reply.

        Raises
        ------
        TypeError, ValueError
            They are not as many whole numbers, none below 0.
        """
        if len(numbers) != len(cls._fields):
            raise ValueError(f"{len(numbers)} numbers instead of {len(cls._fields)}")
        if not all(float(number).is_integer() and number >= 0 for number in numbers):
            raise ValueError(f"counts that make no sense: {numbers}")
        return cls._make(map(int, numbers))
