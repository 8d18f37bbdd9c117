"""Keys and certificates of a federation of devices.

A private certificate authority (CA) signs the server's certificate. Devices trust the CA, so the
server's certificate can be renewed without changes on devices. Each device authenticates with an
ECDSA P-384 key in OpenSSH format, as Flower requires. Devices pin the helper's Ed25519 key. Private
keys have mode 0600. Only :func:`renew` replaces a file: the server's certificate.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fldb_flower.errors import DataError, OutputError, SettingsError
from fldb_flower.system.files import create_file, make_folder, read_file, replace_file, reported

CA, CA_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "server.pem", "server.key"
DEVICES = "devices"
CA_DAYS, SERVER_DAYS = 3650, 397
_CURVE = ec.SECP384R1()
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DAY = datetime.timedelta(days=1)
_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
    "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip
_MOST_BYTES = 2**20


def create(folder: Path, hosts: Sequence[str], devices: int) -> list[Path]:
    """Create a CA, the certificate of a server with these names or IP addresses, and device keys.

    The folder is created with mode 0700 if it does not exist. The key pairs are
    ``devices/device1`` and so on, or none if devices create their own. Return the new files.
    """
    names = [_subject_name(host) for host in dict.fromkeys(hosts)]
    for name in (CA, CA_KEY, SERVER, SERVER_KEY):
        if os.path.lexists(folder / name):
            raise OutputError(f"{folder / name} already exists: use another folder")
    ca_key, server_key = (ec.generate_private_key(_CURVE) for _ in range(2))
    # The CA may not issue intermediate CAs, and may only sign certificates and revocation lists.
    ca = _signed(
        "fldb-flower CA", ca_key.public_key(), None, ca_key, CA_DAYS,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage("key_cert_sign", "crl_sign"), True),
    )  # fmt: skip
    contents = {
        folder / CA_KEY: (_pem(ca_key), 0o600),
        folder / CA: (ca.public_bytes(Encoding.PEM), 0o644),
        folder / SERVER_KEY: (_pem(server_key), 0o600),
        folder / SERVER: (_server(server_key.public_key(), names, ca, ca_key), 0o644),
    }
    make_folder(folder)
    for path, (content, mode) in contents.items():
        _write_new(path, content, mode)
    return [*contents, *(add_devices(folder, devices) if devices else [])]


def add_devices(folder: Path, devices: int) -> list[Path]:
    """Create key pairs of more devices, numbered after the existing ones.

    Return the private keys. The public key of each has the suffix ``.pub``.
    """
    if devices < 1:
        raise SettingsError(f"{devices} devices: must be at least 1")
    if not folder.exists():
        raise DataError(f"{folder}: there is no such folder; `fldb keys credentials` creates one")
    make_folder(folder / DEVICES)
    with reported(OutputError, f"read {folder / DEVICES}"):
        names = [path.name for path in (folder / DEVICES).iterdir()]
    known = [re.fullmatch(r"device(\d+)(\.pub)?", name) for name in names]
    last = max((int(match[1]) for match in known if match), default=0)
    made = [folder / DEVICES / f"device{last + number}" for number in range(1, devices + 1)]
    for path in made:
        key = ec.generate_private_key(_CURVE)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        _write_new(path, private, 0o600)
        _write_new(path.with_suffix(".pub"), public + f" {path.name}\n".encode(), 0o644)
    return made


def renew(folder: Path, hosts: Sequence[str] = ()) -> list[Path]:
    """Replace the server's certificate by one for the same key that is valid from now on.

    Names and IP addresses default to those of the old certificate. Return the new file.
    """
    ca, server = (
        _load(folder / name, x509.load_pem_x509_certificate, x509.Certificate, "a certificate")
        for name in (CA, SERVER)
    )
    ca_key, server_key = (
        _load(folder / name, _load_private, ec.EllipticCurvePrivateKey, "an unencrypted ECDSA key")
        for name in (CA_KEY, SERVER_KEY)
    )
    old = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = [_subject_name(host) for host in dict.fromkeys(hosts)] or list(old)
    renewed = _server(server_key.public_key(), names, ca, ca_key)
    with reported(OutputError, f"write {folder / SERVER}"):
        replace_file(folder / SERVER, renewed)
    return [folder / SERVER]


def _subject_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    if not re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", host) or re.fullmatch(r"[\d.]+", host):
        raise SettingsError(f"host {host!r}: must be a name like server.example, or an IP address")
    return x509.DNSName(host)


def _server(
    key: ec.EllipticCurvePublicKey,
    names: Sequence[x509.GeneralName],
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
) -> bytes:
    """Return a new certificate of the server, in PEM."""
    certificate = _signed(
        "fldb-flower server", key, ca.subject, ca_key, SERVER_DAYS,
        (x509.SubjectAlternativeName(names), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False),
    )  # fmt: skip
    return certificate.public_bytes(Encoding.PEM)


def _signed(
    name: str,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name | None,
    ca_key: ec.EllipticCurvePrivateKey,
    days: int,
    *extensions: tuple[x509.ExtensionType, bool],
) -> x509.Certificate:
    """Return a certificate with these extensions, each critical or not; no issuer: its own."""
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(
        issuer or subject, subject, key, x509.random_serial_number(),
        not_valid_before=now - _DAY,  # tolerates clocks that differ
        not_valid_after=now + days * _DAY,
    )  # fmt: skip
    own = x509.SubjectKeyIdentifier.from_public_key(key)
    for extension, critical in ((own, False), *extensions):
        builder = builder.add_extension(extension, critical)
    return builder.sign(ca_key, hashes.SHA384())


def _usage(*wanted: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in wanted for name in _USAGES})


# The signing key of the helper of secure sums: devices pin its public key.


def create_helper_key(path: Path) -> list[Path | str]:
    """Create the helper's key pair; return both files and the public key in hexadecimal."""
    key, public_path = Ed25519PrivateKey.generate(), path.with_name(f"{path.name}.pub")
    for made in (path, public_path):
        if os.path.lexists(made):
            raise OutputError(f"{made} already exists: use another name")
    public = key.public_key()
    make_folder(path.parent)
    _write_new(path, _pem(key), 0o600)
    content = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    _write_new(public_path, content, 0o644)
    return [path, public_path, f"public key {public.public_bytes_raw().hex()}"]


def load_helper_key(path: Path) -> Ed25519PrivateKey:
    """Return the helper's private key, or raise DataError."""
    what = "an unencrypted private Ed25519 key: `fldb keys helper FILE` creates one"
    key: Ed25519PrivateKey = _load(path, _load_private, Ed25519PrivateKey, what)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise DataError(f"other users can read the private key {path}: chmod 600 {path}")
    return key


def load_helper_public_key(path: Path) -> Ed25519PublicKey:
    """Return the helper's public key, or raise DataError."""
    what = "a public Ed25519 key, such as `fldb keys helper` creates"
    key: Ed25519PublicKey = _load(path, load_pem_public_key, Ed25519PublicKey, what)
    return key


# Files: new ones are written atomically, and errors are one line.


def _pem(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _load_private(content: bytes) -> object:
    return load_pem_private_key(content, None)


def _load(path: Path, load: Callable[[bytes], object], kind: type, what: str) -> Any:
    """Return the key or certificate of a kind in a file, or raise DataError."""
    with (
        reported(DataError, f"read {path}"),
        contextlib.suppress(TypeError, ValueError, UnsupportedAlgorithm),
    ):
        if isinstance(loaded := load(read_file(path, _MOST_BYTES)), kind):
            return loaded
    raise DataError(f"{path} is not {what}")


def _write_new(path: Path, content: bytes, mode: int) -> None:
    with reported(OutputError, f"write {path}"):
        create_file(path, content, mode)
