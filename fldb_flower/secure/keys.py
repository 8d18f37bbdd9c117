"""The helper's keys: a signing key that devices pin, and HPKE keys that it signs.

An HPKE key is valid for a month and then destroyed, so that seeds that were sealed for it can no
longer be opened. DAP (the IETF's Distributed Aggregation Protocol) has key configurations for the
same purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fldb_flower.errors import SecureError
from fldb_flower.secure.canonical import check_bytes, check_fields, check_integer, to_json, unhex

VALID_SECONDS = 31 * 86_400
"""How long a new HPKE key is valid."""

_CONTEXT = b"fldb-flower helper key 1 "
_LARGEST = 2**48
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
_NAMES = ("expires", "key", "public", "signature")


@dataclass(frozen=True)
class HelperKey:
    """An HPKE key of the helper, signed.

    Attributes
    ----------
    key : int
        Its number: the time of its creation, in ms since 1970.
    expires : int
        The time after which it is destroyed, in seconds since 1970.
    public : bytes
        The X25519 public key.
    signature : bytes
        Ed25519, over the other fields.
    """

    key: int
    expires: int
    public: bytes
    signature: bytes = b""

    def __post_init__(self) -> None:
        check_integer("the key's number", self.key, 0, _LARGEST)
        check_integer("the end of the key's validity", self.expires, 1, _LARGEST)
        check_bytes("the public key", self.public, _KEY_BYTES, _KEY_BYTES)

    def _signed(self) -> bytes:
        fields = {"expires": self.expires, "key": self.key, "public": self.public.hex()}
        return _CONTEXT + to_json(fields)

    def sign(self, signer: Ed25519PrivateKey) -> HelperKey:
        """Return the key with a signature."""
        return HelperKey(self.key, self.expires, self.public, signer.sign(self._signed()))

    def verified(self, signer: Ed25519PublicKey, now: float) -> X25519PublicKey:
        """Return the public key.

        Raises
        ------
        SecureError
            The signature is not the helper's, the key has expired, or no seed can be sealed for it.
        """
        try:
            signer.verify(self.signature, self._signed())
        except InvalidSignature:
            raise SecureError("the helper's key is not signed by the pinned key") from None
        if now > self.expires:
            raise SecureError("the helper's key has expired")
        public = X25519PublicKey.from_public_bytes(self.public)
        try:
            X25519PrivateKey.generate().exchange(public)
        except ValueError:  # a point of low order
            raise SecureError("the helper's key is no valid public key") from None
        return public

    def to_fields(self) -> dict[str, Any]:
        """Return the key as JSON values."""
        return {
            "expires": self.expires,
            "key": self.key,
            "public": self.public.hex(),
            "signature": self.signature.hex(),
        }

    @classmethod
    def from_fields(cls, fields: object) -> HelperKey:
        """Invert :meth:`to_fields`; raise DataError if the values are damaged."""
        values = fields if isinstance(fields, dict) else {}
        check_fields(values, "the helper's key", _NAMES)
        signature = unhex("the signature", values["signature"])
        check_bytes("the signature", signature, _SIGNATURE_BYTES, _SIGNATURE_BYTES)
        public = unhex("the public key", values["public"])
        return cls(values["key"], values["expires"], public, signature)
