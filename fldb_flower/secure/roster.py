"""The roster: the public keys of all devices, signed offline.

A server that invents devices could read the sum of one real device and of invented ones. For this
reason a device accepts only keys of a roster that is signed with an Ed25519 key (RFC 8032), whose
public half is pinned on the device. Whoever holds the signing key can add devices. If that is the
operator of the server, the secure sum protects only against an operator who follows the protocol.

A roster file is JSON that a person can read::

    {
      "roster": {
        "devices": {"device1": "<X25519 public key, base64>", ...},
        "format": 1,
        "not_after": "2027-12-31",
        "not_before": null,
        "version": 3
      },
      "signature": "<Ed25519 signature of the canonical bytes of the roster, base64>"
    }
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fldb_flower.errors import DataError, SecureError
from fldb_flower.secure.canonical import (
    MOST_NAMES,
    check_bytes,
    check_fields,
    check_integer,
    check_name,
    parse,
    to_json,
)
from fldb_flower.secure.sharing import LARGEST_COMMITTEE, LEAST_COMMITTEE

KEY_BYTES = 32
LARGEST_NUMBER = 2**53 - 1
"""Largest version, round and count: JSON readers of all languages keep it exact."""

_FORMAT = 1
_FIELDS = ("devices", "format", "not_after", "not_before", "version")
_DOMAIN = b"fldb-flower roster 1\n"
_DRAW = b"fldb-flower committee 1\n"
_ORDER = 2**255 - 19  # of the field of X25519
_MOST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Roster:
    """The X25519 public keys of devices (RFC 7748).

    Attributes
    ----------
    version : int
        From 1; each renewal has a later one.
    keys : mapping of str to bytes
        The public key, 32 bytes, of each device. No two devices have the same key.
    not_before, not_after : date, optional
        First and last day on which devices accept the roster.
    """

    version: int
    keys: Mapping[str, bytes]
    not_before: datetime.date | None = None
    not_after: datetime.date | None = None
    digest: bytes = field(init=False, repr=False, compare=False)
    """SHA-256 of the canonical bytes."""

    def __post_init__(self) -> None:
        check_integer("the version of the roster", self.version, 1, LARGEST_NUMBER)
        _check_count(len(self.keys))
        owners: dict[bytes, str] = {}
        for name, key in self.keys.items():
            check_name("a device of the roster", name)
            _check_key(name, key)
            if (other := owners.setdefault(key, name)) != name:
                raise DataError(f"{other} and {name} have the same public key")
        first, last = self.not_before, self.not_after
        if first and last and first > last:
            raise DataError(f"not_before={first} is after not_after={last}")
        object.__setattr__(self, "keys", MappingProxyType(dict(sorted(self.keys.items()))))
        object.__setattr__(self, "digest", hashlib.sha256(self.to_bytes()).digest())

    def fields(self) -> dict[str, Any]:
        """Return the content of the file without the signature."""
        return {
            "devices": {name: base64.b64encode(key).decode() for name, key in self.keys.items()},
            "format": _FORMAT,
            "not_after": self.not_after and self.not_after.isoformat(),
            "not_before": self.not_before and self.not_before.isoformat(),
            "version": self.version,
        }

    def to_bytes(self) -> bytes:
        """Return the canonical bytes, which the signature covers."""
        return to_json(self.fields())

    def renewed(
        self,
        add: Mapping[str, bytes],
        remove: Collection[str] = (),
        not_before: datetime.date | None = None,
        not_after: datetime.date | None = None,
        version: int | None = None,
    ) -> Roster:
        """Return the roster of a later version, by default the next one.

        Raises
        ------
        DataError
            A device to add exists, a device to remove does not, or the version is not greater.
        """
        chosen = self.version + 1 if version is None else version
        if chosen <= self.version:
            raise DataError(f"version={chosen}: must be above {self.version}, the last one")
        if unknown := sorted(set(remove) - set(self.keys)):
            raise DataError(f"cannot remove {unknown[0]}: it is not in the roster")
        kept = {name: key for name, key in self.keys.items() if name not in remove}
        if known := sorted(set(add) & set(kept)):
            raise DataError(f"cannot add {known[0]}: it is in the roster; remove it to replace it")
        return Roster(chosen, {**kept, **add}, not_before, not_after)


def sign(roster: Roster, key: Ed25519PrivateKey) -> bytes:
    """Return the content of a roster file.

    Examples
    --------
    >>> from datetime import date
    >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    >>> from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    >>> from fldb_flower.secure.roster import Roster, sign, verify
    >>> signer, device = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    >>> roster = Roster(1, {"device1": device.public_key().public_bytes_raw()})
    >>> verify(sign(roster, signer), signer.public_key(), date(2027, 5, 1)) == roster
    True
    """
    signature = base64.b64encode(key.sign(_DOMAIN + roster.to_bytes())).decode()
    content = {"roster": roster.fields(), "signature": signature}
    return json.dumps(content, sort_keys=True, indent=2).encode() + b"\n"


def verify(
    content: bytes,
    signer: Ed25519PublicKey,
    today: datetime.date,
    last: Roster | None = None,
) -> Roster:
    """Return the roster of a file after all checks.

    Parameters
    ----------
    content : bytes
        The file.
    signer : Ed25519PublicKey
        The pinned key.
    today : date
        The day for the validity.
    last : Roster, optional
        The roster in use until now. An older version, or another roster with the same version, is
        refused.

    Raises
    ------
    DataError
        The file is damaged, or has unknown fields.
    SecureError
        The signature is not that of the signer, the version is too old, or the roster is not valid
        today.
    """
    roster = read_signed(content, signer)
    if last and roster.version < last.version:
        raise SecureError(f"the roster has version {roster.version}, older than {last.version}")
    if last and roster.version == last.version and roster.digest != last.digest:
        raise SecureError(f"there are two different rosters of version {roster.version}")
    first, end = roster.not_before, roster.not_after
    if (first and today < first) or (end and today > end):
        raise SecureError(
            f"the roster, version {roster.version}, is valid from {first or 'any day'}"
            f" to {end or 'any day'}, and today is {today}"
        )
    return roster


def read_signed(content: bytes, signer: Ed25519PublicKey) -> Roster:
    """Return the roster of a file after a check of the signature only, to show or renew it.

    Raises
    ------
    DataError
        The file is damaged, or has unknown fields.
    SecureError
        The signature is not that of the signer.
    """
    fields, keys, signature = _parsed(content)
    try:  # before the keys are checked, which takes long
        signer.verify(signature, _DOMAIN + to_json(fields))
    except InvalidSignature:
        raise SecureError(
            f"the signature of the roster, version {fields['version']}, is not by the pinned key"
        ) from None
    return _roster(fields, keys)


def read(content: bytes) -> tuple[Roster, bytes]:
    """Return the roster of a file and its signature, without a check of the signature.

    Raises
    ------
    DataError
        The file is damaged, or has unknown fields.
    """
    fields, keys, signature = _parsed(content)
    return _roster(fields, keys), signature


def _parsed(content: bytes) -> tuple[dict[str, Any], dict[str, bytes], bytes]:
    """Return the fields of a roster file, its keys and its signature."""
    if len(content) > _MOST_BYTES:
        raise DataError(f"the roster has {len(content)} bytes: must be at most {_MOST_BYTES}")
    outer = parse(content, "the roster file")
    check_fields(outer, "the roster file", ("roster", "signature"))
    fields = outer["roster"]
    if not isinstance(fields, dict):
        raise DataError("the roster is not a JSON object")
    check_fields(fields, "the roster", _FIELDS)
    check_integer("the format of the roster", fields["format"], _FORMAT, _FORMAT)
    if not isinstance(fields["devices"], dict):
        raise DataError("the devices of the roster are not a JSON object")
    _check_count(len(fields["devices"]))
    for name in fields["devices"]:
        check_name("a device of the roster", name)
    keys = {name: _decode(f"the key of {name}", key) for name, key in fields["devices"].items()}
    for name, key in keys.items():
        check_bytes(f"the public key of {name}", key, KEY_BYTES, KEY_BYTES)
    for name in ("not_before", "not_after"):
        _date(name, fields[name])
    check_integer("the version of the roster", fields["version"], 1, LARGEST_NUMBER)
    signature = _decode("the signature of the roster", outer["signature"])
    check_bytes("the signature of the roster", signature, 64, 64)
    return fields, keys, signature


def _roster(fields: Mapping[str, Any], keys: Mapping[str, bytes]) -> Roster:
    first, last = (_date(name, fields[name]) for name in ("not_before", "not_after"))
    return Roster(fields["version"], keys, first, last)


def draw_committee(roster: Roster, present: Collection[str], round: int) -> tuple[str, ...]:
    """Return the committee of a round: up to 256 of the devices present, in random order.

    The members are the devices with the smallest SHA-256 of roster version, round and identifier
    (bottom-k sampling), in ascending order of it: the first members receive shorter pieces (see
    :meth:`fldb_flower.secure.sharing.Scheme.messages`), and they are others in each round. If one
    device is absent, at most one member changes. The server can still choose among draws by its
    choice of the round and of the devices present.

    Parameters
    ----------
    roster : Roster
        The roster; only its version affects the draw.
    present : collection of str
        The devices to draw from.
    round : int
        Number of the round, from 1 to 2^53 - 1.

    Raises
    ------
    SecureError
        A device is not in the roster, or there are fewer than 5 devices.

    References
    ----------
    E. Cohen and H. Kaplan, "Summarizing data using bottom-k sketches", PODC 2007.
    """
    check_integer("round", round, 1, LARGEST_NUMBER)
    names = set(present)
    if invented := sorted(names - set(roster.keys)):
        raise SecureError(
            f"{invented[0]} has no key in the roster, version {roster.version}: it cannot take part"
        )
    if len(names) < LEAST_COMMITTEE:
        raise SecureError(
            f"a committee of {len(names)} devices: must be at least {LEAST_COMMITTEE}"
        )
    prefix = _DRAW + roster.version.to_bytes(8, "big") + round.to_bytes(8, "big")
    drawn = sorted(names, key=lambda name: hashlib.sha256(prefix + name.encode()).digest())
    return tuple(drawn[:LARGEST_COMMITTEE])


def _check_count(devices: int) -> None:
    if not 0 < devices <= MOST_NAMES:
        raise DataError(f"a roster of {devices} devices: must be 1 to {MOST_NAMES}")


def _check_key(name: str, key: object) -> None:
    """Check that a key is canonical and that a shared secret with it is not always zero."""
    check_bytes(f"the public key of {name}", key, KEY_BYTES, KEY_BYTES)
    assert isinstance(key, bytes)
    try:
        if int.from_bytes(key, "little") >= _ORDER:
            raise ValueError
        X25519PrivateKey.from_private_bytes(bytes(KEY_BYTES)).exchange(
            X25519PublicKey.from_public_bytes(key)
        )
    except ValueError:
        raise DataError(f"the public key of {name} is not a valid X25519 key") from None


def _decode(what: str, value: object) -> bytes:
    try:
        if not isinstance(value, str):
            raise ValueError
        decoded = base64.b64decode(value, validate=True)
        if base64.b64encode(decoded).decode() != value:  # unused bits must be zero
            raise ValueError
    except (ValueError, binascii.Error):
        raise DataError(f"{what} is not base64") from None
    return decoded


def _date(name: str, value: object) -> datetime.date | None:
    if value is None:
        return None
    try:
        day = datetime.date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        day = None
    if day is None or day.isoformat() != value:
        raise DataError(f"{name} of the roster is {value!r}: must be a date like 2027-12-31")
    return day
