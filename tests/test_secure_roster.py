"""Rosters of secure sums, the draw of a committee, and their commands."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import stat
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from hypothesis import given
from hypothesis import strategies as st

from fldb_flower.deployment import __main__ as deployment
from fldb_flower.deployment.rosters import load_device_key, load_signer
from fldb_flower.errors import DataError, SecureError
from fldb_flower.secure.roster import Roster, draw_committee, read, sign, verify

SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\1")
TODAY = datetime.date(2027, 5, 1)
# RFC 8032, section 7.1, test 1.
RFC_SECRET = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
RFC_PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


def public_key(name: str) -> bytes:
    secret = hashlib.sha256(name.encode()).digest()
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def roster_of(count: int, version: int = 1, **dates: datetime.date) -> Roster:
    names = [f"device{number}" for number in range(1, count + 1)]
    return Roster(version, {name: public_key(name) for name in names}, **dates)


def test_a_signed_roster_is_verified_and_has_the_same_content():
    roster = roster_of(3, 7, not_after=datetime.date(2027, 12, 31))
    content = sign(roster, SIGNER)
    assert verify(content, SIGNER.public_key(), TODAY) == roster
    assert read(content)[0].keys == {f"device{n}": public_key(f"device{n}") for n in (1, 2, 3)}


def test_the_signature_covers_the_documented_bytes():
    secret = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(RFC_SECRET))
    file = json.loads(sign(roster_of(2), secret))
    canonical = json.dumps(file["roster"], sort_keys=True, separators=(",", ":")).encode()
    signed = b"fldb-flower roster 1\n" + canonical
    signature = base64.b64decode(file["signature"])
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(RFC_PUBLIC)).verify(signature, signed)
    assert roster_of(2).digest == hashlib.sha256(canonical).digest()


def test_the_layout_of_a_file_does_not_matter():
    content = json.loads(sign(roster_of(2), SIGNER))
    assert verify(json.dumps(content).encode(), SIGNER.public_key(), TODAY) == roster_of(2)


def changed(change) -> bytes:
    content = json.loads(sign(roster_of(3), SIGNER))
    change(content)
    return json.dumps(content).encode()


def replaced(name, value):
    return lambda content: content["roster"].__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c["roster"]["devices"].update(
                invented=base64.b64encode(public_key("invented")).decode()
            ),
            "the signature of the roster, version 1, is not by the pinned key",
        ),
        (replaced("version", 2), "version 2, is not by the pinned key"),
        (replaced("not_after", "2099-01-01"), "not by the pinned key"),
        (replaced("extra", 1), "the roster has the unknown field 'extra'"),
        (lambda c: c.update(extra=1), "the roster file has the unknown field 'extra'"),
        (lambda c: c["roster"].pop("not_after"), "lacks the field 'not_after'"),
        (lambda c: c.pop("signature"), "lacks the field 'signature'"),
        (replaced("version", 0), "version of the roster is 0: must be a whole number, 1 to"),
        (replaced("version", True), "version of the roster is True"),
        (replaced("version", 1.0), r"version of the roster is 1\.0"),
        (replaced("format", 2), "format of the roster is 2"),
        (replaced("devices", []), "not a JSON object"),
        (replaced("devices", {}), "a roster of 0 devices"),
        (replaced("devices", {"a b": "x"}), "a device of the roster is 'a b'"),
        (replaced("devices", {"a": "??"}), "the key of a is not base64"),
        (replaced("devices", {"a": "AAAA"}), "public key of a is 3 bytes: must be 32 bytes"),
        (replaced("not_after", "2027-2-1"), "must be a date like 2027-12-31"),
        (replaced("not_after", "20270201"), "must be a date like 2027-12-31"),
        (lambda c: c.update(signature="AAAA"), "signature of the roster is 3 bytes"),
        (lambda c: c.update(roster=3), "the roster is not a JSON object"),
    ],
)
def test_a_changed_file_is_refused(change, message):
    with pytest.raises((SecureError, DataError), match=message) as error:
        verify(changed(change), SIGNER.public_key(), TODAY)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_json_or_repeats_a_name_is_refused():
    content = sign(roster_of(2), SIGNER)
    repeated = content.replace(b'"format": 1,', b'"format": 1, "format": 1,')
    deep = b"[" * 100_000
    for damaged in (b"", b"\xff", b"[1]", content[:-10], repeated, deep, b"1" * 10_000):
        with pytest.raises(DataError):
            verify(damaged, SIGNER.public_key(), TODAY)


def test_another_signer_is_refused():
    other = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\2")
    with pytest.raises(SecureError, match="not by the pinned key"):
        verify(sign(roster_of(2), other), SIGNER.public_key(), TODAY)


def test_an_older_version_and_a_second_roster_of_a_version_are_refused():
    last, signer = roster_of(3, 5), SIGNER.public_key()
    assert verify(sign(roster_of(4, 6), SIGNER), signer, TODAY, last).version == 6
    assert verify(sign(last, SIGNER), signer, TODAY, last) == last
    with pytest.raises(SecureError, match="the roster has version 4, older than 5"):
        verify(sign(roster_of(3, 4), SIGNER), signer, TODAY, last)
    with pytest.raises(SecureError, match="two different rosters of version 5"):
        verify(sign(roster_of(4, 5), SIGNER), signer, TODAY, last)


@pytest.mark.parametrize(
    ("day", "is_valid"), [(9, False), (10, True), (15, True), (20, True), (21, False)]
)
def test_a_roster_is_valid_from_its_first_to_its_last_day(day, is_valid):
    dates = {"not_before": datetime.date(2027, 5, 10), "not_after": datetime.date(2027, 5, 20)}
    content, today = sign(roster_of(2, **dates), SIGNER), datetime.date(2027, 5, day)
    if is_valid:
        verify(content, SIGNER.public_key(), today)
    else:
        with pytest.raises(SecureError, match="valid from 2027-05-10 to 2027-05-20, and today"):
            verify(content, SIGNER.public_key(), today)


@pytest.mark.parametrize(
    "key",
    [
        bytes(32),  # the shared secret would be zero: RFC 7748, section 6.1
        b"\1" + bytes(31),
        (2**255 - 19 + 9).to_bytes(32, "little"),  # a second encoding of 9
        (2**255 + 9).to_bytes(32, "little"),
    ],
)
def test_keys_of_small_order_and_second_encodings_are_refused(key):
    with pytest.raises(DataError, match="public key of a is not a valid X25519 key"):
        Roster(1, {"a": key})


def test_two_devices_with_one_key_are_refused():
    with pytest.raises(DataError, match="a and b have the same public key"):
        Roster(1, {"a": public_key("a"), "b": public_key("a")})


def test_renewing_adds_and_removes_devices():
    old = roster_of(3, 4)
    new = old.renewed({"x": public_key("x")}, ["device2"])
    assert (new.version, list(new.keys)) == (5, ["device1", "device3", "x"])
    exchanged = old.renewed({"device2": public_key("new")}, ["device2"])
    assert exchanged.keys["device2"] == public_key("new")
    with pytest.raises(DataError, match="cannot add device1: it is in the roster"):
        old.renewed({"device1": public_key("x")})
    with pytest.raises(DataError, match="cannot remove y: it is not in the roster"):
        old.renewed({}, ["y"])


def test_the_version_of_a_renewed_roster_is_greater():
    old = roster_of(3, 4)
    assert old.renewed({}, version=5) == old.renewed({})
    assert old.renewed({}, version=9).version == 9
    for version in (1, 3, 4):
        with pytest.raises(DataError, match=rf"^version={version}: must be above 4, the last one$"):
            old.renewed({}, version=version)
    with pytest.raises(DataError, match="the version of the roster is"):
        old.renewed({}, version=2**53)


# The draw of a committee.

LARGE = roster_of(400, 3)


def test_the_draw_is_the_documented_one():
    """The members have the smallest SHA-256 of version, round and name."""

    def rank(name):
        words = b"fldb-flower committee 1\n" + (3).to_bytes(8, "big") + (17).to_bytes(8, "big")
        return hashlib.sha256(words + name.encode()).hexdigest()

    assert list(draw_committee(LARGE, LARGE.keys, 17)) == sorted(LARGE.keys, key=rank)[:256]
    few = list(LARGE.keys)[:9]
    assert list(draw_committee(LARGE, few, 17)) == sorted(few, key=rank)


def test_each_device_is_drawn_equally_often():
    rounds = 100
    drawn = [
        name
        for number in range(1, rounds + 1)
        for name in draw_committee(LARGE, LARGE.keys, number)
    ]
    counts = np.array([drawn.count(name) for name in LARGE.keys])
    share = 256 / 400
    # The mean is 400, the variance near 800.
    statistic = ((counts - rounds * share) ** 2).sum() / (rounds * share * (1 - share))
    assert abs(statistic - 400) < 5 * np.sqrt(800)


def test_other_rounds_and_versions_have_other_committees():
    later = roster_of(400, 4)
    drawn = [draw_committee(*each) for each in ((LARGE, LARGE.keys, 1), (LARGE, LARGE.keys, 2))]
    assert len({*drawn, draw_committee(later, LARGE.keys, 1)}) == 3


@given(st.sets(st.sampled_from(sorted(LARGE.keys)), max_size=50), st.integers(1, 2**53 - 1))
def test_an_absent_device_replaces_at_most_one_member(absent, number):
    full = set(draw_committee(LARGE, LARGE.keys, number))
    rest = set(draw_committee(LARGE, set(LARGE.keys) - absent, number))
    assert len(full - rest) == len(full & absent)


def test_invented_devices_and_small_committees_are_refused():
    with pytest.raises(SecureError, match="invented has no key in the roster, version 3"):
        draw_committee(LARGE, [*LARGE.keys, "invented"], 1)
    with pytest.raises(SecureError, match="a committee of 4 devices: must be at least 5"):
        draw_committee(LARGE, list(LARGE.keys)[:4], 1)
    with pytest.raises(DataError, match="round is 0"):
        draw_committee(LARGE, LARGE.keys, 0)


# The commands.


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    """Return a folder with a signing key, keys of three devices, and a roster of two."""
    monkeypatch.chdir(tmp_path)
    deployment.main(["roster", "signing-key", "office/signer"])
    for name in ("a", "b", "c"):
        deployment.main(["roster", "device-key", f"{name}.key"])
    words = ["--device", "a=a.key.pub", "--device", "b=b.key.pub", "--not-after", "2099-12-31"]
    deployment.main(["roster", "sign", "roster.json", "--key", "office/signer", *words])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        *("office/signer", "office/signer.pub", "a.key", "a.key.pub", "b.key", "b.key.pub"),
        *("c.key", "c.key.pub", "roster.json"),
    ]
    return tmp_path


def test_private_keys_are_readable_only_by_their_owner(folder):
    for name in ("office/signer", "a.key", "b.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "office").stat().st_mode) == 0o700
    public = load_pem_public_key((folder / "a.key.pub").read_bytes())
    assert load_device_key(folder / "a.key").public_key() == public


def test_a_roster_of_the_command_is_signed_with_the_key(folder):
    signer = load_pem_public_key((folder / "office/signer.pub").read_bytes())
    assert isinstance(signer, Ed25519PublicKey)
    roster = verify((folder / "roster.json").read_bytes(), signer, TODAY)
    public = load_device_key(folder / "b.key").public_key().public_bytes_raw()
    assert (roster.version, set(roster.keys), roster.keys["b"]) == (1, {"a", "b"}, public)
    assert (roster.not_before, roster.not_after) == (None, datetime.date(2099, 12, 31))


def test_renew_and_show(folder, capsys):
    renew = ["roster", "renew", "roster.json", "--key", "office/signer"]
    deployment.main([*renew, "--add", "c=c.key.pub", "--remove", "a"])
    assert capsys.readouterr().out == "roster.json\n"
    deployment.main(["roster", "show", "roster.json", "--signer", "office/signer.pub"])
    first, dates, digest, *devices = capsys.readouterr().out.splitlines()
    assert first == "version 2, 2 devices; signed by the key of office/signer.pub"
    assert dates == "valid from any day to 2099-12-31"
    shown = json.loads((folder / "roster.json").read_text())["roster"]
    assert devices == [f"{name} {key}" for name, key in shown["devices"].items()]
    assert [line.split()[0] for line in devices] == ["b", "c"]
    canonical = json.dumps(shown, sort_keys=True, separators=(",", ":")).encode()
    assert digest == f"SHA-256 {hashlib.sha256(canonical).hexdigest()}"
    deployment.main([*renew, "--not-after", "none", "--not-before", "2027-01-01"])
    deployment.main(["roster", "show", "roster.json"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "version 3, 2 devices; the signature was not checked"
    assert lines[2] == "valid from 2027-01-01 to any day"


def test_a_lost_roster_is_replaced_by_one_of_a_greater_version(folder, capsys):
    """Devices that have version 3 accept a new file of version 4, and no new one of version 1."""
    signer, sign_with = load_signer(folder / "office/signer.pub"), ["--key", "office/signer"]
    deployment.main(["roster", "renew", "roster.json", *sign_with, "--version", "3"])
    last = verify((folder / "roster.json").read_bytes(), signer, TODAY)
    assert (last.version, set(last.keys)) == (3, {"a", "b"})
    (folder / "roster.json").unlink()
    words = ["roster", "sign", "roster.json", *sign_with, "--device", "c=c.key.pub"]
    deployment.main(words)
    with pytest.raises(SecureError, match="version 1, older than 3"):
        verify((folder / "roster.json").read_bytes(), signer, TODAY, last)
    (folder / "roster.json").unlink()
    deployment.main([*words, "--version", "4"])
    assert verify((folder / "roster.json").read_bytes(), signer, TODAY, last).version == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("signing-key office/signer", "office/signer already exists: use another name"),
        ("device-key a.key", r"a\.key already exists"),
        ("device-key a.key/x", "cannot create the folder a.key: File exists"),
        (
            "sign roster.json --key office/signer --device a=a.key.pub",
            "roster.json already exists: `fldb keys roster renew` signs the next version",
        ),
        ("sign none/new --key office/signer --device a=a.key.pub", "cannot write none/new"),
        (
            "sign new --key office/signer --device a=a.key.pub --version 0",
            "the version of the roster is 0",
        ),
        ("renew roster.json --key office/signer --version 1", "version=1: must be above 1"),
        ("renew roster.json --key office/signer --version x", "--version: invalid int value: 'x'"),
        (
            "sign new --key a.key --device a=a.key.pub",
            "a.key is not an unencrypted private Ed25519",
        ),
        ("sign new --key none --device a=a.key.pub", "cannot read none: No such file"),
        ("sign new --key office/signer", "required: --device"),
        ("sign new --key office/signer --device a", "device 'a': must be NAME=FILE"),
        ("sign new --key office/signer --device a=a.key", "a.key is not a public X25519 key"),
        (
            "sign new --key office/signer --device a=a.key.pub --device a=b.key.pub",
            "device 'a' is repeated",
        ),
        (
            "sign new --key office/signer --device a=a.key.pub --device b=a.key.pub",
            "a and b have the same public key",
        ),
        (
            "sign new --key office/signer --device a=a.key.pub --not-after tomorrow",
            "'tomorrow' must be a date like 2027-12-31, or none",
        ),
        (
            "sign new --key office/signer --device a=a.key.pub --not-before 2027-02-01"
            " --not-after 2027-01-01",
            "not_before=2027-02-01 is after not_after=2027-01-01",
        ),
        ("renew roster.json --key office/signer --remove x", "cannot remove x"),
        ("renew roster.json --key office/signer --add a=c.key.pub", "cannot add a"),
        ("renew changed.json --key office/signer", "not by the pinned key"),
        ("show roster.json --signer a.key.pub", "a.key.pub is not a public Ed25519 key"),
        ("show changed.json --signer office/signer.pub", "not by the pinned key"),
        ("show a.key", "the roster file is not valid JSON"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(words, message, folder):
    text = (folder / "roster.json").read_text()
    (folder / "changed.json").write_text(text.replace('"version": 1', '"version": 9'))
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    with pytest.raises(SystemExit, match=f"^error: .*{message}") as error:
        deployment.main(["roster", *words.split()])
    assert "\n" not in str(error.value)
    assert before == {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
