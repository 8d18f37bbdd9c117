"""The duel store: a model-based test, several processes, SIGKILL, and invalid files."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from clients.preference_agent import PreferenceAgent
from clients.store import (
    ConflictingAnswerError,
    DuelExpiredError,
    DuelStore,
    Synchronization,
    UndoError,
    UnknownDuelError,
)
from clients.store.database import SCHEMA_VERSION, Database
from clients.store.duel_store import system_uptime
from fldb_flower.bandit.estimate import VARIANCES, CommonPrior, ShareChange
from fldb_flower.errors import DataError, FldbError, OutputError
from simulations import command

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # for many small transactions
HOUR = 3600.0
SHARE = ShareChange(np.eye(2), np.ones(2), np.zeros(len(VARIANCES)), 1.0, 1.0)


class Clock:
    def __init__(self, now=1e9):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def store(path):
    with DuelStore(path) as opened:
        yield opened


def propose(store, difference=(1.0, 2.0), predicted=0.5, **more):
    return store.propose(np.array(difference), predicted, **{"expire_after": HOUR, **more}).id


def answer(store, count, preference=1.0):
    """Propose and answer `count` distinct duels; return the numbers of the answers."""
    duels = [propose(store, (store.last + number, 2.0)) for number in range(1, count + 1)]
    return store.record([(duel, preference) for duel in duels])


def rows(path, query):
    """Query the file with SQLite directly, bypassing the store."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def refused(error, path):
    """Check that the error is a single line that contains the path."""
    assert str(path) in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def start(code, *arguments):
    """Start a Python subprocess."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Wait for the process, check its exit status and return its output lines."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output.splitlines()


# --- the file --------------------------------------------------------------------------------


def test_every_commit_reaches_the_disk(path):
    for _ in range(2):  # a new file, then an existing one: synchronous is a per-connection setting
        with contextlib.closing(Database(path)) as opened:
            assert opened.row("PRAGMA synchronous") == (2,)  # FULL
            assert opened.row("PRAGMA journal_mode") == ("wal",)
    header = path.read_bytes()[:20]
    assert tuple(header[18:]) == (2, 2)  # SQLite file format, section 1.3.3: write-ahead log


def test_only_the_owner_may_read(path):
    before = os.umask(0)
    try:
        with DuelStore(path) as store:
            answer(store, 1)
            store.backup(path.with_name("copy.db"))
            files = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert files == dict.fromkeys(["duels.db", "duels.db-wal", "duels.db-shm", "copy.db"], 0o600)


def test_a_reopened_store_has_the_same_identifier(path, monkeypatch):
    monkeypatch.setenv("HOME", str(path.parent))
    with DuelStore("~/duels.db") as store:
        name = store.device_id
        answer(store, 3, 0.0)
    with DuelStore(str(path)) as store, DuelStore(path.with_name("other.db")) as other:
        assert store.device_id == name != other.device_id
        assert (store.last, other.last) == (3, 0)
    assert len(name) == 32  # 128 random bits
    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_the_file_of_another_version_or_program_is_refused_and_unchanged(path):
    def made(number, table=None):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            if table:
                connection.execute(f"CREATE TABLE {table} (name TEXT)")
            connection.execute(f"PRAGMA user_version = {number}")

    def version(number):
        DuelStore(path).close()
        made(number)

    cases = [
        *((version, number, f"another version of .*schema {number}\\)") for number in (0, 5, 7)),
        *((lambda n: made(n, "recipes"), n, "another program's database") for n in (0, 6, 7, -1)),
        *((path.write_text, text, "not a duel store") for text in ("hi", "a line\n" * 1000)),
    ]
    for make, value, message in cases:
        make(value)
        before = path.read_bytes()
        with pytest.raises(DataError, match=message) as error:
            DuelStore(path)
        refused(error, path)
        assert path.read_bytes() == before
        path.unlink()


def test_a_truncated_or_damaged_store_is_refused_and_unchanged(path):
    with DuelStore(path) as store:
        answer(store, 300)
        store.cut(0, 1)
    content = path.read_bytes()
    assert len(content) > 10 * 4096  # several pages
    harmed = [content[:left] for left in (2, 99, 100, 512, 4095, 4096, 4097, 5 * 4096, -4096)]
    for first, last in ((0, 16), (100, 4096), (4096, len(content))):
        harmed.append(content[:first] + b"\xa5" * (last - first) + content[last:])

    def use():
        with DuelStore(path) as store:
            store.evidence(0, 300)
            store.counts()
            answer(store, 1)

    for data in harmed:
        path.write_bytes(data)
        with pytest.raises(FldbError) as error:
            use()
        refused(error, path)
        assert path.read_bytes() == data


def full_store(path):
    """Write a store with rows in all tables."""
    with PreferenceAgent(path) as agent:
        store = agent.store
        agent.name_features(["sweetness", "bitterness"])
        shown = [{"text": "tea"}, {"text": "coffee"}]
        for numbers in [[1.0, 2.0], [0.5, -1.0], [2.0, 0.0]]:
            duel = store.propose(np.array(numbers), 0.25, contents=shown, expire_after=HOUR)
            store.record([(duel.id, 1.0)])
        store.propose(np.array([3.0, 4.0]), np.nan, contents=shown, expire_after=HOUR)
        store.cut(0, 2)
        store.admit(0, 3, np.ones(2), 5)
        store.share_change(0, 3, lambda *_: SHARE)
        prior = CommonPrior(np.eye(2), np.ones(2), 0.5, 2.0)
        parameters = {"algorithm": "fldb_personal", "selection": "ucb"}
        packed = np.array([1.0, 0.0, 1.0])
        store.synchronize(Synchronization(9.0, 2, 3, 40, np.ones(2), packed, parameters, prior))
        store.keep_secure_part("ledger", b"ledger")
        answer(store, 2)


def answered(agent):
    duel = agent.propose(ARMS).id
    agent.record(duel, "tie")
    return duel


ARMS = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]
USES = [
    lambda agent: agent.status(),
    lambda agent: agent.store.open_proposals(9),
    lambda agent: agent.propose(ARMS),
    lambda agent: agent.undo(answered(agent)),
    lambda agent: agent.skip(agent.propose(ARMS).id),
    lambda agent: (agent.rank(ARMS), agent.predict(*ARMS[:2]), agent.explain()),
    lambda agent: agent.store.cut(3, 1),
    lambda agent: agent.store.admit(0, 3, np.zeros(2), 5),
    lambda agent: agent.store.evidence(0, 3),
    lambda agent: agent.store.share_change(0, 3, lambda *_: SHARE),
    lambda agent: agent.store.synchronize(synchronization()),
    lambda agent: agent.store.prune(0.0),
    lambda agent: agent.store.forget(),
]


def works_or_reports(path):
    """Return the error of opening a store in one line, or None after using everything in it."""
    begin, message = time.process_time(), None
    try:
        with PreferenceAgent(path) as agent:
            for use in USES:
                with contextlib.suppress(FldbError):
                    use(agent)
    except FldbError as error:
        message = str(error)
        assert str(path) in message
        assert len(message.splitlines()) == 1
        assert len(message) < 500
    assert time.process_time() - begin < 1.0
    return message


NAN = np.full(4, np.nan).tobytes()
VALUES = [
    *(None, -1, 0, 7, 2**62, -1.5, 1e300, "", "x", "[", "[" * 100_000, "{}", "5", "[5, 6]"),
    *(b"", b"x", b"\xff" * 32, NAN, NAN[:8], NAN * 3, np.full(4, 0.25).tobytes()),
    *(
        '{"selection": [1]}',
        '{"algorithm": ["x"]}',
        '{"lambda_": "x"}',
        '{"personal_ridge": 1e999}',
    ),
    # Text that is not UTF-8, and the evidence of a duel with other dimensions.
    *(sqlite3.Binary(b"\xff"), np.full(5, 0.5).tobytes(), np.full(4, 1e200).tobytes()),
]


@pytest.mark.parametrize(
    "table",
    [
        *("device", "proposals", "answers", "cuts", "questions"),
        *("synchronized", "shares", "secure", "sqlite_sequence"),
    ],
)
def test_a_store_with_any_wrong_value_works_or_is_refused_in_one_line(path, table):
    full_store(path)
    content, refused = path.read_bytes(), set()
    columns = [row[1] for row in rows(path, f"PRAGMA table_info({table})")]
    has_rowid = table not in {"questions", "secure"}
    first = f"WHERE rowid = (SELECT min(rowid) FROM {table})" if has_rowid else ""
    for column, value in itertools.product(columns, VALUES):
        path.write_bytes(content)
        with (
            contextlib.closing(sqlite3.connect(path)) as connection,
            contextlib.suppress(sqlite3.IntegrityError),  # NULL, or a text as an INTEGER KEY
            connection,
        ):
            connection.execute(f"UPDATE {table} SET {column} = ? {first}", [value])
        message = works_or_reports(path)
        if message is not None:
            assert re.search(r" damaged: .*(\w+\.\w+|table \w+)", message)
            refused.add(column)
    assert refused >= set(columns) - {"first_key", "second_key", "name"}
    path.write_bytes(content)
    assert works_or_reports(path) is None


def test_a_store_with_wrong_content_is_refused_in_one_line(path):
    full_store(path)
    content = path.read_bytes()
    for change, message in [
        ("DELETE FROM device", "the table device has 0 rows: must have one"),
        ("INSERT INTO device (id) VALUES ('x')", "the table device has 2 rows: must have one"),
        ("UPDATE device SET dimension = NULL", r"evidence must .*length\(evidence\) = 16"),
        ("INSERT INTO synchronized SELECT * FROM synchronized", "synchronized has 2 rows"),
        (
            "UPDATE answers SET evidence = zeroblob(50000000) WHERE sequence = 2",
            "answers.evidence must",
        ),
        ("UPDATE synchronized SET theta = zeroblob(50000000)", "synchronized.theta must"),
        ("UPDATE proposals SET contents = hex(zeroblob(20000000))", "proposals.contents must"),
        ("UPDATE sqlite_sequence SET seq = 1 WHERE name = 'answers'", "is 1: must be 5 or more"),
        ("DELETE FROM sqlite_sequence", "is 0: must be 5 or more"),
        ("DROP TABLE cuts", "no such table: cuts"),
        ("ALTER TABLE answers RENAME evidence TO other", "no such column: evidence"),
        # A device sends the message to its server, so it contains nothing of a duel.
        ("UPDATE answers SET evidence = 'secret'", "answers.evidence must(?!.*secret)"),
    ]:
        path.write_bytes(content)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(change)
        assert re.search(message, works_or_reports(path)), change


def test_a_path_that_cannot_be_a_store_is_refused(tmp_path):
    long = "x" * 300
    for path in (
        *(tmp_path, tmp_path / "missing" / "duels.db", f"/tmp/{long}", f"/tmp/{long}/duels.db"),
        "~nobody-of-this-name/duels.db",
    ):
        with pytest.raises(OutputError) as error:
            DuelStore(path)
        refused(error, path)
    assert list(tmp_path.iterdir()) == []


# Root can write everywhere, so the test runs as another user in a shared folder.
READ_ONLY = """
import os, sys
import numpy as np
from clients.store import DuelStore
folder, path = sys.argv[1], os.path.join(sys.argv[1], "duels.db")
if os.geteuid() == 0:
    os.chown(folder, 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
DuelStore(path).close()
before = open(path, "rb").read()
for place, mode, name in ((path, 0o400, "duels.db"), (folder, 0o000, "inner/duels.db")):
    os.chmod(place, mode)  # what is in a folder without rights cannot even be looked for
    try:
        with DuelStore(os.path.join(folder, name)) as store:
            store.propose(np.ones(2), 0.5, expire_after=60)
    except Exception as error:
        print(type(error).__name__, error)
    os.chmod(place, 0o700)
print(open(path, "rb").read() == before)
"""


@pytest.mark.slow
def test_a_read_only_file_and_a_folder_out_of_reach_are_refused():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        read_only, out_of_reach, unchanged = finish(start(READ_ONLY, folder))
    assert read_only.startswith(f"OutputError cannot use the duel store {folder}/duels.db: ")
    assert "readonly" in read_only
    assert out_of_reach.startswith("OutputError")
    assert f"{folder}/inner/duels.db" in out_of_reach
    assert unchanged == "True"


FULL_DISK = """
import resource, sys
import numpy as np
from clients.store import DuelStore
from fldb_flower.errors import FldbError
store = DuelStore(sys.argv[1])
def one():
    duel = store.propose(np.ones(2000), 0.5, expire_after=60, contents=["x" * 3000])
    (number,) = store.record([(duel.id, 1.0)])
    print(number, duel.id, flush=True)
one()
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
try:
    while True:
        one()
except FldbError as error:
    print(type(error).__name__, str(error).replace(chr(10), "NEWLINE"), flush=True)
print(store.last, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
one()
"""


@pytest.mark.slow
def test_no_answer_is_lost_on_a_full_disk(path):
    *before, error, last, after = finish(start(FULL_DISK, path))
    assert error.startswith(f"OutputError cannot use the duel store {path}: ")
    assert "NEWLINE" not in error
    acknowledged = [line.split() for line in [*before, after]]
    assert len(before) > 5
    assert [int(number) for number, _ in acknowledged] == list(range(1, len(before) + 2))
    assert int(last) == len(before)
    kept = rows(path, "SELECT sequence, id FROM answers ORDER BY sequence")
    assert kept == [(int(number), duel) for number, duel in acknowledged]


def test_a_store_that_stays_locked_raises_an_error(path, monkeypatch):
    monkeypatch.setattr("clients.store.database.BUSY_SECONDS", 0.05)
    with DuelStore(path) as store, DuelStore(path) as other:
        duel = propose(store)
        with other.transaction():
            other.keep_secure_part("journal", b"new")
            with pytest.raises(OutputError, match="locked") as error:
                store.record([(duel, 1.0)])
            refused(error, path)
            assert store.counts()["open"] == 1  # reading does not wait for the lock
            assert store.secure_part("journal") is None
        assert store.record([(duel, 1.0)]) == [1]
    with pytest.raises(FldbError, match="closed") as error:
        store.counts()
    assert "damaged" not in str(error.value)


def test_a_deleted_or_replaced_file_is_not_written(path):
    """SQLite keeps writing to a deleted file; the answer would be lost."""
    with DuelStore(path) as store:
        duel = propose(store)
        path.rename(path.with_name("moved.db"))
        for _ in ("deleted", "replaced"):
            with pytest.raises(OutputError) as error:
                store.record([(duel, 1.0)])
            refused(error, path)
            path.touch()


# --- proposals and answers -------------------------------------------------------------------


def test_a_repeated_answer_keeps_its_number(path):
    values = (0.0, 0.5, 1.0)
    with DuelStore(path) as store:
        duels = [propose(store) for _ in values]
        assert store.record(zip(duels, values, strict=True)) == [1, 2, 3]
    with DuelStore(path) as store:  # the client crashed before the reply
        for number, given in enumerate(values, 1):
            for again in values:
                (result,) = store.record([(duels[number - 1], again)])
                if again == given:
                    assert result == number
                else:
                    assert isinstance(result, ConflictingAnswerError)
                    assert duels[number - 1] in str(result)
                    assert "\n" not in str(result)
        assert store.last == 3
        assert store.answers().preferences.tolist() == list(values)


def test_each_answer_has_its_own_error(path):
    clock = Clock()
    with DuelStore(path, clock=clock) as store:
        early = propose(store, expire_after=10.0)
        clock.now += 11.0
        one, two = (propose(store, expire_after=60.0) for _ in range(2))  # deletes `early`
        short = propose(store, expire_after=1.0)
        clock.now += 2.0
        sent = [*((each, 1.0) for each in (one, "never", early, short)), (two, 0.0)]
        results = store.record([*sent, (one, 0.0), (one, 1.0)])
        expected = [
            1, UnknownDuelError, UnknownDuelError, DuelExpiredError, 2, ConflictingAnswerError, 1
        ]  # fmt: skip
        assert [r if isinstance(r, int) else type(r) for r in results] == expected
        assert all(len(str(result).splitlines()) == 1 for result in results)
        assert "expired 1 s ago" in str(results[3])
        assert store.last == 2


def test_several_answers_are_recorded_in_one_transaction(store):
    duels = [propose(store) for _ in range(3)]

    def interrupted():
        yield duels[0], 1.0
        yield duels[1], 0.0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.record(interrupted())
    assert store.counts() == {"open": 3, "answered": 0, "counted": 0}
    assert store.record([(duels[2], 1.0), (duels[0], 0.0)]) == [1, 2]  # no number is skipped
    assert store.record([]) == []


def test_a_duel_can_be_answered_until_it_expires(path):
    clock = Clock(1000.0)
    with DuelStore(path, clock=clock) as store:
        proposals = [store.propose(np.ones(2), 0.5, expire_after=60.0) for _ in range(3)]
        assert {p.expires for p in proposals} == {1060.0}
        first, second, third = (p.id for p in proposals)
        clock.now = 1060.0
        assert store.record([(first, 1.0)]) == [1]
        assert store.counts()["open"] == 2
        clock.now = 1060.5
        (error,) = store.record([(second, 1.0)])
        assert isinstance(error, DuelExpiredError)
        assert store.counts()["open"] == 0
        assert store.record([(first, 1.0)]) == [1]  # repeated, after the expiry
        assert rows(path, "SELECT count(*) FROM proposals") == [(2,)]
        fresh = propose(store)  # deletes expired duels
        assert rows(path, "SELECT id FROM proposals") == [(fresh,)]
        (error,) = store.record([(third, 1.0)])
        assert isinstance(error, UnknownDuelError)
        assert store.last == 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 2 * HOUR),  # seconds that pass
            st.floats(-2e9, 2e9),  # the time of the day afterwards
            st.booleans(),  # whether the device starts again before
        ),
        min_size=1,
        max_size=8,
    )
)
def test_no_duel_expires_before_its_time(steps):
    """And without a new start of the device, it expires exactly then, however its clock is set."""
    wall, uptime, passed, was_restarted = Clock(), Clock(5.0), 0.0, False
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / "duels.db"
        with DuelStore(path, clock=wall, uptime=uptime) as store:
            duel = propose(store)
        for seconds, time_of_day, restarts in steps:
            uptime.now = seconds if restarts else uptime.now + seconds
            passed, wall.now = passed + seconds, time_of_day
            was_restarted |= restarts
            with DuelStore(path, clock=wall, uptime=uptime) as store:
                is_open = store.counts()["open"] == 1
            assert is_open or passed > HOUR - 1e-6
            assert was_restarted or is_open == (passed <= HOUR) or abs(passed - HOUR) < 1e-6
        with DuelStore(path, clock=wall, uptime=uptime) as store:
            (result,) = store.record([(duel, 1.0)])
            assert result == 1 if is_open else isinstance(result, DuelExpiredError)


def test_the_uptime_of_the_system_increases_and_is_that_of_all_processes():
    command = "from clients.store.duel_store import system_uptime; print(repr(system_uptime()))"
    before = system_uptime()
    other = float(
        subprocess.run([sys.executable, "-c", command], check=True, capture_output=True).stdout
    )
    assert before < other < system_uptime()


def test_the_oldest_open_duels_are_listed_first(path):
    """By the order of proposals: the clock of the device is set back again and again."""
    wall, uptime = Clock(1.8e9), Clock(100.0)
    contents = [{"text": "tea"}, {"image": "http://x/y.png", "text": "café ☕"}]
    with DuelStore(path, clock=wall, uptime=uptime) as store:
        assert store.open_proposals() == []
        propose(store)  # without contents: not shown
        shown = []
        for place in range(4):
            uptime.now += 1.0
            wall.now -= 1e6
            more = {"keys": (f"a{place}", None), "contents": contents}
            seconds = 5.0 if place == 1 else 100.0
            shown.append(store.propose(np.ones(2), 0.5, expire_after=seconds, **more))
        assert store.open_proposals() == shown[:1]
        assert store.open_proposals(9) == shown
        store.record([(shown[0].id, 1.0)])
        uptime.now += 4.0
        assert store.open_proposals(9) == shown[2:]
    kept = str(rows(path, f"SELECT * FROM answers WHERE id = '{shown[0].id}'"))
    assert "café" not in kept
    assert "a0" not in kept


def test_the_first_use_fixes_the_dimension(path):
    with DuelStore(path) as store:
        assert store.dimension is None
        store.synchronize(synchronization(d=4))  # of a server
        assert store.dimension == 4
        assert store.settle_dimension(3) == 3  # that of the arms, before the first duel
        assert store.synchronized() is None
        propose(store, (1.0, 2.0, 3.0))
        assert store.settle_dimension(4) == 3  # the duel stays
    with DuelStore(path) as store:
        assert store.dimension == 3
        with pytest.raises(DataError, match="dimension 3, not 2") as error:
            propose(store, (1.0, 2.0))
        refused(error, path)
        with pytest.raises(DataError, match="dimension 3, not 2"):
            store.synchronize(synchronization(d=2))
        assert store.synchronized() is None
        assert store.counts()["open"] == 1


# --- undo and skip ---------------------------------------------------------------------------


def test_an_answer_is_undone_and_given_again_by_hand(path):
    clock = Clock(1000.0)
    with DuelStore(path, clock=clock) as store:
        answer(store, 2)
        duel = propose(store, (3.0, -4.0), 0.25, keys=("a", "b"), contents=["x", "y"])
        assert store.record([(duel, 1.0)]) == [3]
        removals = store.version()[2]
        clock.now = 2000.0
        again = store.undo(duel, expire_after=60.0)
        assert again not in {duel, ""}
        assert store.version()[2] == removals + 1  # learners start again without the answer
        assert store.counts() == {"open": 1, "answered": 2, "counted": 0}
        assert len(store.answers().numbers) == 2
        assert store.open_proposals() == []  # its contents were deleted with the answer
        assert rows(path, "SELECT expires, first_key FROM proposals") == [(2060.0, None)]
        assert store.record([(again, 0.0)]) == [3]
        found = store.answers(2)
        np.testing.assert_array_equal(found.differences, [[3.0, -4.0]])
        assert (found.preferences.tolist(), found.predicted.tolist()) == ([0.0], [0.25])


def test_only_the_last_answer_that_was_not_sent_can_be_undone(store):
    duels = [propose(store, (float(number), 1.0)) for number in range(5)]
    store.record([(duel, 1.0) for duel in duels[:3]])
    assert store.sent == 0
    with pytest.raises(UndoError, match="number 1, and the last one 3") as error:
        store.undo(duels[0], expire_after=HOUR)
    assert len(str(error.value).splitlines()) == 1
    assert store.cut(0, 2) == 3
    assert store.sent == 3
    with pytest.raises(UndoError, match="part of an upload to the server") as error:
        store.undo(duels[2], expire_after=HOUR)
    assert duels[2] in str(error.value)
    store.record([(duels[3], 0.0)])
    assert store.cut(3, 2) == 3  # too few for an upload: not sent
    again = store.undo(duels[3], expire_after=HOUR)
    assert (store.last, store.cut(3, 1)) == (3, 3)  # the next upload does not contain it
    assert store.record([(duels[4], 1.0), (again, 1.0)]) == [4, 5]
    assert store.undo(again, expire_after=HOUR)
    assert store.undo(duels[4], expire_after=HOUR)
    assert store.cut(3, 1) == 3
    assert len(store.evidence(0, 3).preferences) == 3
    for unknown in ("never", duels[4] + "x"):
        with pytest.raises(UnknownDuelError):
            store.undo(unknown, expire_after=HOUR)
    # The store is an old backup: the server acknowledges more answers than it has.
    duel = propose(store)
    store.record([(duel, 1.0)])
    store.synchronize(synchronization(counted=9))
    assert store.sent == 9
    with pytest.raises(UndoError, match="part of an upload"):
        store.undo(duel, expire_after=HOUR)


def test_a_skipped_duel_leaves_nothing(path):
    with DuelStore(path) as store:
        duel = propose(store, (3.0, -4.0), contents=["a picture of tea", None], keys=("tea", None))
        answered = propose(store)
        store.record([(answered, 0.5)])
        assert store.skip(duel).tolist() == [3.0, -4.0]
        assert store.counts() == {"open": 0, "answered": 1, "counted": 0}
        for gone in (duel, "never"):
            with pytest.raises(UnknownDuelError):
                store.skip(gone)
        (late,) = store.record([(duel, 1.0)])
        assert isinstance(late, UnknownDuelError)
        with pytest.raises(ConflictingAnswerError, match="was answered"):
            store.skip(answered)
        data = b"".join(file.read_bytes() for file in path.parent.glob("duels.db*"))
        assert b"a picture of tea" not in data


# --- uploads ---------------------------------------------------------------------------------


class Server(RuleBasedStateMachine):
    """Random sequences of answers, undone answers, uploads, restarts, pruning and backups.

    The model has the duel and the row of each answer, and the set of returned upload ends.
    """

    @initialize(at_least=st.integers(1, 5))
    def begin(self, at_least):
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.path = Path(self.folder.name) / "duels.db"
        self.copy = Path(self.folder.name) / "copy.db"
        self.store = DuelStore(self.path)
        self.at_least = at_least
        self.answers, self.cuts, self.ends = {}, {0}, {}
        self.last = self.count = 0

    def teardown(self):
        self.store.close()
        self.folder.cleanup()

    @rule(
        answers=st.lists(
            st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 9)), min_size=1, max_size=7
        )
    )
    def record(self, answers):
        """Propose duels, then answer them in one call, in another order."""
        given = []
        for preference, place in answers:
            self.count += 1
            row = (float(self.count), -0.5 * self.count, preference, 1 / self.count)
            given.append((place, propose(self.store, row[:2], row[3]), row))
        given.sort(key=lambda each: each[0])
        numbers = self.store.record([(duel, row[2]) for _, duel, row in given])
        assert numbers == list(range(self.last + 1, self.last + 1 + len(given)))
        self.answers |= {n: each[1:] for n, each in zip(numbers, given, strict=True)}
        self.last += len(given)
        assert self.store.last == self.last

    @rule(again=st.sampled_from([None, 0.0, 0.5, 1.0]), reopened=st.booleans())
    def undo(self, again, reopened):
        """Undo the last answer, twice because a reply was lost; perhaps give another one."""
        if self.last not in self.answers:  # none yet, pruned, or lost with a newer store
            return
        duel, row = self.answers[self.last]
        if self.last <= max(self.cuts):
            with pytest.raises(UndoError, match="part of an upload"):
                self.store.undo(duel, expire_after=HOUR)
            return
        other = self.store.undo(duel, expire_after=HOUR)
        if reopened:
            self.reopen()
        assert self.store.undo(duel, expire_after=HOUR) == other
        assert isinstance(self.store.record([(duel, row[2])])[0], UnknownDuelError)
        if again is None:
            del self.answers[self.last]
            self.last -= 1
        else:
            assert self.store.record([(other, again)]) == [self.last]
            self.answers[self.last] = other, (*row[:2], again, row[3])
        assert self.store.last == self.last

    @rule(data=st.data())
    def cut(self, data):
        self.ask(data.draw(st.sampled_from(sorted(self.cuts))))

    def ask(self, start):
        newest = max(self.cuts)
        end = self.store.cut(start, self.at_least)
        self.cuts.add(end)
        ordered = sorted(self.cuts)
        assert all(b - a >= self.at_least for a, b in itertools.pairwise(ordered))
        assert start <= end <= self.last
        assert end >= self.ends.get(start, 0)  # an upload never shrinks
        self.ends[start] = end
        if self.last - newest >= self.at_least:
            assert end == self.last  # and does not hold back answers unnecessarily
        self.compare(start, end)

    @rule(data=st.data())
    def evidence(self, data):
        start, end = (data.draw(st.sampled_from(sorted(self.cuts))) for _ in range(2))
        self.compare(start, end)

    def compare(self, start, end):
        wanted = range(start + 1, end + 1)
        if not all(number in self.answers for number in wanted):
            with pytest.raises(DataError, match="pruned"):
                self.store.evidence(start, end)
            return
        found = self.store.evidence(start, end)
        right = np.array([self.answers[number][1] for number in wanted]).reshape(-1, 4)
        np.testing.assert_array_equal(found.preferences, right[:, 2])
        np.testing.assert_array_equal(found.predicted, right[:, 3])
        if len(right) or self.store.dimension is not None:
            np.testing.assert_array_equal(found.differences, right[:, :2])

    @rule(data=st.data(), number=st.integers(-3, 30))
    def not_a_cut(self, data, number):
        refusals = [
            lambda: self.store.evidence(0, number),
            lambda: self.store.evidence(number, max(self.cuts)),
            *([lambda: self.store.cut(number, self.at_least)] if number < self.last else []),
        ]
        for refusal in refusals if number not in self.cuts else []:
            with pytest.raises(DataError):
                refusal()

    @rule()
    def reopen(self):
        self.store.close()
        self.store = DuelStore(self.path)

    @rule()
    def prune(self):
        counted = max(self.cuts)
        if self.store.dimension is not None:
            self.store.synchronize(synchronization(counted=counted))
            left = {number: row for number, row in self.answers.items() if number > counted}
            assert self.store.prune(-HOUR) == len(self.answers) - len(left)
            self.answers = left

    @rule(rounds=st.lists(st.lists(st.sampled_from([0.0, 1.0]), max_size=7), max_size=3))
    def lose(self, rounds):
        """Back up the store, continue to use it, then replace it with the backup."""
        answers, cuts, last = dict(self.answers), set(self.cuts), self.last
        self.copy.unlink(missing_ok=True)
        self.store.backup(self.copy)
        for preferences in rounds:
            self.record([(preference, place) for place, preference in enumerate(preferences)])
            self.ask(max(self.cuts))
        counted = max(self.cuts)
        if counted not in cuts and counted == last:
            return  # covered by test_an_old_copy_continues_from_the_count_of_the_server
        self.store.close()
        for file in self.path.parent.glob("duels.db*"):
            file.unlink()
        shutil.copy(self.copy, self.path)
        self.store = DuelStore(self.path)
        self.answers, self.cuts, self.last, self.ends = answers, cuts, last, {}
        if counted not in cuts:  # the server has counted answers that this copy lacks
            assert self.store.cut(counted, self.at_least) == counted
            self.cuts.add(counted)
            self.last = counted
            assert self.store.last == counted


Server.TestCase.settings = examples(100, 2, stateful_step_count=25)
TestServer = Server.TestCase


def test_an_upload_covers_distinct_duels(store):
    """Repeated and mirrored duels are one duel, and duels of equal arms are none."""
    assert store.needed is None  # no server has asked yet
    assert store.cut(0, 3) == 0
    assert store.needed == 3
    for difference in [(1.0, 2.0), (-1.0, -2.0), (0.0, 0.0), (1.0, 2.0), (-0.0, 3.0), (0.0, -3.0)]:
        store.record([(propose(store, difference), 1.0)])
    assert store.cut(0, 3) == 0
    assert store.needed == 1
    store.record([(propose(store, (2.0, 4.0)), 1.0)])  # another duel in the same direction
    assert store.needed == 0
    assert store.cut(0, 3) == 7
    store.record([(propose(store, (1.0, 2.0)), 1.0)] * 3)
    store.record([(propose(store, (float(n), 2.0)), 1.0) for n in (1, 2)])
    assert store.cut(7, 3) == 7  # they count again for the next upload: two so far
    assert store.needed == 1
    store.record([(propose(store, (3.0, 2.0)), 1.0)])
    assert store.cut(7, 3) == 11


def test_an_upload_covers_no_more_than_the_limit_of_the_server(store):
    answer(store, 10)
    assert store.cut(0, 2, at_most=4) == 4
    assert store.cut(4, 2, at_most=4) == 8
    assert store.cut(8, 2, at_most=4) == 10
    # The server lost its state and starts again from the existing cuts.
    assert store.cut(0, 2, at_most=9) == 8
    assert store.cut(0, 2, at_most=4) == 4
    assert store.cut(0, 2) == 10
    answer(store, 5)
    assert store.cut(8, 1, at_most=2) == 10
    with pytest.raises(DataError, match=r"after 0 .* more than the 3 .*devices-max-duels"):
        store.cut(0, 2, at_most=3)
    assert store.cut(10, 2, at_most=5) == 15
    store.record([(propose(store, (1.0, 2.0)), 1.0) for _ in range(5)])
    assert store.cut(15, 2, at_most=5) == 15  # another duel may be answered
    answer(store, 1)
    with pytest.raises(DataError, match=r"after 15 .* cover 2 distinct duels .*more than the 5 "):
        store.cut(15, 2, at_most=5)


def test_an_old_copy_continues_from_the_count_of_the_server(path):
    with DuelStore(path) as store:
        answer(store, 4)
        store.backup(path.with_name("old.db"))
        answer(store, 6)
        store.backup(path.with_name("new.db"))  # it has every answer, but not the cut
        assert store.cut(0, 1) == 10
    with DuelStore(path.with_name("new.db")) as store:
        assert store.cut(10, 5) == 10
        answer(store, 5)
        assert store.cut(10, 5) == 15
    with DuelStore(path.with_name("old.db")) as store:
        assert store.last == 4
        assert store.cut(10, 1) == 10
        assert store.last == 10
        assert answer(store, 3) == [11, 12, 13]
        assert store.cut(10, 1) == 13
        assert store.evidence(10, 13).differences.shape == (3, 2)
        for start, end in [(0, 10), (0, 13)]:  # lost answers are not replaced
            with pytest.raises(DataError, match="answers 1 to 1"):
                store.evidence(start, end)
    with DuelStore(path.with_name("old.db")) as store:
        assert answer(store, 1) == [14]


def test_a_server_cannot_exhaust_the_numbers(store):
    for start in (2**63 - 1, 2**63):
        answer(store, 1)
        with contextlib.suppress(FldbError):
            store.cut(start, 1)
        assert isinstance(answer(store, 1)[0], int)


def test_only_counted_answers_are_pruned(path):
    clock = Clock(1000.0)
    with DuelStore(path, clock=clock) as store:
        for _ in range(3):
            answer(store, 2)
            store.cut(0, 1)
            clock.now += 100.0
        duel = rows(path, "SELECT id FROM answers WHERE sequence = 1")[0][0]
        assert store.prune(0.0) == 0  # nothing has been acknowledged yet
        store.synchronize(synchronization(counted=4))
        # Now 1300; answers 1 and 2 were given at 1000, 3 and 4 at 1100, 5 and 6 at 1200.
        assert store.prune(250.0) == 2
        assert store.prune(250.0) == 0
        assert store.prune(0.0) == 2
        assert rows(path, "SELECT sequence FROM answers ORDER BY 1") == [(5,), (6,)]
        left = "answers 1 to 6 .* 2 of them are left.*pruned"
        with pytest.raises(DataError, match=left) as error:
            store.evidence(0, 6)
        refused(error, path)
        assert len(store.evidence(4, 6).preferences) == 2
        assert store.counts() == {"open": 0, "answered": 6, "counted": 4}
        assert isinstance(store.record([(duel, 1.0)])[0], UnknownDuelError)
        store.synchronize(synchronization(counted=6))
        assert store.prune(0.0) == 2
        assert answer(store, 1) == [7]  # numbers are never reused


# --- secure sums ----------------------------------------------------------------------------


def test_a_transaction_is_rolled_back_as_a_whole(store):
    answer(store, 3)

    def fail():
        with store.transaction():
            store.keep_secure_part("journal", b"new")
            store.mark_sent(3)
            store.synchronize(synchronization())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert store.secure_part("journal") is None
    assert (store.sent, store.synchronized()) == (0, None)
    with store.transaction():
        store.keep_secure_part("journal", b"new")
        store.mark_sent(3)
    assert (store.secure_part("journal"), store.sent) == (b"new", 3)


def test_a_report_and_a_restored_store_mark_answers_as_sent(store):
    answer(store, 3)
    for position, sent in ((0, 0), (2, 2), (2, 2), (3, 3), (3, 3), (2, 3)):
        store.mark_sent(position)  # the last cut of a report, or an earlier one of a newer store
        assert (store.last, store.sent) == (3, sent)
    store.mark_sent(7)  # of a newer store
    assert (store.last, store.sent) == (7, 7)
    assert answer(store, 1) == [8]
    assert len(store.evidence(7, 7).numbers) == 0


# --- broadcasts ------------------------------------------------------------------------------


def synchronization(d=2, **changes):
    rng = np.random.default_rng(d)
    values = {
        "received": 1234.5,
        "round": 7,
        "counted": 3,
        "duels": 1000,
        "theta": rng.normal(size=d),
        "information": rng.normal(size=d * (d + 1) // 2),
        "parameters": {"selection": "ucb", "beta_scale": 0.1, "lambda_": "auto"},
    }
    return Synchronization(**{**values, **changes})


def test_a_broadcast_is_kept_until_the_next(path):
    with DuelStore(path) as store, DuelStore(path) as other:
        assert store.synchronized() is None
        versions = {store.version()}
        for changes in [{}, {"round": 8}, {"received": 1240.0}, {"round": 1, "received": 1300.0}]:
            brought = synchronization(theta=np.array([5e-324, -1 / 3]), **changes)
            store.synchronize(brought)
            np.testing.assert_equal(vars(other.synchronized()), vars(brought))
            assert store.version() == other.version()
            versions.add(other.version())
        assert len(versions) == 5
        assert other.counts()["counted"] == 3
    with DuelStore(path) as store:
        np.testing.assert_equal(vars(store.synchronized()), vars(brought))
    assert rows(path, "SELECT count(*) FROM synchronized") == [(1,)]


# --- copies ----------------------------------------------------------------------------------


def test_a_copy_replaces_no_file_and_needs_its_folder(store):
    answer(store, 1)
    other = store.path.with_name("other.db")
    with DuelStore(other) as kept:
        answer(kept, 2)
        name = kept.device_id
    for copy in (other, store.path.parent / "missing" / "copy.db"):
        with pytest.raises(OutputError) as error:
            store.backup(copy)
        refused(error, copy)
    with DuelStore(other) as kept:
        assert (kept.device_id, kept.last) == (name, 2)


# --- threads and processes -------------------------------------------------------------------


def open_while(path, place, meanwhile):
    """Open a store; call `meanwhile(path)` before the statement with number `place`."""
    connect, statements = sqlite3.connect, 0

    class Connection(sqlite3.Connection):
        def execute(self, *arguments):
            nonlocal statements
            statements += 1
            if statements == place and not self.in_transaction:
                with pytest.MonkeyPatch.context() as undone:
                    undone.setattr(sqlite3, "connect", connect)
                    meanwhile(path)
            return super().execute(*arguments)

    def spied(*arguments, **options):
        return connect(*arguments, **options, factory=Connection)

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(sqlite3, "connect", spied)
        return DuelStore(path)


def test_another_process_creates_the_store_between_two_statements(tmp_path):
    names = {}

    def create(path):
        with DuelStore(path) as store:
            names[path] = store.device_id

    for place in range(1, 9):
        path = tmp_path / str(place)
        with open_while(path, place, create) as store:
            assert store.device_id == names.get(path, store.device_id)
            assert answer(store, 1) == [1]
    assert len(names) >= 2  # before the schema check, and before the creation


@pytest.mark.parametrize("lock", ["IMMEDIATE", "EXCLUSIVE"])
def test_another_process_is_creating_the_store(tmp_path, lock):
    threads = []

    def begin(path):
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute(f"BEGIN {lock}")

        def give_up():
            time.sleep(0.05)
            other.rollback()
            other.close()

        threads.append(threading.Thread(target=give_up))
        threads[-1].start()

    try:
        for place in range(1, 9):
            with open_while(tmp_path / str(place), place, begin) as store:
                assert answer(store, 1) == [1]
    finally:
        for thread in threads:
            thread.join()


LAST = """
import sys
from clients.store import DuelStore
with DuelStore(sys.argv[1]) as store:
    print(store.last)
"""


@pytest.mark.slow
def test_a_second_thread_does_not_drop_the_locks(path, monkeypatch):
    """POSIX: closing any descriptor of a file drops all locks of the process on it.

    Another process would then consider the store unused and delete its log. Later answers would be
    written to a file without a name.
    """
    with DuelStore(path) as store:
        looked = Path.exists
        monkeypatch.setattr(Path, "exists", lambda self: self != path and looked(self))
        DuelStore(path).close()  # checks for the file just before it is created
        monkeypatch.undo()
        finish(start(LAST, path))  # opens the store and is the last process to close it
        assert answer(store, 1) == [1]
        assert finish(start(LAST, path)) == ["1"]


RECORD = """
import os, sys
import numpy as np
from clients.store import DuelStore, UndoError
store = DuelStore(sys.argv[1])
def write(step, *numbered):
    os.write(1, "".join(f"{step} {duel} {number}\\n" for duel, number in numbered).encode())
turn = store.last
while True:
    turn += 1
    differences = [np.array([turn, place]) for place in range(1 + turn % 3)]
    duels = [store.propose(each, 0.5, expire_after=600).id for each in differences]
    write("answered", *zip(duels, store.record([(duel, 1.0) for duel in duels])))
    if turn % 5 == 0:
        store.cut(0, 4)
    try:
        again = store.undo(duels[-1], expire_after=600)
    except UndoError:  # it was sent, or another process has answered meanwhile
        continue
    write("undone", (duels[-1], 0))
    write("again", (duels[-1], store.record([(again, 0.0)])[0]))
"""


@pytest.mark.slow
def test_answers_of_two_processes_survive_their_kill_and_count_once(path):
    """What was reported is durable; the step that was interrupted is repeated, and counts once."""
    rng, repeated, done = random.Random(5), set(), {}
    DuelStore(path).close()
    for _ in range(12):  # kill them and recover the same file repeatedly
        with start(RECORD, path) as one, start(RECORD, path) as other:
            lines = {
                each: [each.stdout.readline() for _ in range(rng.randrange(1, 40))]
                for each in (one, other)
            }
            time.sleep(rng.uniform(0.0, 0.004))
            for each in lines:
                each.send_signal(signal.SIGKILL)
                lines[each] += each.stdout.readlines()  # already written, still in the pipe
        assert [one.returncode, other.returncode] == [-signal.SIGKILL] * 2
        for written in lines.values():
            steps = [line.split() for line in written if line.endswith("\n")]
            done |= {duel: (step, int(number)) for step, duel, number in steps}
            last_step, last, _ = steps[-1]
            with DuelStore(path) as store, contextlib.suppress(UndoError):
                again = store.undo(last, expire_after=HOUR)  # or it was sent, or another followed
                done[last] = "again", *store.record([(again, 0.0)])
                repeated.add(last_step)
        kept = dict(rows(path, "SELECT id, sequence FROM answers"))
        assert sorted(kept.values()) == list(range(1, len(kept) + 1))
        for duel, (step, number) in done.items():
            found = {"answered": kept.get(duel), "again": kept.get(f"{duel}~")}
            assert found == {"answered": None, "again": None, step: number}
        assert len(kept) == len({duel.rstrip("~") for duel in kept})  # each duel at most once
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert repeated
    assert len(done) > 100
    cuts = [0, *(position for (position,) in rows(path, "SELECT position FROM cuts ORDER BY 1"))]
    assert len(cuts) > 10
    assert all(b - a >= 4 for a, b in itertools.pairwise(cuts))
    with DuelStore(path) as store:
        for duel, (step, number) in done.items():
            sent = (duel, 1.0) if step == "answered" else (f"{duel}~", 0.0)
            assert store.record([sent]) == [number]
        end = store.cut(0, 1)
        found = store.evidence(0, end)
    by_number = {number: duel for duel, number in kept.items()}
    right = [0.0 if by_number[n].endswith("~") else 1.0 for n in range(1, end + 1)]
    np.testing.assert_array_equal(found.preferences, right)


@pytest.mark.parametrize("shared", [True, False])
def test_answers_undone_during_uploads_are_either_sent_or_undone(path, shared):
    """One thread uploads; the others answer, undo and answer again."""
    ends, finished = {}, threading.Event()
    with DuelStore(path) as store:

        def upload():
            own = store if shared else DuelStore(path)
            while not finished.is_set():
                end = own.cut(0, 1)
                ends.setdefault(end, own.evidence(0, end).preferences.tolist())
            if not shared:
                own.close()

        uploading = threading.Thread(target=upload)
        uploading.start()
        kept = []
        for number in range(60):
            duel = propose(store, (float(number), 1.0))
            store.record([(duel, 1.0)])
            try:
                again = store.undo(duel, expire_after=HOUR)
            except UndoError:
                kept.append(1.0)
            else:
                store.record([(again, 0.0)])
                kept.append(0.0)
            time.sleep(0.001 * (number % 3))
        finished.set()
        uploading.join()
        assert store.cut(0, 1) == 60
        assert store.evidence(0, 60).preferences.tolist() == kept
    assert all(sent == kept[:end] for end, sent in ends.items())


INTERRUPTED = """
import sys, time
from clients.store import DuelStore
store = DuelStore(sys.argv[1])
def slowly():
    for duel in sys.argv[2:]:
        yield duel, 1.0
        print("one more", flush=True)
    time.sleep(60)
store.record(slowly())
"""


@pytest.mark.slow
def test_a_transaction_interrupted_by_a_kill_is_rolled_back(path):
    with DuelStore(path) as store:
        answer(store, 3)
        duels = [propose(store) for _ in range(2)]
        with start(INTERRUPTED, path, *duels) as process:
            assert [process.stdout.readline() for _ in duels] == ["one more\n"] * 2
            process.send_signal(signal.SIGKILL)
        assert store.counts() == {"open": 2, "answered": 3, "counted": 0}
        assert store.record([(duel, 0.0) for duel in duels]) == [4, 5]  # no lock, no number left


@pytest.mark.slow
def test_backups_during_writes(path):
    DuelStore(path).close()
    acknowledged = set()
    with start(RECORD, path) as process, DuelStore(path) as store:
        for number in range(6):
            for _ in range(12):
                step, duel, _ = process.stdout.readline().split()
                acknowledged |= {f"{duel}~"} if step == "again" else set()
            copy = path.with_name(f"copy{number}.db")
            store.backup(copy)
            kept = dict(rows(copy, "SELECT id, sequence FROM answers"))
            assert acknowledged <= kept.keys()
            assert sorted(kept.values()) == list(range(1, len(kept) + 1))
            assert rows(copy, "PRAGMA integrity_check") == [("ok",)]
        process.send_signal(signal.SIGKILL)
    assert len(acknowledged) > 10


def test_the_command_copies_a_store_and_replaces_nothing(tmp_path, in_process):
    path, copy = tmp_path / "duels.db", tmp_path / "copy.db"
    with DuelStore(path) as store:
        answer(store, 5)
        assert in_process(command.main, "fldb", "backup", str(path), str(copy)) == (
            0, f"{copy}: 5 answers of {path}\n", "",
        )  # fmt: skip
        with DuelStore(copy) as other:
            assert other.device_id == store.device_id
            for mine, theirs in zip(store.answers(), other.answers(), strict=True):
                np.testing.assert_array_equal(mine, theirs)
    before = copy.read_bytes()
    status, *_ = in_process(command.main, "fldb", "backup", str(path), str(copy))
    assert status == f"error: {copy} already exists: a backup replaces no file"
    assert copy.read_bytes() == before
    typo = tmp_path / "typo.db"
    status, *_ = in_process(command.main, "fldb", "backup", str(typo), str(tmp_path / "new.db"))
    assert status == f"error: STORE={typo}: there is no such file"
    assert {each.name for each in tmp_path.glob("*.db")} == {"duels.db", "copy.db"}
