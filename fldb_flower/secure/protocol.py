"""The protocol of secure sums: reports split between two servers, and all messages.

A device sends the server ``x - G(s) mod 2^64`` and the seed s, sealed for the helper. G is AES-CTR.
To the server, the former are uniform random numbers, and the helper receives only seeds. The helper
returns ``sum G(s)`` plus noise. The server then obtains ``sum x`` plus noise, and nothing else.

The numbers x are integers: a vector of length at most 1, in units of ``1 / SCALE``, rounded toward
zero. Rounding therefore never increases the length, and one person changes a sum by a vector of
length at most ``SCALE``. The noise is calibrated to this bound, whatever the numbers mean.

Seeds are sealed by HPKE (RFC 9180) with X25519, HKDF-SHA256 and AES-128-GCM. The hash of the header
is its ``info``, so a sealed seed opens only under the header that the device has seen. The split is
that of Prio (Corrigan-Gibbs and Boneh, NSDI 2017); the IETF's DAP has the same two parties.

The helper has a signing key, which devices pin, and HPKE keys that it signs. Each is valid for a
month and then destroyed. After that, seeds that were sealed for it cannot be opened.

Messages are canonical: exactly one sequence of bytes for each value, so that hashes can be
compared. Fields are JSON with sorted names, without spaces, in ASCII, and bytes in them are
hexadecimal, in lower case. Other spellings of the same value are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from numpy.typing import NDArray

from fldb_flower.errors import DataError, SecureError, shown
from fldb_flower.linalg.arrays import FloatArray, IntArray

Words = NDArray[np.uint64]
"""Integers modulo 2^64."""

SCALE = 2**32
"""Integers per unit of length."""

LEAST_SIGMA, LARGEST_SIGMA = 2**28, 2**54
"""Standard deviations of noise, in integers: multipliers from 1/16 to 4 million."""

MOST_NUMBERS = MOST_REPORTS = 2**20
"""Largest numbers of values in a report and of reports in a sum, which fits into 64 bits."""

VALID_SECONDS = 31 * 86_400
"""How long a new HPKE key is valid."""

AHEAD_SECONDS = 600
"""How far the number of an exchange may be ahead of the clock of a device, or of the helper."""

LATEST = 2**48
"""Largest number of an exchange or of a key: a time in ms since 1970."""

DIGEST_BYTES, SEED_BYTES, SEALED_BYTES = 32, 16, 64
KINDS = {"trial": 10, "parts": 10, "sum": 1}
"""Questions to the helper about one exchange, each answered once: noise in multiples of sigma."""

COST = sum(factor**-2 for factor in KINDS.values())
"""What one exchange costs, in units of ``1 / z^2``, z the noise multiplier: all three answers."""

HELLO, ESTIMATE, REPORT = "hello", "estimate", "report"
"""Kinds of requests to devices: for the identifier of the store; with a broadcast that requests
nothing; for a report."""

REFUSED = "refused"
_LENGTH_BYTES = 4
_LARGEST = 2**53
_MOST_REASON = 300  # characters
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_INFO = b"fldb-flower report 1 "
_CONTEXT = b"fldb-flower helper key 1 "
_T = TypeVar("_T")


# --- canonical bytes -------------------------------------------------------------------------


def to_json(fields: Any) -> bytes:
    """Return the canonical bytes of JSON values, bytes, and dataclasses of them."""

    def plain(value: Any) -> Any:
        return value.hex() if isinstance(value, bytes) else vars(value)

    separators = (",", ":")
    text = json.dumps(fields, sort_keys=True, separators=separators, allow_nan=False, default=plain)
    return text.encode()


def from_json(content: bytes, what: str, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of canonical bytes; DataError if names differ or bytes are damaged."""
    try:
        fields = json.loads(content.decode("ascii"))
        is_canonical = to_json(fields) == content  # not if a name is repeated
    except (ValueError, RecursionError) as reason:
        raise DataError(f"{what} is not JSON in ASCII: {reason}") from None
    if not is_canonical:
        raise DataError(f"{what} is not in canonical form")
    return checked_fields(fields, what, names)


def checked_fields(fields: Any, what: str, names: Iterable[str]) -> dict[str, Any]:
    """Return a mapping with exactly these names, or raise DataError."""
    if not isinstance(fields, dict) or set(fields) != set(names):
        has = [*fields] if isinstance(fields, dict) else fields
        raise DataError(f"{what} has {shown(has)}: must have {', '.join(sorted(names))}")
    return fields


def checked_integer(value: Any, what: str, low: int, high: int) -> int:
    """Return a value that is an int from low to high, or raise DataError."""
    if type(value) is not int or not low <= value <= high:
        raise DataError(f"{what} is {shown(value)}: must be a whole number, {low} to {high}")
    return value


def unhex(value: Any, what: str, size: int) -> bytes:
    """Return the bytes of a hexadecimal string in lower case, or raise DataError."""
    try:
        content = bytes.fromhex(value)
    except (TypeError, ValueError):
        content = b""
    if len(content) != size or content.hex() != value:
        raise DataError(f"{what} is {shown(value)}: must be {2 * size} hexadecimal digits")
    return content


def _typed(cls: type[_T], fields: Any, what: str, **limits: int | tuple[int, int]) -> _T:
    """Return a dataclass from JSON: integers within limits, and bytes of a given size."""
    values = checked_fields(fields, what, limits)
    return cls(**{
        name: unhex(values[name], f"{name} of {what}", limit)
        if isinstance(limit, int)
        else checked_integer(values[name], f"{name} of {what}", *limit)
        for name, limit in limits.items()
    })  # fmt: skip


def framed(fields: Mapping[str, Any], body: bytes) -> bytes:
    """Return 4 bytes of length, canonical JSON of that length, and a body."""
    index = to_json(fields)
    return len(index).to_bytes(_LENGTH_BYTES, "big") + index + body


def unframed(content: Any, what: str, names: Iterable[str]) -> tuple[dict[str, Any], bytes]:
    """Invert :func:`framed`; raise DataError if the content is damaged or not bytes."""
    if type(content) is not bytes:  # a list of integers, for example
        raise DataError(f"{what} is {type(content).__name__}: must be bytes")
    end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "big")
    if len(content) < end:
        raise DataError(f"{what} has {len(content)} bytes: must have at least {end}")
    return from_json(content[_LENGTH_BYTES:end], what, names), content[end:]


def sha256(content: bytes) -> bytes:
    """Return the hash of bytes."""
    return hashlib.sha256(content).digest()


# --- keys, headers and reports ---------------------------------------------------------------


@dataclass(frozen=True)
class HelperKey:
    """An HPKE key of the helper, signed over the other fields (Ed25519)."""

    key: int  # its number: the time of its creation, in ms since 1970
    expires: int  # seconds since 1970
    public: bytes  # X25519
    signature: bytes = b""

    def _signed(self) -> bytes:
        fields = {"expires": self.expires, "key": self.key, "public": self.public}
        return _CONTEXT + to_json(fields)

    def sign(self, signer: Ed25519PrivateKey) -> HelperKey:
        """Return the key with a signature."""
        return replace(self, signature=signer.sign(self._signed()))

    def verified(self, signer: Ed25519PublicKey, now: float) -> X25519PublicKey:
        """Return the public key; SecureError if not signed by ``signer``, expired or invalid."""
        try:
            signer.verify(self.signature, self._signed())
        except InvalidSignature:
            raise SecureError("the helper's key is not signed by the pinned key") from None
        if now > self.expires:
            raise SecureError("the helper's key has expired")
        public = X25519PublicKey.from_public_bytes(self.public)
        try:
            X25519PrivateKey.generate().exchange(public)
        except ValueError:  # a point of low order: no seed can be sealed for it
            raise SecureError("the helper's key is not a valid public key") from None
        return public

    @classmethod
    def from_fields(cls, fields: Any) -> HelperKey:
        """Return a key that was sent as JSON, or raise DataError."""
        return _typed(
            cls, fields, "the helper's key", key=(0, LATEST), expires=(1, LATEST), public=32,
            signature=64,
        )  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What the devices and the helper agree on for one exchange."""

    task: bytes  # of task_of
    number: int  # a time, in ms since 1970; numbers of a federation ascend
    numbers: int  # values in a report
    sigma: int  # standard deviation of the noise of each party in the answer "sum", in integers
    key: int  # the helper's HPKE key
    broadcast: bytes  # SHA-256 of what the devices are asked, which the helper does not see

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
        return sha256(to_json(self))

    @classmethod
    def from_fields(cls, fields: Any) -> Header:
        """Return a header that was sent as JSON, or raise DataError."""
        return _typed(
            cls, fields, "the header", task=DIGEST_BYTES, number=(1, LATEST),
            numbers=(1, MOST_NUMBERS), sigma=(LEAST_SIGMA, LARGEST_SIGMA), key=(0, LATEST),
            broadcast=DIGEST_BYTES,
        )  # fmt: skip


def task_of(federation: str, helper: bytes, dimension: int) -> bytes:
    """Return the hash of the parameters that a device pins: name, helper's public key and d."""
    return sha256(to_json({"dimension": dimension, "federation": federation, "helper": helper}))


class Report(NamedTuple):
    """What a device sends the server."""

    masked: Words  # x - G(s) mod 2^64, (n,)
    sealed: bytes  # the seed s for the helper, 64 bytes

    def to_bytes(self) -> bytes:
        """Return the bytes: those of ``sealed``, then those of ``masked``, little-endian."""
        return self.sealed + self.masked.astype("<u8").tobytes()

    @classmethod
    def from_bytes(cls, content: bytes, numbers: int) -> Report:
        """Invert :meth:`to_bytes`; raise DataError if the length is wrong."""
        size = SEALED_BYTES + 8 * numbers
        if len(content) != size:
            raise DataError(f"a report has {len(content)} bytes: must have {size}")
        return cls(np.frombuffer(content, "<u8", offset=SEALED_BYTES), content[:SEALED_BYTES])


def integers_of(vector: FloatArray) -> IntArray:
    """Return a vector of length at most 1 as integers, rounded toward zero.

    A longer vector is shortened. A vector that is not finite becomes 0: whether it is finite may
    depend on answers, and a refusal would be observed without noise.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        largest = float(np.abs(vector).max(initial=0.0))
        if not np.isfinite(largest) or not largest:
            return np.zeros(vector.shape, dtype=np.int64)
        scaled = vector / largest  # its square neither overflows nor vanishes
        length = largest * float(np.linalg.norm(scaled))
    values = vector if length <= 1.0 else scaled / float(np.linalg.norm(scaled))
    while True:
        integers: IntArray = np.trunc(values * SCALE).astype(np.int64)
        if sum(each * each for each in integers.tolist()) <= SCALE**2:
            return integers
        values = values * (1.0 - 2.0**-50)  # too long by rounding errors of the division


def make_report(header: Header, integers: IntArray, helper: X25519PublicKey) -> Report:
    """Return the report of a device, with a new seed."""
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


# --- messages --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A request of the server to a device; the SuperNode passes its bytes on."""

    kind: str
    header: Header | None = None  # and the helper's key: for reports only
    key: HelperKey | None = None
    counted: int = 0  # number of the last exchange in which its report was counted; 0: none
    broadcast: bytes = b""  # fldb_flower.secure.statistics.Shared; empty for "hello"

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        fields = dict(vars(self))
        return framed(fields, fields.pop("broadcast"))

    @classmethod
    def from_bytes(cls, content: bytes) -> Request:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        names = ("counted", "header", "key", "kind")
        fields, broadcast = unframed(content, "the request", names)
        kind, header, key = fields["kind"], fields["header"], fields["key"]
        counted = checked_integer(fields["counted"], "counted", 0, _LARGEST)
        if kind != REPORT:
            if kind not in (HELLO, ESTIMATE) or header is not None or key is not None:
                raise DataError(f"the request has the kind {shown(kind)}, or an unexpected header")
            return cls(kind, counted=counted, broadcast=broadcast)
        found = Header.from_fields(header)
        if sha256(broadcast) != found.broadcast:
            raise DataError("the broadcast has another hash than that in the header")
        return cls(kind, found, HelperKey.from_fields(key), counted, broadcast)


@dataclass(frozen=True)
class Reply:
    """A reply of a device, of the kind of the request or ``refused``."""

    kind: str
    device: str  # identifier of its store
    reason: str = ""  # why it is refused
    report: bytes = b""  # a Report
    digest: bytes = b""  # of the header that the report is for

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        fields = {**vars(self), "reason": self.reason[:_MOST_REASON]}
        return framed(fields, fields.pop("report"))

    @classmethod
    def from_bytes(cls, content: bytes) -> Reply:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        fields, report = unframed(content, "the reply", ("device", "digest", "kind", "reason"))
        if not all(type(each) is str for each in fields.values()):
            raise DataError("a field of the reply is not text")
        size = DIGEST_BYTES if fields["digest"] else 0
        digest = unhex(fields.pop("digest"), "the hash in the reply", size)
        return cls(**fields, report=report, digest=digest)


@dataclass(frozen=True)
class SumRequest:
    """A question to the helper: the sums of the masks of the reports in each group."""

    header: Header
    kind: str  # one of KINDS; "trial" and "sum" have one group
    sizes: tuple[int, ...]  # the first reports are the first group, and so on
    sealed: tuple[bytes, ...]  # the sealed seeds

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        fields = dict(vars(self))
        return framed(fields, b"".join(fields.pop("sealed")))

    @classmethod
    def from_bytes(cls, content: bytes) -> SumRequest:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        fields, body = unframed(content, "the request", ("header", "kind", "sizes"))
        kind, sizes, header = fields["kind"], fields["sizes"], Header.from_fields(fields["header"])
        if kind not in [*KINDS]:
            raise DataError(f"the kind is {shown(kind)}: must be one of {', '.join(KINDS)}")
        most = MOST_REPORTS if kind == "parts" else 1
        if not isinstance(sizes, list) or not 1 <= len(sizes) <= most:
            raise DataError(f"the request has no sizes of groups, or more than {most}")
        reports = sum(checked_integer(each, "a group's size", 1, MOST_REPORTS) for each in sizes)
        if reports > MOST_REPORTS or len(body) != SEALED_BYTES * reports:
            raise DataError(f"{len(body)} bytes of reports in groups of {reports}")
        starts = range(0, len(body), SEALED_BYTES)
        sealed = tuple(body[start : start + SEALED_BYTES] for start in starts)
        return cls(header, kind, tuple(sizes), sealed)


@dataclass(frozen=True)
class SumAnswer:
    """The helper's answer."""

    request: bytes  # SHA-256 of the request
    refused: tuple[int, ...]  # places of reports that do not open, or are repeated, ascending
    sums: Words  # of G(s) over the other reports of each group, plus noise, (groups, n)

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        groups, numbers = self.sums.shape
        fields = {**vars(self), "groups": groups, "numbers": numbers}
        return framed(fields, fields.pop("sums").astype("<u8").tobytes())

    @classmethod
    def from_bytes(cls, content: bytes, request: SumRequest) -> SumAnswer:
        """Invert :meth:`to_bytes`; raise DataError if it does not answer the request."""
        names = ("groups", "numbers", "refused", "request")
        fields, body = unframed(content, "the helper's answer", names)
        shape = len(request.sizes), request.header.numbers
        if (fields["groups"], fields["numbers"]) != shape or len(body) != 8 * shape[0] * shape[1]:
            raise DataError("the helper's answer has another size than that of the request")
        places, digest = fields["refused"], sha256(request.to_bytes())
        if fields["request"] != digest.hex():
            raise DataError("the helper's answer is not for this request")
        is_list = isinstance(places, list) and all(type(each) is int for each in places)
        if not is_list or places != sorted({*places}.intersection(range(len(request.sealed)))):
            raise DataError("the helper's answer has no ascending places of reports")
        return cls(digest, tuple(places), np.frombuffer(body, "<u8").reshape(shape))
