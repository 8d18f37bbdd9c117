"""The server in a secure sum: what it collects, the set it fixes, and the sum it computes.

1. *Collect.* Each device asked (U1) sends one sealed piece for each member of the committee
   (:meth:`ServerExchange.receive`).
2. *Open.* The server fixes the set of the devices in the sum (U3, :meth:`ServerExchange.choose`)
   and passes the sealed pieces on (:meth:`ServerExchange.pieces_for`). Each member answers with
   the sum of its pieces (:meth:`ServerExchange.answer`). From U answers, the server computes the
   sum of the numbers (:meth:`ServerExchange.combine`).

The caller stores the state before it asks the first member, so that all members are asked about
the same set, also after a restart.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from fldb_flower.errors import BlameError, SecureError
from fldb_flower.secure.field import ELEMENT_BYTES, SEED_BYTES, Elements, from_bytes
from fldb_flower.secure.header import Header, check_senders
from fldb_flower.secure.sealing import OVERHEAD
from fldb_flower.secure.sharing import LEAST_COMMITTEE


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
    >>> roster, limits = Roster(1, public), Limits(min_duels=1, min_devices=5)
    >>> devices = [Device(name, key, roster, limits) for name, key in keys.items()]
    >>> header = new_header(
    ...     roster, keys, exchange=bytes(16), round=1, numbers=1, encoding=b"", max_duels=10,
    ...     limits=limits, broadcast=b"")
    >>> state, journals = ServerExchange(header), {}
    >>> for number, device in enumerate(devices):
    ...     numbers = np.array([number], dtype=np.uint64)
    ...     sealed, journal = device.collect(header, Journal(), numbers, cut=3, seed=bytes(32))
    ...     journals[device.name] = journal.to_bytes()  # on a disk
    ...     state = state.receive(device.name, sealed)
    >>> state = state.choose()
    >>> for device in devices:
    ...     journal = Journal.from_bytes(journals[device.name])
    ...     opening, journal = device.open(header, journal, state.pieces_for(device.name))
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
            Fewer than ``min_devices`` devices have answered.
        """
        if self.phase is Phase.OPEN:
            return self
        self._require(Phase.COLLECT)
        chosen = tuple(sorted(self.sealed))
        check_senders(self.header, chosen, self.header.min_devices)
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
            member or a device has sent wrong values: see :func:`bisect`.
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

    def _require(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise SecureError(
                f"exchange {self.header.exchange.hex()} is in the phase {self.phase.value!r}"
                f" instead of {phase.value!r}"
            )

    def _check_member(self, member: str) -> None:
        if member not in self.header.committee:
            raise SecureError(f"{member} is not in the committee of the exchange")


def bisect(devices: Sequence[str], min_devices: int) -> tuple[tuple[str, ...], ...]:
    """Return two disjoint groups for new exchanges, after the answers of a set were inconsistent.

    The caller runs an exchange in each group, leaves out a group that cannot be divided, and
    continues with the others. One device that sends wrong pieces then costs at most
    ``2 min_devices - 1`` devices a round.

    Parameters
    ----------
    devices : sequence of str
        The devices of the failed sum.
    min_devices : int
        Smallest number of devices in a sum.

    Returns
    -------
    tuple of tuple of str
        Two groups whose sizes differ by at most 1; empty if they would be too small.

    Examples
    --------
    >>> from fldb_flower.secure.server import bisect
    >>> bisect("abcdefghijk", min_devices=5)
    (('a', 'b', 'c', 'd', 'e'), ('f', 'g', 'h', 'i', 'j', 'k'))
    >>> bisect("abcdefghi", min_devices=5)
    ()
    """
    names, half = tuple(sorted(set(devices))), len(set(devices)) // 2
    if half < max(min_devices, LEAST_COMMITTEE):
        return ()
    return names[:half], names[half:]
