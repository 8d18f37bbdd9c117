"""The SQLite file of a duel store: its tables, its check, transactions, and erasure."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from fldb_flower.bandit.estimate import MIXES, VARIANCES
from fldb_flower.errors import DataError, OutputError, one_line, shown
from fldb_flower.settings import MAX_DIMENSION

SCHEMA_VERSION = 6
"""Version of the tables."""
APPLICATION_ID = 0x666C6462
"""SQLite's identifier of the application that owns a file: "fldb"."""
EXTRA = 2
"""Numbers after a difference in the column ``evidence``: preference, predicted preference."""
MAX_ANSWERS = 2**53

BUSY_SECONDS = 30.0
"""Seconds to wait for a transaction of another process."""
_ERASE_SECONDS = 0.1  # time to wait for readers before the log is emptied
_RETRY_SECONDS = 1.0  # until the next attempt if readers were still active

_TABLES = """
CREATE TABLE device (
    id TEXT NOT NULL,            -- random; identifies this store to the server
    dimension INTEGER,           -- d; NULL until the first duel or broadcast
    removals INTEGER NOT NULL DEFAULT 0,  -- how often answers were undone, forgotten or pruned
    minimum INTEGER,             -- distinct duels of an upload; NULL before the first request
    features TEXT,               -- JSON: names of the d features; NULL if they have none
    running REAL NOT NULL DEFAULT 0,  -- seconds for which the device was seen to run
    uptime REAL                  -- reading of the uptime up to which they are counted
);
CREATE TABLE proposals (         -- duels without an answer
    id TEXT PRIMARY KEY,
    created REAL NOT NULL,       -- seconds since 1970
    expires REAL NOT NULL,
    evidence BLOB NOT NULL,      -- d + 2 float64: difference, placeholder, predicted preference
    first_key TEXT, second_key TEXT,
    contents TEXT,               -- JSON: what a page shows
    begun REAL NOT NULL DEFAULT 0  -- `running` of the device when it was proposed
);
CREATE TABLE answers (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE,              -- of the duel; NULL once the answer is forgotten
    answered REAL NOT NULL,      -- seconds since 1970, of the answer or of its removal
    evidence BLOB NOT NULL       -- d + 2 float64: difference, preference, predicted preference
);
CREATE TABLE cuts (              -- boundaries of uploads: answers up to `position`
    position INTEGER PRIMARY KEY,
    forgotten INTEGER NOT NULL DEFAULT 0  -- 1: answers were forgotten since an upload ended here
);
CREATE TABLE questions (         -- estimates at which the server asked for gradients
    cut INTEGER NOT NULL,        -- of the answers between the previous cut and this one
    point BLOB NOT NULL,         -- SHA-256 of theta_hat
    PRIMARY KEY (cut, point)
) WITHOUT ROWID;
CREATE TABLE synchronized (      -- the estimate of the last broadcast
    received REAL NOT NULL,
    round INTEGER NOT NULL,
    counted INTEGER NOT NULL,    -- answers that the server has acknowledged
    duels INTEGER NOT NULL,      -- of all devices, that the estimate is computed from
    theta BLOB NOT NULL,         -- theta_sync: d float64
    information BLOB NOT NULL,   -- W_sync or A, packed (fldb_flower/linalg/linear.py): float64
    parameters TEXT NOT NULL,    -- JSON: how pairs are selected
    prior BLOB                   -- FLDB-Personal: c, v, scale and, if V is learned, rho and R
);
CREATE TABLE shares (            -- of FLDB-Personal
    cut INTEGER PRIMARY KEY,     -- computed from the answers up to this cut
    share BLOB                   -- NULL: 0, and later shares cover the later answers only
);
CREATE TABLE secure (            -- of secure sums, and scales of features
    name TEXT PRIMARY KEY,       -- journal, report, features, offers, units
    content BLOB NOT NULL
) WITHOUT ROWID;
"""

_LONGEST = 2e100  # largest difference of two features, which are at most 1e100
_FINITE = float(np.finfo(float).max)


def _is(kind: str, least: float, most: float) -> str:
    return f"typeof({{0}}) = '{kind}' AND {{0}} BETWEEN {least!r} AND {most!r}"


def _floats(*counts: int) -> str:
    lengths = " OR ".join(f"length({{0}}) = {8 * count}" for count in counts)
    return f"typeof({{0}}) = 'blob' AND {lengths if len(counts) == 1 else f'({lengths})'}"


def _json(condition: str) -> str:
    return f"typeof({{0}}) = 'text' AND CASE WHEN json_valid({{0}}) THEN {condition} ELSE 0 END"


def _conditions(d: int) -> dict[str, dict[str, str]]:
    """Return the condition of each column in SQL, with {0} for the column."""
    null, text, blob = "{0} IS NULL OR ", "typeof({0}) = 'text'", "typeof({0}) = 'blob'"
    count, number = _is("integer", 0, MAX_ANSWERS), _is("integer", 1, MAX_ANSWERS)
    seconds, duel, pair = _is("real", -1e15, 1e15), _floats(d + EXTRA), "json_array_length({0}) = 2"
    triangle = d * (d + 1) // 2
    prior = _floats(d + 2, d + 3 + triangle)
    share = d + triangle + len(VARIANCES) + 1
    shares = _floats(share, share + triangle + len(VARIANCES) * (len(MIXES) - 1))
    names = "NOT EXISTS (SELECT 1 FROM json_each({0}) AS each WHERE each.type != 'text')"
    return {
        "device": {
            "id": f"{text} AND length({{0}}) = 32 AND {{0}} NOT GLOB '*[^0-9a-f]*'",
            "dimension": null + _is("integer", 1, MAX_DIMENSION), "removals": count,
            "minimum": null + number, "running": seconds, "uptime": null + seconds,
            "features": null + _json(f"json_type({{0}}) = 'array' AND {names}"),
        },
        "proposals": {
            "id": text, "created": seconds, "expires": seconds, "evidence": duel,
            "first_key": null + text, "second_key": null + text,
            "contents": null + _json(pair), "begun": seconds,
        },
        "answers": {"sequence": number, "id": null + text, "answered": seconds, "evidence": duel},
        "sqlite_sequence": {"seq": count},
        "cuts": {"position": number, "forgotten": _is("integer", 0, 1)},
        "questions": {"cut": number, "point": _floats(4)},
        "synchronized": {
            "received": seconds, "round": count, "counted": count, "duels": count,
            "theta": _floats(d), "information": f"{blob} AND length({{0}}) % 8 = 0",
            "parameters": _json("json_type({0}) = 'object'"), "prior": null + prior,
        },
        "shares": {"cut": number, "share": null + shares},
        "secure": {"name": text, "content": blob},
    }  # fmt: skip


class Database:
    """One connection to the file of a duel store, for all threads of a process.

    Transactions are durable: write-ahead log with ``synchronous=FULL``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _expanded(path)
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._busy_seconds = BUSY_SECONDS
        self._has_deleted = False  # within the current transaction
        with self._errors():
            if not self.path.parent.is_dir():
                raise OutputError(f"{self.path}: the folder {self.path.parent} does not exist")
            # Opening an existing file and closing it would drop SQLite's locks on it (POSIX).
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._inode = self.path.stat().st_ino
            self.execute("PRAGMA synchronous = FULL")
            self.execute("PRAGMA secure_delete = ON")
            self._prepare()
            self.erase_deleted()  # a process that was killed may have left its log

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self.erase_deleted()
            if self._timer is not None:
                self._timer.cancel()
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def wait_at_most(self, seconds: float) -> None:
        """Set the seconds to wait for a transaction of another process."""
        with self._lock:
            self._busy_seconds = seconds
            self._connection.execute(f"PRAGMA busy_timeout = {seconds * 1e3:.0f}")

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """Execute a statement."""
        with self._lock, self._errors():
            cursor = self._connection.execute(statement, values)
            self._has_deleted |= statement.startswith("DELETE") and cursor.rowcount > 0
            return cursor

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Return all rows of a query."""
        with self._lock, self._errors():
            return self._connection.execute(query, values).fetchall()

    def row(self, query: str, *values: Any) -> Any:
        """Return the first row of a query, or () if it has none."""
        return next(iter(self.rows(query, *values)), ())

    def value(self, query: str, *values: Any, default: Any = None) -> Any:
        """Return the first value of the first row of a query."""
        return next(iter(self.row(query, *values)), default)

    def reading(self) -> AbstractContextManager[None]:
        """Read within one transaction: what other processes write meanwhile is not seen."""
        return self.transaction("DEFERRED")

    @contextlib.contextmanager
    def transaction(self, kind: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE") -> Iterator[None]:
        """Run one durable transaction, as a part of the one that this thread is in, if any.

        An exception rolls it back. If rows were deleted, the log is emptied afterwards.
        """
        with self._lock, self._errors():
            if self._connection.in_transaction:
                yield
                return
            if kind == "IMMEDIATE" and self.path.stat().st_ino != self._inode:
                raise OutputError(f"{self.path} was replaced by another file: open it again")
            self.execute(f"BEGIN {kind}")
            self._has_deleted = False
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self.execute("ROLLBACK")
                raise
            if self._has_deleted:
                self.erase_deleted()

    def erase_deleted(self) -> None:
        """Empty the log, which still holds deleted data; retry later while somebody reads."""
        with self._lock:
            try:
                self._connection.execute(f"PRAGMA busy_timeout = {_ERASE_SECONDS * 1e3:.0f}")
                busy = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            except sqlite3.OperationalError:
                busy = True  # for example, the disk is full; committed transactions are durable
            except sqlite3.DatabaseError:
                return  # closed, or damaged: the next statement reports it
            self.wait_at_most(self._busy_seconds)
            if busy and self._timer is None:
                self._timer = threading.Timer(_RETRY_SECONDS, self._retry)
                self._timer.daemon = True
                self._timer.start()

    def _retry(self) -> None:
        with self._lock:
            self._timer = None
            self.erase_deleted()

    def _prepare(self) -> None:
        """Create the tables in a new file; refuse the file of another version or program."""
        if self._has_tables():
            return
        self._use_write_ahead_log()
        with self.transaction():
            if self._has_tables():  # another process was faster
                return
            for statement in _TABLES.strip().split(";\n"):
                self.execute(statement)
            self.execute("INSERT INTO device (id) VALUES (?)", secrets.token_hex(16))
            self.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _has_tables(self) -> bool:
        version, application, tables = self.row(
            "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)"
            " FROM pragma_user_version, pragma_application_id"
        )
        if application == APPLICATION_ID and version != SCHEMA_VERSION:
            raise DataError(
                f"{self.path} was written by another version of fldb-flower (schema {version}):"
                f" this one opens stores of schema {SCHEMA_VERSION}"
            )
        if application != APPLICATION_ID and (version or tables or application):
            raise DataError(f"{self.path} is another program's database, not a duel store")
        return bool(tables)

    def _use_write_ahead_log(self) -> None:
        """Switch the journal mode; SQLite does not wait for other processes here."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
            else:
                return

    def check(self) -> None:
        """Raise DataError if a value is not one that a store contains, or rows are missing.

        A file may be intact for SQLite although its content is not that of a store. The message
        contains no value, since a device reports it to its server.
        """
        with self.reading():
            for fault in self._faults():
                raise self.damaged(fault)

    def damaged(self, fault: str) -> DataError:
        """Return the error for a file that is damaged."""
        return DataError(f"{self.path} is damaged: {fault}")

    def _faults(self) -> Iterator[str]:
        d = self.value("SELECT dimension FROM device", default=0)
        d = d if isinstance(d, int) and 0 <= d <= MAX_DIMENSION else 0
        for table, least in (("device", 1), ("synchronized", 0)):
            rows = self.value(f"SELECT count(*) FROM {table}")
            if not least <= rows <= 1:
                yield f"the table {table} has {rows} rows: must have one"
        for table, columns in _conditions(d).items():
            valid = [f"({condition.format(column)})" for column, condition in columns.items()]
            query = (
                f"SELECT {', '.join(valid)} FROM {table} WHERE NOT ({' AND '.join(valid)}) LIMIT 1"
            )
            if found := self.row(query):
                wrong = found.index(0)
                yield f"{table}.{list(columns)[wrong]} must satisfy {valid[wrong]}"
        query = "SELECT count(*), coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'answers'"
        rows, last = self.row(query)
        queries = (
            "SELECT max(sequence) AS number FROM answers UNION ALL SELECT max(position) FROM cuts"
        )
        newest = self.value(f"SELECT coalesce(max(number), 0) FROM ({queries})")
        if rows > 1 or newest > last:
            yield f"sqlite_sequence.seq is {last}: must be {newest} or more"
        for table, column, width, most in (
            *(("answers", "evidence", d + 1, _LONGEST), ("proposals", "evidence", d, _LONGEST)),
            *(("synchronized", name, None, _FINITE) for name in ("theta", "information", "prior")),
            ("shares", "share", None, _FINITE),
        ):
            blobs = self.rows(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL")
            numbers = np.frombuffer(b"".join(row[0] for row in blobs))
            if width is not None:
                numbers = numbers.reshape(-1, d + EXTRA)[:, :width]
            if not (np.abs(numbers) <= most).all():  # NaN too
                yield f"{table}.{column} contains a number that is not finite"

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
            raise OutputError(f"cannot use the duel store {self.path}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise DataError(f"{self.path} is not a duel store, or is damaged: {error}") from None
        except OSError as error:
            raise OutputError(f"cannot use the duel store {self.path}: {error.strerror}") from None


def _expanded(path: str | Path) -> Path:
    try:
        expanded = Path(path).expanduser()
        if b"\0" in os.fsencode(expanded):
            raise ValueError("the name contains a zero byte")
    except (RuntimeError, TypeError, ValueError) as error:
        raise OutputError(f"cannot use the duel store {shown(path)}: {one_line(error)}") from None
    return expanded
