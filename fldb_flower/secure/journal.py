"""The journal: what a device writes durably before each of its replies.

A journal is a plain value. A change returns a new journal; the caller stores it, and replies only
then. After a crash between the two, the same request gives the same reply.

**The sequence rule.** A device numbers its answers. A *cut* is a number of answers: a contribution
covers the answers from the last counted cut to its own cut. Each exchange has a new cut, at least
``min_duels`` after every cut that was ever sent. Consider any linear combination of opened sums,
and a device in one of them: of the contributions of this device in the combination, only the
last one covers the answers directly before its cut, so they do not cancel. Hence the combination
involves every device of each of its sums: at least ``min_devices`` of them, each with at least
``min_duels`` answers.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fldb_flower.errors import DataError, DeclinedError, SecureError
from fldb_flower.secure.canonical import check_bytes, check_integer, from_json, to_json, unhex
from fldb_flower.secure.header import EXCHANGE_BYTES, Header
from fldb_flower.secure.roster import LARGEST_NUMBER

SEED_BYTES = 32

_HASH_BYTES = 32
_DOMAIN = b"fldb-flower seed of shares 1\n"
_CONTRIBUTION = ("cut", "exchange", "header", "numbers", "round", "seed", "start")
_OPENING = ("exchange", "header", "round", "senders")


@dataclass(frozen=True)
class Contribution:
    """The last contribution of a device.

    Attributes
    ----------
    exchange, round : bytes, int
        As in the header.
    header : bytes
        Hash of the header.
    start, cut : int
        The contribution covers the answers after ``start``, up to the cut.
    seed : bytes
        32 secret random bytes.
    numbers : bytes
        SHA-256 of the numbers that were shared.
    """

    exchange: bytes
    round: int
    header: bytes
    start: int
    cut: int
    seed: bytes
    numbers: bytes

    def __post_init__(self) -> None:
        _check_reference(self)
        check_integer("start", self.start, 0, LARGEST_NUMBER)
        check_integer("cut", self.cut, self.start + 1, LARGEST_NUMBER)
        check_bytes("seed", self.seed, SEED_BYTES, SEED_BYTES)
        check_bytes("hash of the numbers", self.numbers, _HASH_BYTES, _HASH_BYTES)

    def share_seed(self) -> bytes:
        """Return the seed of the sharing.

        It depends on header and numbers, so that other numbers are never shared with the same
        randomness, even if a caller repeats a seed.
        """
        return hmac.digest(self.seed, _DOMAIN + self.header + self.numbers, hashlib.sha256)


@dataclass(frozen=True)
class Opening:
    """The last opening of a member.

    Attributes
    ----------
    exchange, round : bytes, int
        As in the header.
    header : bytes
        Hash of the header.
    senders : bytes
        Hash of the devices in the sum (U3); see :func:`hash_of_devices`.
    """

    exchange: bytes
    round: int
    header: bytes
    senders: bytes

    def __post_init__(self) -> None:
        _check_reference(self)
        check_bytes("hash of the senders", self.senders, _HASH_BYTES, _HASH_BYTES)


@dataclass(frozen=True)
class Journal:
    """What a device keeps of its exchanges.

    Attributes
    ----------
    counted : int
        Cut of the last contribution that the server counted; 0 if there is none.
    cuts : tuple of (bytes, int)
        Exchange and cut of each contribution, in ascending order of cuts. An acknowledgement names
        one of these exchanges.
    contribution : Contribution, optional
        The last one.
    opening : Opening, optional
        The last one.
    """

    counted: int = 0
    cuts: tuple[tuple[bytes, int], ...] = ()
    contribution: Contribution | None = None
    opening: Opening | None = None

    def __post_init__(self) -> None:
        for exchange, cut in self.cuts:
            check_bytes("exchange", exchange, EXCHANGE_BYTES, EXCHANGE_BYTES)
            check_integer("cut", cut, 1, LARGEST_NUMBER)
        values = [cut for _, cut in self.cuts]
        if values != sorted(set(values)) or len(dict(self.cuts)) < len(self.cuts):
            raise DataError("the cuts of the journal do not ascend, or an exchange is repeated")
        if self.counted not in (0, *values):
            raise DataError(f"counted={self.counted} of the journal is not a cut of an exchange")
        last = self.contribution
        if (last and (last.exchange, last.cut)) != (self.cuts[-1] if self.cuts else None):
            raise DataError("the last contribution of the journal is not that of its last cut")

    @property
    def sent(self) -> int:
        """The last cut that was ever sent; 0 if there is none."""
        return self.cuts[-1][1] if self.cuts else 0

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
        cut = min(answers, self.counted + header.max_duels)
        self._check_cut(header, cut)
        return self.counted, cut

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
            header.exchange, header.round, header.hash, self.counted, cut, seed, digest
        )
        return replace(self, cuts=(*self.cuts, (header.exchange, cut)), contribution=record)

    def open(self, header: Header, senders: Sequence[str]) -> Journal:
        """Return the journal with the opening of an exchange for a set of devices.

        Raises
        ------
        SecureError
            The exchange was opened for another set or has another header, or it is not later than
            the last opened one.
        """
        self._check_same(self.contribution, header)
        self._check_same(self.opening, header)
        record = Opening(header.exchange, header.round, header.hash, hash_of_devices(senders))
        last = self.opening
        if last and last.exchange == header.exchange:
            if last.senders != record.senders:
                raise SecureError(
                    "this exchange was opened for another set of devices: a second set could give"
                    " away the difference"
                )
            return self
        _check_later(last, header)
        return replace(self, opening=record)

    def acknowledge(self, header: Header, exchange: bytes | None) -> Journal:
        """Return the journal after the request of an exchange named the last counted exchange.

        Parameters
        ----------
        header : Header
            The exchange. If it has a contribution, the request is a repetition and nothing changes.
        exchange : bytes or None
            The last exchange with this device that the server counted, or None. A server that was
            restored from a backup may name an earlier one than before: the answers since then are
            sent again, together with new ones.

        Raises
        ------
        SecureError
            The device has not contributed to the named exchange; or see :meth:`contribute`.
        """
        if self._repeated(header):
            return self
        if exchange is None:
            return replace(self, counted=0)
        if (cut := dict(self.cuts).get(exchange)) is None:
            raise SecureError(
                f"the server counted exchange {exchange.hex()}, which has no contribution here"
            )
        return replace(self, counted=cut)

    def to_bytes(self) -> bytes:
        """Return the canonical bytes. They contain the secret seed."""
        return to_json({
            "contribution": _hexed(self.contribution),
            "counted": self.counted,
            "cuts": [[exchange.hex(), cut] for exchange, cut in self.cuts],
            "opening": _hexed(self.opening),
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
        fields = from_json(content, what, ("contribution", "counted", "cuts", "opening"))
        try:
            cuts = tuple((unhex("exchange", name), cut) for name, cut in fields["cuts"])
        except (TypeError, ValueError):
            raise DataError("the cuts of the journal are damaged") from None
        return cls(
            fields["counted"],
            cuts,
            _record(Contribution, fields["contribution"], _CONTRIBUTION),
            _record(Opening, fields["opening"], _OPENING),
        )

    def _repeated(self, header: Header) -> Contribution | None:
        """Return the contribution to this exchange, or None if the exchange is new and later."""
        self._check_same(self.opening, header)
        self._check_same(self.contribution, header)
        record = self.contribution
        if record and record.exchange == header.exchange:
            return record
        _check_later(record, header)
        if header.exchange in dict(self.cuts):
            raise SecureError(f"exchange {header.exchange.hex()} is over")
        return None

    def _check_cut(self, header: Header, cut: int) -> None:
        if cut < self.sent + header.min_duels:
            new, most = max(cut - self.sent, 0), header.max_duels
            room = "" if cut - self.counted < most else f", with max_duels={most} after the counted"
            raise DeclinedError(
                f"{new} new answers since the last contribution{room}: must be at least"
                f" {header.min_duels}"
            )
        if cut > self.counted + header.max_duels:
            raise DeclinedError(
                f"{cut - self.counted} answers since the last counted one: must be at most"
                f" max_duels={header.max_duels}"
            )

    @staticmethod
    def _check_same(record: Contribution | Opening | None, header: Header) -> None:
        if record and record.exchange == header.exchange and record.header != header.hash:
            raise SecureError(f"exchange {header.exchange.hex()} has two different headers")


def hash_of_devices(names: Sequence[str]) -> bytes:
    """Return the SHA-256 of a set of devices."""
    return hashlib.sha256(to_json({"devices": sorted(names)})).digest()


def _check_reference(record: Contribution | Opening) -> None:
    check_bytes("exchange", record.exchange, EXCHANGE_BYTES, EXCHANGE_BYTES)
    check_integer("round", record.round, 1, LARGEST_NUMBER)
    check_bytes("hash of the header", record.header, _HASH_BYTES, _HASH_BYTES)


def _check_later(record: Contribution | Opening | None, header: Header) -> None:
    if record and header.round <= record.round:
        raise SecureError(f"round {header.round} is not later than {record.round}, the last one")


def _hexed(record: Contribution | Opening | None) -> dict[str, Any] | None:
    if record is None:
        return None
    values = vars(record).items()
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in values}


def _record(kind: type[Any], value: object, names: Sequence[str]) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise DataError(f"{kind.__name__.lower()} of the journal is not a JSON object")
    fields = from_json(to_json(value), f"{kind.__name__.lower()} of the journal", names)
    return kind(**{
        name: field if name in ("cut", "round", "start") else unhex(name, field)
        for name, field in fields.items()
    })  # fmt: skip
