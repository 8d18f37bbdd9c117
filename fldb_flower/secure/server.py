"""The server in a secure sum: what it collects, the set it fixes, and the sum it computes.

1. *Collect.* Each device asked (U1) sends one sealed piece for each member of the committee
   (:meth:`ServerExchange.receive`).
2. *Open.* The server fixes the set of the devices in the sum (U3, :meth:`ServerExchange.choose`)
   and passes the sealed pieces on (:meth:`ServerExchange.pieces_for`). Each member answers with
   the sum of its pieces (:meth:`ServerExchange.answer`). From U answers, the server computes the
   sum of the numbers (:meth:`ServerExchange.combine`).

The caller stores the state before it asks the first member, so that all members are asked about
the same set, also after a restart.

Openings have no signature or tag of their own. Whoever can change them on the way (the channel
protects them with TLS) can only make answers wrong. The server finds and names these by parity, as
it has to with members that send wrong answers themselves.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from fldb_flower.errors import BlameError, DataError, SecureError
from fldb_flower.secure.canonical import from_json, names_of, to_json
from fldb_flower.secure.field import ELEMENT_BYTES, SEED_BYTES, Elements, from_bytes
from fldb_flower.secure.header import Header, check_senders
from fldb_flower.secure.sealing import OVERHEAD

_MAGIC = b"fldb-flower exchange 1\n"
_LENGTH_BYTES = 4
_FIELDS = ("chosen", "given_up", "header", "openings", "sealed")


class Phase(enum.Enum):
    """The phases of an exchange on the server."""

    COLLECT = "collect"
    OPEN = "open"
    GIVEN_UP = "given up"


class Sum(NamedTuple):
    """The result of an exchange.

    Attributes
    ----------
    numbers : Elements
        The sum of the numbers of the devices in the set, (n,).
    wrong : tuple of str
        Members whose answers are wrong and were left out. A device that sent a member a wrong
        piece has the same effect as a wrong answer of this member.
    checks : int
        Number of answers beyond the required ones. With ``checks`` of 0, a wrong answer remains
        unnoticed.
    """

    numbers: Elements
    wrong: tuple[str, ...]
    checks: int


@dataclass(frozen=True)
class ServerExchange:
    """The server's state of one exchange.

    Each method returns a new state. All attributes are plain values, which the caller stores.

    Attributes
    ----------
    header : Header
        The exchange.
    sealed : mapping of str to mapping of str to bytes
        For each device that answered, the sealed piece for each member.
    chosen : tuple of str
        U3, the devices in the sum, sorted; empty while the server collects.
    openings : mapping of str to bytes
        For each member that answered, its sum.
    given_up : bool
        Whether the server has given up. Nothing is counted, and the devices keep their answers.

    Examples
    --------
    Five devices contribute one number each:

    >>> import numpy as np
    >>> from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    >>> from fldb_flower.secure.device import Device
    >>> from fldb_flower.secure.header import Limits, new_header
    >>> from fldb_flower.secure.journal import Journal
    >>> from fldb_flower.secure.roster import Roster
    >>> from fldb_flower.secure.server import ServerExchange
    >>> keys = {name: X25519PrivateKey.generate() for name in "abcde"}
    >>> public = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}
    >>> roster, limits = Roster(1, public), Limits(min_duels=1, min_devices=4)
    >>> devices = [Device(name, key, roster, limits) for name, key in keys.items()]
    >>> header = new_header(
    ...     roster, keys, exchange=bytes(16), round=1, numbers=1, encoding=b"", max_duels=10,
    ...     limits=limits, broadcast=b"")
    >>> state, journals = ServerExchange(header), {}
    >>> for number, device in enumerate(devices):
    ...     numbers = np.array([number], dtype=np.uint64)
    ...     sealed, journal = device.collect(
    ...         header, Journal(), numbers, cut=3, seed=bytes(32), now=0.0)
    ...     journals[device.name] = journal.to_bytes()  # on a disk
    ...     state = state.receive(device.name, sealed)
    >>> state = state.choose()
    >>> for device in devices:
    ...     journal = Journal.from_bytes(journals[device.name])
    ...     opening, journal = device.open(header, journal, state.pieces_for(device.name), now=0.0)
    ...     state = state.answer(device.name, opening)
    >>> state.combine()
    Sum(numbers=array([10], dtype=uint64), wrong=(), checks=1)
    """

    header: Header
    sealed: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    openings: Mapping[str, bytes] = field(default_factory=dict)
    given_up: bool = False

    @property
    def phase(self) -> Phase:
        """What the server waits for."""
        if self.given_up:
            return Phase.GIVEN_UP
        return Phase.OPEN if self.chosen else Phase.COLLECT

    def receive(self, device: str, pieces: Mapping[str, bytes]) -> ServerExchange:
        """Return the state with the pieces of a device; a repetition changes nothing.

        Raises
        ------
        SecureError
            The device was not asked, its pieces are not one of a possible size for each member, or
            they differ from those it sent before; or the set is fixed.
        """
        header, scheme = self.header, self.header.scheme
        if device not in header.asked:
            raise SecureError(f"{device} is not among the devices that the exchange asks")
        if set(pieces) != set(header.committee):
            raise SecureError(f"{device} sent no piece, or more than one, for some members")
        most = OVERHEAD + max(SEED_BYTES, ELEMENT_BYTES * scheme.columns(header.numbers))
        for member, piece in pieces.items():
            if not OVERHEAD < len(piece) <= most:
                raise SecureError(
                    f"{device} sent a piece of {len(piece)} bytes for {member}: must be"
                    f" {OVERHEAD + 1} to {most}"
                )
        if device in self.sealed:
            if self.sealed[device] != dict(pieces):
                raise SecureError(f"{device} sent other pieces before")
            return self
        self._require(Phase.COLLECT)
        return replace(self, sealed={**self.sealed, device: dict(pieces)})

    def choose(self) -> ServerExchange:
        """Return the state in which the devices of the sum are fixed, to be stored.

        Raises
        ------
        SecureError
            Fewer than ``min_devices + T`` devices have answered, see
            :attr:`fldb_flower.secure.header.Header.least_devices`.
        """
        if self.phase is Phase.OPEN:
            return self
        self._require(Phase.COLLECT)
        chosen = tuple(sorted(self.sealed))
        check_senders(self.header, chosen)
        return replace(self, chosen=chosen)

    def pieces_for(self, member: str) -> dict[str, bytes]:
        """Return what a member is sent to open: the sealed piece of each device in the sum."""
        self._require(Phase.OPEN)
        self._check_member(member)
        return {device: self.sealed[device][member] for device in self.chosen}

    def answer(self, member: str, opening: bytes) -> ServerExchange:
        """Return the state with a member's sum; a repetition changes nothing.

        Raises
        ------
        BlameError
            The bytes are no sum of pieces; the member may answer again.
        SecureError
            The device is no member, or answered otherwise before; or the set is not fixed.
        """
        self._require(Phase.OPEN)
        self._check_member(member)
        if (known := self.openings.get(member)) is not None:
            if known != opening:
                raise BlameError(f"{member} answered with another sum before", (member,))
            return self
        columns = self.header.scheme.columns(self.header.numbers)
        try:
            if len(from_bytes(opening)) != columns:
                raise SecureError(f"{len(opening)} bytes, must be {columns * ELEMENT_BYTES}")
        except SecureError as reason:
            raise BlameError(f"the answer of {member} is no sum: {reason}", (member,)) from None
        return replace(self, openings={**self.openings, member: opening})

    def combine(self) -> Sum:
        """Return the sum over the chosen devices.

        With ``checks`` answers more than U, up to ``checks // 2`` wrong answers are left out and
        named. See :meth:`fldb_flower.secure.sharing.Scheme.mismatches` for the guarantees.

        Raises
        ------
        SecureError
            There are fewer than U answers, or too many wrong ones to name. In the second case, a
            member or a device has sent wrong values: see
            :class:`fldb_flower.secure.suspects.Suspects`. The exchange cannot be opened for another
            set.
        """
        self._require(Phase.OPEN)
        scheme, committee = self.header.scheme, self.header.committee
        members = [number for number, name in enumerate(committee) if name in self.openings]
        if len(members) < scheme.needed:
            raise SecureError(
                f"{len(members)} of {len(committee)} members answered: the sum needs"
                f" {scheme.needed}"
            )
        pieces = np.stack([from_bytes(self.openings[committee[number]]) for number in members])
        wrong = scheme.mismatches(pieces, members)
        right = [place for place, number in enumerate(members) if number not in wrong]
        numbers = scheme.recover(
            pieces[right], [members[place] for place in right], self.header.numbers
        )
        checks = len(members) - scheme.needed
        return Sum(numbers, tuple(committee[number] for number in wrong), checks)

    def give_up(self) -> ServerExchange:
        """Return the final state in which nothing is opened or combined any more."""
        return replace(self, given_up=True)

    def to_bytes(self) -> bytes:
        """Return the state for a file: a checksum, the lengths of all parts as JSON, and the parts.

        It can have 100 MB or more, 1,000 devices with 100 kB of sealed pieces each.
        """
        committee, header = self.header.committee, self.header.to_bytes()
        index = to_json({
            "chosen": list(self.chosen),
            "given_up": int(self.given_up),
            "header": len(header),
            "openings": {member: len(opening) for member, opening in self.openings.items()},
            "sealed": {
                device: [len(pieces[member]) for member in committee]
                for device, pieces in self.sealed.items()
            },
        })  # fmt: skip
        parts = [len(index).to_bytes(_LENGTH_BYTES, "big"), index, header]
        parts += [self.openings[member] for member in sorted(self.openings)]
        parts += [
            self.sealed[device][member] for device in sorted(self.sealed) for member in committee
        ]
        checksum = hashlib.sha256()
        for part in parts:
            checksum.update(part)
        return b"".join([_MAGIC, checksum.digest(), *parts])

    @classmethod
    def from_bytes(cls, content: bytes) -> ServerExchange:
        """Return the state of :meth:`to_bytes`.

        Raises
        ------
        DataError
            The bytes are damaged.
        """
        file = _File(content)
        if file.take(len(_MAGIC)) != _MAGIC:
            raise DataError("the state of the exchange has another format")
        if file.take(hashlib.sha256().digest_size) != file.checksum_of_rest():
            raise DataError("the state of the exchange is damaged: its checksum is wrong")
        index = file.take(int.from_bytes(file.take(_LENGTH_BYTES), "big"))
        fields = from_json(index, "the state of the exchange", _FIELDS)
        state = cls(Header.from_bytes(file.take(fields["header"])))
        openings = {name: file.take(size) for name, size in fields["openings"].items()}
        for device, sizes in fields["sealed"].items():
            pieces = zip(state.header.committee, map(file.take, sizes), strict=True)
            state = state.receive(device, dict(pieces))
        if chosen := names_of("chosen of the exchange", fields["chosen"]):
            state = replace(state, chosen=chosen)
        for member, opening in openings.items():
            state = state.answer(member, opening)
        return replace(state, given_up=bool(fields["given_up"]))

    def _require(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise SecureError(
                f"exchange {self.header.exchange.hex()} is in the phase {self.phase.value!r}"
                f" instead of {phase.value!r}"
            )

    def _check_member(self, member: str) -> None:
        if member not in self.header.committee:
            raise SecureError(f"{member} is not in the committee of the exchange")


class _File:
    """Bytes that are read from the start."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = memoryview(content), 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        part = self._content[self._place : self._place + size]
        if len(part) != size:
            raise DataError("the state of the exchange is truncated")
        self._place += size
        return bytes(part)

    def checksum_of_rest(self) -> bytes:
        """Return the SHA-256 of all further bytes."""
        return hashlib.sha256(self._content[self._place :]).digest()
