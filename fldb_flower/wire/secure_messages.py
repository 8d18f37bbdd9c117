"""The messages between the server and the devices of secure sums, as bytes.

A Flower message carries them as the only entry, :data:`KEY`, of the ConfigRecord ``config``. On the
device, the ClientApp passes them to the preference service and does not read them.

The bytes are: one line with the format, 4 bytes of length, canonical JSON of that length, and the
byte strings of the message, in the order of their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from fldb_flower.errors import DataError
from fldb_flower.secure.canonical import (
    check_bytes,
    check_fields,
    check_integer,
    check_name,
    check_names,
    from_json,
    names_of,
    to_json,
)
from fldb_flower.secure.header import EXCHANGE_BYTES
from fldb_flower.secure.roster import LARGEST_NUMBER

KEY = "secure"
"""Name of the entry of a ConfigRecord."""

MOST_BYTES = 2**30
"""Largest message."""

_MAGIC = b"fldb-flower node 1\n"
_LENGTH_BYTES = 4
_MOST_REASON = 300  # characters


@dataclass(frozen=True)
class Hello:
    """Request to introduce the device.

    Attributes
    ----------
    roster : bytes
        The server's signed roster. The device accepts it if it is newer than its own and all checks
        of :func:`fldb_flower.secure.roster.verify` pass. Empty: the device's version is known.
    """

    roster: bytes


@dataclass(frozen=True)
class Collect:
    """Request: contribute to a sum.

    Attributes
    ----------
    header : bytes
        Of :class:`fldb_flower.secure.header.Header`; with :mod:`fldb_flower.wire.shared_broadcast`.
    counted : bytes
        The last exchange with this device that the server has counted; empty if there is none.
    """

    header: bytes
    counted: bytes


@dataclass(frozen=True)
class Open:
    """Request to a member of the committee: return the sum of these pieces.

    Attributes
    ----------
    header : bytes
        As in :class:`Collect`.
    sealed : mapping of str to bytes
        For each device of the sum (U3), its sealed piece for this member.
    """

    header: bytes
    sealed: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class Deliver:
    """Request: store the estimate; nothing is contributed.

    Attributes
    ----------
    broadcast : bytes
        Of :mod:`fldb_flower.wire.shared_broadcast`.
    counted : bytes
        As in :class:`Collect`.
    """

    broadcast: bytes
    counted: bytes


@dataclass(frozen=True)
class Introduced:
    """Reply to :class:`Hello`.

    Attributes
    ----------
    name : str
        Identifier of the device in the roster.
    version : int
        Version of the roster in use.
    """

    name: str
    version: int


@dataclass(frozen=True)
class Pieces:
    """Reply to :class:`Collect`: the sealed piece for each member of the committee."""

    sealed: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class Declined:
    """Reply to :class:`Collect`: there are too few new answers. How many is not sent."""


@dataclass(frozen=True)
class Opened:
    """Reply to :class:`Open`: the sum of the pieces."""

    opening: bytes = field(repr=False)


@dataclass(frozen=True)
class Blamed:
    """Reply to :class:`Open`: the pieces of these devices do not open."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class Delivered:
    """Reply to :class:`Deliver`."""


@dataclass(frozen=True)
class Refused:
    """Reply to any request: it violates the protocol or the owner's limits.

    Attributes
    ----------
    reason : str
        One line, without anything about the answers.
    """

    reason: str


Request = Hello | Collect | Open | Deliver
Reply = Introduced | Pieces | Declined | Opened | Blamed | Delivered | Refused

_KINDS: dict[str, type[Any]] = {
    kind.__name__.lower(): kind
    for kind in (
        Hello, Collect, Open, Deliver,
        Introduced, Pieces, Declined, Opened, Blamed, Delivered, Refused,
    )
}  # fmt: skip


def encode(message: Request | Reply) -> bytes:
    """Return a message as bytes.

    Examples
    --------
    >>> from fldb_flower.wire.secure_messages import Introduced, decode_reply, encode
    >>> decode_reply(encode(Introduced("device1", version=3)))
    Introduced(name='device1', version=3)
    """
    values: dict[str, Any] = {}
    lengths: dict[str, Any] = {}
    blobs: list[bytes] = []
    for each in sorted(fields(message), key=lambda one: one.name):
        value = getattr(message, each.name)
        if isinstance(value, bytes):
            lengths[each.name] = len(value)
            blobs.append(value)
        elif isinstance(value, Mapping):
            lengths[each.name] = {name: len(value[name]) for name in sorted(value)}
            blobs += [value[name] for name in sorted(value)]
        else:
            values[each.name] = value
    index = to_json({
        "kind": type(message).__name__.lower(), "lengths": lengths, "values": values
    })  # fmt: skip
    return b"".join([_MAGIC, len(index).to_bytes(_LENGTH_BYTES, "big"), index, *blobs])


def decode_request(content: bytes) -> Request:
    """Return the request of bytes from any sender.

    Raises
    ------
    DataError
        The bytes are no request of this version.
    """
    message = _decode(content)
    if not isinstance(message, Request):
        raise DataError(f"{type(message).__name__} is no request")
    if isinstance(message, Collect | Deliver) and message.counted:
        check_bytes("counted of the request", message.counted, EXCHANGE_BYTES, EXCHANGE_BYTES)
    return message


def decode_reply(content: bytes) -> Reply:
    """Return the reply of bytes from any sender.

    Raises
    ------
    DataError
        The bytes are no reply of this version.
    """
    message = _decode(content)
    if not isinstance(message, Reply):
        raise DataError(f"{type(message).__name__} is no reply")
    return message


def _decode(content: bytes) -> Any:
    start = len(_MAGIC) + _LENGTH_BYTES
    if not content.startswith(_MAGIC) or not start <= len(content) <= MOST_BYTES:
        raise DataError("the message has another format: another version of fldb-flower sent it")
    end = start + int.from_bytes(content[len(_MAGIC) : start], "big")
    index = from_json(content[start:end], "the message", ("kind", "lengths", "values"))
    lengths, values = index["lengths"], index["values"]
    if not (isinstance(index["kind"], str) and isinstance(lengths, dict)):
        raise DataError("the message has no kind, or no lengths")
    if (kind := _KINDS.get(index["kind"])) is None or not isinstance(values, dict):
        raise DataError("the message is of an unknown kind")
    check_fields({**values, **lengths}, "the message", [each.name for each in fields(kind)])
    found, end = _blobs(content, end, lengths)
    if end != len(content):
        raise DataError(f"the message has {len(content)} bytes instead of {end}")
    parts = {**values, **found}
    for each in fields(kind):
        parts[each.name] = _CHECKS[each.type](each.name, parts[each.name])
    return kind(**parts)


def _blobs(content: bytes, at: int, lengths: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the byte strings after a place, and where they end."""

    def take(length: object) -> bytes:
        nonlocal at
        check_integer("a length of the message", length, 0, MOST_BYTES)
        assert isinstance(length, int)
        at += length
        return content[at - length : at]

    found: dict[str, Any] = {}
    for name, value in lengths.items():  # sorted: the JSON is canonical
        if isinstance(value, dict):
            found[name] = MappingProxyType({key: take(length) for key, length in value.items()})
        else:
            found[name] = take(value)
    return found, at


def _bytes(name: str, value: object) -> bytes:
    if not isinstance(value, bytes):
        raise DataError(f"{name} of the message is not a byte string")
    return value


def _sealed(name: str, value: object) -> Mapping[str, bytes]:
    if not isinstance(value, Mapping):
        raise DataError(f"{name} of the message is not a mapping of byte strings")
    check_names(f"{name} of the message", tuple(value))
    return value


def _name(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise DataError(f"{name} of the message is not text")
    if name == "name":
        check_name("the name of the device", value)
    return value[:_MOST_REASON]


def _integer(name: str, value: object) -> int:
    check_integer(f"{name} of the message", value, 1, LARGEST_NUMBER)
    assert isinstance(value, int)
    return value


def _names(name: str, value: object) -> tuple[str, ...]:
    names = names_of(f"{name} of the message", value)
    check_names(f"{name} of the message", names)
    return names


_CHECKS: dict[Any, Any] = {
    "bytes": _bytes,
    "Mapping[str, bytes]": _sealed,
    "str": _name,
    "int": _integer,
    "tuple[str, ...]": _names,
}  # by annotation
