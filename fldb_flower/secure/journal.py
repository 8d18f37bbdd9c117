"""The journal: what a device writes durably before each of its replies.

A journal is a plain value. A change returns a new journal; the caller stores it, and replies only
then. After a crash between the two, the same request gives the same reply.

**The sequence rule.** A device numbers its answers. A *cut* is a number of answers: a contribution
covers the answers from the last counted cut to its own cut, at most the last ``max_duels`` of them,
which is ``min_duels`` or more. Each exchange has a new cut, at least
``min_duels`` after every cut that was ever sent. Consider any linear combination of opened sums,
and a device in one of them: of the contributions of this device in the combination, only the
last one covers the answers directly before its cut, so they do not cancel. Hence the combination
involves every device of each of its sums: at least ``min_devices + T`` of them, of which T may
cooperate with the server, each with at least ``min_duels`` answers.

A store that is restored from a backup lacks the last cuts. The rule needs only their maximum: the
*base*, which a file outside the backup records. All later contributions start at the base or after
it (:meth:`Journal.restored`). An opening is bound to the sealed bytes and not only to the names of
the devices, since a device whose store was doubled can seal two contributions to one exchange.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fldb_flower.errors import DataError, DeclinedError, SecureError
from fldb_flower.secure.canonical import check_bytes, check_integer, from_json, to_json, unhex
from fldb_flower.secure.entries import (
    Contribution,
    Opening,
    hash_of_sealed,
    hexed,
    record_of,
)
from fldb_flower.secure.header import EXCHANGE_BYTES, Header
from fldb_flower.secure.roster import LARGEST_NUMBER

MOST_CUTS = 1000
"""Number of exchanges that a journal keeps."""

_FIELDS = ("base", "base_round", "contribution", "counted", "cuts", "opening")


@dataclass(frozen=True)
class Journal:
    """What a device keeps of its exchanges.

    Attributes
    ----------
    counted : int
        Cut of the last contribution that the server counted; the base if there is none.
    cuts : tuple of (bytes, int)
        Exchange and cut of the last 1,000 contributions, in ascending order of cuts. An
        acknowledgement names one of these exchanges.
    contribution : Contribution, optional
        The last one.
    opening : Opening, optional
        The last one.
    base : int
        No answer up to this one is sent again.
    base_round : int
        Exchanges up to this round are over: no contribution to them, and no opening of them.
    """

    counted: int = 0
    cuts: tuple[tuple[bytes, int], ...] = ()
    contribution: Contribution | None = None
    opening: Opening | None = None
    base: int = 0
    base_round: int = 0

    @classmethod
    def restored(cls, round: int, cut: int) -> Journal:
        """Return the journal of a store that was restored from a backup.

        Parameters
        ----------
        round : int
            :attr:`last_round` of the lost journal, from a file that is not restored with the store.
        cut : int
            :attr:`sent` of the lost journal, from the same file.
        """
        return cls(counted=cut, base=cut, base_round=round)

    def __post_init__(self) -> None:
        check_integer("base", self.base, 0, LARGEST_NUMBER)
        check_integer("base_round", self.base_round, 0, LARGEST_NUMBER)
        for exchange, cut in self.cuts:
            check_bytes("exchange", exchange, EXCHANGE_BYTES, EXCHANGE_BYTES)
            check_integer("cut", cut, 1, LARGEST_NUMBER)
        values = [self.base, *(cut for _, cut in self.cuts)]
        if values != sorted(set(values)) or len(dict(self.cuts)) < len(self.cuts):
            raise DataError("the cuts of the journal do not ascend, or an exchange is repeated")
        if self.counted not in values:
            raise DataError(f"counted={self.counted} of the journal is not a cut of an exchange")
        last = self.contribution
        if (last and (last.exchange, last.cut)) != (self.cuts[-1] if self.cuts else None):
            raise DataError("the last contribution of the journal is not that of its last cut")

    @property
    def sent(self) -> int:
        """The last cut that was ever sent; the base if there is none."""
        return self.cuts[-1][1] if self.cuts else self.base

    @property
    def last_round(self) -> int:
        """The last round of a contribution or opening, for :meth:`restored`."""
        records = (self.contribution, self.opening)
        return max(self.base_round, *(record.round for record in records if record), 0)

    def repeated(self, header: Header) -> bool:
        """Whether an exchange already has a contribution, which a request can only repeat.

        Raises
        ------
        SecureError
            See :meth:`contribute`.
        """
        return self._repeated(header) is not None

    def span(self, header: Header, answers: int) -> tuple[int, int]:
        """Return which answers an exchange covers: those after the first number, up to the second.

        For an exchange that already has a contribution, it is the same span again.

        Parameters
        ----------
        header : Header
            The exchange.
        answers : int
            Number of answers of the device.

        Raises
        ------
        DeclinedError
            There is no allowed cut now.
        SecureError
            See :meth:`contribute`.
        """
        if record := self._repeated(header):
            return record.start, record.cut
        cut = min(answers, self._most(header))
        self._check_cut(header, cut)
        return self._start(header, cut), cut

    def contribute(self, header: Header, cut: int, seed: bytes, numbers: bytes) -> Journal:
        """Return the journal with the contribution to an exchange.

        Parameters
        ----------
        header : Header
            The exchange, after :func:`fldb_flower.secure.header.check_header`.
        cut : int
            From :meth:`span`.
        seed : bytes
            32 secret random bytes; ignored if the exchange has a contribution.
        numbers : bytes
            Canonical bytes of the numbers to share.

        Raises
        ------
        DeclinedError
            The cut is too close to the last one, or too far from the last counted one.
        SecureError
            The exchange has a contribution with another header, cut or other numbers; or it is
            not later than the last exchange.
        """
        digest = hashlib.sha256(numbers).digest()
        if record := self._repeated(header):
            if (cut, digest) != (record.cut, record.numbers):
                raise SecureError(
                    f"a repeated contribution has cut {cut} or other numbers: the first one has"
                    f" cut {record.cut}"
                )
            return self
        self._check_cut(header, cut)
        record = Contribution(
            exchange=header.exchange,
            round=header.round,
            header=header.hash,
            start=self._start(header, cut),
            cut=cut,
            seed=seed,
            numbers=digest,
        )
        cuts = (*self.cuts, (header.exchange, cut))
        base = cuts[-MOST_CUTS - 1][1] if len(cuts) > MOST_CUTS else self.base
        return replace(
            self,
            counted=max(self.counted, base),
            cuts=cuts[-MOST_CUTS:],
            contribution=record,
            base=base,
        )

    def open(self, header: Header, sealed: Mapping[str, bytes]) -> Journal:
        """Return the journal with the opening of an exchange for a set of sealed pieces.

        Parameters
        ----------
        header : Header
            The exchange, after :func:`fldb_flower.secure.header.check_header`.
        sealed : mapping of str to bytes
            For each device of the sum (U3), its sealed piece for this member.

        Raises
        ------
        SecureError
            The exchange was opened for another set or has another header, or it is not later than
            the last opened one.
        """
        self._check_same(self.contribution, header)
        self._check_same(self.opening, header)
        record = Opening(header.exchange, header.round, header.hash, hash_of_sealed(sealed))
        last = self.opening
        if last and last.exchange == header.exchange:
            if last.sealed != record.sealed:
                raise SecureError(
                    "this exchange was opened for another set of devices or of their pieces: a"
                    " second set could give away the difference"
                )
            return self
        self._check_later(last, header)
        return replace(self, opening=record)

    def acknowledge(self, header: Header, exchange: bytes | None) -> Journal:
        """Return the journal after the request of an exchange named the last counted exchange.

        Parameters
        ----------
        header : Header
            The exchange, after :func:`fldb_flower.secure.header.check_header`. If it has a
            contribution, the request is a repetition and nothing changes.
        exchange : bytes or None
            The last exchange with this device that the server counted, or None. A server that was
            restored from a backup may name an earlier one than before: the answers since then are
            sent again, together with new ones. For an exchange before the base, and for one of a
            former store of the device, the answers after the base are sent.

        Raises
        ------
        SecureError
            The journal has all contributions ever sent, and none to the named exchange; or see
            :meth:`contribute`.
        """
        if self._repeated(header):
            return self
        if exchange is None:
            return replace(self, counted=self.base)
        if (cut := dict(self.cuts).get(exchange)) is not None:
            return replace(self, counted=cut)
        if self.base or self.base_round:
            return replace(self, counted=self.base)
        if self.cuts:
            raise SecureError(
                f"the server counted exchange {exchange.hex()}, which has no contribution here"
            )
        return replace(self, counted=0, base_round=header.round - 1)  # of a former store

    def to_bytes(self) -> bytes:
        """Return the canonical bytes. They contain the secret seed."""
        return to_json({
            "base": self.base,
            "base_round": self.base_round,
            "contribution": hexed(self.contribution),
            "counted": self.counted,
            "cuts": [[exchange.hex(), cut] for exchange, cut in self.cuts],
            "opening": hexed(self.opening),
        })  # fmt: skip

    @classmethod
    def from_bytes(cls, content: bytes) -> Journal:
        """Return the journal of canonical bytes.

        Raises
        ------
        DataError
            The bytes are damaged.
        """
        what = "the journal"
        fields = from_json(content, what, _FIELDS)
        try:
            cuts = tuple((unhex("exchange", name), cut) for name, cut in fields["cuts"])
        except (TypeError, ValueError):
            raise DataError("the cuts of the journal are damaged") from None
        return cls(
            fields["counted"],
            cuts,
            record_of(Contribution, fields["contribution"]),
            record_of(Opening, fields["opening"]),
            fields["base"],
            fields["base_round"],
        )

    def _repeated(self, header: Header) -> Contribution | None:
        """Return the contribution to this exchange, or None if the exchange is new and later."""
        self._check_same(self.opening, header)
        self._check_same(self.contribution, header)
        record = self.contribution
        if record and record.exchange == header.exchange:
            return record
        self._check_later(record, header)
        if header.exchange in dict(self.cuts):
            raise SecureError(f"exchange {header.exchange.hex()} is over")
        return None

    def _check_cut(self, header: Header, cut: int) -> None:
        if cut < self.sent + header.min_duels:
            raise DeclinedError(
                f"{max(cut - self.sent, 0)} new answers since the last contribution: must be at"
                f" least {header.min_duels}"
            )
        if cut > self._most(header):
            raise DeclinedError(
                f"{cut - self.counted} answers since the last counted one: must be at most"
                f" max_duels={header.max_duels}"
            )

    def _most(self, header: Header) -> int:
        """Return the largest cut."""
        return max(self.counted + header.max_duels, self.sent + header.min_duels)

    def _start(self, header: Header, cut: int) -> int:
        """Return where a contribution starts: at the last counted cut, or less than n before.

        After failed sums, the next cut can be more than ``max_duels`` answers from the counted one.
        The oldest answers are then left out for good: else the device could not contribute again.
        """
        return max(self.counted, cut - header.max_duels)

    def _check_later(self, record: Contribution | Opening | None, header: Header) -> None:
        last = max(record.round if record else 0, self.base_round)
        if header.round <= last:
            raise SecureError(f"round {header.round} is not later than {last}, the last one")

    @staticmethod
    def _check_same(record: Contribution | Opening | None, header: Header) -> None:
        if record and record.exchange == header.exchange and record.header != header.hash:
            raise SecureError(f"exchange {header.exchange.hex()} has two different headers")
