"""The header: all that the devices of one exchange have to agree on.

The hash of the header is the associated data of every ciphertext of the exchange. Devices that
were sent different headers, for example different estimates, cannot contribute to one sum.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from fldb_flower.errors import DataError, SecureError
from fldb_flower.secure.canonical import (
    check_bytes,
    check_integer,
    check_names,
    from_json,
    names_of,
    to_json,
    unhex,
)
from fldb_flower.secure.roster import LARGEST_NUMBER, Roster, draw_committee
from fldb_flower.secure.sharing import LARGEST_COMMITTEE, LEAST_COMMITTEE, Scheme

EXCHANGE_BYTES = 16
MOST_NUMBERS = 2**27
MOST_ENCODING_BYTES = 2**16
MOST_BROADCAST_BYTES = 2**28

_MAGIC = b"fldb-flower header 1\n"
_LENGTH_BYTES = 4
_MOST_JSON_BYTES = 8 * 2**20
_DEFAULT_MIN_DEVICES, _DEFAULT_MAX_DUELS = 10, 10_000

MOST_AHEAD, MOST_BEHIND = 3600.0, 7 * 86400.0
"""How far the round of an exchange may be from the clock of a device, in seconds."""


@dataclass(frozen=True)
class Header:
    """What all devices of an exchange are sent, byte by byte the same.

    Attributes
    ----------
    exchange : bytes
        Identifier, 16 random bytes.
    round : int
        When the exchange began, in milliseconds since 1970. It increases with every exchange, also
        if the server is restored from a backup. A device compares it with its clock, else a server
        could use up all later rounds of a device.
    roster : int
        Version of the roster.
    roster_digest : bytes
        SHA-256 of the roster's canonical bytes.
    asked : tuple of str
        The devices that are asked (U1), sorted.
    committee : tuple of str
        The draw of :func:`fldb_flower.secure.roster.draw_committee` from the devices asked, in its
        order.
    colluders, openings : int
        T, the number of members that may cooperate with the server, and U, the number of openings
        that the server needs.
    numbers : int
        Number of field elements that each device contributes.
    encoding : bytes
        Parameters of the encoding of floats.
    max_duels : int
        Largest number of answers that a device counts.
    min_devices : int
        Smallest number of devices in the sum that do not cooperate with the server. The sum has
        T devices more, see :attr:`least_devices`.
    min_duels : int
        Smallest number of new answers of a device.
    broadcast : bytes
        The whole broadcast.
    """

    exchange: bytes
    round: int
    roster: int
    roster_digest: bytes
    asked: tuple[str, ...]
    committee: tuple[str, ...]
    colluders: int
    openings: int
    numbers: int
    encoding: bytes
    max_duels: int
    min_devices: int
    min_duels: int
    broadcast: bytes

    def __post_init__(self) -> None:
        for name, low, high in (
            ("round", 1, LARGEST_NUMBER),
            ("roster", 1, LARGEST_NUMBER),
            ("colluders", 1, LARGEST_COMMITTEE),
            ("openings", 1, LARGEST_COMMITTEE),
            ("numbers", 1, MOST_NUMBERS),
            ("max_duels", 1, LARGEST_NUMBER),
            ("min_devices", 1, LARGEST_NUMBER),
            ("min_duels", 1, self.max_duels),
        ):
            check_integer(f"{name} of the header", getattr(self, name), low, high)
        for name, low, high in (
            ("exchange", EXCHANGE_BYTES, EXCHANGE_BYTES),
            ("roster_digest", 32, 32),
            ("encoding", 0, MOST_ENCODING_BYTES),
            ("broadcast", 0, MOST_BROADCAST_BYTES),
        ):
            check_bytes(f"{name} of the header", getattr(self, name), low, high)
        check_names("asked of the header", self.asked)
        check_names("committee of the header", self.committee, ascending=False)
        if not LEAST_COMMITTEE <= len(self.committee) <= LARGEST_COMMITTEE:
            raise DataError(
                f"a committee of {len(self.committee)} devices: must be {LEAST_COMMITTEE} to"
                f" {LARGEST_COMMITTEE}"
            )

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: one line, length and JSON of the fields, the broadcast."""
        return self._content

    @cached_property
    def _content(self) -> bytes:
        parts = to_json({
            each.name: value.hex() if isinstance(value, bytes) else value
            for each in fields(self)
            if each.name != "broadcast"
            for value in (getattr(self, each.name),)
        })  # fmt: skip
        return _MAGIC + len(parts).to_bytes(_LENGTH_BYTES, "big") + parts + self.broadcast

    @classmethod
    def from_bytes(cls, content: bytes) -> Header:
        """Return the header of canonical bytes.

        Raises
        ------
        DataError
            The bytes are not canonical, too long, or a field is unknown, missing or out of range.
        """
        start = len(_MAGIC) + _LENGTH_BYTES
        if not content.startswith(_MAGIC) or len(content) < start:
            raise DataError("the header has another format: another version of fldb-flower sent it")
        length = int.from_bytes(content[len(_MAGIC) : start], "big")
        if length > min(_MOST_JSON_BYTES, len(content) - start):
            raise DataError(f"the header has {len(content)} bytes, and announces {length} of JSON")
        names = [each.name for each in fields(cls) if each.name != "broadcast"]
        values: dict[str, Any] = from_json(content[start : start + length], "the header", names)
        for name in ("exchange", "roster_digest", "encoding"):
            values[name] = unhex(f"{name} of the header", values[name])
        for name in ("asked", "committee"):
            values[name] = names_of(f"{name} of the header", values[name])
        return cls(**values, broadcast=content[start + length :])

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def scheme(self) -> Scheme:
        """The sharing scheme for the committee."""
        return Scheme.of(len(self.committee))

    @property
    def least_devices(self) -> int:
        """``min_devices + T``, the smallest number of devices in the sum.

        The T members that may cooperate with the server contribute as well. The server knows their
        numbers, and the difference to the sum is over ``min_devices`` other devices at least.
        """
        return self.min_devices + self.scheme.tolerated


@dataclass(frozen=True)
class Limits:
    """What the owner of a device requires of every exchange.

    Attributes
    ----------
    min_duels : int
        Smallest number of new answers in an exchange, at least 1: two sums up to the same answer
        would give away the difference of their devices.
    min_devices : int
        Smallest number of devices in a sum that do not cooperate with the server. The sum has T
        devices more, where T is a fifth of the committee.
    min_committee : int, optional
        Smallest committee, at least 5; by default half of the devices in the roster, rounded up,
        or 256 if these are more. T colluders are a fifth of the devices *asked*, which the server
        chooses: without a minimum it could ask a few devices that cooperate with it.
    max_duels : int
        Largest number of answers in an exchange.
    """

    min_duels: int
    min_devices: int = _DEFAULT_MIN_DEVICES
    min_committee: int | None = None
    max_duels: int = _DEFAULT_MAX_DUELS

    def __post_init__(self) -> None:
        check_integer("min_duels", self.min_duels, 1, LARGEST_NUMBER)
        check_integer("min_devices", self.min_devices, 2, LARGEST_NUMBER)
        check_integer("max_duels", self.max_duels, self.min_duels, LARGEST_NUMBER)
        if self.min_committee is not None:
            check_integer("min_committee", self.min_committee, LEAST_COMMITTEE, LARGEST_COMMITTEE)

    def least_committee(self, roster: Roster) -> int:
        """Return the smallest committee for the devices of a roster."""
        if self.min_committee is not None:
            return self.min_committee
        half = (len(roster.keys) + 1) // 2
        return min(max(half, LEAST_COMMITTEE), LARGEST_COMMITTEE)

    def least_devices(self, roster: Roster) -> int:
        """Return the smallest number of devices present with which an exchange is possible."""
        least = max(self.min_devices, self.least_committee(roster))
        return next(
            count
            for count in itertools.count(least)
            if count - Scheme.of(min(count, LARGEST_COMMITTEE)).tolerated >= self.min_devices
        )


def new_header(
    roster: Roster,
    present: Collection[str],
    *,
    exchange: bytes,
    round: int,
    numbers: int,
    encoding: bytes,
    max_duels: int,
    limits: Limits,
    broadcast: bytes,
) -> Header:
    """Return the server's header for an exchange with the devices present.

    Raises
    ------
    SecureError
        A device is not in the roster, there are too few devices, or ``max_duels`` is beyond the
        limits.
    """
    least = limits.least_devices(roster)
    if len(set(present)) < least:
        raise SecureError(
            f"{len(set(present))} devices are present: a secure sum needs {least} for"
            f" min_devices={limits.min_devices} and a committee of"
            f" {limits.least_committee(roster)} or more"
        )
    if max_duels > limits.max_duels:
        raise SecureError(f"max_duels={max_duels}: must be at most {limits.max_duels}")
    committee = draw_committee(roster, present, round)
    scheme = Scheme.of(len(committee))
    return Header(
        exchange=exchange, round=round, roster=roster.version, roster_digest=roster.digest,
        asked=tuple(sorted(set(present))), committee=committee, colluders=scheme.tolerated,
        openings=scheme.needed, numbers=numbers, encoding=encoding, max_duels=max_duels,
        min_devices=limits.min_devices, min_duels=limits.min_duels, broadcast=broadcast,
    )  # fmt: skip


def check_header(header: Header, roster: Roster, limits: Limits, device: str, now: float) -> None:
    """Check on a device that it may take part in an exchange.

    Parameters
    ----------
    header : Header
        From the server.
    roster : Roster
        The device's verified roster.
    limits : Limits
        The owner's.
    device : str
        Identifier of the device.
    now : float
        Its clock, in seconds since 1970.

    Raises
    ------
    SecureError
        The first requirement that is not met.
    """
    _check_clock(header, now)
    if header.roster != roster.version:
        relation = "older" if header.roster < roster.version else "newer"
        raise SecureError(
            f"the exchange has version {header.roster} of the roster, {relation} than"
            f" {roster.version} on the device"
        )
    if header.roster_digest != roster.digest:
        raise SecureError(f"the exchange has another roster of version {roster.version}")
    if device not in header.asked:
        raise SecureError(f"{device} is not among the devices that the exchange asks")
    committee = draw_committee(roster, header.asked, header.round)
    if header.committee != committee:
        raise SecureError("the committee of the exchange is not the draw of its round")
    _check_limits(header, limits, limits.least_committee(roster))


def _check_clock(header: Header, now: float) -> None:
    ahead = header.round / 1000 - now
    if not -MOST_BEHIND <= ahead <= MOST_AHEAD:
        raise SecureError(
            f"the exchange began {abs(ahead) / 3600:.1f} hours {'after' if ahead > 0 else 'before'}"
            " the time of the device's clock: compare the clocks of device and server"
        )


def _check_limits(header: Header, limits: Limits, least_committee: int) -> None:
    scheme, members = header.scheme, len(header.committee)
    for what, value, least in (
        ("min_devices", header.min_devices, limits.min_devices),
        ("min_duels", header.min_duels, limits.min_duels),
        ("its number of members of the committee", members, least_committee),
        ("its number of devices", len(header.asked), header.least_devices),
    ):
        if value < least:
            raise SecureError(f"the exchange has {what}={value}, and the device requires {least}")
    if header.max_duels > limits.max_duels:
        raise SecureError(
            f"the exchange has max_duels={header.max_duels}, and the device allows"
            f" {limits.max_duels}"
        )
    if (header.colluders, header.openings) != (scheme.tolerated, scheme.needed):
        raise SecureError(
            f"the exchange has colluders={header.colluders}, openings={header.openings}: for"
            f" {members} members they must be {scheme.tolerated} and {scheme.needed}"
        )


def check_senders(header: Header, senders: Collection[str]) -> None:
    """Check that a sum is over ``min_devices + T`` devices (U3), and all of them were asked (U1).

    Raises
    ------
    SecureError
        It is not.
    """
    if len(set(senders)) < header.least_devices:
        raise SecureError(
            f"a sum of {len(set(senders))} devices: must be at least {header.least_devices},"
            f" min_devices={header.min_devices} and {header.scheme.tolerated} that may cooperate"
            " with the server"
        )
    if others := sorted(set(senders) - set(header.asked)):
        raise SecureError(f"{others[0]} is in the sum and was not asked")
