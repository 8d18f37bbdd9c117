"""Reports: a device's numbers, split into two shares for two servers.

The device sends the server ``x - G(s) mod 2^64`` and the seed s, sealed for the helper. G is
AES-CTR. The server alone receives uniform numbers, and the helper alone receives seeds. The helper
returns ``sum G(s)`` plus noise, so that the server obtains ``sum x`` plus noise, and nothing else.

The numbers x are integers: a vector of length at most 1, in units of ``1 / SCALE``, rounded toward
zero. Rounding therefore never increases the length, and one person changes a sum by a vector of
length ``SCALE`` at most. That bound, and not what the numbers mean, is what noise is measured by.

Seeds are sealed by HPKE (RFC 9180) with X25519, HKDF-SHA256 and AES-128-GCM. The hash of the header
is its ``info``, so a sealed seed opens only under the header that the device has seen. The split is
that of Prio (Corrigan-Gibbs and Boneh, NSDI 2017); the IETF's DAP has the same two parties.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from numpy.typing import NDArray

from fldb_flower.errors import DataError, SecureError
from fldb_flower.linalg.arrays import FloatArray, IntArray
from fldb_flower.secure.canonical import (
    check_bytes,
    check_fields,
    check_integer,
    framed,
    to_json,
    unframed,
    unhex,
)

Words = NDArray[np.uint64]
"""Integers modulo 2^64."""

SCALE = 2**32
"""Integers per unit of length."""

LEAST_SIGMA, LARGEST_SIGMA = 2**28, 2**54
"""Standard deviations of noise, in integers: multipliers from 1/16 to 4 million."""

MOST_NUMBERS = 2**20
"""Largest number of values in a report."""

MOST_REPORTS = 2**20
"""Largest number of reports in a sum: the sum of so many fits into 64 bits."""

DIGEST_BYTES = 32
SEED_BYTES = 16
SEALED_BYTES = 64
KINDS = {"trial": 10, "parts": 10, "sum": 1}
"""Questions to the helper about one exchange, each answered once: noise in multiples of sigma."""

COST = sum(factor**-2 for factor in KINDS.values())
"""What one exchange costs, in units of ``1 / z^2``, z the noise multiplier: all three answers."""

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_INFO = b"fldb-flower report 1 "
_LARGEST_TIME = 2**48  # ms since 1970


@dataclass(frozen=True)
class Header:
    """What the devices and the helper agree on for one exchange.

    Attributes
    ----------
    task : bytes
        :func:`task_of` of the federation, 32 bytes.
    number : int
        The exchange: a time, in ms since 1970. Numbers of a federation ascend.
    numbers : int
        How many values a report has.
    sigma : int
        Standard deviation of the noise of each party in the answer ``sum``, in integers.
    key : int
        The helper's HPKE key.
    broadcast : bytes
        SHA-256 of what the devices are asked. The helper does not see it.
    """

    task: bytes
    number: int
    numbers: int
    sigma: int
    key: int
    broadcast: bytes

    def __post_init__(self) -> None:
        check_bytes("the task", self.task, DIGEST_BYTES, DIGEST_BYTES)
        check_integer("the exchange's number", self.number, 1, _LARGEST_TIME)
        check_integer("the number of values", self.numbers, 1, MOST_NUMBERS)
        check_integer("sigma", self.sigma, LEAST_SIGMA, LARGEST_SIGMA)
        check_integer("the key's number", self.key, 0, _LARGEST_TIME)
        check_bytes("the hash of the broadcast", self.broadcast, DIGEST_BYTES, DIGEST_BYTES)

    @property
    def multiplier(self) -> float:
        """The noise multiplier z of each party: standard deviation of noise over sensitivity."""
        return self.sigma / SCALE

    @property
    def cost(self) -> float:
        """What a report costs, as the sum of ``1 / z^2`` over the helper's answers."""
        return COST / self.multiplier**2

    @property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return hashlib.sha256(to_json(self.to_fields())).digest()

    def to_fields(self) -> dict[str, Any]:
        """Return the header as JSON values."""
        return {
            "broadcast": self.broadcast.hex(),
            "key": self.key,
            "number": self.number,
            "numbers": self.numbers,
            "sigma": self.sigma,
            "task": self.task.hex(),
        }

    @classmethod
    def from_fields(cls, fields: object) -> Header:
        """Invert :meth:`to_fields`; raise DataError if the values are damaged."""
        if not isinstance(fields, dict):
            raise DataError("the header is not a JSON object")
        check_fields(fields, "the header", list(cls.__dataclass_fields__))
        binary = {name: unhex(f"{name} of the header", fields[name]) for name in _BINARY}
        return cls(**{**fields, **binary})


_BINARY = ("task", "broadcast")


def task_of(federation: str, helper: bytes, dimension: int) -> bytes:
    """Return the hash of the parameters that a device pins: name, helper's public key and d."""
    fields = {"dimension": dimension, "federation": federation, "helper": helper.hex()}
    return hashlib.sha256(to_json(fields)).digest()


class Report(NamedTuple):
    """What a device sends the server.

    Attributes
    ----------
    masked : Words
        ``x - G(s) mod 2^64``, (n,).
    sealed : bytes
        The seed s for the helper, 64 bytes.
    """

    masked: Words
    sealed: bytes

    def to_bytes(self) -> bytes:
        """Return the bytes: those of ``sealed``, then those of ``masked``, little-endian."""
        return self.sealed + self.masked.astype("<u8").tobytes()

    @classmethod
    def from_bytes(cls, content: bytes, numbers: int) -> Report:
        """Invert :meth:`to_bytes`; raise DataError if the length is wrong."""
        size = SEALED_BYTES + 8 * numbers
        check_bytes("a report", content, size, size)
        return cls(np.frombuffer(content, "<u8", offset=SEALED_BYTES), content[:SEALED_BYTES])


def integers_of(vector: FloatArray) -> IntArray:
    """Return a vector of length at most 1 as integers, rounded toward zero.

    A longer vector is shortened. A vector that is not finite becomes 0: whether it is finite may
    depend on answers, and a refusal would be observed without noise.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.secure.report import SCALE, integers_of
    >>> integers_of(np.array([3.0, -4.0])) / SCALE
    array([ 0.6, -0.8])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        largest = float(np.abs(vector).max(initial=0.0))
        if not np.isfinite(largest) or not largest:
            return np.zeros(vector.shape, dtype=np.int64)
        scaled = vector / largest  # its square neither overflows nor vanishes
        length = largest * float(np.linalg.norm(scaled))
    values = vector if length <= 1.0 else scaled / float(np.linalg.norm(scaled))
    integers: IntArray = np.trunc(values * SCALE).astype(np.int64)
    while _square(integers) > SCALE**2:  # by rounding errors of the division
        values = values * (1.0 - 2.0**-50)
        integers = np.trunc(values * SCALE).astype(np.int64)
    return integers


def _square(integers: IntArray) -> int:
    """Return the exact squared length."""
    return sum(each * each for each in integers.tolist())


def make_report(header: Header, integers: IntArray, helper: X25519PublicKey) -> Report:
    """Return the report of a device, with a new seed."""
    if integers.shape != (header.numbers,):
        raise SecureError(f"{integers.size} values: the header has {header.numbers}")
    seed = os.urandom(SEED_BYTES)
    masked = integers.astype(np.uint64) - mask(seed, header.numbers)
    return Report(masked, _SUITE.encrypt(seed, helper, _INFO + header.digest))


def open_seed(header: Header, sealed: bytes, key: X25519PrivateKey) -> bytes | None:
    """Return the seed of a report; None if it was not sealed for this header and key."""
    try:
        seed: bytes = _SUITE.decrypt(sealed, key, _INFO + header.digest)
    except (InvalidTag, ValueError):
        return None
    return seed if len(seed) == SEED_BYTES else None


def mask(seed: bytes, numbers: int) -> Words:
    """Return G(s): the key stream of AES-128 in counter mode as integers, (n,)."""
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * numbers)), "<u8").astype(np.uint64)


def signed(words: Words) -> IntArray:
    """Return integers modulo 2^64 as those from -2^63 to 2^63 - 1."""
    return words.view(np.int64)


# What the server and the helper send each other.


@dataclass(frozen=True)
class SumRequest:
    """A question to the helper: the sums of the masks of some reports.

    Attributes
    ----------
    header : Header
        Of the exchange.
    kind : str
        One of :data:`KINDS`.
    sizes : tuple of int
        Numbers of reports in each group: the first reports are the first group, and so on. The
        kinds ``trial`` and ``sum`` have one group.
    sealed : tuple of bytes
        The sealed seeds, 64 bytes each.
    """

    header: Header
    kind: str
    sizes: tuple[int, ...]
    sealed: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if type(self.kind) is not str or self.kind not in KINDS:
            raise DataError(f"the kind is {self.kind!r}: must be one of {', '.join(KINDS)}")
        if not 1 <= len(self.sizes) <= (MOST_REPORTS if self.kind == "parts" else 1):
            raise DataError(f"{len(self.sizes)} groups in a request of the kind {self.kind}")
        for size in self.sizes:
            check_integer("the size of a group", size, 1, MOST_REPORTS)
        check_integer("the number of reports", len(self.sealed), 1, MOST_REPORTS)
        if sum(self.sizes) != len(self.sealed):
            raise DataError(f"{len(self.sealed)} reports in groups of {sum(self.sizes)}")

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        fields = {"header": self.header.to_fields(), "kind": self.kind, "sizes": [*self.sizes]}
        return framed(fields, b"".join(self.sealed))

    @classmethod
    def from_bytes(cls, content: bytes) -> SumRequest:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        fields, body = unframed(content, "the request", ("header", "kind", "sizes"))
        sizes = fields["sizes"]
        if not isinstance(sizes, list) or len(body) % SEALED_BYTES:
            raise DataError(f"the request has {len(body)} bytes of reports, or no sizes")
        starts = range(0, len(body), SEALED_BYTES)
        sealed = tuple(body[start : start + SEALED_BYTES] for start in starts)
        return cls(Header.from_fields(fields["header"]), fields["kind"], tuple(sizes), sealed)


@dataclass(frozen=True)
class SumAnswer:
    """The helper's answer.

    Attributes
    ----------
    request : bytes
        SHA-256 of the request.
    refused : tuple of int
        Places of the reports that were left out, ascending: they do not open, or are repeated.
    sums : Words
        ``sum G(s)`` over the other reports of each group, plus noise, (groups, n).
    """

    request: bytes
    refused: tuple[int, ...]
    sums: Words

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        groups, numbers = self.sums.shape
        fields = {
            "groups": groups,
            "numbers": numbers,
            "refused": [*self.refused],
            "request": self.request.hex(),
        }
        return framed(fields, self.sums.astype("<u8").tobytes())

    @classmethod
    def from_bytes(cls, content: bytes, request: SumRequest) -> SumAnswer:
        """Invert :meth:`to_bytes`; raise DataError if it is no answer to the request."""
        names = ("groups", "numbers", "refused", "request")
        fields, body = unframed(content, "the helper's answer", names)
        shape = len(request.sizes), request.header.numbers
        places, digest = fields["refused"], hashlib.sha256(request.to_bytes()).digest()
        if not isinstance(places, list) or places != sorted(set(_counts(places))):
            raise DataError("the helper's answer has invalid places of reports")
        if (fields["groups"], fields["numbers"]) != shape or len(body) != 8 * shape[0] * shape[1]:
            raise DataError("the helper's answer has another size than that of the request")
        if fields["request"] != digest.hex() or any(each >= len(request.sealed) for each in places):
            raise DataError("the helper's answer is not for this request")
        return cls(digest, tuple(places), np.frombuffer(body, "<u8").reshape(shape))


def _counts(places: Sequence[object]) -> list[int]:
    return [each for each in places if type(each) is int and each >= 0]
