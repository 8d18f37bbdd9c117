"""Deleted content is in no file of the store, and erased answers are counted at most once."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import device_request, examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from clients.device import DeviceAgent, Limits
from clients.preference_agent import PreferenceAgent
from clients.store import DuelStore, Forgotten, UndoError, UnknownDuelError
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.errors import DataError, FldbError
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.linalg.linear import Form
from fldb_flower.settings import from_flat
from fldb_flower.wire import DeviceUploadHeader, decode_upload, encode_broadcast

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
ARMS = [[0.0, 0.5], [1.0, 0.25]]


def propose(agent, marker, features=ARMS):
    """Propose a duel with a unique key and texts of a unique length."""
    keys = [f"key-{marker}-{side}" for side in "ab"]
    contents = [{"text": f"text-{marker}-{side} " * (1 + len(marker) % 7)} for side in "ab"]
    return agent.propose(features, keys, contents).id


def found(path, *markers):
    """Return the markers that occur in a file of the store."""
    data = b"".join(file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*")))
    return [marker for marker in markers if marker.encode() in data]


def difference(value):
    """Return the bytes stored for features that differ by this number."""
    return np.float64(value).tobytes()


def test_an_answered_duel_is_in_no_file_while_the_store_is_open(path):
    with PreferenceAgent(path) as agent, PreferenceAgent(path) as other:
        duel = propose(agent, "one")
        assert found(path, "text-one", "key-one") == ["text-one", "key-one"]
        assert other.status()["open"] == 1
        agent.record(duel, "first")
        assert (path.with_name("duels.db-wal")).exists()  # the store is open
        assert found(path, "text-one", "key-one") == []


def test_many_duels_of_different_lengths_are_erased(path):
    """SQLite moves rows between pages when others are deleted; the old pages are overwritten."""
    rng, kept = np.random.default_rng(1), {}
    with PreferenceAgent(path) as agent:
        for number in range(200):
            name = f"{number:04}"
            text = {"text": f"<{name}>" * int(rng.choice([1, 5, 30, 200, 1500]))}
            kept[name] = agent.propose(ARMS, [f"[{name}]", "k" * 200], [text, text]).id
            if len(kept) > 30:
                gone = list(kept)[rng.integers(len(kept))]
                agent.record(kept.pop(gone), "tie")
                assert found(path, f"<{gone}>", f"[{gone}]") == []
        names = {f"{number:04}" for number in range(200)}
        assert found(path, *(f"<{name}>" for name in sorted(names - kept.keys()))) == []
        assert len(found(path, *(f"<{name}>" for name in kept))) == 30


def test_expired_and_pruned_duels_are_in_no_file(path):
    now = [1000.0]
    with PreferenceAgent(path, expire_after=10, clock=lambda: now[0]) as agent:
        propose(agent, "expired")
        now[0] += 11
        duel = agent.propose([[0.0, 0.0], [1.25e-7, 3.5e-7]]).id
        assert found(path, "text-expired", "key-expired") == []
        agent.record(duel, "first")
        assert -1.25e-7 in evidence(path)
        device = device_of(agent.store)
        upload(device, counted=0)
        acknowledge(device, 1)
        assert agent.store.prune(-1.0) == 1
        assert evidence(path) == set()
        data = b"".join(file.read_bytes() for file in path.parent.glob("duels.db*"))
        assert difference(-1.25e-7) not in data


def test_a_reader_delays_the_erasure_and_does_not_prevent_it(path):
    with PreferenceAgent(path) as agent, contextlib.closing(sqlite3.connect(path)) as reader:
        duel = propose(agent, "one")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM proposals").fetchone()  # an open read transaction
        assert agent.record(duel, "first") == 1  # neither refused nor delayed
        assert found(path, "text-one") == ["text-one"]
        reader.rollback()
        deadline = time.monotonic() + 200
        while found(path, "text-one", "key-one") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found(path, "text-one", "key-one") == []


# ---- Erasing answers ------------------------------------------------------------------------


def evidence(path):
    """Return the first difference of each stored row, read with SQLite directly."""
    with contextlib.closing(sqlite3.connect(path)) as rows:
        table = rows.execute(
            "SELECT evidence FROM answers UNION ALL SELECT evidence FROM proposals"
        )
        return {float(np.frombuffer(row[0])[0]) for row in table}


def device_of(store, min_duels=1):
    settings = from_flat({"dimension": 2, "algorithm": "fldb_ons"}, "a test")
    return DeviceAgent(store, settings, Limits(min_duels, 10_000))


def upload(device, *, counted, upto=-1, point=0.0):
    """Request statistics; return start, end, and the first entries of W_new and the gradient."""
    broadcast = Broadcast(None, np.array([point, 0.0]), hessian=True)
    name = device.store.device_id
    vector, config = device_request(broadcast, name, counted=counted, upto=upto)
    (sent,), count, reply = device.fit([vector], config)
    found = decode_upload(sent, count, broadcast, Form(2))
    answer = DeviceUploadHeader.from_counts(reply["header"])
    assert answer.num_duels == count == answer.end - answer.start
    return answer.start, answer.end, float(found.information[0, 0]), float(found.gradient[0])


def acknowledge(device, counted):
    """Send an estimate with an acknowledgement."""
    broadcast = Broadcast(PlayRequest(1, 1, Estimate(np.zeros(2), np.eye(2))), None)
    vector, header = encode_broadcast(broadcast)
    config = {"header": list(header), "counted": counted, "duels": counted}
    device.fit([vector], {**config, "device": device.store.device_id, "upto": -1})


class Forgetting(RuleBasedStateMachine):
    """Answers, uploads, lost replies, acknowledgements and erasures in any order.

    The model maps the number of each answer to its value (None: erased) and keeps what the server
    has counted. Differences are whole numbers, so sums of squares are exact.
    """

    @initialize(at_least=st.integers(1, 3))
    def begin(self, at_least):
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.path = Path(self.folder.name) / "duels.db"
        self.agent = PreferenceAgent(self.path)
        self.other = DuelStore(self.path)  # the Flower client's connection
        self.device, self.at_least = device_of(self.other, at_least), at_least
        self.values: list[int | None] = []
        self.open: list[str] = []
        self.duels: list[str] = []  # that were answered
        self.made = self.sent = self.known = 0  # answers, the last cut, the last acknowledgement
        self.counted, self.total, self.right = 0, 0.0, 0.0
        self.flight: tuple[int, int, float, float] | None = None
        self.forgotten_since = False

    def teardown(self):
        self.agent.close()
        self.other.close()
        self.folder.cleanup()

    def sum(self, start, end):
        return float(sum(v * v for v in self.values[start:end] if v is not None))

    @rule(count=st.integers(1, 4), answered=st.booleans())
    def answer(self, count, answered):
        for _ in range(count):
            self.made += 1
            duel = self.agent.propose([[0.0, 1.0], [self.made, 1.0]]).id
            if answered:
                assert self.agent.record(duel, "tie") == len(self.values) + 1
                self.values.append(self.made)
                self.duels.append(duel)
            else:
                self.open.append(duel)

    @rule(again=st.booleans())
    def undo(self, again):
        """Undo the last answer, unless it was sent; perhaps give it once more."""
        if not self.values:
            return
        if len(self.values) == self.sent:
            with pytest.raises((UndoError, UnknownDuelError)):  # the second if it was erased
                self.agent.undo(self.duels[-1])
            return
        value, duel = self.values.pop(), self.agent.undo(self.duels.pop())
        if again:
            assert self.agent.record(duel, "tie") == len(self.values) + 1
            self.values.append(value)
            self.duels.append(duel)
        else:
            self.open.append(duel)

    @rule(lost=st.booleans())
    def upload(self, lost):
        start, end, information, gradient = upload(self.device, counted=self.counted)
        assert start == self.counted
        assert end <= len(self.values)
        assert information == self.sum(start, end)
        assert gradient == 0.0  # ties at theta = 0
        real = sum(value is not None for value in self.values[start:end])
        assert real == 0 or real >= self.at_least  # erased answers do not reduce the minimum
        if len(self.values) - self.sent >= self.at_least:
            assert end == len(self.values)
        self.sent = max(self.sent, end)
        self.flight = None if lost else (start, end, information, gradient)
        self.forgotten_since = False

    @rule()
    def request_again(self):
        """Request another point in the same round: the upload has the same duels, or none."""
        if self.flight is None:
            return
        start, end, information, _ = self.flight
        if self.forgotten_since and end > start:
            with pytest.raises(DataError, match="forgotten"):
                upload(self.device, counted=start, upto=end, point=1.0)
            self.flight = None  # the round starts again
        else:
            assert upload(self.device, counted=start, upto=end, point=1.0)[2] == information

    @rule()
    def count(self):
        """The server counts the pending upload; the device is informed later."""
        if self.flight is not None:
            _, self.counted, information, _ = self.flight
            self.total += information
            self.flight = None

    @rule()
    def acknowledge(self):
        acknowledge(self.device, self.counted)
        self.known = self.counted

    @rule()
    def forget(self):
        uncertain = sum(value is not None for value in self.values[self.known : self.sent])
        unsent = len(self.values) - self.sent
        right = Forgotten(len(self.open), unsent + uncertain, uncertain, self.known)
        assert self.agent.forget() == right
        self.values[:] = [None] * self.sent
        del self.duels[self.sent :]
        assert evidence(self.path) <= {0.0}
        for duel in self.open:
            with pytest.raises(UnknownDuelError, match="forgotten"):
                self.agent.record(duel, "first")
        self.open.clear()
        self.forgotten_since = True
        status = self.agent.status()
        assert (status["open"], status["answered"]) == (0, self.sent)

    @rule()
    def drain(self):
        """Upload everything: the server then has counted each answer once, except erased ones."""
        for _ in range(self.at_least):
            self.answer(1, True)
        before, start = self.total, self.counted
        self.upload(False)
        self.count()
        self.acknowledge()
        assert self.counted == len(self.values)
        assert self.total - before == self.sum(start, self.counted)


Forgetting.TestCase.settings = examples(60, 2, stateful_step_count=25)
TestForgetting = Forgetting.TestCase


def test_erased_answers_are_in_no_file(path):
    with PreferenceAgent(path) as agent, DuelStore(path) as other:
        device = device_of(other)
        values = [0.123456789 + number for number in range(8)]
        for number, value in enumerate(values):
            duel = propose(agent, f"n{number}", [[0.0, 0.5], [value, 0.25]])
            if number < 7:
                agent.record(duel, "first")
            if number == 1:
                upload(device, counted=0)
                acknowledge(device, 2)
            if number == 4:
                upload(device, counted=2)
        # 1 and 2 are counted; 3, 4 and 5 in an upload; 6 and 7 in none; the last is unanswered
        assert agent.forget() == Forgotten(1, 5, may_be_counted=3, counted=2)
        assert found(path, "text-", "key-") == []
        data = b"".join(file.read_bytes() for file in path.parent.glob("duels.db*"))
        assert not any(difference(s * v) in data for v in values for s in (1, -1))
        assert agent.forget() == Forgotten(0, 0, may_be_counted=0, counted=2)
        assert agent.record(agent.propose(ARMS).id, "tie") == 6  # 6 and 7 were never sent


def test_an_upload_of_erased_answers_is_plausible_and_has_no_effect(path):
    """An erased answer keeps its number; its sums are 0, and nothing is predicted."""
    with PreferenceAgent(path) as agent, DuelStore(path) as other:
        device = device_of(other)
        agent.record(agent.propose(ARMS).id, "first")
        start, end, information, _ = upload(device, counted=0)
        assert (start, end) == (0, 1)
        assert information > 0
        agent.forget()
        with pytest.raises(FldbError, match="round has to begin again"):
            upload(device, counted=0, upto=1, point=2.0)
        assert upload(device, counted=0, point=2.0) == (0, 1, 0.0, 0.0)
        assert upload(device, counted=0, upto=1, point=3.0) == (0, 1, 0.0, 0.0)
        assert upload(device, counted=1, point=3.0) == (1, 1, 0.0, 0.0)
