"""What all devices of a secure sum are sent, as bytes, and the encoding that follows from it.

The bytes are part of the header of the exchange (:mod:`fldb_flower.secure.header`), whose hash is
the associated data of every sealed piece. Devices that were sent different estimates or settings
therefore cannot contribute to one sum.

The bytes are: 4 bytes of length, canonical JSON of that length, and the float64 numbers of the
broadcast's vector (:mod:`fldb_flower.wire.codec`), little-endian.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from fldb_flower.errors import DataError, SettingsError
from fldb_flower.federation.exchange import Broadcast, Noise
from fldb_flower.linalg.forms import make_form
from fldb_flower.secure.canonical import check_integer, from_json, parse, to_json
from fldb_flower.secure.encoding import Encoding
from fldb_flower.secure.roster import LARGEST_NUMBER
from fldb_flower.settings import (
    NONE,
    SELECTION_SETTINGS,
    DevicesSettings,
    PrivacySettings,
    Settings,
)
from fldb_flower.wire.codec import (
    BroadcastHeader,
    check_counts,
    decode_broadcast,
    encode_broadcast,
)
from fldb_flower.wire.secure_upload import blocks_of, with_room

SHARED_SETTINGS = ("dimension", "max_difference", *SELECTION_SETTINGS)
"""Settings of the server's run that a device in secure sums needs."""

_WHAT = "the broadcast of the exchange"
_FIELDS = ("duels", "header", "lowest_variance", "settings")
_PRIVATE_FIELDS = (*_FIELDS, "privacy")
_PRIVATE_SETTINGS = {
    *(each.name for each in dataclasses.fields(PrivacySettings)),
    *("first_round", "min_duels", "personal_variance", "rounds"),
}
_LENGTH_BYTES = 4


class SharedNoise(NamedTuple):
    """The noise of a secure sum.

    Attributes
    ----------
    multiplier : float
        The noise multiplier: standard deviation of the noise over sensitivity.
    noise : Noise
        Standard deviations of the noise that the sum needs, by part.
    """

    multiplier: float
    noise: Noise


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
    privacy : SharedNoise or None
        The noise that the devices add; None without privacy, and if nothing is uploaded.
    """

    broadcast: Broadcast
    settings: Settings
    duels: int
    privacy: SharedNoise | None = None

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
            ``max_difference`` is not a number, ``matrix_form`` is ``sketch``, or a bound is not a
            positive finite number.
        """
        settings = self.settings
        longest = settings.max_difference
        try:
            blocks = blocks_of(
                self.broadcast,
                make_form(settings),
                answers=answers,
                longest=longest if isinstance(longest, float) else math.inf,
                ridge=settings.personal_ridge,
            )
            if self.privacy is not None:
                is_limited = settings.privacy.unit == "person"
                noise, multiplier = self.privacy.noise, self.privacy.multiplier
                blocks = with_room(blocks, noise, multiplier, is_limited=is_limited)
            return Encoding(blocks, devices)
        except (ValueError, ArithmeticError) as reason:
            raise SettingsError(f"the numbers of {_WHAT} have no bounds: {reason}") from None


def describe_encoding(encoding: Encoding) -> bytes:
    """Return the canonical bytes of an encoding, for :attr:`Header.encoding`."""
    return to_json({
        "blocks": [[block.size, block.bound, block.is_count] for block in encoding.blocks],
        "devices": encoding.devices,
        "exponents": list(encoding.exponents),
    })  # fmt: skip


def encode_shared(
    broadcast: Broadcast, settings: Settings, duels: int, privacy: SharedNoise | None = None
) -> bytes:
    """Return the bytes of a broadcast.

    Parameters
    ----------
    broadcast : Broadcast
        The request.
    settings : Settings
        Those of the server's run.
    duels : int
        Number of duels, of all devices, that the estimate is based on.
    privacy : SharedNoise, optional
        The noise that the devices add; needed if the settings are private and the broadcast
        requests statistics.
    """
    vector, header = encode_broadcast(broadcast)
    chosen = {name: getattr(settings, name) for name in SHARED_SETTINGS}
    fields: dict[str, Any] = {
        "duels": duels,
        "header": list(header),
        "lowest_variance": float(broadcast.lowest_variance),
        "settings": {**chosen, "lambda_": settings.ridge},
    }
    if settings.is_private:
        fields["privacy"] = {"settings": _private(settings)}
        if privacy is not None:
            fields["privacy"] |= {"multiplier": privacy.multiplier, "noise": [*privacy.noise]}
    index = to_json(fields)
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
    index = content[_LENGTH_BYTES:end]
    names = _PRIVATE_FIELDS if "privacy" in parse(index, _WHAT) else _FIELDS
    fields = from_json(index, _WHAT, names)
    check_integer(f"duels of {_WHAT}", fields["duels"], 0, LARGEST_NUMBER)
    private, privacy = _privacy(fields["privacy"]) if "privacy" in fields else ({}, None)
    settings = _settings(fields["settings"], private)
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
        broadcast._replace(lowest_variance=lowest), settings, int(fields["duels"]), privacy
    )


def _private(settings: Settings) -> dict[str, Any]:
    """Return the settings that determine the noise, beside :data:`SHARED_SETTINGS`."""
    chosen = dataclasses.asdict(settings.privacy)
    return chosen | {
        "clip": settings.clip,
        "first_round": settings.first_round,
        "min_duels": settings.min_duels,
        "personal_variance": settings.personal_variance,
        "rounds": settings.devices.rounds,
    }


def _privacy(fields: Any) -> tuple[dict[str, Any], SharedNoise | None]:
    """Return the settings of :func:`_private` as those of ``Settings``, and the noise."""
    known = {"settings"}
    try:
        chosen = dict(fields["settings"])
        if set(chosen) != _PRIVATE_SETTINGS or chosen["epsilon"] == NONE:
            raise ValueError(f"settings {sorted(chosen)}, with epsilon={chosen.get('epsilon')}")
        devices = DevicesSettings(rounds=chosen.pop("rounds"), min_duels=chosen.pop("min_duels"))
        others = {name: chosen.pop(name) for name in ("first_round", "personal_variance")}
        settings = {**others, "devices": devices, "privacy": PrivacySettings(**chosen)}
        privacy = None
        if "noise" in fields:
            known |= {"noise", "multiplier"}
            numbers = [fields["multiplier"], *fields["noise"]]
            if not all(type(each) is float and 0.0 <= each < math.inf for each in numbers):
                raise ValueError("a standard deviation is not a finite number, at least 0")
            privacy = SharedNoise(numbers[0], Noise._make(numbers[1:]))
        if set(fields) != known or (privacy is not None and not privacy.multiplier):
            raise ValueError(f"the fields {sorted(fields)}, or a noise multiplier of 0")
    except (KeyError, TypeError, ValueError, SettingsError) as reason:
        raise DataError(f"the privacy of {_WHAT} is damaged: {reason}") from None
    return settings, privacy


def _settings(values: Any, private: dict[str, Any]) -> Settings:
    if not isinstance(values, dict) or set(values) != set(SHARED_SETTINGS):
        raise DataError(
            f"the settings of {_WHAT} are not {', '.join(SHARED_SETTINGS)}: another version of"
            " fldb-flower sent it"
        )
    try:
        return Settings(mode="devices", **values, **private)
    except SettingsError as reason:
        raise DataError(f"{_WHAT}: {reason}") from None
