"""What all devices of a secure sum are sent, as bytes, and the encoding that follows from it.

The bytes are part of the header of the exchange (:mod:`fldb_flower.secure.header`), whose hash is
the associated data of every sealed piece. Devices that were sent different estimates or settings
therefore cannot contribute to one sum.

The bytes are: 4 bytes of length, canonical JSON of that length, and the float64 numbers of the
broadcast's vector (:mod:`fldb_flower.wire.codec`), little-endian.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fldb_flower.errors import DataError, SettingsError
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.linalg.forms import make_form
from fldb_flower.secure.canonical import check_integer, from_json, to_json
from fldb_flower.secure.encoding import Encoding
from fldb_flower.secure.roster import LARGEST_NUMBER
from fldb_flower.settings import SELECTION_SETTINGS, Settings
from fldb_flower.wire.codec import (
    BroadcastHeader,
    check_counts,
    decode_broadcast,
    encode_broadcast,
)
from fldb_flower.wire.secure_upload import blocks_of

SHARED_SETTINGS = ("dimension", "max_difference", *SELECTION_SETTINGS)
"""Settings of the server's run that a device in secure sums needs."""

_WHAT = "the broadcast of the exchange"
_FIELDS = ("duels", "header", "lowest_variance", "settings")
_LENGTH_BYTES = 4


class SharedBroadcast(NamedTuple):
    """The broadcast of a secure sum.

    Attributes
    ----------
    broadcast : Broadcast
        The request, with ``lowest_variance``.
    settings : Settings
        Those of the server's run, as far as a device needs them (:data:`SHARED_SETTINGS`).
    duels : int
        Number of duels, of all devices, that the estimate is based on.
    """

    broadcast: Broadcast
    settings: Settings
    duels: int

    def encoding(self, devices: int, answers: int) -> Encoding:
        """Return the encoding of the numbers of one device.

        Parameters
        ----------
        devices : int
            Largest number of devices in the sum.
        answers : int
            Largest number of answers of one device.

        Raises
        ------
        SettingsError
            ``max_difference`` is not a number, or ``matrix_form`` is ``sketch``.
        """
        settings = self.settings
        longest = settings.max_difference
        blocks = blocks_of(
            self.broadcast,
            make_form(settings),
            answers=answers,
            longest=longest if isinstance(longest, float) else math.inf,
            ridge=settings.personal_ridge,
        )
        return Encoding(blocks, devices)


def describe_encoding(encoding: Encoding) -> bytes:
    """Return the canonical bytes of an encoding, for :attr:`Header.encoding`."""
    return to_json({
        "blocks": [[block.size, block.bound, block.is_count] for block in encoding.blocks],
        "devices": encoding.devices,
        "exponents": list(encoding.exponents),
    })  # fmt: skip


def encode_shared(broadcast: Broadcast, settings: Settings, duels: int) -> bytes:
    """Return the bytes of a broadcast.

    Parameters
    ----------
    broadcast : Broadcast
        The request.
    settings : Settings
        Those of the server's run.
    duels : int
        Number of duels, of all devices, that the estimate is based on.
    """
    vector, header = encode_broadcast(broadcast)
    chosen = {name: getattr(settings, name) for name in SHARED_SETTINGS}
    index = to_json({
        "duels": duels,
        "header": list(header),
        "lowest_variance": float(broadcast.lowest_variance),
        "settings": {**chosen, "lambda_": settings.ridge},
    })  # fmt: skip
    return len(index).to_bytes(_LENGTH_BYTES, "big") + index + vector.astype("<f8").tobytes()


def decode_shared(content: bytes) -> SharedBroadcast:
    """Invert :func:`encode_shared`, for content from any sender.

    Raises
    ------
    DataError
        The bytes are damaged, or a setting is invalid.
    """
    length = int.from_bytes(content[:_LENGTH_BYTES], "big")
    end = _LENGTH_BYTES + length
    if len(content) < end or (len(content) - end) % 8:
        raise DataError(f"{_WHAT} has {len(content)} bytes, and announces {length} of JSON")
    fields = from_json(content[_LENGTH_BYTES:end], _WHAT, _FIELDS)
    check_integer(f"duels of {_WHAT}", fields["duels"], 0, LARGEST_NUMBER)
    settings = _settings(fields["settings"])
    lowest = fields["lowest_variance"]
    if type(lowest) is not float or not 0.0 <= lowest < math.inf:
        raise DataError(f"lowest_variance of {_WHAT} must be a finite number, at least 0")
    try:
        counts = check_counts(fields["header"], len(BroadcastHeader._fields))
        header = BroadcastHeader._make(counts)
        vector = np.frombuffer(content, "<f8", offset=end)
        broadcast = decode_broadcast(vector, header, make_form(settings))
    except (TypeError, ValueError) as reason:
        raise DataError(f"{_WHAT} is damaged: {reason}") from None
    return SharedBroadcast(
        broadcast._replace(lowest_variance=lowest), settings, int(fields["duels"])
    )


def _settings(values: Any) -> Settings:
    if not isinstance(values, dict) or set(values) != set(SHARED_SETTINGS):
        raise DataError(
            f"the settings of {_WHAT} are not {', '.join(SHARED_SETTINGS)}: another version of"
            " fldb-flower sent it"
        )
    try:
        return Settings(mode="devices", **values)
    except SettingsError as reason:
        raise DataError(f"{_WHAT}: {reason}") from None
