"""Whom the server asks after failed sums: bad devices are found, and stop no rounds."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from random import Random

import numpy as np
import pytest
from conftest import examples
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fldb_flower.errors import DataError, SecureError
from fldb_flower.secure.device import Device
from fldb_flower.secure.field import P
from fldb_flower.secure.header import Header, Limits, new_header
from fldb_flower.secure.journal import Journal
from fldb_flower.secure.roster import Roster
from fldb_flower.secure.server import ServerExchange
from fldb_flower.secure.suspects import Suspects


def names_of(count: int) -> list[str]:
    return [f"d{number:03}" for number in range(count)]


def stored(state: Suspects) -> Suspects:
    """Return the state as after a restart of the server."""
    again = Suspects.from_json(json.loads(json.dumps(state.to_json())))
    assert again == state
    return again


def next_round(state: Suspects, present, least, bad, absent=()):
    """Return the state after a round, the devices asked and whether the sum failed."""
    asked = state.asked(present, least)
    assert least <= len(asked) or len(present) < least
    assert set(asked) <= set(present)
    if failed := bool(set(asked) & set(bad)):
        return stored(state.failed(asked)), asked, failed
    return stored(state.succeeded(set(asked) - set(absent))), asked, failed


def search(present, least, bad, most) -> tuple[Suspects, int, list[tuple[str, ...]]]:
    """Return the state after all bad devices are left out, the failed rounds, and good sets."""
    state, failures, good = Suspects(), 0, []
    for _ in range(most):
        state, asked, failed = next_round(state, present, least, bad)
        failures += failed
        good += [] if failed else [asked]
        if set(bad) <= set(state.left_out):
            return state, failures, good
    raise AssertionError(f"{bad} are not left out after {most} rounds: {state}")


@examples(100)
@given(st.data())
def test_one_bad_device_is_found_in_the_stated_number_of_rounds(data):
    count = data.draw(st.integers(6, 40))
    least = data.draw(st.integers(5, count - 1))
    present = names_of(count)
    bad = data.draw(st.sampled_from(present))
    first = math.ceil(count / min(count - least, math.ceil(count / 2)))
    most = first + 1 + math.ceil(math.log2(count))
    state, _, good = search(present, least, {bad}, most)
    assert set(state.left_out) == {bad}
    assert state.asked(present, least) == tuple(name for name in present if name != bad)
    assert good  # others have counted before the search was over


def test_two_failed_rounds_suffice_if_half_of_the_devices_is_enough():
    """Of 39 devices, 19 may be asked: one of the two halves is good."""
    present = names_of(39)
    for bad in present:
        state = Suspects()
        for failures in itertools.count():
            state, asked, failed = next_round(state, present, 19, {bad})
            if not failed:
                break
            assert len(asked) == (39 if failures == 0 else 19)
        assert failures <= 2


@examples(100)
@given(st.data())
def test_several_bad_devices_are_all_left_out_and_no_other(data):
    count = data.draw(st.integers(20, 40))
    present = names_of(count)
    bad = data.draw(st.sets(st.sampled_from(present), min_size=2, max_size=4))
    state, _, _ = search(present, count // 2, bad, 300)
    assert set(state.left_out) == bad


@examples(30)
@given(st.integers(0, 2**32))
def test_devices_that_come_and_go_stop_no_rounds(seed):
    """With a bad device, 12 of 30 devices needed, and up to 8 of 29 others absent."""
    random, everyone, bad = Random(seed), names_of(30), "d007"
    state, counted = Suspects(), set()
    for _ in range(60):
        absent = set(random.sample(everyone, random.randint(0, 8))) - {bad}
        silent = set(random.sample(everyone, random.randint(0, 3)))
        present = set(everyone) - absent
        state, asked, failed = next_round(state, present, 12, {bad}, silent)
        counted |= set() if failed else set(asked) - silent
    assert counted == set(everyone) - {bad}


def test_a_device_that_is_left_out_is_asked_again_and_costs_one_round():
    present, bad = names_of(20), {"d011"}
    state, _, _ = search(present, 10, bad, 20)
    waits = []
    for _ in range(4):
        outcomes = []
        while not any(outcomes):
            state, _, failed = next_round(state, present, 10, bad)
            outcomes.append(failed)
        waits.append(len(outcomes) - 1)
    assert waits == [20, 40, 80, 160]


def test_the_longest_wait():
    state = Suspects()
    for _ in range(12):
        state = state.blamed({"a": 2}, tolerated=1)
    assert state.left_out == {"a": (1280, 1280)}


def test_a_device_that_becomes_honest_counts_again():
    present = names_of(20)
    state, _, _ = search(present, 10, {"d011"}, 20)
    for _ in range(21):
        state, asked, failed = next_round(state, present, 10, ())
        assert not failed
    assert "d011" in asked
    assert state.asked(present, 10) == tuple(present)


def test_suspects_that_take_no_part_any_more_are_left_out_together():
    """The bad device and another one send nothing while the search asks them."""
    present, silent = names_of(8), {"d002", "d006"}
    state = Suspects().succeeded(set(present) - silent).failed(present)
    assert state.suspects == silent
    tried = []
    for _ in range(10):
        assert state.suspects == silent
        assert not state.waiting
        state, asked, _ = next_round(state, present, 5, (), silent)
        tried.append(*(set(asked) & silent))
    assert tried == ["d002", "d006"] * 5
    assert state.waiting == set(state.left_out) == silent
    assert not state.suspects


def test_a_good_device_that_becomes_bad_is_found_and_costs_others_little():
    """Five new devices, which are silent, come under suspicion first."""
    present, silent = names_of(20), set(names_of(20)[15:])
    state = Suspects().succeeded(present[:15])
    for _ in range(3 + 1 + 2 + 10):
        if "d003" not in state.waiting:
            state, _, _ = next_round(state, present, 10, {"d003"}, silent)
    assert "d003" in state.waiting
    assert len(state.left_out) <= 2


def test_more_suspects_than_half_are_asked_if_too_few_good_devices_are_present():
    """6 of 16 good devices are present, and half of 8 suspects are 4: a sum of 12 needs 2 more."""
    present = names_of(24)
    state = Suspects().succeeded(present[:16]).failed(present)
    assert state.asked(present[10:], 12) == tuple(present[10:22])
    assert state.asked(present, 12) == tuple(present[:20])


def test_those_left_out_are_asked_if_the_others_are_too_few():
    state, _, _ = search(names_of(12), 10, {"d003"}, 20)
    assert len(state.asked(names_of(11), 10)) == 10
    assert state.asked(names_of(10), 10) == tuple(names_of(10))
    assert state.asked(names_of(6), 10) == tuple(names_of(6))


def test_more_members_than_may_collude_must_name_a_device():
    state = Suspects().succeeded("abcdefgh")
    assert state.blamed({"a": 2, "b": 1}, tolerated=2) == state
    blamed = state.blamed({"a": 3, "b": 2}, tolerated=2)
    assert blamed.asked("abcdefgh", 5) == tuple("bcdefgh")
    assert stored(blamed).left_out == {"a": (20, 40)}
    assert blamed.good == set("bcdefgh")
    searched = Suspects().failed("abcdefgh")
    assert searched.blamed({"x": 3}, 2).suspects == set("abcdefgh")
    assert searched.failed("abcd").blamed({"x": 3}, 2).tries == 1
    assert not searched.blamed({"b": 3}, 2).suspects


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1}, {"tries": -1}, {"good": "a"}, {"good": [""]}, {"suspects": [3]},
        {"left_out": []}, {"left_out": {"": [1, 2]}}, {"left_out": {"a": [1]}},
        {"left_out": {"a": [1, "2"]}}, {"left_out": {"a": 3}},
    ],
)  # fmt: skip
def test_a_damaged_state_is_refused(change):
    fields = Suspects().failed("abc").blamed({"d": 3}, 1).to_json()
    assert Suspects.from_json(fields)
    with pytest.raises(DataError):
        Suspects.from_json({**fields, **change})
    with pytest.raises(DataError, match="lacks the field"):
        Suspects.from_json({})


# With real devices.

COUNT = 40
LIMITS = Limits(min_duels=2, min_devices=10)  # a committee is half of the roster: 20
PRIVATE = {
    name: X25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
    for name in names_of(COUNT)
}
ROSTER = Roster(1, {name: key.public_key().public_bytes_raw() for name, key in PRIVATE.items()})
DEVICES = {name: Device(name, key, ROSTER, LIMITS) for name, key in PRIVATE.items()}


class Federation:
    """40 devices with two new answers each round. The bad one seals pieces of other numbers."""

    def __init__(self, bad: str) -> None:
        self.bad = bad
        self.journals = {name: Journal().to_bytes() for name in DEVICES}
        self.last: dict[str, bytes | None] = dict.fromkeys(DEVICES)
        self.total, self.spans = 0, dict[str, list[tuple[int, int]]]()
        self.state, self.rounds = Suspects(), 0

    def header(self) -> Header:
        asked = self.state.asked(tuple(DEVICES), LIMITS.least_devices(ROSTER))
        return new_header(
            ROSTER, asked, exchange=self.rounds.to_bytes(16, "big"), round=self.rounds, numbers=1,
            encoding=b"", max_duels=100, limits=LIMITS, broadcast=b"",
        )  # fmt: skip

    def contribution(self, name: str, header: Header) -> tuple[dict[str, bytes], tuple[int, int]]:
        """Return the sealed pieces and the span of a device; an answer has the value 1."""
        journal = Journal.from_bytes(self.journals[name])
        journal = journal.acknowledge(header, self.last[name])
        start, cut = DEVICES[name].span(header, journal, 2 * self.rounds, now=0.0)
        numbers = np.array([cut - start], np.uint64)
        sealed, journal = DEVICES[name].collect(header, journal, numbers, cut, bytes(32), now=0.0)
        self.journals[name] = journal.to_bytes()
        if name == self.bad:  # pieces of two vectors: those of half of the members do not fit
            other, _ = DEVICES[name].collect(
                header, Journal(), np.array([P - 1], np.uint64), 2, bytes(32), now=0.0
            )
            sealed |= {member: other[member] for member in header.committee[::2]}
        return sealed, (start, cut)

    def run_round(self) -> None:
        self.rounds += 1
        header = self.header()
        exchange, spans = ServerExchange(header), {}
        for name in header.asked:
            sealed, spans[name] = self.contribution(name, header)
            exchange = exchange.receive(name, sealed)
        exchange = exchange.choose()
        for member in header.committee:
            journal = Journal.from_bytes(self.journals[member])
            opening, journal = DEVICES[member].open(
                header, journal, exchange.pieces_for(member), now=0.0
            )
            self.journals[member] = journal.to_bytes()
            exchange = exchange.answer(member, opening)
        try:
            result = exchange.combine()
        except SecureError:
            self.state = stored(self.state.failed(header.asked))
            return
        self.total += int(result.numbers[0])
        self.state = stored(self.state.succeeded(exchange.chosen))
        for name in exchange.chosen:
            self.last[name] = header.exchange
            self.spans.setdefault(name, []).append(spans[name])


def check(bad: str) -> None:
    federation = Federation(bad)
    while len(federation.spans) < COUNT - 1:
        assert federation.rounds < 2 + 1 + math.log2(COUNT)
        federation.run_round()
    federation.run_round()
    assert set(federation.spans) == set(DEVICES) - {bad}
    for name, spans in federation.spans.items():
        covered = [answer for start, cut in spans for answer in range(start, cut)]
        assert covered == list(range(spans[-1][1])), name  # each answer once, in order
        assert spans[-1][1] == 2 * federation.rounds
    assert federation.total == 2 * federation.rounds * (COUNT - 1)


def test_one_bad_device_among_40_stops_no_rounds():
    """All answers of all others are counted once, also those of failed sums."""
    check("d005")


@pytest.mark.exhaustive
@examples(10, parts=5)
@given(st.sampled_from(names_of(COUNT)))
def test_any_bad_device_among_40_stops_no_rounds(bad):
    check(bad)
