"""The request to a device in secure sums, and its statistics as a vector of length at most 1.

Each part of the statistics is divided by its unit, which the server chooses and sends. The vector
contains all parts and the number of duels. A symmetric matrix is represented by its triangle, with
off-diagonal entries multiplied by ``sqrt(2)``: its length is then the Frobenius norm. Noise with
standard deviation s in each value is noise of s in diagonal entries and of ``s / sqrt(2)`` in the
others, as in :class:`~fldb_flower.federation.exchange.Noise`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fldb_flower.bandit.features import Features, parse_features
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.federation.exchange import (
    MATRICES,
    AnyUpload,
    Broadcast,
    Noise,
    ShareUpload,
    Upload,
    length_of,
)
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.linear import Form, make_form, pack
from fldb_flower.secure.protocol import checked_fields, checked_integer, framed, unframed
from fldb_flower.settings import NONE, SELECTION_SETTINGS, PrivacySettings, Settings
from fldb_flower.wire import BroadcastHeader, decode_broadcast, encode_broadcast

DUELS = "num_duels"
"""The part with the number of duels: the new ones, or with shares all of the person's."""

_SETTINGS = ("dimension", *SELECTION_SETTINGS)  # of the server's run, that a device needs
_PRIVACY = ("clip", "delta", "epsilon", "min_variance")
_WHAT = "the broadcast of the exchange"


@dataclass(frozen=True)
class Shared:
    """What all devices of an exchange are sent."""

    broadcast: Broadcast
    settings: Settings  # of the server's run, as far as a device needs them
    duels: int  # approximate number of duels of all devices on which the estimate is based
    units: dict[str, float]  # of the parts of the vector; empty if nothing is requested
    features: Features | None = None  # of the federation

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        vector, header = encode_broadcast(self.broadcast)
        settings, privacy = self.settings, self.settings.privacy
        chosen = {name: getattr(settings, name) for name in _SETTINGS}
        if settings.decay is None:  # the bytes of 0.3.0
            del chosen["half_life"]
        if self.features is not None:
            chosen["features"] = self.features.to_json()
        private = {name: getattr(privacy, name) for name in _PRIVACY}
        fields = {
            "duels": self.duels,
            "header": header,
            "privacy": {**private, "clip": settings.clip},
            "settings": {**chosen, "lambda_": settings.ridge},
            "units": self.units,
        }
        return framed(fields, vector.astype("<f8").tobytes())

    @classmethod
    def from_bytes(cls, content: bytes) -> Shared:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        names = ("duels", "header", "privacy", "settings", "units")
        fields, body = unframed(content, _WHAT, names)
        duels = checked_integer(fields["duels"], f"duels of {_WHAT}", 0, 2**53)
        values, features = fields["settings"], None
        if isinstance(values, dict):
            if "features" in values:
                features = parse_features(values.pop("features"), _WHAT)
            values = {"half_life": NONE, **values}
        values = checked_fields(values, f"settings of {_WHAT}", _SETTINGS)
        private = checked_fields(fields["privacy"], f"privacy of {_WHAT}", _PRIVACY)
        _check_size(private["clip"], f"the clip of {_WHAT}")
        try:
            settings = Settings(mode="simulation", **values, privacy=PrivacySettings(**private))
            settings = replace(settings, max_difference=private["clip"])
            header = BroadcastHeader.from_config(fields)
            broadcast = decode_broadcast(np.frombuffer(body, "<f8"), header, make_form(settings))
        except (SettingsError, TypeError, ValueError) as reason:
            raise DataError(f"{_WHAT} is damaged: {reason}") from None
        if broadcast.play is None or broadcast.scope != "fresh" or broadcast.loss:
            raise DataError(f"{_WHAT} asks about earlier answers, or for a loss")
        if features is not None and features.dimension != settings.dimension:
            raise DataError(f"{_WHAT} has scales of {features.dimension} features")
        units = fields["units"]
        if broadcast.learns:
            for name in checked_fields(units, f"units of {_WHAT}", parts_of(broadcast)):
                _check_size(units[name], f"the unit of {name}")
        return cls(broadcast, settings, duels, units if broadcast.learns else {}, features)


def _check_size(value: Any, what: str) -> None:
    if type(value) is not float or not 0.0 < value < math.inf:
        raise DataError(f"{what} must be a positive number")


def parts_of(broadcast: Broadcast) -> tuple[str, ...]:
    """Return the names of the parts that a broadcast requests, in the order of the vector."""
    if broadcast.shares:
        return ("shift", "precision", "losses", DUELS)
    return ("gradient", "information", *(["hessian"] if broadcast.hessian else []), DUELS)


def size_of(broadcast: Broadcast, form: Form) -> int:
    """Return the number of values of the vector."""
    return sum(length_of(part, form) for part in parts_of(broadcast))


def vector_of(
    upload: AnyUpload, broadcast: Broadcast, units: Mapping[str, float], form: Form
) -> FloatArray:
    """Return the statistics of one person in the units of each part; it may be longer than 1."""
    values = []
    for name in parts_of(broadcast):
        value = getattr(upload, name)
        if name in MATRICES:
            value = pack(value) * form.off_diagonal()
        values.append(np.ravel(value) / units[name])
    return np.concatenate(values)


def upload_of(
    vector: FloatArray,
    deviation: float,
    broadcast: Broadcast,
    units: Mapping[str, float],
    form: Form,
) -> AnyUpload:
    """Return the sum of the vectors of several persons, with noise, as an upload.

    ``deviation`` is the standard deviation of the noise of each value of ``vector``.
    """
    values: dict[str, Any] = {}
    noise, start = {}, 0
    for name in parts_of(broadcast):
        end = start + length_of(name, form)
        value = vector[start:end] * units[name]
        if name in MATRICES:
            value = form.unpack(value / form.off_diagonal())
        values[name], noise[name], start = value, deviation * units[name], end
    duels = max(0, round(float(values.pop(DUELS)[0])))
    if broadcast.shares:
        return ShareUpload(duels, **values, squares=0.0, members=0.0, noise=Noise(**noise))
    return Upload(duels, **values, noise=Noise(**noise))
