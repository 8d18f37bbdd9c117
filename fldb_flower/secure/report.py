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

The helper has a signing key, which devices pin, and HPKE keys that it signs. Each is valid for a
month and then destroyed, so that seeds that were sealed for it can no longer be opened.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from numpy.typing import NDArray

from fldb_flower.errors import DataError, SecureError
from fldb_flower.linalg.arrays import FloatArray, IntArray
from fldb_flower.secure.canonical import checked_fields, checked_integer, to_json, unhex

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

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_INFO = b"fldb-flower report 1 "
_CONTEXT = b"fldb-flower helper key 1 "


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
        """Return the public key; raise SecureError if it is foreign, expired or unusable."""
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
            raise SecureError("the helper's key is no valid public key") from None
        return public

    @classmethod
    def from_fields(cls, fields: Any) -> HelperKey:
        """Return a key that was sent as JSON, or raise DataError."""
        fields = checked_fields(fields, "the helper's key", cls.__dataclass_fields__)
        return cls(
            key=checked_integer(fields["key"], "the key's number", 0, LATEST),
            expires=checked_integer(fields["expires"], "the end of the key", 1, LATEST),
            public=unhex(fields["public"], "the public key", 32),
            signature=unhex(fields["signature"], "the signature", 64),
        )


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
        return hashlib.sha256(to_json(vars(self))).digest()

    @classmethod
    def from_fields(cls, fields: Any) -> Header:
        """Return a header that was sent as JSON, or raise DataError."""
        fields = checked_fields(fields, "the header", cls.__dataclass_fields__)
        return cls(
            task=unhex(fields["task"], "the task", DIGEST_BYTES),
            number=checked_integer(fields["number"], "the exchange's number", 1, LATEST),
            numbers=checked_integer(fields["numbers"], "the number of values", 1, MOST_NUMBERS),
            sigma=checked_integer(fields["sigma"], "sigma", LEAST_SIGMA, LARGEST_SIGMA),
            key=checked_integer(fields["key"], "the key's number", 0, LATEST),
            broadcast=unhex(fields["broadcast"], "the hash of the broadcast", DIGEST_BYTES),
        )


def task_of(federation: str, helper: bytes, dimension: int) -> bytes:
    """Return the hash of the parameters that a device pins: name, helper's public key and d."""
    fields = {"dimension": dimension, "federation": federation, "helper": helper}
    return hashlib.sha256(to_json(fields)).digest()


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


def signed(words: Words) -> IntArray:
    """Return integers modulo 2^64 as those from -2^63 to 2^63 - 1."""
    return words.view(np.int64)
