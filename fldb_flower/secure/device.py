"""A device in a secure sum: it contributes, and opens sums if it is in the committee.

Neither trip does input or output. The caller stores the returned journal before it sends the
reply; a repeated request then gives identical bytes, also after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fldb_flower.errors import BlameError, SecureError
from fldb_flower.secure.field import Elements, from_bytes, to_bytes, total
from fldb_flower.secure.header import Header, Limits, check_header, check_senders
from fldb_flower.secure.journal import Journal
from fldb_flower.secure.roster import Roster
from fldb_flower.secure.sealing import Route, seal, unseal


@dataclass(frozen=True)
class Device:
    """A device: it contributes to sums, and opens sums if it is in the committee.

    The private key and the journal belong together. A device that lost its journal starts with
    :meth:`fldb_flower.secure.journal.Journal.restored`, or with a new key and without its former
    answers: else a server could have an exchange opened again, or the same answers sent again.

    Attributes
    ----------
    name : str
        Identifier in the roster.
    private : X25519PrivateKey
        Its private key.
    roster : Roster
        The roster, after :func:`fldb_flower.secure.roster.verify`.
    limits : Limits
        The owner's limits.
    """

    name: str
    private: X25519PrivateKey = field(repr=False)
    roster: Roster
    limits: Limits

    def __post_init__(self) -> None:
        public = self.private.public_key().public_bytes_raw()
        if self.roster.keys.get(self.name) != public:
            has = "another key" if self.name in self.roster.keys else "no key"
            raise SecureError(
                f"the key of {self.name} is not certified: version {self.roster.version} of the"
                f" roster has {has} of {self.name}; whoever signs the roster certifies it with"
                " fldb keys roster renew"
            )

    def repeated(self, header: Header, journal: Journal) -> bool:
        """Whether the exchange already has a contribution.

        A repetition needs exactly the same numbers. Statistics that are computed again can differ
        in their last bits, for example with another version of NumPy. The caller therefore stores
        the numbers of the last contribution and passes the stored ones to :meth:`collect` if this
        is true.

        Raises
        ------
        SecureError
            The exchange is over, or has another header than before.
        """
        return journal.repeated(header)

    def span(
        self, header: Header, journal: Journal, answers: int, *, now: float
    ) -> tuple[int, int]:
        """Return which answers to contribute: those after the first number, up to the second.

        Parameters
        ----------
        header : Header
            The exchange.
        journal : Journal
            As last stored.
        answers : int
            Number of answers of the device.
        now : float
            Time in seconds since 1970.

        Raises
        ------
        DeclinedError
            There are too few new answers.
        SecureError
            The header or the exchange is refused.
        """
        check_header(header, self.roster, self.limits, self.name, now)
        return journal.span(header, answers)

    def collect(
        self,
        header: Header,
        journal: Journal,
        numbers: Elements,
        cut: int,
        seed: bytes,
        *,
        now: float,
    ) -> tuple[dict[str, bytes], Journal]:
        """Return the sealed piece for each member, and the journal to store before they are sent.

        Parameters
        ----------
        header : Header
            The exchange.
        journal : Journal
            As last stored.
        numbers : Elements
            The encoded statistics of the answers of :meth:`span`, (n,); the stored ones if the
            exchange is :meth:`repeated`.
        cut : int
            The second number of :meth:`span`.
        seed : bytes
            32 bytes from ``os.urandom``. A repetition uses the stored one.
        now : float
            Time in seconds since 1970.

        Raises
        ------
        DeclinedError
            The cut is not allowed.
        SecureError
            The header or the numbers are refused; or the exchange has a contribution with another
            header, cut or other numbers.
        """
        check_header(header, self.roster, self.limits, self.name, now)
        content = to_bytes(numbers)
        if numbers.shape != (header.numbers,) or numbers.dtype != np.uint64:
            raise SecureError(
                f"numbers of shape {numbers.shape} and type {numbers.dtype}: the exchange has"
                f" {header.numbers} elements of type uint64"
            )
        from_bytes(content)  # every element is below p
        journal = journal.contribute(header, cut, seed, content)
        assert journal.contribution is not None
        pieces = header.scheme.messages(numbers, journal.contribution.share_seed())
        pairs = zip(header.committee, pieces, strict=True)
        return {name: self._sealed(header, name, piece) for name, piece in pairs}, journal

    def open(
        self, header: Header, journal: Journal, sealed: Mapping[str, bytes], *, now: float
    ) -> tuple[bytes, Journal]:
        """Return the sum of the pieces, and the journal to store before the sum is sent.

        The sum is over at least ``min_devices + T`` devices, since T of them may cooperate with the
        server. An exchange is opened for one set of sealed bytes only.

        Parameters
        ----------
        header : Header
            The exchange.
        journal : Journal
            As last stored.
        sealed : mapping of str to bytes
            For each device of the sum (U3), its sealed piece for this member.
        now : float
            Time in seconds since 1970.

        Raises
        ------
        BlameError
            Pieces do not open, or are not elements of the field; ``devices`` names their senders.
        SecureError
            The header is refused; this device is not in the committee; the set is too small, has
            a device that was not asked, or differs from the one opened before.
        """
        check_header(header, self.roster, self.limits, self.name, now)
        if self.name not in header.committee:
            raise SecureError(f"{self.name} is not in the committee of the exchange")
        check_senders(header, sealed)
        journal = journal.open(header, sealed)
        pieces, wrong = list[Elements](), list[str]()
        for sender in sorted(sealed):
            try:
                pieces.append(self._piece(header, sender, sealed[sender]))
            except SecureError:
                wrong.append(sender)
        if wrong:
            raise BlameError(f"the pieces from {', '.join(wrong)} do not open", wrong)
        return to_bytes(total(np.stack(pieces))), journal

    def _sealed(self, header: Header, member: str, piece: bytes) -> bytes:
        route = Route(header.exchange, self.name, member)
        return seal(piece, route, header.hash, self.private, self.roster.keys[member])

    def _piece(self, header: Header, sender: str, sealed: bytes) -> Elements:
        route = Route(header.exchange, sender, self.name)
        peer = self.roster.keys[sender]
        content = unseal(sealed, route, header.hash, self.private, peer)
        return header.scheme.piece(content, header.committee.index(self.name), header.numbers)
