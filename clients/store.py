"""The duels of one device, on its disk: SQLite, shared by any number of processes.

A duel is *proposed*, then *answered* or expired. Answers are numbered 1, 2, 3, ... in the order
in which they became durable; the server acknowledges them up to a number. Answers stay until
:meth:`DuelStore.prune` or :meth:`DuelStore.forget`.

What is deleted is overwritten in the file, and the write-ahead log is emptied after each
transaction that deletes: no file of the store holds it any more. Where another process is in
the middle of reading at that moment, the log is emptied within a second after it has finished.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fldb_flower.errors import DataError, FldbError, OutputError, one_line
from fldb_flower.linalg.forms import Vector
from fldb_flower.settings import current_names

SCHEMA_VERSION = 2
SELECTION_SETTINGS = (
    "selection", "kappa_mu", "delta", "beta_scale", "lambda_", "matrix_form", "sketch_rank",
)  # fmt: skip
"""Settings of the server's run that a device selects with: ``Synchronization.parameters``."""

_APPLICATION_ID = 0x666C6462  # "fldb": SQLite's mark of whose file this is
_BUSY_SECONDS = 30.0
_CLEAN_SECONDS = 0.1  # to wait for readers before the log is emptied
_CLEAN_AGAIN_SECONDS = 1.0  # until the next try, where they were not done by then
_MAX_ANSWERS = 2**53
_READ_AT_ONCE = 2**16  # answers; SQLite limits one value to 1 GB
_EXTRA = 2  # numbers after a difference in `evidence`: preference, predicted preference
_SCHEMA = """
CREATE TABLE device (
    id TEXT NOT NULL,            -- random; names this store to the server
    dimension INTEGER            -- d; unknown until the first duel or broadcast
);
CREATE TABLE proposals (         -- shown to a person, no answer yet
    id TEXT PRIMARY KEY,
    created REAL NOT NULL,       -- seconds since 1970
    expires REAL NOT NULL,
    evidence BLOB NOT NULL,      -- d + 2 float64: difference, room for the preference, predicted
    first_key TEXT, second_key TEXT,
    contents TEXT                -- JSON: what a page shows
);
CREATE TABLE answers (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE,              -- of the duel; NULL once the answer is forgotten
    answered REAL NOT NULL,      -- seconds since 1970; when it was forgotten, if it was
    evidence BLOB NOT NULL       -- d + 2 float64: difference, preference, predicted preference
);
CREATE TABLE cuts (              -- where uploads began and ended: answers up to `position`
    position INTEGER PRIMARY KEY,
    forgotten INTEGER NOT NULL DEFAULT 0  -- 1: answers were forgotten since an upload ended here
);
CREATE TABLE questions (         -- where the server asked for gradients of answers, once each
    cut INTEGER NOT NULL,        -- of the answers from the cut before up to this one
    point BLOB NOT NULL,         -- SHA-256 of theta_hat
    PRIMARY KEY (cut, point)
) WITHOUT ROWID;
CREATE TABLE synchronized (      -- what the last broadcast brought
    received REAL NOT NULL,
    round INTEGER NOT NULL,
    counted INTEGER NOT NULL,    -- answers that the server has acknowledged
    duels INTEGER NOT NULL,      -- of all devices, that the estimate rests on
    theta BLOB NOT NULL,         -- theta_sync: d float64
    information BLOB NOT NULL,   -- W_sync as it travels (fldb_flower/linalg/forms.py), float64
    parameters TEXT NOT NULL     -- JSON: how pairs are selected
);
"""
_FROM_SCHEMA_1 = """
ALTER TABLE answers RENAME TO old_answers;
CREATE TABLE answers (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE,
    answered REAL NOT NULL,
    evidence BLOB NOT NULL
);
INSERT INTO answers SELECT sequence, id, answered, evidence FROM old_answers;
DELETE FROM sqlite_sequence WHERE name = 'answers';
INSERT INTO sqlite_sequence SELECT 'answers', seq FROM sqlite_sequence WHERE name = 'old_answers';
DROP TABLE old_answers;
ALTER TABLE cuts ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0;
"""  # the keys of answered duels, which nothing read, are left out


class UnknownDuelError(FldbError):
    """No such duel was proposed here, or its answer was pruned."""


class DuelExpiredError(FldbError):
    """The duel was proposed too long ago."""


class ConflictingAnswerError(FldbError):
    """The duel was answered before, and differently."""


class Proposal(NamedTuple):
    """A duel that was shown and not answered yet; ``contents`` is what a page shows of it."""

    id: str
    created: float
    expires: float
    first_key: str | None
    second_key: str | None
    contents: Any


@dataclass(frozen=True)
class Synchronization:
    """What the last broadcast brought.

    Attributes
    ----------
    received : float
        When, in seconds since 1970.
    round : int
        The server's round.
    counted : int
        Answers of this device that the server has acknowledged.
    duels : int
        Duels of all devices that ``theta`` rests on.
    theta : ndarray
        theta_sync, (d,).
    information : ndarray
        W_sync as it travels, in the form that ``parameters`` name.
    parameters : dict
        How pairs are selected: ``selection``, ``width`` settings.
    """

    received: float
    round: int
    counted: int
    duels: int
    theta: Vector
    information: Vector
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Forgotten:
    """What :meth:`DuelStore.forget` removed, and what it could not undo.

    Attributes
    ----------
    proposals : int
        Open duels that were removed.
    forgotten : int
        Answers that were removed before the server acknowledged them.
    may_be_counted : int
        How many of ``forgotten`` had been sent: the server may have counted them.
    counted : int
        Answers that the server has counted. Its sums keep them; their copies on this device are
        removed too.
    """

    proposals: int
    forgotten: int
    may_be_counted: int
    counted: int


class Evidence(NamedTuple):
    """Some consecutive answers.

    Attributes
    ----------
    differences : ndarray
        phi(first) - phi(second), (n, d).
    preferences : ndarray
        1, 0, or 0.5 for a tie, (n,).
    predicted : ndarray
        P(first preferred) when the duel was proposed, (n,); NaN before the first broadcast.
    """

    differences: NDArray[np.float64]
    preferences: NDArray[np.float64]
    predicted: NDArray[np.float64]


class DuelStore:
    """The duels of one device.

    Every method is one transaction, safe for threads and processes at once; what it did is on
    the disk when it returns (write-ahead log, ``synchronous=FULL``). Threads that share one
    store wait for each other, readers too; where that matters, open it twice.

    Parameters
    ----------
    path : str or Path
        SQLite file; created, readable by its owner alone, if it does not exist.
    clock : callable
        Returns the time in seconds since 1970.

    Raises
    ------
    DataError
        The file is no duel store, is damaged, or was written by a newer version.
    OutputError
        It cannot be written.
    """

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        if not isinstance(path, str | os.PathLike):
            raise OutputError(f"the path of a duel store is no text but {type(path).__name__}")
        try:
            self.path = Path(path).expanduser()
            if b"\0" in os.fsencode(self.path):
                raise ValueError("its name holds a zero byte")
        except (RuntimeError, TypeError, ValueError) as error:
            raise OutputError(one_line(f"cannot use the duel store {path!r}: {error}")) from None
        self._clock = clock
        self._lock = threading.RLock()
        self._cleaner: threading.Timer | None = None
        with self._errors():
            if not self.path.parent.is_dir():
                raise OutputError(f"{self.path}: the folder {self.path.parent} does not exist")
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._file = self.path.stat().st_ino
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA secure_delete = ON")
            version = self._version()
            if version == 0:
                self._create()
            elif version < SCHEMA_VERSION:
                self._migrate()
            self._clean()  # a process that was killed may have left its log
            self.device_id = str(self._one("SELECT id FROM device")[0])
        self._dimension: int | None = None

    def close(self) -> None:
        """Close the file; a store is a context manager too."""
        with self._lock:
            self._clean()
            if self._cleaner is not None:
                self._cleaner.cancel()
            self._cleaner = None
            self._connection.close()

    def __enter__(self) -> DuelStore:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def dimension(self) -> int | None:
        """d, or None before the first duel or broadcast."""
        if self._dimension is None:
            with self._reading():
                self._dimension = self._one("SELECT dimension FROM device")[0]
        return self._dimension

    # --- proposals and answers ---------------------------------------------------------------

    def propose(
        self,
        difference: Vector,
        predicted: float,
        *,
        keys: tuple[str | None, str | None] = (None, None),
        contents: Any = None,
        expire_after: float,
    ) -> Proposal:
        """Store a duel that is about to be shown.

        Parameters
        ----------
        difference : ndarray
            phi(first) - phi(second), (d,).
        predicted : float
            P(first preferred) by the estimate in use; NaN if there is none.
        keys : pair of str or None
            The application's names for the two arms; they stay on the device.
        contents : JSON value, optional
            What a page shows of the two arms.
        expire_after : float
            Seconds after which it cannot be answered any more.
        """
        now = self._clock()
        proposal = Proposal(
            secrets.token_urlsafe(12), now, now + expire_after, keys[0], keys[1], contents
        )
        evidence = np.concatenate([difference, [np.nan, predicted]]).tobytes()
        try:
            shown = None if contents is None else json.dumps(contents)
        except (TypeError, ValueError) as error:
            raise DataError(f"contents are not JSON values: {error}") from None
        with self._writing():
            self._fix_dimension(difference.size)
            expired = self._connection.execute("DELETE FROM proposals WHERE expires < ?", (now,))
            self._connection.execute(
                "INSERT INTO proposals VALUES (?, ?, ?, ?, ?, ?, ?)",
                (proposal.id, now, proposal.expires, evidence, *keys, shown),
            )
        if expired.rowcount:
            self._clean()
        return proposal

    def open_proposals(self, limit: int = 1) -> list[Proposal]:
        """Return the oldest duels that a page can show and that wait for an answer."""
        with self._reading():
            rows = self._connection.execute(
                "SELECT id, created, expires, first_key, second_key, contents FROM proposals"
                " WHERE contents IS NOT NULL AND expires >= ? ORDER BY created, id LIMIT ?",
                (self._clock(), limit),
            ).fetchall()
        return [Proposal._make([*row[:-1], json.loads(row[-1])]) for row in rows]

    def record(self, answers: Iterable[tuple[str, float]]) -> list[int | FldbError]:
        """Record answers, all of them in one durable transaction.

        Parameters
        ----------
        answers : iterable of (str, float)
            Duel and preference: 1 the first arm won, 0 the second did, 0.5 a tie.

        Returns
        -------
        list
            For each answer its number, which an answer given again keeps; or the error of
            that answer alone: :class:`UnknownDuelError`, :class:`DuelExpiredError` or
            :class:`ConflictingAnswerError`.
        """
        with self._writing():
            before = self._last()
            results = [self._record(duel, preference) for duel, preference in answers]
            recorded = self._last() > before
        if recorded:
            self._clean()
        return results

    def _record(self, duel: str, preference: float) -> int | FldbError:
        rows = self._connection
        if not duel.isascii():  # as no id is; SQLite takes no lone surrogates
            return UnknownDuelError(f"duel {duel!r} is not known: it was never proposed here")
        known = rows.execute(
            "SELECT sequence, evidence FROM answers WHERE id = ?", (duel,)
        ).fetchone()
        if known is not None:
            before = np.frombuffer(known[1])[-_EXTRA]
            if before == preference:
                return int(known[0])
            return ConflictingAnswerError(
                f"duel {duel!r} was answered before, by {before:g} and not {preference:g}"
                " (1: first, 0: second, 0.5: tie); the first answer stays"
            )
        proposal = rows.execute(
            "SELECT expires, evidence FROM proposals WHERE id = ?", (duel,)
        ).fetchone()
        if proposal is None:
            return UnknownDuelError(
                f"duel {duel!r} is not known: it was never proposed here, expired or was forgotten"
            )
        now = self._clock()
        if proposal[0] < now:
            return DuelExpiredError(
                f"duel {duel!r} expired {now - proposal[0]:.0f} s ago: propose a new one"
            )
        evidence = np.frombuffer(proposal[1]).copy()
        evidence[-_EXTRA] = preference
        sequence = rows.execute(
            "INSERT INTO answers (id, answered, evidence) VALUES (?, ?, ?)",
            (duel, now, evidence.tobytes()),
        ).lastrowid
        rows.execute("DELETE FROM proposals WHERE id = ?", (duel,))
        assert sequence is not None
        return sequence

    # --- what the server asks for ------------------------------------------------------------

    @property
    def last(self) -> int:
        """Number of the last answer; 0 if there is none."""
        with self._reading():
            return self._last()

    def _last(self) -> int:
        row = self._one("SELECT seq FROM sqlite_sequence WHERE name = 'answers'", missing=(0,))
        return int(row[0])

    def cut(self, start: int, at_least: int, at_most: int = _MAX_ANSWERS) -> int:
        """Return where an upload that begins after answer ``start`` ends, for good.

        Uploads begin and end only at cuts, and cuts are at least ``at_least`` answers apart:
        whatever uploads a server asks for, each one and each difference of two cover that many
        answers. Without enough new answers since the last cut, that cut is returned.

        Parameters
        ----------
        start : int
            Where the upload begins: 0 or an earlier cut.
        at_least : int
            Answers between two cuts, at least 1.
        at_most : int
            Answers that the upload may cover; what is beyond them is for a later one.

        Raises
        ------
        DataError
            ``start`` is no cut of this store, or the next one is more than ``at_most`` answers
            away.
        """
        with self._writing():
            last = self._last()
            if start > _MAX_ANSWERS:
                raise DataError(f"{self.path}: no device has {start} answers")
            if start > last:
                self._catch_up(start)
                return start
            end = min(last, start + at_most)
            cut = self._last_cut(_MAX_ANSWERS)
            if end - cut >= max(at_least, 1):
                self._connection.execute("INSERT INTO cuts (position) VALUES (?)", (end,))
                cut = end
            self._expect_cut(start)  # or nothing was cut: the transaction is rolled back
            if cut <= end:
                return self._begin_upload(cut)
            within = "SELECT max(position) FROM cuts WHERE position > ? AND position <= ?"
            found = self._one(within, start, end)[0]
            if found is None:
                raise DataError(
                    f"{self.path}: the answers after {start} are uploaded together or not at all,"
                    f" and are more than the {at_most} that the server takes (devices-max-duels)"
                )
            return self._begin_upload(int(found))

    def _begin_upload(self, cut: int) -> int:
        """Return the cut; each later request for the answers up to it returns the same ones."""
        self._connection.execute("UPDATE cuts SET forgotten = 0 WHERE position = ?", (cut,))
        return cut

    def _catch_up(self, counted: int) -> None:
        """Let new answers be numbered from ``counted`` on: this is an old backup of the store.

        The server has counted all that is in it, and what was lost with the newer one.
        """
        rows = self._connection
        rows.execute("DELETE FROM sqlite_sequence WHERE name = 'answers'")
        rows.execute("INSERT INTO sqlite_sequence VALUES ('answers', ?)", (counted,))
        rows.execute("INSERT INTO cuts (position) VALUES (?)", (counted,))

    def admit(self, start: int, end: int, theta: Vector, at_most: int) -> None:
        """Note that gradients at ``theta`` are about to be given of the answers between two cuts.

        Each point is another equation about the same answers. Asking again at one that was
        asked at before, as a server does that lost a reply, is free.

        Parameters
        ----------
        start, end : int
            The answers after ``start`` up to ``end``.
        theta : ndarray
            theta_hat, (d,).
        at_most : int
            Different points at which the server may ask about an answer.

        Raises
        ------
        DataError
            It asked at so many others before.
        """
        point = hashlib.sha256(theta.tobytes()).digest()
        with self._writing():
            self._connection.execute(
                "INSERT OR IGNORE INTO questions SELECT position, ? FROM cuts"
                " WHERE position > ? AND position <= ?",
                (point, start, end),
            )
            most = self._one(
                "SELECT coalesce(max(points), 0) FROM (SELECT count(*) AS points FROM questions"
                " WHERE cut > ? AND cut <= ? GROUP BY cut)",
                start,
                end,
            )[0]
            if most > at_most:  # which rolls the new ones back
                raise DataError(
                    f"{self.path}: the server has asked about the same answers at {at_most}"
                    " different estimates, and many more would tell it the answers one by one:"
                    " refused; their owner can allow more (max-questions in --node-config)"
                )

    def evidence(self, start: int, end: int) -> Evidence:
        """Return the answers after ``start`` up to ``end``, both 0 or cuts.

        Raises
        ------
        DataError
            An end is no cut, answers between them were pruned, or answers were forgotten since
            :meth:`cut` last returned ``end``: a round must not mix sums with and without them.
        """
        with self._reading():
            self._expect_cut(start)
            self._expect_cut(end)
            if start < end and self._one("SELECT forgotten FROM cuts WHERE position = ?", end)[0]:
                raise DataError(
                    f"{self.path}: answers up to {end} were forgotten while the server asked about"
                    " them: the round has to begin again"
                )
            width = (self.dimension or 0) + _EXTRA
            # Joined by SQLite: a million Python rows would take twice as long.
            at_once = max(1, min(_READ_AT_ONCE, 2**26 // width))
            blocks = [
                self._one(
                    "SELECT CAST(group_concat(evidence, '') AS BLOB) FROM (SELECT evidence"
                    " FROM answers WHERE sequence > ? AND sequence <= ? ORDER BY sequence)",
                    first,
                    min(first + at_once, end),
                )[0]
                for first in range(start, end, at_once)
            ]
        table = np.frombuffer(b"".join(block or b"" for block in blocks)).reshape(-1, width)
        if len(table) != max(end - start, 0):
            raise DataError(
                f"{self.path}: answers {start + 1} to {end} were asked for, {len(table)} of them"
                " are left: the others were pruned, or lost with a store that a backup replaced"
            )
        return Evidence(table[:, :-_EXTRA], table[:, -_EXTRA], table[:, -1])

    def _last_cut(self, up_to: int) -> int:
        found = "SELECT coalesce(max(position), 0) FROM cuts WHERE position <= ?"
        return int(self._one(found, up_to)[0])

    def _expect_cut(self, position: int) -> None:
        known = self._one("SELECT count(*) FROM cuts WHERE position = ?", position)[0]
        if position != 0 and not known:
            raise DataError(
                f"{self.path}: no upload ever ended at answer {position}: the server speaks of"
                " another store, or of one that this is an old backup of"
            )

    # --- what the server sent ----------------------------------------------------------------

    def synchronize(self, received: Synchronization) -> None:
        """Keep what a broadcast brought in place of what the last one did."""
        with self._writing():
            self._fix_dimension(received.theta.size)
            self._connection.execute("DELETE FROM synchronized")
            self._connection.execute(
                "INSERT INTO synchronized VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    received.received,
                    received.round,
                    received.counted,
                    received.duels,
                    received.theta.tobytes(),
                    received.information.tobytes(),
                    json.dumps(received.parameters),
                ),
            )

    def synchronized(self) -> Synchronization | None:
        """Return what the last broadcast brought, or None before the first."""
        with self._reading():
            row = self._one("SELECT * FROM synchronized", missing=None)
        if row is None:
            return None
        received, number, counted, duels, theta, information, parameters = row
        return Synchronization(
            received,
            number,
            counted,
            duels,
            np.frombuffer(theta),
            np.frombuffer(information),
            current_names(json.loads(parameters)),
        )

    def version(self) -> tuple[int, float]:
        """Return a value that changes when a broadcast arrives; far cheaper than reading it."""
        with self._reading():
            row = self._one("SELECT round, received FROM synchronized", missing=(0, 0.0))
        return row[0], row[1]

    # --- keeping house -----------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return how many duels wait for an answer, were answered, and were acknowledged."""
        with self._reading():
            waiting = self._one("SELECT count(*) FROM proposals WHERE expires >= ?", self._clock())
            counted = self._one("SELECT counted FROM synchronized", missing=(0,))
            return {"open": waiting[0], "answered": self._last(), "counted": counted[0]}

    def prune(self, older_than: float) -> int:
        """Delete acknowledged answers given more than ``older_than`` seconds ago.

        A server that goes back to an old backup can then not ask for them again.

        Returns
        -------
        int
            How many were deleted.
        """
        with self._writing():
            counted = self._one("SELECT counted FROM synchronized", missing=(0,))[0]
            pruned = self._connection.execute(
                "DELETE FROM answers WHERE sequence <= ? AND answered < ?",
                (counted, self._clock() - older_than),
            ).rowcount
        if pruned:
            self._clean()
        return pruned

    def forget(self) -> Forgotten:
        """Remove all open duels and all answers.

        An answer that was in no upload yet is deleted, and the next one takes its number.
        An answer that was in one keeps its number, which the server may have counted already;
        in its place stays a tie between equal arms, whose gradient, information and Hessian are 0.
        So the numbers of server and device still agree, however an exchange under way ends.
        Backups made before keep what they hold.
        """
        rows = self._connection
        with self._writing():
            sent = self._last_cut(_MAX_ANSWERS)
            acknowledged = self._one("SELECT counted FROM synchronized", missing=(0,))[0]
            counted = self._last_cut(acknowledged)  # a cut: no upload mixes kept and removed
            proposals = rows.execute("DELETE FROM proposals").rowcount
            unsent = rows.execute("DELETE FROM answers WHERE sequence > ?", (sent,)).rowcount
            rows.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'answers'", (sent,))
            uncertain = self._one(
                "SELECT count(*) FROM answers WHERE sequence > ? AND id IS NOT NULL", counted
            )[0]
            nothing = np.zeros((self._one("SELECT dimension FROM device")[0] or 0) + _EXTRA)
            nothing[-_EXTRA:] = 0.5, np.nan
            rows.execute(
                "UPDATE answers SET id = NULL, answered = ?, evidence = ? WHERE id IS NOT NULL",
                (self._clock(), nothing.tobytes()),
            )
            rows.execute("UPDATE cuts SET forgotten = 1")
        self._clean()
        return Forgotten(proposals, unsent + uncertain, uncertain, counted)

    def backup(self, path: str | Path) -> None:
        """Write a copy of the store as it is now, while others go on using it.

        Before a copy takes the store's place, delete the old ``-wal`` and ``-shm`` files: SQLite
        would play them back onto it.

        Raises
        ------
        OutputError
            The file exists already, or cannot be written.
        """
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with contextlib.closing(sqlite3.connect(path)) as copy:
                self._connection.backup(copy)
        except FileExistsError:
            raise OutputError(f"{path} exists already: a backup replaces no file") from None
        except (OSError, sqlite3.Error) as error:
            raise OutputError(f"cannot write the backup {path}: {error}") from None

    # --- SQLite ------------------------------------------------------------------------------

    def _version(self) -> int:
        version, program, tables = self._one(
            "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)"
            " FROM pragma_user_version, pragma_application_id"
        )
        if program != _APPLICATION_ID and (version or tables or program):
            raise DataError(f"{self.path} is another program's database, not a duel store")
        if version > SCHEMA_VERSION:
            raise DataError(
                f"{self.path} was written by a newer version (schema {version}, this one knows"
                f" {SCHEMA_VERSION}): upgrade fldb-flower"
            )
        return int(version)

    def _create(self) -> None:
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
        with self._writing():
            if self._version() == SCHEMA_VERSION:
                return  # another process was faster
            for statement in _SCHEMA.split(";\n"):
                self._connection.execute(statement)
            device_id = secrets.token_hex(16)
            self._connection.execute("INSERT INTO device VALUES (?, NULL)", (device_id,))
            self._connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _migrate(self) -> None:
        """Bring a store of schema 1 up to this one; it did not overwrite what it deleted."""
        self._connection.execute("VACUUM")
        with self._writing():
            if self._version() == SCHEMA_VERSION:
                return  # another process was faster
            for statement in _FROM_SCHEMA_1.strip().split(";\n"):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _clean(self) -> None:
        """Empty the write-ahead log, which holds what was deleted; later, if it is in use now."""
        with self._lock:
            try:
                self._connection.execute(f"PRAGMA busy_timeout = {_CLEAN_SECONDS * 1e3:.0f}")
                busy = self._one("PRAGMA wal_checkpoint(TRUNCATE)")[0]
            except sqlite3.OperationalError:
                busy = True  # a full disk, say: what was committed is durable all the same
            except sqlite3.DatabaseError:
                return  # closed meanwhile, or damaged: then the next statement reports it
            self._connection.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1e3:.0f}")
            if busy and self._cleaner is None:
                self._cleaner = threading.Timer(_CLEAN_AGAIN_SECONDS, self._clean_again)
                self._cleaner.daemon = True
                self._cleaner.start()

    def _clean_again(self) -> None:
        with self._lock:
            self._cleaner = None
            self._clean()

    def _fix_dimension(self, dimension: int) -> None:
        known = self._one("SELECT dimension FROM device")[0]
        if known is None:
            self._connection.execute("UPDATE device SET dimension = ?", (dimension,))
        elif known != dimension:
            raise DataError(
                f"{self.path} holds duels of dimension {known}, not {dimension}: another model"
                " needs a store of its own"
            )

    def _one(self, statement: str, *values: Any, missing: Any = ()) -> Any:
        row = self._connection.execute(statement, values).fetchone()
        return missing if row is None else row

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, self._errors():
            yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, self._errors():
            if self.path.stat().st_ino != self._file:
                raise OutputError(f"{self.path} was replaced by another file: open it again")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise OutputError(f"cannot use the duel store {self.path}: {error}") from None
        except sqlite3.ProgrammingError as error:
            raise OutputError(f"cannot use the duel store {self.path}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise DataError(f"{self.path} is not a duel store, or is damaged: {error}") from None
        except OSError as error:
            raise OutputError(f"cannot use the duel store {self.path}: {error.strerror}") from None
