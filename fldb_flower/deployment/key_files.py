"""Files of keys: new files are written atomically, and errors are one line.

Private keys are PKCS#8 in PEM with mode 0600, public keys SubjectPublicKeyInfo in PEM, as OpenSSL
reads them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from fldb_flower.errors import DataError, FldbError, OutputError
from fldb_flower.system import files

PUBLIC_SUFFIX = ".pub"
_WRITE_OF_OTHERS = 0o022
_MOST_BYTES = 2**20


@contextlib.contextmanager
def reported(error: type[FldbError], action: str) -> Iterator[None]:
    """Turn an OSError into one line: ``cannot read ca.key: No such file or directory``."""
    try:
        yield
    except OSError as reason:
        raise error(f"cannot {action}: {reason.strerror}") from None


def read_file(path: Path) -> bytes:
    """Return the content of a file, or raise DataError."""
    with reported(DataError, f"read {path}"):
        return files.read_file(path, _MOST_BYTES)


def check_writers(path: Path) -> None:
    """Raise DataError if another user than the one of this process, and root, can write a file."""
    if not hasattr(os, "geteuid"):
        raise DataError(f"cannot check who can write {path}: this needs Linux or macOS")
    with reported(DataError, f"read {path}"):
        status = path.stat()
    if status.st_uid not in {os.geteuid(), 0}:
        raise DataError(
            f"{path} belongs to user {status.st_uid}: must belong to user {os.geteuid()}, which"
            " runs this process, or to root"
        )
    if status.st_mode & _WRITE_OF_OTHERS:
        raise DataError(f"other users can write {path}: chmod go-w {path}")


def make_folder(folder: Path) -> None:
    """Create a folder with mode 0700 if it does not exist, or raise OutputError."""
    with reported(OutputError, f"create the folder {folder}"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Create a file with a mode; if it exists or cannot be written, raise OutputError."""
    with reported(OutputError, f"write {path}"):
        files.create_file(path, content, mode)


def create_pair(path: Path, key: Ed25519PrivateKey | X25519PrivateKey) -> list[Path]:
    """Write a private key and, with the suffix ``.pub``, its public key; return both files."""
    public_path = path.with_name(path.name + PUBLIC_SUFFIX)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for made in (path, public_path):
        if os.path.lexists(made):
            raise OutputError(f"{made} already exists: use another name")
    make_folder(path.parent)
    write_new(path, private, 0o600)
    write_new(public_path, public, 0o644)
    return [path, public_path]


def private_key(path: Path) -> object:
    """Return a private key of any kind; None if the file has none, or an encrypted one."""
    try:
        return load_pem_private_key(read_file(path), None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return None


def public_key(path: Path) -> object:
    """Return a public key of any kind; None if the file has none."""
    try:
        return load_pem_public_key(read_file(path))
    except (ValueError, UnsupportedAlgorithm):
        return None
