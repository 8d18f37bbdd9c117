"""Secure sums: the owner's limits, clocks, doubled devices and restored stores."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from test_secure_protocol import (
    DEVICES,
    HEADER,
    LIMITS,
    NAMES,
    NOW,
    ROSTER,
    SEED,
    collected,
    header_of,
    numbers_of,
    reloaded,
    sent,
)

from fldb_flower.errors import DataError, DeclinedError, SecureError
from fldb_flower.secure.header import Limits, check_header, new_header
from fldb_flower.secure.journal import MOST_CUTS, Journal
from fldb_flower.secure.roster import Roster, verify
from fldb_flower.secure.sharing import Scheme


def roster_of(count: int) -> Roster:
    keys = {}
    for number in range(count):
        secret = hashlib.sha256(f"n{number}".encode()).digest()
        public = X25519PrivateKey.from_private_bytes(secret).public_key()
        keys[f"n{number:03}"] = public.public_bytes_raw()
    return Roster(1, keys)


LARGE = roster_of(600)


def header_for(count: int, roster: Roster, limits: Limits, **changes):
    fields = {
        "exchange": bytes(16), "round": 1, "numbers": 1, "encoding": b"", "max_duels": 10,
        "broadcast": b"", **changes,
    }  # fmt: skip
    return new_header(roster, list(roster.keys)[:count], limits=limits, **fields)


# Doubled devices.


def test_a_set_with_other_bytes_of_one_device_is_not_opened():
    """A device whose store was doubled seals two contributions; their difference is its own."""
    state = collected()
    doubled, _ = DEVICES["d07"].collect(
        HEADER, Journal(), numbers_of("others"), 6, bytes(32), now=NOW
    )
    other = replace(state, sealed={**state.sealed, "d07": doubled}).choose()
    pieces = state.choose().pieces_for("d03")
    assert set(pieces) == set(other.pieces_for("d03"))
    opening, journal = DEVICES["d03"].open(HEADER, Journal(), pieces, now=NOW)
    with pytest.raises(SecureError, match="opened for another set of devices or of their pieces"):
        DEVICES["d03"].open(HEADER, reloaded(journal), other.pieces_for("d03"), now=NOW)
    backwards = dict(reversed(pieces.items()))
    assert DEVICES["d03"].open(HEADER, journal, backwards, now=NOW) == (opening, journal)


def test_the_exchange_of_sealed_bytes_between_two_devices_is_another_set():
    journal = Journal().open(HEADER, {"a": b"1", "b": b"2"})
    with pytest.raises(SecureError, match="another set"):
        journal.open(HEADER, {"a": b"2", "b": b"1"})


# Colluders.


def test_a_sum_has_the_least_number_of_devices_without_the_colluders():
    """12 devices, T = 2 and min_devices = 10: a sum over 11 is one over 9 for two colluders."""
    limits = Limits(3, 10, 5)
    header = header_of(limits=limits)
    device = replace(DEVICES["d05"], limits=limits)
    pieces = {
        name: DEVICES[name].collect(header, Journal(), numbers_of(name), 5, SEED, now=NOW)[0]["d05"]
        for name in NAMES
    }
    device.open(header, Journal(), pieces, now=NOW)
    del pieces["d11"]
    with pytest.raises(SecureError, match=r"11 devices: must be at least 12, min_devices=10 and 2"):
        device.open(header, Journal(), pieces, now=NOW)


def test_the_server_fixes_no_set_that_is_too_small_without_the_colluders():
    header = header_of(limits=Limits(3, 10, 5))
    pieces = dict.fromkeys(header.committee, bytes(50))
    for count in (11, 12):
        state = replace(collected(HEADER, ()), header=header)
        for name in NAMES[:count]:
            state = state.receive(name, pieces)
        if count == 12:
            assert state.choose().chosen == NAMES
        else:
            with pytest.raises(SecureError, match="a sum of 11 devices: must be at least 12"):
                state.choose()


def test_a_device_refuses_an_exchange_with_too_few_devices_for_the_colluders():
    header = replace(HEADER, min_devices=11)  # 12 are asked, and T = 2
    with pytest.raises(SecureError, match="its number of devices=12, and the device requires 13"):
        check_header(header, ROSTER, LIMITS, "d00", NOW)
    check_header(replace(HEADER, min_devices=10), ROSTER, LIMITS, "d00", NOW)


@given(
    st.integers(5, 600),
    st.integers(2, 500),
    st.none() | st.integers(5, 256),
)
def test_the_least_number_of_devices_is_the_smallest_that_meets_all_limits(
    size, min_devices, min_committee
):
    """Brute force over the number of devices present."""
    limits = Limits(1, min_devices, min_committee)
    half = -(-size // 2) if min_committee is None else min_committee
    possible = [
        count
        for count in range(5, 1000)
        if count - Scheme.of(min(count, 256)).tolerated >= min_devices
        and min(count, 256) >= min(half, 256)
    ]
    roster = type("Keys", (), {"keys": range(size)})
    assert limits.least_devices(roster) == possible[0]


# The committee.


def test_by_default_the_committee_is_half_of_the_roster_or_more():
    roster, limits = roster_of(31), Limits(1, 2)
    assert len(header_for(16, roster, limits).committee) == 16
    message = "15 devices are present: a secure sum needs 16 for min_devices=2 and a committee of"
    with pytest.raises(SecureError, match=f"{message} 16"):
        header_for(15, roster, limits)
    assert len(header_for(256, LARGE, limits).committee) == 256
    with pytest.raises(SecureError, match="255 devices are present: a secure sum needs 256"):
        header_for(255, LARGE, limits)
    assert [limits.least_committee(roster_of(n)) for n in (5, 9, 10, 11)] == [5, 5, 5, 6]


def test_a_device_refuses_a_committee_below_half_of_the_roster():
    """The server asks five devices, four of which may be its own."""
    header = header_of(present=NAMES[:5])
    check_header(header, ROSTER, LIMITS, "d00", NOW)
    with pytest.raises(SecureError, match="members of the committee=5, and the device requires 6"):
        check_header(header, ROSTER, Limits(3, 4), "d00", NOW)


# The largest number of answers.


def test_the_owner_limits_the_answers_of_an_exchange():
    header = header_of(max_duels=100)
    check_header(header, ROSTER, replace(LIMITS, max_duels=100), "d00", NOW)
    with pytest.raises(SecureError, match="max_duels=100, and the device allows 99"):
        check_header(header, ROSTER, replace(LIMITS, max_duels=99), "d00", NOW)
    with pytest.raises(SecureError, match="max_duels=10001: must be at most 10000"):
        header_of(max_duels=10_001)
    with pytest.raises(DataError, match="max_duels is 2: must be a whole number, 3 to"):
        Limits(3, max_duels=2)


def test_the_smallest_number_of_answers_is_at_most_the_largest():
    with pytest.raises(DataError, match="min_duels of the header is 101"):
        replace(HEADER, min_duels=101)


# Clocks.


@pytest.mark.parametrize(
    ("hours", "message"),
    [
        (1.0, None),
        (1.1, r"began 1\.1 hours after the time of the device's clock"),
        (10_000.0, r"began 10000\.0 hours after"),
        (-168.0, None),
        (-168.1, r"began 168\.1 hours before the time of the device's clock"),
    ],
)
def test_a_round_far_from_the_clock_is_refused_in_all_three_calls(hours, message):
    device, now = DEVICES["d03"], 1.8e9
    header = header_of(round=round(1000 * (now + 3600 * hours)))
    pieces = collected_at(header, header.round / 1000).choose().pieces_for("d03")
    for action in (
        lambda: device.span(header, Journal(), 5, now=now),
        lambda: device.collect(header, Journal(), numbers_of("d03"), 5, SEED, now=now),
        lambda: device.open(header, Journal(), pieces, now=now),
    ):
        if message is None:
            action()
        else:
            with pytest.raises(SecureError, match=message):
                action()


def collected_at(header, now):
    state = collected(header, ())
    for name in NAMES:
        sealed, _ = DEVICES[name].collect(header, Journal(), numbers_of(name), 5, SEED, now=now)
        state = state.receive(name, sealed)
    return state


def test_the_day_is_required_for_a_roster():
    parameter = inspect.signature(verify).parameters["today"]
    assert parameter.default is inspect.Parameter.empty


# Repetitions.


def test_a_device_names_exchanges_that_have_a_contribution():
    device = DEVICES["d03"]
    assert not device.repeated(HEADER, Journal())
    _, journal = device.collect(HEADER, Journal(), numbers_of("d03"), 5, SEED, now=NOW)
    assert device.repeated(HEADER, reloaded(journal))
    assert not device.repeated(header_of(2), journal)
    with pytest.raises(SecureError, match="has two different headers"):
        device.repeated(replace(HEADER, broadcast=b"other"), journal)


# Restored stores.


@pytest.mark.parametrize("round", [3, 7])
def test_a_restored_device_takes_part_in_no_exchange_that_is_over(round):
    device, journal, header = DEVICES["d03"], Journal.restored(round=7, cut=20), header_of(round)
    pieces = collected(header).choose().pieces_for("d03")
    for action in (
        lambda: device.span(header, journal, 100, now=NOW),
        lambda: device.collect(header, journal, numbers_of("d03"), 30, SEED, now=NOW),
        lambda: device.open(header, reloaded(journal), pieces, now=NOW),
    ):
        with pytest.raises(SecureError, match=f"round {round} is not later than 7"):
            action()


def test_a_restored_device_takes_part_in_later_exchanges():
    device, journal, header = DEVICES["d03"], Journal.restored(round=7, cut=20), header_of(8)
    assert device.span(header, journal, 100, now=NOW) == (20, 100)
    pieces = collected(header).choose().pieces_for("d03")
    device.open(header, journal, pieces, now=NOW)


def test_a_restored_device_sends_no_answer_again():
    journal, header = Journal.restored(7, 20), header_of(8)
    for acknowledged in (None, bytes(16), (3).to_bytes(16, "big")):
        for answers in (0, 19, 20, 22):
            with pytest.raises(DeclinedError):
                journal.acknowledge(header, acknowledged).span(header, answers)
        assert journal.acknowledge(header, acknowledged).span(header, 23) == (20, 23)
    later = journal.contribute(header, 23, SEED, b"")
    assert later.acknowledge(header_of(9), header.exchange).counted == 23
    assert later.acknowledge(header_of(9), bytes(16)).counted == 20
    assert reloaded(later) == later


def test_a_journal_records_what_a_restored_one_needs():
    assert (Journal().last_round, Journal().sent) == (0, 0)
    journal = sent([5, 9])
    assert (journal.last_round, journal.sent) == (2, 9)
    journal = journal.open(header_of(4), {"a": b""})
    assert journal.last_round == 4
    again = Journal.restored(journal.last_round, journal.sent)
    assert (again.last_round, again.sent, again.counted) == (4, 9, 9)


def test_a_new_store_accepts_what_the_server_counted_of_a_former_one():
    """The device has a new key under its name, and its first sums fail."""
    former = b"f" * 16
    journal = Journal().acknowledge(header_of(5), former)
    assert journal.span(header_of(5), 8) == (0, 8)
    journal = journal.contribute(header_of(5), 8, SEED, b"")
    journal = reloaded(journal).acknowledge(header_of(6), former)
    assert journal.span(header_of(6), 20) == (0, 20)
    with pytest.raises(SecureError, match="which has no contribution here"):
        sent([5]).acknowledge(header_of(6), former)


def test_exchanges_of_a_former_store_are_not_opened_any_more():
    journal = Journal().open(header_of(2), {"a": b""}).acknowledge(header_of(5), b"f" * 16)
    with pytest.raises(SecureError, match="round 4 is not later than 4, the last one"):
        journal.open(header_of(4), {"a": b""})
    assert journal.open(header_of(5), {"a": b""}).last_round == 5


def test_a_journal_keeps_the_last_exchanges_and_a_base():
    journal, first = Journal(), 2**20
    for number in range(1, MOST_CUTS + 3):
        header = header_of(first + number)
        journal = journal.contribute(header, 3 * number, SEED, b"")
    assert (len(journal.cuts), journal.base, journal.counted) == (1000, 6, 6)
    assert journal.cuts[0][1] == 9
    assert reloaded(journal) == journal
    later = header_of(first + 5000, max_duels=10_000)
    for acknowledged, start in ((first + 1, 6), (first + 2, 6), (first + 3, 9), (first + 7, 21)):
        known = journal.acknowledge(later, acknowledged.to_bytes(16, "big"))
        assert known.span(later, 4000) == (start, 4000)
    assert journal.acknowledge(later, None).counted == 6


def test_a_damaged_base_is_refused():
    with pytest.raises(DataError, match="base"):
        Journal.restored(1, -1)
    with pytest.raises(DataError, match="base_round"):
        Journal.restored(-1, 1)
    with pytest.raises(DataError, match="do not ascend"):
        replace(sent([5]), base=5, counted=5)
