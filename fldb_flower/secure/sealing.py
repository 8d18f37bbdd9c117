"""Sealing: a piece that only one member of the committee can read, and only in one exchange.

The key is HKDF-SHA256 of the X25519 secret of sender and receiver. The exchange, the direction and
both public keys enter the derivation, so every exchange and direction has a key of its own. The
piece is encrypted with AES-256-GCM. The associated data is the hash of the header: under another
header, the piece does not open.

The nonce is a keyed hash of the content (the construction SIV). Two different contents therefore
never share a nonce, even if a device's store is restored from a backup, and the same content gives
identical bytes.

Nothing here is claimed to run in constant time beyond what the library `cryptography` provides.

References
----------
RFC 7748 (X25519), RFC 5869 (HKDF), RFC 2104 (HMAC), NIST SP 800-38D (GCM).
P. Rogaway and T. Shrimpton, "A provable-security treatment of the key-wrap problem",
EUROCRYPT 2006 (SIV).
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fldb_flower.errors import SecureError

NONCE_BYTES, TAG_BYTES = 12, 16
OVERHEAD = NONCE_BYTES + TAG_BYTES
"""Bytes that sealing adds to a content."""

_PROTOCOL = b"fldb-flower secure sum 1"
_CIPHER_BYTES, _NONCE_KEY_BYTES = 32, 32


class Route(NamedTuple):
    """What a key is for.

    Attributes
    ----------
    exchange : bytes
        Identifier of the exchange.
    sender, receiver : str
        Identifiers of the two devices, which may be the same.
    """

    exchange: bytes
    sender: str
    receiver: str


def seal(
    content: bytes, route: Route, header_hash: bytes, private: X25519PrivateKey, peer: bytes
) -> bytes:
    """Return the sealed content: nonce (12 bytes), ciphertext and tag (16 bytes).

    Parameters
    ----------
    content : bytes
        What to seal.
    route : Route
        Exchange and direction.
    header_hash : bytes
        Hash of the exchange's header.
    private : X25519PrivateKey
        Key of the sender.
    peer : bytes
        Public key of the receiver, 32 bytes.

    Raises
    ------
    SecureError
        The receiver's key is not valid.

    Examples
    --------
    >>> from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    >>> from fldb_flower.secure.sealing import Route, seal, unseal
    >>> alice, bob = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    >>> route, header_hash = Route(bytes(16), "alice", "bob"), bytes(32)
    >>> sealed = seal(b"piece", route, header_hash, alice, bob.public_key().public_bytes_raw())
    >>> unseal(sealed, route, header_hash, bob, alice.public_key().public_bytes_raw())
    b'piece'
    """
    own = private.public_key().public_bytes_raw()
    cipher, nonce_key = _keys(route, _secret(private, peer, route.receiver), own, peer)
    nonce = hmac.digest(nonce_key, header_hash + content, hashlib.sha256)[:NONCE_BYTES]
    return nonce + cipher.encrypt(nonce, content, header_hash)


def unseal(
    sealed: bytes, route: Route, header_hash: bytes, private: X25519PrivateKey, peer: bytes
) -> bytes:
    """Return the content of :func:`seal`, with the receiver's private and sender's public key.

    Raises
    ------
    SecureError
        The tag is wrong: another sender, receiver, exchange or header, or changed bytes.
    """
    own = private.public_key().public_bytes_raw()
    cipher, _ = _keys(route, _secret(private, peer, route.sender), peer, own)
    try:
        return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], header_hash)
    except (InvalidTag, ValueError):  # ValueError: too short
        raise SecureError(
            f"the piece from {route.sender} for {route.receiver} does not open: its tag is wrong"
        ) from None


def _secret(private: X25519PrivateKey, peer: bytes, name: str) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        raise SecureError(f"the public key of {name} is not a valid X25519 key") from None


def _keys(route: Route, secret: bytes, sender: bytes, receiver: bytes) -> tuple[AESGCM, bytes]:
    """Return the cipher and the key of the nonce."""
    names = (route.sender.encode(), route.receiver.encode())
    # Each part has a length before it, so that different parts never give the same bytes.
    info = b"".join(
        len(part).to_bytes(2, "big") + part for part in (_PROTOCOL, *names, sender, receiver)
    )
    length = _CIPHER_BYTES + _NONCE_KEY_BYTES
    derived = HKDF(SHA256(), length, salt=route.exchange, info=info).derive(secret)
    return AESGCM(derived[:_CIPHER_BYTES]), derived[_CIPHER_BYTES:]
