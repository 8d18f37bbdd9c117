"""The SQLite file of a duel store: opening, transactions, and erasure of deleted data."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clients.store import schema
from fldb_flower.errors import DataError, OutputError, one_line

BUSY_SECONDS = 30.0
"""Seconds to wait for a transaction of another process."""
_ERASE_SECONDS = 0.1  # to wait for readers before the log is emptied
_RETRY_SECONDS = 1.0  # until the next attempt if readers were still active


class Database:
    """One connection to the file of a duel store, for all threads of a process.

    Transactions are durable: write-ahead log with ``synchronous=FULL``. The parameter and errors
    are those of :class:`~clients.store.DuelStore`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _expanded(path)
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._busy_seconds = BUSY_SECONDS
        with self._errors():
            if not self.path.parent.is_dir():
                raise OutputError(f"{self.path}: the folder {self.path.parent} does not exist")
            # Opening an existing file and closing it would drop SQLite's locks on it (POSIX).
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self.execute = self._connection.execute
            self._inode = self.path.stat().st_ino
            self.execute("PRAGMA synchronous = FULL")
            self.execute("PRAGMA secure_delete = ON")
            self._prepare(self._version())
            self.erase_deleted()  # a process that was killed may have left its log

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self.erase_deleted()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
            self._connection.close()

    def wait_at_most(self, seconds: float) -> None:
        """Set the seconds to wait for a transaction of another process."""
        with self._lock:
            self._busy_seconds = seconds
            self.execute(f"PRAGMA busy_timeout = {seconds * 1e3:.0f}")

    def row(self, statement: str, *values: Any, default: Any = ()) -> Any:
        """Return the first row of a query."""
        row = self.execute(statement, values).fetchone()
        return default if row is None else row

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the connection, and translate SQLite's errors."""
        with self._lock, self._errors():
            yield

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read within one transaction: other processes may write, and nothing of it is seen."""
        with self.reading():
            self.execute("BEGIN")
            try:
                yield
            finally:
                self.execute("ROLLBACK")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Run one transaction; an exception rolls it back.

        Within another one of the same thread, it is part of that one.
        """
        with self._lock, self._errors():
            if self._connection.in_transaction:
                yield
                return
            if self.path.stat().st_ino != self._inode:
                raise OutputError(f"{self.path} was replaced by another file: open it again")
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self.execute("ROLLBACK")
                raise

    def erase_deleted(self) -> None:
        """Empty the write-ahead log, which still holds deleted data.

        While another connection reads, this is retried every second in the background, and so it is
        within a transaction.
        """
        with self._lock:
            try:
                self.execute(f"PRAGMA busy_timeout = {_ERASE_SECONDS * 1e3:.0f}")
                busy = self.row("PRAGMA wal_checkpoint(TRUNCATE)")[0]
            except sqlite3.OperationalError:
                busy = True  # for example a full disk; committed transactions are durable anyway
            except sqlite3.DatabaseError:
                return  # closed, or damaged: the next statement reports it
            self.wait_at_most(self._busy_seconds)
            if busy and self._timer is None:
                self._timer = threading.Timer(_RETRY_SECONDS, self._retry)
                self._timer.daemon = True
                self._timer.start()

    def backup(self, path: str | Path) -> None:
        """Copy the database into a new file; see :meth:`~clients.store.DuelStore.backup`."""
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with contextlib.closing(sqlite3.connect(path)) as copy:
                self._connection.backup(copy)
        except FileExistsError:
            raise OutputError(f"{path} already exists: a backup replaces no file") from None
        except (OSError, sqlite3.Error) as error:
            raise OutputError(f"cannot write the backup {path}: {error}") from None

    def _retry(self) -> None:
        with self._lock:
            self._timer = None
            self.erase_deleted()

    def _version(self) -> int:
        version, application, tables = self.row(
            "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)"
            " FROM pragma_user_version, pragma_application_id"
        )
        if application != schema.APPLICATION_ID and (version or tables or application):
            raise DataError(f"{self.path} is another program's database, not a duel store")
        if version > schema.SCHEMA_VERSION:
            raise DataError(
                f"{self.path} was written by a newer version (schema {version}; this version"
                f" supports up to {schema.SCHEMA_VERSION}): upgrade fldb-flower"
            )
        return int(version)

    def _prepare(self, version: int) -> None:
        """Create or migrate the tables."""
        if version == schema.SCHEMA_VERSION:
            return
        if version == 0:
            self._use_write_ahead_log()
        else:
            self.execute("VACUUM")  # schema 1 did not overwrite deleted data
        with self.writing():
            if self._version() == version:  # otherwise another process was faster
                if version:
                    schema.migrate(self._connection, version)
                else:
                    schema.create(self._connection)

    def _use_write_ahead_log(self) -> None:
        """Switch the journal mode; SQLite does not wait for other processes here."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
            else:
                return

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
    if not isinstance(path, str | os.PathLike):
        raise OutputError(f"the path of a duel store must be text, not {type(path).__name__}")
    try:
        expanded = Path(path).expanduser()
        if b"\0" in os.fsencode(expanded):
            raise ValueError("the name contains a zero byte")
    except (RuntimeError, TypeError, ValueError) as error:
        raise OutputError(one_line(f"cannot use the duel store {path!r}: {error}")) from None
    return expanded
