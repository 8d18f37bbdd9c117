"""Messages between the server of a federation of devices and its devices.

The ConfigRecord of a broadcast to a device holds:

- ``header``: a :class:`~fldb_flower.wire.codec.BroadcastHeader`; ``first = last`` is the round;
- ``counted``: number of the last answer that the server has counted;
- ``device``: id of the device that ``counted`` refers to; a device with another id replies with
  its id only;
- ``upto``: number of the last answer to cover if the same duels are asked about again, else -1;
- ``duels``: number of duels, of all devices, that the estimate is based on.

The ConfigRecord of the reply holds ``header``, a :class:`DeviceUploadHeader`, and ``device``.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from fldb_flower.errors import DataError
from fldb_flower.wire.codec import BroadcastHeader, check_counts

_LARGEST_COUNT = 2**53
_FORMER_COUNTS = 5


class DeviceRequest(NamedTuple):
    """The ConfigRecord of a broadcast to a device; the attributes are those listed above."""

    header: BroadcastHeader
    counted: int
    device: str
    upto: int
    duels: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DeviceRequest:
        """Check a ConfigRecord from any server.

        Raises
        ------
        DataError
            A field is missing, or has another type or range.
        """
        header = BroadcastHeader.from_config(config)
        numbers = []
        for name, least in (("counted", 0), ("upto", -1), ("duels", 0)):
            number = config.get(name)
            if type(number) is not int or not least <= number <= _LARGEST_COUNT:
                raise DataError(
                    f"the server's broadcast has {name}={reprlib.repr(number)}: must be an integer"
                    f" from {least} to 2^53"
                )
            numbers.append(number)
        device = config.get("device")
        if not isinstance(device, str):
            raise DataError("the server's broadcast has no text as device")
        counted, upto, duels = numbers
        return cls(header, counted, device, upto, duels)


class DeviceUploadHeader(NamedTuple):
    """The integers that describe an upload of a device.

    Attributes
    ----------
    num_duels : int
        Answers that the statistics are sums over.
    start, end : int
        Those are the answers after ``start`` up to ``end``, as numbered by the device.
    predicted, agreed : int
        Answers (ties excluded) for which a prediction existed when the duel was proposed, and
        those of them that agree with the prediction.
    held, missing : int
        Answers that the device holds back for a later upload, and how many distinct duels that one
        lacks.
    """

    num_duels: int
    start: int
    end: int
    predicted: int
    agreed: int
    held: int = 0
    missing: int = 0

    @classmethod
    def from_counts(cls, numbers: Any) -> DeviceUploadHeader:
        """Check the numbers of a reply; see :func:`~fldb_flower.wire.codec.check_counts`.

        Devices of version 0.2 send the first five only.
        """
        length = len(cls._fields) - (len(numbers) == _FORMER_COUNTS) * len(cls._field_defaults)
        return cls(*check_counts(numbers, length))
