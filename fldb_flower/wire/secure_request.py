"""What the server and a device in secure sums send each other, as opaque bytes for the SuperNode.

A request has one of three kinds. ``hello`` asks for the identifier of the device's store.
``estimate`` has a broadcast that requests nothing. ``report`` has the header of an exchange, the
helper's key and the broadcast, of which the header has the hash. Both of the latter name the last
exchange in which the device's report was counted.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fldb_flower.errors import DataError, SettingsError
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.linalg.forms import make_form
from fldb_flower.secure.canonical import check_integer, framed, unframed
from fldb_flower.secure.keys import HelperKey
from fldb_flower.secure.report import Header
from fldb_flower.settings import SELECTION_SETTINGS, PrivacySettings, Settings
from fldb_flower.wire.codec import (
    BroadcastHeader,
    check_counts,
    decode_broadcast,
    encode_broadcast,
)
from fldb_flower.wire.secure_vector import check_units

HELLO, ESTIMATE, REPORT = "hello", "estimate", "report"
KINDS = (HELLO, ESTIMATE, REPORT)
REFUSED = "refused"

SHARED_SETTINGS = ("dimension", *SELECTION_SETTINGS)
"""Settings of the server's run that a device needs."""

_LARGEST = 2**53
_WHAT = "the broadcast of the exchange"
_PRIVATE = ("clip", "delta", "epsilon", "min_variance")
_MOST_REASON = 300  # characters


@dataclass(frozen=True)
class Request:
    """A request to a device.

    Attributes
    ----------
    kind : str
        ``hello``, ``estimate`` or ``report``.
    header : Header or None
        Of the exchange; for reports only.
    key : HelperKey or None
        The helper's key; for reports only.
    counted : int
        Number of the last exchange in which a report of this device was counted; 0: none.
    broadcast : bytes
        Of :func:`encode_shared`; empty for ``hello``.
    """

    kind: str
    header: Header | None = None
    key: HelperKey | None = None
    counted: int = 0
    broadcast: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        fields = {
            "counted": self.counted,
            "header": None if self.header is None else self.header.to_fields(),
            "key": None if self.key is None else self.key.to_fields(),
            "kind": self.kind,
        }
        return framed(fields, self.broadcast)

    @classmethod
    def from_bytes(cls, content: bytes) -> Request:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        names = ("counted", "header", "key", "kind")
        fields, broadcast = unframed(content, "the request", names)
        kind, header, key = fields["kind"], fields["header"], fields["key"]
        check_integer("counted", fields["counted"], 0, _LARGEST)
        if kind not in KINDS or {header is None, key is None} != {kind != REPORT}:
            raise DataError(f"the request has the kind {kind!r}, or lacks a header or a key")
        if kind != REPORT:
            return cls(kind, counted=fields["counted"], broadcast=broadcast)
        found = cls(
            kind, Header.from_fields(header), HelperKey.from_fields(key), fields["counted"],
            broadcast,
        )  # fmt: skip
        assert found.header is not None
        if hashlib.sha256(broadcast).digest() != found.header.broadcast:
            raise DataError("the broadcast has another hash than that in the header")
        return found


@dataclass(frozen=True)
class Reply:
    """A reply of a device.

    Attributes
    ----------
    kind : str
        That of the request, or ``refused``.
    device : str
        Identifier of the device's store.
    reason : str
        Why it is refused.
    report : bytes
        Of :class:`~fldb_flower.secure.report.Report`, with its header's hash in ``digest``.
    digest : bytes
        Hash of the header that the report is for.
    """

    kind: str
    device: str
    reason: str = ""
    report: bytes = b""
    digest: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        fields = {
            "device": self.device, "digest": self.digest.hex(), "kind": self.kind,
            "reason": self.reason[:_MOST_REASON],
        }  # fmt: skip
        return framed(fields, self.report)

    @classmethod
    def from_bytes(cls, content: bytes) -> Reply:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        fields, report = unframed(content, "the reply", ("device", "digest", "kind", "reason"))
        if not all(type(each) is str for each in fields.values()):
            raise DataError("a field of the reply is not text")
        try:
            digest = bytes.fromhex(fields.pop("digest"))
        except ValueError:
            raise DataError("the hash in the reply is not hexadecimal") from None
        return cls(**fields, report=report, digest=digest)


@dataclass(frozen=True)
class Shared:
    """What all devices of an exchange are sent.

    Attributes
    ----------
    broadcast : Broadcast
        The request.
    settings : Settings
        Those of the server's run, as far as a device needs them.
    duels : int
        About the number of duels, of all devices, that the estimate is based on.
    units : dict of str to float
        Of the parts of the vector (:mod:`fldb_flower.wire.secure_vector`); empty if the broadcast
        requests nothing.
    """

    broadcast: Broadcast
    settings: Settings
    duels: int
    units: dict[str, float]


def encode_shared(shared: Shared) -> bytes:
    """Return the bytes of a broadcast."""
    vector, header = encode_broadcast(shared.broadcast)
    settings = shared.settings
    chosen = {name: getattr(settings, name) for name in SHARED_SETTINGS}
    private = {name: getattr(settings.privacy, name) for name in _PRIVATE}
    fields: dict[str, Any] = {
        "duels": shared.duels,
        "header": list(header),
        "privacy": {**private, "clip": settings.clip},
        "settings": {**chosen, "lambda_": settings.ridge},
        "units": dict(shared.units),
    }
    return framed(fields, vector.astype("<f8").tobytes())


def decode_shared(content: bytes) -> Shared:
    """Invert :func:`encode_shared`, for content from any sender.

    Raises
    ------
    DataError
        The bytes are damaged, or a setting is invalid.
    """
    names = ("duels", "header", "privacy", "settings", "units")
    fields, body = unframed(content, _WHAT, names)
    check_integer(f"duels of {_WHAT}", fields["duels"], 0, _LARGEST)
    settings = _settings(fields["settings"], fields["privacy"])
    try:
        counts = check_counts(fields["header"], len(BroadcastHeader._fields))
        vector = np.frombuffer(body, "<f8")
        header = BroadcastHeader._make(counts)
        broadcast = decode_broadcast(vector, header, make_form(settings))
    except (TypeError, ValueError) as reason:
        raise DataError(f"{_WHAT} is damaged: {reason}") from None
    if broadcast.play is None or broadcast.scope != "fresh" or broadcast.loss:
        raise DataError(f"{_WHAT} asks about earlier answers, or for a loss")
    units = check_units(fields["units"], broadcast) if broadcast.learns else {}
    return Shared(broadcast, settings, fields["duels"], units)


def _settings(values: Any, private: Any) -> Settings:
    if not isinstance(values, dict) or set(values) != set(SHARED_SETTINGS):
        raise DataError(f"the settings of {_WHAT} are of another version of fldb-flower")
    if not isinstance(private, dict) or set(private) != set(_PRIVATE):
        raise DataError(f"the privacy of {_WHAT} is of another version of fldb-flower")
    clip = private["clip"]
    if type(clip) is not float or not 0.0 < clip < math.inf:
        raise DataError(f"the clip of {_WHAT} must be a positive number")
    try:
        settings = Settings(mode="simulation", **values, privacy=PrivacySettings(**private))
        return replace(settings, max_difference=clip)
    except (SettingsError, TypeError) as reason:
        raise DataError(f"{_WHAT}: {reason}") from None
