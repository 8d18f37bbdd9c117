"""Rosters of secure sums: keys of devices, the signing key, and signed files.

Private keys are PKCS#8 in PEM with mode 0600, public keys SubjectPublicKeyInfo in PEM, as OpenSSL
reads them. The signing key belongs offline, with somebody other than the operator of the server.
"""

from __future__ import annotations

import base64
import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fldb_flower.deployment.key_files import (
    create_pair,
    private_key,
    public_key,
    read_file,
    reported,
    write_new,
)
from fldb_flower.errors import DataError, OutputError, SettingsError
from fldb_flower.secure.roster import Roster, read, read_signed, sign
from fldb_flower.system.files import replace_file


def create_signing_key(path: Path) -> list[Path]:
    """Create an Ed25519 key pair that signs rosters; return both files."""
    return create_pair(path, Ed25519PrivateKey.generate())


def create_device_key(path: Path) -> list[Path]:
    """Create the X25519 key pair of a device; return both files."""
    return create_pair(path, X25519PrivateKey.generate())


def create_roster(
    path: Path,
    signing_key: Path,
    devices: Sequence[str],
    not_before: datetime.date | None = None,
    not_after: datetime.date | None = None,
    *,
    version: int = 1,
) -> Path:
    """Create and sign a roster.

    Parameters
    ----------
    path : Path
        The new file.
    signing_key : Path
        Private key of :func:`create_signing_key`.
    devices : sequence of str
        Each ``NAME=FILE``, with the public key of the device.
    not_before, not_after : date, optional
        First and last day of validity.
    version : int
        Greater than that of the last roster, if its file is lost.

    Raises
    ------
    SettingsError
        A device is not of this form, or is repeated.
    DataError
        A key or the version is missing or invalid.
    OutputError
        The file exists or cannot be written.
    """
    if os.path.lexists(path):
        raise OutputError(f"{path} already exists: `fldb keys roster renew` signs the next version")
    roster = Roster(version, _public_keys(devices), not_before, not_after)
    write_new(path, sign(roster, load_signing_key(signing_key)), 0o644)
    return path


def renew_roster(
    path: Path,
    signing_key: Path,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    dates: Mapping[str, datetime.date | None] | None = None,
    *,
    version: int | None = None,
) -> Path:
    """Replace a roster by a later version.

    Parameters
    ----------
    path : Path
        The roster, signed with the same key.
    signing_key : Path
        Private key of :func:`create_signing_key`.
    add : sequence of str
        New devices, ``NAME=FILE``. With ``remove``, a device gets a new key.
    remove : sequence of str
        Devices to remove.
    dates : mapping of str to date or None, optional
        New values of ``not_before`` and ``not_after``; by default those of the old roster.
    version : int, optional
        Greater than that of the old roster; by default, the next one.

    Raises
    ------
    SettingsError, DataError, SecureError, OutputError
        An argument, a key or the roster is invalid; the old roster is unchanged.
    """
    key = load_signing_key(signing_key)
    old = read_signed(read_file(path), key.public_key())
    validity = {"not_before": old.not_before, "not_after": old.not_after, **(dates or {})}
    renewed = old.renewed(_public_keys(add), remove, **validity, version=version)
    with reported(OutputError, f"write {path}"):
        replace_file(path, sign(renewed, key))
    return path


def describe_roster(path: Path, signer: Path | None = None) -> list[str]:
    """Return lines that describe a roster.

    Parameters
    ----------
    path : Path
        The roster.
    signer : Path, optional
        Public key that must have signed it; without it, the signature is not checked.

    Raises
    ------
    DataError, SecureError
        The roster or the key is invalid.
    """
    content = read_file(path)
    if signer is None:
        roster, checked = read(content)[0], "the signature was not checked"
    else:
        roster = read_signed(content, load_signer(signer))
        checked = f"signed by the key of {signer}"
    first, last = roster.not_before or "any day", roster.not_after or "any day"
    return [
        f"version {roster.version}, {len(roster.keys)} devices; {checked}",
        f"valid from {first} to {last}",
        f"SHA-256 {roster.digest.hex()}",
        *(f"{name} {base64.b64encode(key).decode()}" for name, key in roster.keys.items()),
    ]


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key that signs rosters, or raise DataError."""
    if isinstance(key := private_key(path), Ed25519PrivateKey):
        return key
    raise DataError(f"{path} is not an unencrypted private Ed25519 key")


def load_device_key(path: Path) -> X25519PrivateKey:
    """Return the private key of a device, or raise DataError."""
    if isinstance(key := private_key(path), X25519PrivateKey):
        return key
    raise DataError(f"{path} is not an unencrypted private X25519 key")


def load_signer(path: Path) -> Ed25519PublicKey:
    """Return the public key to pin on devices, or raise DataError."""
    if isinstance(key := public_key(path), Ed25519PublicKey):
        return key
    raise DataError(f"{path} is not a public Ed25519 key")


def load_device_public_key(path: Path) -> bytes:
    """Return the public key of a device, 32 bytes, or raise DataError."""
    if isinstance(key := public_key(path), X25519PublicKey):
        return key.public_bytes_raw()
    raise DataError(f"{path} is not a public X25519 key")


def _public_keys(devices: Sequence[str]) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for device in devices:
        name, separator, path = device.partition("=")
        if not (name and separator and path):
            raise SettingsError(f"device {device!r}: must be NAME=FILE, with its public key")
        if name in keys:
            raise SettingsError(f"device {name!r} is repeated")
        keys[name] = load_device_public_key(Path(path))
    return keys
