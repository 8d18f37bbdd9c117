"""Keys and certificates of a federation: `python -m fldb_flower.deployment`."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509

from fldb_flower.deployment import __main__ as deployment
from fldb_flower.deployment.processes import HOST


@pytest.fixture
def keys(tmp_path):
    folder = tmp_path / "keys"
    deployment.main(["credentials", str(folder), "--host", HOST, "--host", "a.example"])
    return folder


def test_new_credentials_are_readable_only_by_their_owner(tmp_path, capsys):
    keys = tmp_path / "keys"
    deployment.main(["credentials", str(keys), "--host", HOST])
    made = [Path(line) for line in capsys.readouterr().out.splitlines()]
    names = ["ca.key", "ca.crt", "server.key", "server.pem"]
    assert made == [keys / n for n in names] + [keys / "devices" / f"device{n}" for n in (1, 2, 3)]
    private = [made[0], made[2], *made[4:]]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * 5
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    for path in made[4:]:
        assert path.read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
        public = path.with_suffix(".pub").read_text()
        assert public.startswith("ecdsa-sha2-nistp384 ")
        assert public.endswith(f" {path.name}\n")
    assert len({path.read_bytes() for path in made}) == 7


def handshake(keys: Path, host: str, ca: Path | None = None) -> str:
    """Connect a client that trusts a CA to a server with the certificate; return the server key."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys / "server.pem", keys / "server.key")
    client = ssl.create_default_context(cafile=str(ca or keys / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    one, other = socket.socketpair()
    with one, other:
        thread = threading.Thread(target=suppressed, args=(server, other))
        thread.start()
        try:
            with client.wrap_socket(one, server_hostname=host) as connection:
                shown = connection.getpeercert(binary_form=True)
        finally:
            one.close()
            thread.join()
    assert shown is not None
    return x509.load_der_x509_certificate(shown).public_key().public_numbers()


def suppressed(server: ssl.SSLContext, connection: socket.socket) -> None:
    with contextlib.suppress(OSError), server.wrap_socket(connection, server_side=True):
        pass


def test_the_certificate_of_the_server_is_valid_for_its_hosts_and_can_be_renewed(keys, tmp_path):
    first = handshake(keys, HOST)
    assert handshake(keys, "a.example") == first
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, "b.example")
    before = (keys / "server.pem").read_bytes()
    deployment.main(["renew", str(keys)])
    assert (keys / "server.pem").read_bytes() != before
    assert handshake(keys, HOST) == first  # the same key, signed by the same CA
    deployment.main(["renew", str(keys), "--host", "b.example"])
    assert handshake(keys, "b.example") == first
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, "a.example")
    others = tmp_path / "others"
    deployment.main(["credentials", str(others), "--host", "b.example", "--devices", "0"])
    assert not (others / "devices").exists()
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, "b.example", others / "ca.crt")


def test_nothing_is_overwritten_and_devices_can_be_added(keys):
    before = {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit, match=r"error: .*ca\.crt already exists: use another folder"):
        deployment.main(["credentials", str(keys), "--host", HOST])
    deployment.main(["add-devices", str(keys), "--devices", "2"])
    assert {path.name for path in (keys / "devices").iterdir()} == {
        f"device{number}{end}" for number in range(1, 6) for end in ("", ".pub")
    }
    assert all(path.read_bytes() == content for path, content in before.items())


MISTAKES = (
    ("credentials {new}", "required: --host"),
    ("credentials {new} --host not_a_name", "host 'not_a_name': must be a name like"),
    ("credentials {new} --host 300.1.2.3", "host '300.1.2.3': must be"),
    ("credentials {file}/x --host a", "cannot create the folder .*: Not a directory"),
    ("add-devices {new} --devices 0", "0 devices: must be at least 1"),
    ("add-devices {new}", "new: there is no such folder; `fldb keys credentials` creates"),
    ("renew {new}", r"cannot read .*ca\.crt: No such file or directory"),
    ("renew {keys} --host -", "host '-'"),
    ("renew {damaged}", r"server\.pem is not a certificate"),
)


def test_a_mistake_is_one_line(keys, tmp_path):
    (tmp_path / "file").touch()
    shutil.copytree(keys, tmp_path / "damaged")
    (tmp_path / "damaged" / "server.pem").write_text("no")
    places = {name: tmp_path / name for name in ("new", "file", "keys", "damaged")}
    for arguments, words in MISTAKES:
        with pytest.raises(SystemExit, match=f"^error: .*{words}") as error:
            deployment.main(arguments.format(**places).split())
        assert "\n" not in str(error.value)
        assert not (tmp_path / "new").exists()
