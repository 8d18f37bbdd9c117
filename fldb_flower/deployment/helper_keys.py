"""The signing key of the helper of secure sums: devices pin its public key."""

from __future__ import annotations

import stat
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fldb_flower.deployment.key_files import create_pair, private_key, public_key
from fldb_flower.errors import DataError

_OTHERS = 0o077


def create_helper_key(path: Path) -> list[Path | str]:
    """Create the helper's key pair; return both files and the public key in hexadecimal."""
    files = create_pair(path, key := Ed25519PrivateKey.generate())
    return [*files, f"public key {public_hex(key.public_key())}"]


def load_helper_key(path: Path) -> Ed25519PrivateKey:
    """Return the helper's private key, or raise DataError."""
    key = private_key(path)
    if not isinstance(key, Ed25519PrivateKey):
        raise DataError(
            f"{path} is not an unencrypted private Ed25519 key: `fldb keys helper FILE` creates one"
        )
    if stat.S_IMODE(path.stat().st_mode) & _OTHERS:
        raise DataError(f"other users can read the private key {path}: chmod 600 {path}")
    return key


def load_helper_public_key(path: Path) -> Ed25519PublicKey:
    """Return the helper's public key, or raise DataError."""
    if isinstance(key := public_key(path), Ed25519PublicKey):
        return key
    raise DataError(f"{path} is not a public Ed25519 key, such as `fldb keys helper` creates")


def public_hex(key: Ed25519PublicKey) -> str:
    """Return a public key as 64 hexadecimal digits, to compare by eye."""
    return key.public_bytes_raw().hex()
