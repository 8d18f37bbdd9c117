"""Keys and certificates of a federation, from nothing.

A certificate authority (CA) of its own signs the server's certificate; devices trust the CA, so
a new server certificate needs nothing from them. Each device proves who it is with an ECDSA
P-384 key, in the format of SSH, as Flower wants it. Private files are their owner's alone; only
:func:`renew` replaces a file, the server's certificate.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fldb_flower.errors import DataError, OutputError, SettingsError
from fldb_flower.system.files import create_file, replace_file

CA, CA_KEY, SERVER, SERVER_KEY, DEVICES = (
    "ca.crt", "ca.key", "server.pem", "server.key", "devices",
)  # fmt: skip
CA_DAYS, SERVER_DAYS = 3650, 397
_CURVE = ec.SECP384R1()
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DAY = datetime.timedelta(days=1)


def create(folder: Path, hosts: Sequence[str], devices: int) -> list[Path]:
    """Make a CA, a server certificate for some hosts, and key pairs of devices.

    Parameters
    ----------
    folder : Path
        Created if missing, readable by its owner alone.
    hosts : sequence of str
        Names and IP addresses under which devices reach the server.
    devices : int
        Number of key pairs, ``devices/device1`` and so on; 0 where each device makes its own.

    Returns
    -------
    list of Path
        The files that were written.

    Raises
    ------
    SettingsError
        A host is neither a name nor an address, or there is none.
    OutputError
        One of the files exists, or cannot be written.
    """
    names = _subject_names(hosts)
    _refuse_existing(folder / name for name in (CA, CA_KEY, SERVER, SERVER_KEY))
    ca_key, server_key = (ec.generate_private_key(_CURVE) for _ in range(2))
    ca = _sign_ca(ca_key)
    server = _sign_server(server_key.public_key(), names, ca, ca_key)
    _make_folder(folder)
    for name, content, mode in (
        (CA_KEY, _pem(ca_key), 0o600),
        (CA, ca.public_bytes(Encoding.PEM), 0o644),
        (SERVER_KEY, _pem(server_key), 0o600),
        (SERVER, server.public_bytes(Encoding.PEM), 0o644),
    ):
        _write_new(folder / name, content, mode)
    made = [folder / name for name in (CA_KEY, CA, SERVER_KEY, SERVER)]
    return made + (add_devices(folder, devices) if devices else [])


def add_devices(folder: Path, devices: int) -> list[Path]:
    """Make key pairs of more devices, numbered on from those that are there.

    Returns
    -------
    list of Path
        The private keys; the public one of each is beside it, ``.pub``.

    Raises
    ------
    SettingsError
        The number is below 1.
    OutputError
        They cannot be written.
    """
    if devices < 1:
        raise SettingsError(f"{devices} devices: must be at least 1")
    _make_folder(folder / DEVICES)
    known = [re.fullmatch(r"device(\d+)(\.pub)?", path.name) for path in _inside(folder / DEVICES)]
    last = max((int(match[1]) for match in known if match), default=0)
    made = [folder / DEVICES / f"device{last + number}" for number in range(1, devices + 1)]
    for path in made:
        key = ec.generate_private_key(_CURVE)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = key.public_key().public_bytes(Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        _write_new(path, private, 0o600)
        _write_new(path.with_suffix(".pub"), public + f" {path.name}\n".encode(), 0o644)
    return made


def renew(folder: Path, hosts: Sequence[str] = ()) -> Path:
    """Replace the server's certificate by one that is valid from now on, for the same key.

    Parameters
    ----------
    folder : Path
        Where :func:`create` wrote, with the CA's key in it.
    hosts : sequence of str
        By default those of the certificate that it replaces.

    Raises
    ------
    DataError
        A file is missing, or is no certificate or key.
    SettingsError
        A host is neither a name nor an address.
    OutputError
        The certificate cannot be written; the one before is as it was.
    """
    ca, server = _certificate(folder / CA), _certificate(folder / SERVER)
    ca_key = _private_key(folder / CA_KEY)
    old = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = _subject_names(hosts) if hosts else list(old)
    renewed = _sign_server(_private_key(folder / SERVER_KEY).public_key(), names, ca, ca_key)
    try:
        replace_file(folder / SERVER, renewed.public_bytes(Encoding.PEM))
    except OSError as error:
        raise OutputError(f"cannot write {folder / SERVER}: {error.strerror}") from None
    return folder / SERVER


def _subject_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    if not hosts:
        raise SettingsError("no host: name those under which devices reach the server")
    return [_subject_name(host) for host in dict.fromkeys(hosts)]


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
    # Of this CA no other one can be made, and it signs nothing but certificates.
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
        .not_valid_before(now - _DAY)  # clocks differ
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
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError:
        raise DataError(f"{path} is no certificate") from None


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(_read(path), None)
    except (TypeError, ValueError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DataError(f"{path} is no unencrypted ECDSA key")
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise OutputError(f"cannot read {folder}: {error.strerror}") from None


def _refuse_existing(paths: Iterable[Path]) -> None:
    for path in paths:
        if os.path.lexists(path):
            raise OutputError(f"{path} exists, and nothing is overwritten: name another folder")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror}") from None


def _write_new(path: Path, content: bytes, mode: int) -> None:
    try:
        create_file(path, content, mode)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
