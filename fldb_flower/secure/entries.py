"""What a journal records of one exchange: the contribution of a device, and its opening."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fldb_flower.errors import DataError
from fldb_flower.secure.canonical import check_bytes, check_integer, from_json, to_json, unhex
from fldb_flower.secure.header import EXCHANGE_BYTES
from fldb_flower.secure.roster import LARGEST_NUMBER

SEED_BYTES = 32

_HASH_BYTES = 32
_DOMAIN = b"fldb-flower seed of shares 1\n"


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
    sealed : bytes
        Hash of the devices in the sum (U3) and their sealed bytes; see :func:`hash_of_sealed`.
    """

    exchange: bytes
    round: int
    header: bytes
    sealed: bytes

    def __post_init__(self) -> None:
        _check_reference(self)
        check_bytes("hash of the sealed bytes", self.sealed, _HASH_BYTES, _HASH_BYTES)


def hash_of_sealed(sealed: Mapping[str, bytes]) -> bytes:
    """Return the SHA-256 of the devices and their sealed bytes, in any order."""
    digests = {name: hashlib.sha256(piece).hexdigest() for name, piece in sealed.items()}
    return hashlib.sha256(to_json({"sealed": digests})).digest()


def hexed(record: Contribution | Opening | None) -> dict[str, Any] | None:
    """Return the JSON object of a record, with bytes in hexadecimal."""
    if record is None:
        return None
    values = vars(record).items()
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in values}


def record_of(kind: type[Any], value: object) -> Any:
    """Return the record of a JSON object, or None for None.

    Raises
    ------
    DataError
        The object is damaged.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise DataError(f"{kind.__name__.lower()} of the journal is not a JSON object")
    content = from_json(
        to_json(value),
        f"{kind.__name__.lower()} of the journal",
        [each.name for each in fields(kind)],
    )
    return kind(**{
        name: field if name in ("cut", "round", "start") else unhex(name, field)
        for name, field in content.items()
    })  # fmt: skip


def _check_reference(record: Contribution | Opening) -> None:
    check_bytes("exchange", record.exchange, EXCHANGE_BYTES, EXCHANGE_BYTES)
    check_integer("round", record.round, 1, LARGEST_NUMBER)
    check_bytes("hash of the header", record.header, _HASH_BYTES, _HASH_BYTES)
