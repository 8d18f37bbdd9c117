"""Keys and certificates of a federation of devices.

A private certificate authority (CA) signs the server's certificate. Devices trust the CA, so the
server's certificate can be renewed without changes on devices. Each device authenticates with an
ECDSA P-384 key in OpenSSH format, as Flower requires. Private keys have mode 0600. Only
:func:`renew` replaces a file: the server's certificate.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fldb_flower.deployment.key_files import make_folder, read_file, reported, write_new
from fldb_flower.errors import DataError, OutputError, SettingsError
from fldb_flower.system.files import replace_file

CA, CA_KEY, SERVER, SERVER_KEY, DEVICES = (
    "ca.crt", "ca.key", "server.pem", "server.key", "devices",
)  # fmt: skip
CA_DAYS, SERVER_DAYS = 3650, 397
_CURVE = ec.SECP384R1()
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DAY = datetime.timedelta(days=1)


def create(folder: Path, hosts: Sequence[str], devices: int) -> list[Path]:
    """Create a CA, a server certificate, and key pairs of devices.

    Parameters
    ----------
    folder : Path
        Folder of the files; created with mode 0700 if it does not exist.
    hosts : sequence of str
        Names and IP addresses of the server, as devices use them.
    devices : int
        Number of key pairs, ``devices/device1`` and so on; 0 if each device creates its own.

    Returns
    -------
    list of Path
        The new files.

    Raises
    ------
    SettingsError
        A host is neither a name nor an IP address, or there is no host.
    OutputError
        A file already exists or cannot be written.
    """
    if not hosts:
        raise SettingsError("no host: give the names or IP addresses of the server")
    names = [_subject_name(host) for host in dict.fromkeys(hosts)]
    for name in (CA, CA_KEY, SERVER, SERVER_KEY):
        if os.path.lexists(folder / name):
            raise OutputError(f"{folder / name} already exists: use another folder")
    ca_key, server_key = (ec.generate_private_key(_CURVE) for _ in range(2))
    ca = _sign_ca(ca_key)
    server = _sign_server(server_key.public_key(), names, ca, ca_key)
    files = {
        folder / CA_KEY: (_pem(ca_key), 0o600),
        folder / CA: (ca.public_bytes(Encoding.PEM), 0o644),
        folder / SERVER_KEY: (_pem(server_key), 0o600),
        folder / SERVER: (server.public_bytes(Encoding.PEM), 0o644),
    }
    make_folder(folder)
    for path, (content, mode) in files.items():
        write_new(path, content, mode)
    return [*files, *(add_devices(folder, devices) if devices else [])]


def add_devices(folder: Path, devices: int) -> list[Path]:
    """Create key pairs of more devices, numbered after the existing ones.

    Returns
    -------
    list of Path
        The private keys. The public key of each has the suffix ``.pub``.

    Raises
    ------
    DataError
        There is no such folder.
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
        public = key.public_key().public_bytes(Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        write_new(path, private, 0o600)
        write_new(path.with_suffix(".pub"), public + f" {path.name}\n".encode(), 0o644)
    return made


def renew(folder: Path, hosts: Sequence[str] = ()) -> Path:
    """Replace the server's certificate by one that is valid from now, for the same key.

    Parameters
    ----------
    folder : Path
        Folder of :func:`create`, including the CA's key.
    hosts : sequence of str
        Names and IP addresses; by default, those of the old certificate.

    Raises
    ------
    DataError
        A file is missing or invalid.
    SettingsError
        A host is neither a name nor an IP address.
    OutputError
        The certificate cannot be written; the old one is unchanged.
    """
    ca, server = _certificate(folder / CA), _certificate(folder / SERVER)
    ca_key = _private_key(folder / CA_KEY)
    old = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = [_subject_name(host) for host in dict.fromkeys(hosts)] or list(old)
    renewed = _sign_server(_private_key(folder / SERVER_KEY).public_key(), names, ca, ca_key)
    with reported(OutputError, f"write {folder / SERVER}"):
        replace_file(folder / SERVER, renewed.public_bytes(Encoding.PEM))
    return folder / SERVER


def _subject_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", host) or re.fullmatch(r"[\d.]+", host):
        raise SettingsError(f"host {host!r}: must be a name like server.example, or an IP address")
    return x509.DNSName(host)


def _sign_ca(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fldb-flower CA")])
    builder = _builder(name, name, key.public_key(), CA_DAYS)
    # The CA may not issue intermediate CAs, and may only sign certificates and revocation lists.
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return builder.sign(key, hashes.SHA384())


def _sign_server(
    key: ec.EllipticCurvePublicKey,
    names: Sequence[x509.GeneralName],
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fldb-flower server")])
    builder = _builder(subject, ca.subject, key, SERVER_DAYS)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return builder.add_extension(issuer, critical=False).sign(ca_key, hashes.SHA384())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)  # tolerates clocks that differ
        .not_valid_after(now + days * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_file(path))
    except ValueError:
        raise DataError(f"{path} is not a certificate") from None


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(read_file(path), None)
    except (TypeError, ValueError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DataError(f"{path} is not an unencrypted ECDSA key")
    return key
