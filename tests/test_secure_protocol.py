"""Secure sums between devices and a server: sealing, headers, journals, both trips, attacks."""

from __future__ import annotations

import doctest
import hashlib
import hmac
import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import examples
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from fldb_flower.errors import BlameError, DataError, DeclinedError, SecureError
from fldb_flower.secure import roster, sealing, server
from fldb_flower.secure.device import Device
from fldb_flower.secure.field import P, echelon, from_bytes, to_bytes
from fldb_flower.secure.header import Header, Limits, check_header, new_header
from fldb_flower.secure.journal import Journal
from fldb_flower.secure.roster import Roster
from fldb_flower.secure.sealing import Route, seal, unseal
from fldb_flower.secure.server import Phase, ServerExchange
from fldb_flower.secure.sharing import Scheme

LIMITS = Limits(min_duels=3, min_devices=4, min_committee=5)
NOW = 0.0  # the rounds of the tests are milliseconds of 1970
NUMBERS = 7
SEED = bytes(range(32))


def private_key(name: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


NAMES = tuple(f"d{number:02}" for number in range(12))
KEYS = {name: private_key(name).public_key().public_bytes_raw() for name in NAMES}
ROSTER = Roster(4, KEYS)
DEVICES = {name: Device(name, private_key(name), ROSTER, LIMITS) for name in NAMES}


def header_of(round=1, present=NAMES, broadcast=b"theta", limits=LIMITS, **changes) -> Header:
    fields = {
        "exchange": round.to_bytes(16, "big"),
        "numbers": NUMBERS,
        "encoding": b"scale",
        "max_duels": 100,
        **changes,
    }
    return new_header(
        ROSTER, present, round=round, broadcast=broadcast, limits=limits, **fields
    )  # fmt: skip


HEADER = header_of()


def numbers_of(name: str, count: int = NUMBERS) -> np.ndarray:
    digest = hashlib.shake_256(name.encode()).digest(8 * count)
    return np.frombuffer(digest, "<u8") % np.uint64(P)


def collected(header=HEADER, senders=None) -> ServerExchange:
    """Return the server's state with the pieces of all devices asked, or of some."""
    state = ServerExchange(header)
    for name in header.asked if senders is None else senders:
        numbers = numbers_of(name, header.numbers)
        sealed, _ = DEVICES[name].collect(header, Journal(), numbers, 5, SEED, now=NOW)
        state = state.receive(name, sealed)
    return state


def opened(state: ServerExchange, members=None) -> ServerExchange:
    """Return the state with the set fixed and the answers of all members, or of some."""
    state = state.choose()
    for name in state.header.committee if members is None else members:
        opening, _ = DEVICES[name].open(state.header, Journal(), state.pieces_for(name), now=NOW)
        state = state.answer(name, opening)
    return state


def exact_sum(names, count: int = NUMBERS) -> list[int]:
    rows = [numbers_of(name, count).tolist() for name in names]
    return [sum(column) % P for column in zip(*rows, strict=True)]


# Sealing.

# RFC 7748, section 6.1.
ALICE = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
ALICE_PUBLIC = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
BOB = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
BOB_PUBLIC = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
SHARED = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
ROUTE, HASH = Route(bytes(range(16)), "alice", "bob"), bytes(range(32, 64))


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, with the standard library."""
    key = hmac.digest(salt, secret, "sha256")
    block, output = b"", b""
    for number in range(1, -(-length // 32) + 1):
        block = hmac.digest(key, block + info + bytes([number]), "sha256")
        output += block
    return output[:length]


def sealed_by_alice(content: bytes, route: Route = ROUTE, header_hash: bytes = HASH) -> bytes:
    alice = X25519PrivateKey.from_private_bytes(bytes.fromhex(ALICE))
    return seal(content, route, header_hash, alice, bytes.fromhex(BOB_PUBLIC))


def unsealed_by_bob(sealed: bytes, route: Route = ROUTE, header_hash: bytes = HASH) -> bytes:
    bob = X25519PrivateKey.from_private_bytes(bytes.fromhex(BOB))
    return unseal(sealed, route, header_hash, bob, bytes.fromhex(ALICE_PUBLIC))


def test_the_hkdf_of_this_test_gives_the_published_bytes():
    """RFC 5869, appendix A.1."""
    info = bytes(range(0xF0, 0xFA))
    assert hkdf(bytes([11]) * 22, bytes(range(13)), info, 42).hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


def test_a_sealed_piece_has_the_documented_bytes():
    """The published X25519 secret, HKDF by hand, and AES-256-GCM open what `seal` returns."""
    parts = [b"fldb-flower secure sum 1", b"alice", b"bob"]
    parts += [bytes.fromhex(ALICE_PUBLIC), bytes.fromhex(BOB_PUBLIC)]
    info = b"".join(bytes([0, len(part)]) + part for part in parts)
    keys = hkdf(bytes.fromhex(SHARED), bytes(range(16)), info, 64)
    nonce = hmac.digest(keys[32:], HASH + b"piece", "sha256")[:12]
    expected = nonce + AESGCM(keys[:32]).encrypt(nonce, b"piece", HASH)
    assert sealed_by_alice(b"piece") == expected


def test_the_receiver_opens_a_piece_and_a_repetition_has_identical_bytes():
    for content in (b"", b"piece", bytes(10_000)):
        assert unsealed_by_bob(sealed_by_alice(content)) == content
        assert sealed_by_alice(content) == sealed_by_alice(content)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_two_contents_never_share_a_nonce(one, other):
    same = sealed_by_alice(one)[:12] == sealed_by_alice(other)[:12]
    assert same == (one == other)


def test_a_piece_opens_only_for_its_exchange_direction_and_header():
    sealed = sealed_by_alice(b"piece")
    for route, header_hash in (
        (ROUTE._replace(exchange=bytes(16)), HASH),
        (ROUTE._replace(sender="bob", receiver="alice"), HASH),
        (ROUTE._replace(receiver="bo"), HASH),
        (ROUTE._replace(sender="aliceb", receiver="ob"), HASH),
        (ROUTE, bytes(32)),
    ):
        with pytest.raises(SecureError, match="does not open: its tag is wrong"):
            unsealed_by_bob(sealed, route, header_hash)


def test_changed_and_short_pieces_do_not_open():
    sealed = sealed_by_alice(b"piece")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(SecureError, match="does not open"):
            unsealed_by_bob(bytes(changed))
    for length in range(len(sealed)):
        with pytest.raises(SecureError, match="does not open"):
            unsealed_by_bob(sealed[:length])


def test_a_key_that_gives_no_secret_is_refused():
    alice = X25519PrivateKey.from_private_bytes(bytes.fromhex(ALICE))
    with pytest.raises(SecureError, match="the public key of bob is not a valid X25519 key"):
        seal(b"piece", ROUTE, HASH, alice, bytes(32))


# Headers.


def test_a_header_survives_its_bytes():
    for header in (HEADER, header_of(2, NAMES[:6], b""), header_of(broadcast=bytes(range(256)))):
        again = Header.from_bytes(header.to_bytes())
        assert again == header
        assert again.hash == hashlib.sha256(header.to_bytes()).digest()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("round", 2), ("roster", 3), ("roster_digest", bytes(32)), ("exchange", bytes(16)),
        ("asked", NAMES[:-1]), ("committee", NAMES[:-1]), ("colluders", 3), ("openings", 9),
        ("numbers", 8), ("encoding", b"scalf"), ("max_duels", 101), ("min_devices", 7),
        ("min_duels", 4), ("broadcast", b"theta2"),
    ],
)  # fmt: skip
def test_every_field_changes_the_hash(name, value):
    assert getattr(HEADER, name) != value
    assert replace(HEADER, **{name: value}).hash != HEADER.hash


def json_part(content: bytes) -> tuple[bytes, dict, bytes]:
    start = len(b"fldb-flower header 1\n")
    length = int.from_bytes(content[start : start + 4], "big")
    end = start + 4 + length
    return content[:start], json.loads(content[start + 4 : end]), content[end:]


def with_fields(change) -> bytes:
    magic, fields, broadcast = json_part(HEADER.to_bytes())
    fields = change(fields) or fields
    text = (
        fields
        if isinstance(fields, bytes)
        else json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    )
    return magic + len(text).to_bytes(4, "big") + text + broadcast


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(extra=1), "the header has the unknown field 'extra'"),
        (lambda f: f.update(broadcast="00"), "the unknown field 'broadcast'"),
        (lambda f: f.pop("round") and None, "the header lacks the field 'round'"),
        (lambda f: json.dumps(f).encode(), "the header is not in canonical form"),
        (lambda f: json.dumps(f, separators=(",", ":")).encode() + b" ", "not in canonical form"),
        (lambda f: b"[]", "the header is not a JSON object"),
        (lambda f: b"{", "not valid JSON"),
        (lambda f: f.update(round="1"), "round of the header is '1': must be a whole number"),
        (lambda f: f.update(round=2**53), "round of the header is 9007199254740992"),
        (lambda f: f.update(round=True), "round of the header is True"),
        (lambda f: f.update(exchange="AB" * 16), "must be hexadecimal digits in lower case"),
        (lambda f: f.update(exchange="ab"), "exchange of the header is 1 bytes: must be 16 bytes"),
        (lambda f: f.update(encoding="00" * 70_000), "must be 0 to 65536 bytes"),
        (lambda f: f.update(asked="abc"), "asked of the header is 'abc': must be a list"),
        (lambda f: f.update(asked=[]), "asked of the header: must be 1 to 65536 names"),
        (lambda f: f.update(asked=f["asked"][::-1]), "asked of the header: must be sorted"),
        (lambda f: f.update(asked=[[]]), r"asked of the header is \[\]: must be 1 to 64 letters"),
        (lambda f: f.update(committee=f["committee"][:4]), "a committee of 4 devices: must be 5"),
        (
            lambda f: f.update(committee=["d00"] * 12),
            "committee of the header: must be without repeated",
        ),
    ],
)
def test_a_malformed_header_is_refused(change, message):
    with pytest.raises(DataError, match=message) as error:
        Header.from_bytes(with_fields(change))
    assert "\n" not in str(error.value)


@given(st.integers(0, len(HEADER.to_bytes()) - 1), st.integers(0, 255))
def test_a_header_with_other_bytes_is_refused_or_another_header(place, value):
    content = bytearray(HEADER.to_bytes())
    content[place] = value
    try:
        header = Header.from_bytes(bytes(content))
    except DataError:
        return
    assert header.to_bytes() == content
    assert (header == HEADER) == (content == HEADER.to_bytes())


def test_a_truncated_header_is_refused():
    content = HEADER.to_bytes()
    for length in range(len(content) - len(HEADER.broadcast)):
        with pytest.raises(DataError):
            Header.from_bytes(content[:length])


@pytest.mark.parametrize(
    ("changes", "limits", "message"),
    [
        ({"roster": 3}, LIMITS, "version 3 of the roster, older than 4 on the device"),
        ({"roster": 5}, LIMITS, "version 5 of the roster, newer than 4 on the device"),
        ({"roster_digest": bytes(32)}, LIMITS, "another roster of version 4"),
        ({"asked": NAMES[1:]}, LIMITS, "d00 is not among the devices"),
        ({"asked": (*NAMES, "invented")}, LIMITS, "invented has no key in the roster"),
        ({"committee": NAMES[:11]}, LIMITS, "the committee of the exchange is not the draw"),
        (
            {"colluders": 1},
            LIMITS,
            "colluders=1, openings=10: for 12 members they must be 2 and 10",
        ),
        ({"openings": 5}, LIMITS, "colluders=2, openings=5"),
        ({"min_devices": 3}, LIMITS, "min_devices=3, and the device requires 4"),
        ({"min_duels": 2}, LIMITS, "min_duels=2, and the device requires 3"),
        ({"min_devices": 11}, LIMITS, "its number of devices=12, and the device requires 13"),
        ({}, Limits(3, 4, 13), "members of the committee=12, and the device requires 13"),
    ],
)
def test_a_device_refuses_a_header(changes, limits, message):
    with pytest.raises(SecureError, match=message):
        check_header(replace(HEADER, **changes), ROSTER, limits, "d00", NOW)


def test_a_server_needs_devices_with_keys():
    check_header(HEADER, ROSTER, LIMITS, "d00", NOW)
    with pytest.raises(
        SecureError, match="4 devices are present: a secure sum needs 5 for min_devices=4"
    ):
        header_of(present=NAMES[:4])
    with pytest.raises(SecureError, match="4 devices are present: a secure sum needs 6"):
        header_of(present=NAMES[:4], limits=Limits(3, 2))
    with pytest.raises(SecureError, match="x has no key in the roster"):
        header_of(present=(*NAMES, "x"))


def test_the_owner_cannot_choose_less_than_the_least_limits():
    for wrong in ({"min_devices": 1}, {"min_committee": 4}, {"min_duels": 0}):
        with pytest.raises(DataError, match=next(iter(wrong))):
            Limits(**{"min_duels": 3, **wrong})


def test_a_device_without_a_certified_key_does_not_start():
    with pytest.raises(SecureError, match="the key of d00 is not certified"):
        Device("d00", private_key("other"), ROSTER, LIMITS)
    with pytest.raises(SecureError, match="the key of x is not certified"):
        Device("x", private_key("x"), ROSTER, LIMITS)


# Both trips.


@examples(60)
@given(st.data())
def test_the_sum_is_exact_for_any_sets_and_order(data):
    asked = data.draw(st.sets(st.sampled_from(NAMES), min_size=6))
    senders = data.draw(
        st.permutations(sorted(asked)).flatmap(
            lambda names: st.integers(6, len(names)).map(lambda count: names[:count])
        )
    )
    header = header_of(present=asked, numbers=data.draw(st.sampled_from([1, 7, 40])))
    needed = header.openings
    members = data.draw(st.permutations(header.committee))[
        : data.draw(st.integers(needed, len(header.committee)))
    ]
    result = opened(collected(header, senders), members).combine()
    assert result.numbers.tolist() == exact_sum(senders, header.numbers)
    assert (result.wrong, result.checks) == ((), len(members) - needed)


def test_fewer_answers_than_needed_give_no_sum():
    state = opened(collected(), NAMES[:9])
    with pytest.raises(SecureError, match="9 of 12 members answered: the sum needs 10"):
        state.combine()


def test_a_repeated_request_gives_identical_bytes_whatever_the_seed():
    device, numbers = DEVICES["d03"], numbers_of("d03")
    sealed, journal = device.collect(HEADER, Journal(), numbers, 5, SEED, now=NOW)
    again, same = device.collect(HEADER, reloaded(journal), numbers, 5, bytes(32), now=NOW)
    assert (again, same) == (sealed, journal)
    pieces = collected().choose().pieces_for("d03")
    opening, journal = device.open(HEADER, journal, pieces, now=NOW)
    assert device.open(HEADER, reloaded(journal), pieces, now=NOW) == (opening, journal)


def reloaded(journal: Journal) -> Journal:
    return Journal.from_bytes(journal.to_bytes())


def test_a_repetition_with_other_numbers_or_another_cut_is_refused():
    device = DEVICES["d03"]
    _, journal = device.collect(HEADER, Journal(), numbers_of("d03"), 5, SEED, now=NOW)
    for numbers, cut in ((numbers_of("other"), 5), (numbers_of("d03"), 9)):
        with pytest.raises(SecureError, match="a repeated contribution has"):
            device.collect(HEADER, journal, numbers, cut, SEED, now=NOW)


def test_the_same_seed_gives_independent_pieces_in_another_exchange():
    """Else the difference of two contributions would be the difference of their pieces."""
    device, member = DEVICES["d03"], DEVICES["d00"]
    plain = []
    for header in (HEADER, header_of(2)):
        sealed, _ = device.collect(header, Journal(), numbers_of("d03", NUMBERS), 5, SEED, now=NOW)
        route = Route(header.exchange, "d03", "d00")
        plain.append(unseal(sealed["d00"], route, header.hash, member.private, KEYS["d03"]))
    assert plain[0] != plain[1]


def test_numbers_of_another_shape_or_type_are_refused():
    for numbers in (numbers_of("a", 6), numbers_of("a").astype(float), numbers_of("a")[None]):
        with pytest.raises(SecureError, match="the exchange has 7 elements of type uint64"):
            DEVICES["d03"].collect(HEADER, Journal(), numbers, 5, SEED, now=NOW)
    with pytest.raises(SecureError, match="no element of the field"):
        DEVICES["d03"].collect(HEADER, Journal(), np.full(7, P, np.uint64), 5, SEED, now=NOW)


def test_no_number_is_in_clear_bytes():
    numbers = numbers_of("d03")
    sealed, _ = DEVICES["d03"].collect(HEADER, Journal(), numbers, 5, SEED, now=NOW)
    sent = b"|".join(sealed.values())
    assert not any(to_bytes(number.reshape(1)) in sent for number in numbers)
    _, other = DEVICES["d03"].collect(HEADER, Journal(), numbers, 50, SEED, now=NOW)
    assert other.contribution.cut == 50  # the cut does not change what is sent
    assert DEVICES["d03"].collect(HEADER, Journal(), numbers, 50, SEED, now=NOW)[0] == sealed


# Attacks.


def test_the_server_without_a_key_of_a_member_cannot_open_a_piece():
    sealed, _ = DEVICES["d03"].collect(HEADER, Journal(), numbers_of("d03"), 5, SEED, now=NOW)
    for member, piece in sealed.items():
        for key in (private_key("server"), *(DEVICES[n].private for n in ("d04", "d05"))):
            if member in ("d04", "d05") and key is DEVICES[member].private:
                continue
            with pytest.raises(SecureError, match="does not open"):
                unseal(piece, Route(HEADER.exchange, "d03", member), HEADER.hash, key, KEYS["d03"])


def pieces_held_by(members, header=HEADER) -> np.ndarray:
    """Return the rows of the generator that belong to the pieces of some members."""
    return header.scheme.generator[[header.committee.index(name) for name in members]]


def equations(rows: np.ndarray, scheme: Scheme) -> int:
    """Return how many equations about the packed numbers follow from pieces, by ranks."""
    random_part = rows[:, scheme.packed :]
    return len(echelon(rows)[1]) - len(echelon(random_part)[1])


def test_the_server_with_t_members_learns_no_equation():
    held = pieces_held_by(NAMES[: HEADER.colluders])
    assert equations(held, HEADER.scheme) == 0
    everything = pieces_held_by(NAMES)
    assert equations(everything, HEADER.scheme) == HEADER.scheme.packed


def test_two_sets_for_different_members_give_no_equation_about_the_difference():
    """d11 is in one set only; d00 and d01 work for the server, the others open one set each."""
    state = collected().choose()
    sets = (NAMES, NAMES[:-1])
    for split in range(2, 13):
        held = [list(NAMES[:2]), list(NAMES[:2])]
        for place, member in enumerate(NAMES[2:], 2):
            journal, pieces = Journal(), state.pieces_for(member)
            shown = [{name: pieces[name] for name in names} for names in sets]
            first = int(place >= split)
            _, journal = DEVICES[member].open(HEADER, journal, shown[first], now=NOW)
            held[first].append(member)
            with pytest.raises(SecureError, match="opened for another set of devices"):
                DEVICES[member].open(HEADER, reloaded(journal), shown[1 - first], now=NOW)
        assert sum(map(len, held)) == len(NAMES) + HEADER.colluders
        assert min(equations(pieces_held_by(each), HEADER.scheme) for each in held) == 0


def test_a_second_opening_is_refused_after_a_restart():
    state = collected().choose()
    pieces = state.pieces_for("d05")
    _, journal = DEVICES["d05"].open(HEADER, Journal(), pieces, now=NOW)
    del pieces["d09"]
    with pytest.raises(SecureError, match="this exchange was opened for another set"):
        DEVICES["d05"].open(HEADER, reloaded(journal), pieces, now=NOW)


def test_a_set_below_the_minimum_or_with_others_is_not_opened():
    device, pieces = DEVICES["d05"], collected().choose().pieces_for("d05")
    few = dict(list(pieces.items())[:5])
    with pytest.raises(SecureError, match="a sum of 5 devices: must be at least 6"):
        device.open(HEADER, Journal(), few, now=NOW)
    strict = replace(device, limits=Limits(3, 12, 5))
    with pytest.raises(SecureError, match="min_devices=4, and the device requires 12"):
        strict.open(HEADER, Journal(), pieces, now=NOW)
    with pytest.raises(SecureError, match="invented is in the sum and was not asked"):
        device.open(HEADER, Journal(), {**pieces, "invented": bytes(60)}, now=NOW)
    smaller = header_of(2, NAMES[:8])
    with pytest.raises(SecureError, match="d08 is in the sum and was not asked"):
        device.open(smaller, Journal(), pieces, now=NOW)


def test_a_device_that_is_not_in_the_committee_opens_nothing():
    many = {f"m{number:03}": private_key(f"m{number:03}") for number in range(300)}
    public = {name: key.public_key().public_bytes_raw() for name, key in many.items()}
    roster = Roster(1, public)
    header = new_header(
        roster, roster.keys, exchange=bytes(16), round=1, numbers=1, encoding=b"", max_duels=9,
        limits=LIMITS, broadcast=b"",
    )  # fmt: skip
    name = min(set(many) - set(header.committee))
    with pytest.raises(SecureError, match=f"{name} is not in the committee"):
        Device(name, many[name], roster, LIMITS).open(header, Journal(), {}, now=NOW)


def test_a_device_that_was_sent_another_theta_cannot_contribute_to_the_sum():
    other = replace(HEADER, broadcast=b"another theta")
    state = collected(senders=NAMES[:-1])
    sealed, _ = DEVICES["d11"].collect(other, Journal(), numbers_of("d11"), 5, SEED, now=NOW)
    state = state.receive("d11", sealed).choose()
    for member in ("d00", "d11"):
        with pytest.raises(BlameError, match="the pieces from d11 do not open") as error:
            DEVICES[member].open(HEADER, Journal(), state.pieces_for(member), now=NOW)
        assert error.value.devices == ("d11",)


def test_a_device_takes_part_in_one_header_per_exchange():
    device, numbers = DEVICES["d03"], numbers_of("d03")
    other = replace(HEADER, broadcast=b"another theta")
    _, journal = device.collect(HEADER, Journal(), numbers, 5, SEED, now=NOW)
    pieces = collected().choose().pieces_for("d03")
    for action in (
        lambda: device.span(other, journal, 50, now=NOW),
        lambda: device.collect(other, reloaded(journal), numbers, 5, SEED, now=NOW),
        lambda: device.open(other, reloaded(journal), pieces, now=NOW),
    ):
        with pytest.raises(SecureError, match="has two different headers"):
            action()
    _, journal = device.open(HEADER, Journal(), pieces, now=NOW)
    with pytest.raises(SecureError, match="has two different headers"):
        device.collect(other, reloaded(journal), numbers, 5, SEED, now=NOW)


def test_replayed_pieces_of_another_exchange_do_not_open():
    later = header_of(2)
    old, state = collected(), collected(later, NAMES[:-1])
    state = state.receive("d11", old.sealed["d11"]).choose()
    with pytest.raises(BlameError, match="the pieces from d11 do not open"):
        DEVICES["d00"].open(later, Journal(), state.pieces_for("d00"), now=NOW)


def test_an_earlier_exchange_is_refused():
    device = DEVICES["d03"]
    journal = device.collect(header_of(5), Journal(), numbers_of("d03"), 5, SEED, now=NOW)[1]
    _, journal = device.open(
        header_of(5), journal, collected(header_of(5)).choose().pieces_for("d03"), now=NOW
    )
    for round in (4, 5):
        header = header_of(round, exchange=bytes([9] * 16))
        with pytest.raises(SecureError, match=f"round {round} is not later than 5, the last one"):
            device.collect(header, journal, numbers_of("d03"), 50, SEED, now=NOW)
        pieces = collected(header).choose().pieces_for("d03")
        with pytest.raises(SecureError, match=f"round {round} is not later than 5"):
            device.open(header, reloaded(journal), pieces, now=NOW)


def test_an_exchange_that_is_over_is_refused():
    journal = Journal()
    for round in (1, 2):
        header = header_of(round)
        journal = DEVICES["d03"].collect(
            header, journal, numbers_of("a"), 5 * round, SEED, now=NOW
        )[1]
    again = header_of(3, exchange=header_of(1).exchange)
    with pytest.raises(SecureError, match="is over"):
        DEVICES["d03"].span(again, journal, 50, now=NOW)


def test_pieces_of_an_uncertified_key_do_not_open():
    """A sender whose key is not the one of the roster."""
    state, header = collected(senders=NAMES[:-1]), HEADER
    sealed = {
        member: seal(
            bytes(8), Route(header.exchange, "d11", member), header.hash, private_key("x"),
            KEYS[member],
        )
        for member in header.committee
    }  # fmt: skip
    state = state.receive("d11", sealed).choose()
    with pytest.raises(BlameError, match="the pieces from d11 do not open"):
        DEVICES["d00"].open(header, Journal(), state.pieces_for("d00"), now=NOW)


def crafted(sender: str, contents: dict[str, bytes], state: ServerExchange) -> ServerExchange:
    """Return the state with some pieces of a sender replaced by sealed contents of its choice."""
    header = state.header
    sealed = dict(state.sealed[sender])
    for member, content in contents.items():
        route = Route(header.exchange, sender, member)
        sealed[member] = seal(content, route, header.hash, DEVICES[sender].private, KEYS[member])
    return replace(state, sealed={**state.sealed, sender: sealed})


@pytest.mark.parametrize(
    "content", [bytes(8), bytes(64), P.to_bytes(8, "little") * 3, b"\xff" * 24, b""]
)
def test_pieces_that_are_no_elements_are_refused_and_name_their_sender(content):
    """7 numbers in a committee of 12 have pieces of 3 elements, 24 bytes."""
    state = crafted("d07", {"d11": content}, collected()).choose()
    with pytest.raises(BlameError, match="the pieces from d07 do not open") as error:
        DEVICES["d11"].open(HEADER, Journal(), state.pieces_for("d11"), now=NOW)
    assert error.value.devices == ("d07",)


def test_one_wrong_answer_is_left_out_and_named():
    state = opened(collected(), NAMES[:-1])
    wrong = to_bytes((from_bytes(state.openings["d04"]) + np.uint64(1)) % np.uint64(P))
    right_answer, _ = DEVICES["d11"].open(HEADER, Journal(), state.pieces_for("d11"), now=NOW)
    changed = replace(state, openings={**state.openings, "d04": wrong, "d11": right_answer})
    result = changed.combine()
    assert (result.wrong, result.checks) == (("d04",), 2)
    assert result.numbers.tolist() == exact_sum(NAMES)
    without = {name: each for name, each in changed.openings.items() if name != "d11"}
    with pytest.raises(SecureError, match="cannot be named"):
        replace(changed, openings=without).combine()


def test_a_wrong_piece_of_a_device_acts_like_a_wrong_answer_of_its_member():
    columns = HEADER.scheme.columns(NUMBERS)
    state = opened(crafted("d07", {"d11": bytes(8 * columns)}, collected()))
    result = state.combine()
    assert result.wrong == ("d11",)
    assert result.numbers.tolist() == exact_sum(NAMES)


def test_a_device_with_many_wrong_pieces_is_detected():
    columns = HEADER.scheme.columns(NUMBERS)
    contents = {name: bytes(8 * columns) for name in ("d09", "d10", "d11")}
    with pytest.raises(SecureError, match="cannot be named"):
        opened(crafted("d07", contents, collected())).combine()


def test_answers_that_are_no_sums_are_refused_and_can_be_repeated():
    state = opened(collected(), NAMES[:3])
    right = state.openings["d02"]
    state = replace(state, openings={})
    for wrong in (b"", right[:-1], right + bytes(8), b"\xff" * len(right)):
        with pytest.raises(BlameError, match="the answer of d02 is no sum") as error:
            state.answer("d02", wrong)
        assert error.value.devices == ("d02",)
    state = state.answer("d02", right)
    assert state.answer("d02", right) is state
    with pytest.raises(BlameError, match="d02 answered with another sum before"):
        state.answer("d02", bytes(len(right)))
    with pytest.raises(SecureError, match="x is not in the committee"):
        state.answer("x", right)


# The server.


def test_the_phases_of_an_exchange():
    state = collected()
    assert state.phase is Phase.COLLECT
    sealed = state.sealed["d03"]
    assert state.receive("d03", sealed) is state
    with pytest.raises(SecureError, match="phase 'collect' instead of 'open'"):
        state.combine()
    few = collected(senders=NAMES[:5])
    with pytest.raises(SecureError, match="a sum of 5 devices: must be at least 6"):
        few.choose()
    chosen = replace(state, sealed={n: state.sealed[n] for n in NAMES[:8]}).choose()
    assert (chosen.phase, chosen.chosen) == (Phase.OPEN, NAMES[:8])
    assert chosen.choose() is chosen
    assert chosen.receive("d03", sealed) is chosen
    with pytest.raises(SecureError, match="phase 'open' instead of 'collect'"):
        chosen.receive("d09", state.sealed["d09"])
    over = chosen.give_up()
    assert over.phase is Phase.GIVEN_UP
    for action in (over.combine, over.choose, lambda: over.answer("d00", b"")):
        with pytest.raises(SecureError, match="phase 'given up'"):
            action()


def test_the_server_refuses_replies_that_do_not_fit():
    state = collected(senders=NAMES[:7])
    sealed = dict(state.sealed["d03"])
    for device, pieces, message in (
        ("x", sealed, "x is not among the devices"),
        ("d09", dict(list(sealed.items())[1:]), "d09 sent no piece, or more than one"),
        ("d09", {**sealed, "x": b""}, "d09 sent no piece, or more than one"),
        ("d09", {**sealed, "d00": bytes(28)}, "d09 sent a piece of 28 bytes for d00"),
        ("d09", {**sealed, "d00": bytes(10**6)}, "d09 sent a piece of 1000000 bytes for d00"),
        ("d03", state.sealed["d04"], "d03 sent other pieces before"),
    ):
        with pytest.raises(SecureError, match=message):
            state.receive(device, pieces)


# The state of the server as bytes.


def states_of_an_exchange() -> list[ServerExchange]:
    state = collected()
    part = opened(state, HEADER.committee[:3])
    return [ServerExchange(HEADER), collected(senders=NAMES[:3]), state, state.choose(), part,
            part.give_up()]  # fmt: skip


def test_the_state_of_an_exchange_survives_its_bytes():
    for state in states_of_an_exchange():
        assert ServerExchange.from_bytes(state.to_bytes()) == state
    again = ServerExchange.from_bytes(opened(collected()).to_bytes())
    assert again.combine().numbers.tolist() == exact_sum(NAMES)
    backwards = replace(
        again,
        sealed=dict(reversed(again.sealed.items())),
        openings=dict(reversed(again.openings.items())),
    )
    assert backwards.to_bytes() == again.to_bytes()


def test_the_bytes_of_a_state_hold_the_pieces_and_not_their_digits():
    state = opened(collected())
    pieces = sum(len(piece) for sealed in state.sealed.values() for piece in sealed.values())
    assert pieces == 12 * 12 * (24 + 28)
    assert len(state.to_bytes()) < pieces + 3000
    assert state.sealed["d03"]["d05"] in state.to_bytes()


@given(st.data())
def test_a_damaged_state_is_refused(data):
    content = DAMAGED
    place = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[place] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(changed), content[:place], content + bytes(1)):
        with pytest.raises(DataError, match="the state of the exchange"):
            ServerExchange.from_bytes(damaged)


DAMAGED = opened(collected(), HEADER.committee[:3]).to_bytes()


# Journals and the sequence rule.


def sent(cuts, counted=None) -> Journal:
    """Return a journal with contributions at some cuts, of which one is counted."""
    journal = Journal()
    for round, cut in enumerate(cuts, 1):
        journal = journal.contribute(header_of(round), cut, SEED, b"")
        if counted == cut:
            journal = journal.acknowledge(header_of(99, exchange=b"n" * 16), round.to_bytes(16))
    return journal


def test_a_cut_is_a_minimum_of_answers_after_the_last_one_ever_sent():
    journal = sent([5])  # not counted: the next span starts at 0 and ends at a later cut
    header = header_of(9)
    for answers in (5, 6, 7):
        with pytest.raises(DeclinedError, match=f"{answers - 5} new answers since the last"):
            journal.span(header, answers)
        with pytest.raises(DeclinedError):
            journal.contribute(header, answers, SEED, b"")
    assert journal.span(header, 8) == (0, 8)
    assert sent([5], counted=5).span(header, 8) == (5, 8)


def test_no_more_than_the_largest_number_of_answers_is_counted():
    header = header_of(9, max_duels=20)
    assert Journal().span(header, 1000) == (0, 20)
    assert sent([20], counted=20).span(header, 1000) == (20, 40)
    with pytest.raises(DeclinedError, match="21 answers since the last counted one: must be at"):
        Journal().contribute(header, 21, SEED, b"")
    assert sent([20]).span(header_of(9, max_duels=23), 1000) == (0, 23)


def test_after_failed_sums_the_oldest_answers_are_left_out_instead_of_the_device():
    """Nothing is counted, and a backlog of 1000 answers does not fit into any exchange."""
    journal, spans = Journal(), []
    for round in range(1, 5):
        header = header_of(round, max_duels=20)
        spans.append(journal.span(header, 1000))
        journal = journal.contribute(header, spans[-1][1], SEED, b"")
    assert spans == [(0, 20), (3, 23), (6, 26), (9, 29)]
    assert journal.acknowledge(header_of(9), (2).to_bytes(16)).span(
        header_of(9, max_duels=20), 1000
    ) == (23, 43)
    with pytest.raises(DeclinedError, match="2 new answers since the last contribution"):
        journal.span(header_of(9, max_duels=20), 31)


def test_a_repeated_exchange_has_the_same_span():
    journal = sent([5, 9], counted=5)
    assert journal.span(header_of(2), 1000) == (5, 9)
    assert journal.acknowledge(header_of(2), None) is journal
    assert journal.contribute(header_of(2), 9, bytes(32), b"") is journal


def test_acknowledging_names_an_exchange_of_the_device():
    journal, header = sent([5, 9, 14]), header_of(9)
    for round, cut in ((1, 5), (3, 14), (2, 9)):  # back again: a server restored from a backup
        journal = journal.acknowledge(header, round.to_bytes(16))
        assert journal.counted == cut
        assert journal.span(header, 20) == (cut, 20)
    assert journal.acknowledge(header, None).counted == 0
    with pytest.raises(SecureError, match="which has no contribution here"):
        journal.acknowledge(header, bytes(16))


def test_a_journal_survives_its_bytes():
    opening = sent([5]).open(header_of(1), dict.fromkeys(NAMES, b"sealed"))
    for journal in (Journal(), sent([5]), sent([5, 9], counted=5), opening):
        assert reloaded(journal) == journal


def test_a_damaged_journal_is_refused():
    journal = sent([5, 9], counted=5).open(header_of(1), dict.fromkeys(NAMES, b"sealed"))
    fields = json.loads(journal.to_bytes())
    changes = [
        {"counted": 7}, {"counted": "5"}, {"counted": -1}, {"extra": 1}, {"cuts": []}, {"cuts": 3},
        {"cuts": fields["cuts"][::-1]}, {"cuts": [["00", 5], fields["cuts"][1]]},
        {"contribution": None}, {"contribution": {}}, {"opening": {}}, {"opening": [1]},
        {"contribution": {**fields["contribution"], "seed": "00"}},
        {"contribution": {**fields["contribution"], "cut": 10}},
    ]  # fmt: skip
    for change in changes:
        text = json.dumps({**fields, **change}, sort_keys=True, separators=(",", ":"))
        with pytest.raises(DataError):
            Journal.from_bytes(text.encode())
    for length in range(0, len(journal.to_bytes()), 7):
        with pytest.raises(DataError):
            Journal.from_bytes(journal.to_bytes()[:length])


@pytest.mark.parametrize("module", [roster, sealing, server])
def test_examples_of_docstrings(module):
    done = doctest.testmod(module)
    assert done.attempted > 0
    assert done.failed == 0


def test_an_error_names_the_devices():
    assert BlameError("text", iter("ab")).devices == ("a", "b")
    assert str(BlameError("text", "ab")) == "text"
