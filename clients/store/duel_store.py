"""The duels of one device, on its disk: SQLite, shared by any number of processes.

A duel is *proposed*, then *answered*, or it expires. Answers are numbered 1, 2, 3, ... in the order
in which they became durable; the server acknowledges them up to a number. A *cut* is the number of
the last answer of an upload. Answers stay until :meth:`DuelStore.prune` or
:meth:`DuelStore.forget`.

Deleted data is overwritten in the file, and the write-ahead log is emptied after each transaction
that deletes, so that no file of the store contains it. If another process is reading at that
moment, the log is emptied within a second after it has finished.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from clients.store.database import EXTRA, MAX_ANSWERS, Database
from fldb_flower.bandit.estimate import MIXES, VARIANCES, CommonPrior, ShareChange
from fldb_flower.bandit.features import Features, mean_squares, parse_features
from fldb_flower.bandit.preference import duel_key
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.errors import DataError, FldbError, OutputError, SettingsError
from fldb_flower.linalg.arrays import FloatArray, IntArray
from fldb_flower.linalg.linear import make_form, pack_symmetric, unpack_symmetric
from fldb_flower.settings import SELECTION_SETTINGS, Settings

LONGEST_STEP = 366 * 24 * 3600.0
"""Seconds; an uptime that is further ahead is that of another device, and counts as no time."""
Part = Literal["journal", "report", "features", "offers", "units"]
"""Rows of the table ``secure``: of secure sums; scales, sums that they come from, and of shares."""

_OPEN = "begun + (expires - created) >= ?"  # with the seconds for which the device has run


class UnknownDuelError(FldbError):
    """The duel was never proposed on this device, or it was removed."""


class DuelExpiredError(FldbError):
    """The duel can no longer be answered."""


class ConflictingAnswerError(FldbError):
    """The duel already has a different answer."""


class UndoError(FldbError):
    """The answer can no longer be undone: it was uploaded, or it is not the last one."""


@dataclass(frozen=True)
class Forgotten:
    """Numbers of open duels and answers that were removed by ``DuelStore.forget``.

    Attributes
    ----------
    proposals : int
        Open duels.
    forgotten : int
        Answers that the server had not acknowledged.
    may_be_counted : int
        Those of them that had been uploaded: the server may have counted them.
    counted : int
        Answers that the server has counted; only FLDB-Personal's sums lose them.

    Examples
    --------
    >>> from clients.store import DuelStore
    >>> DuelStore("duels.db").forget()
    Forgotten(proposals=0, forgotten=0, may_be_counted=0, counted=0)
    """

    proposals: int
    forgotten: int
    may_be_counted: int
    counted: int


class Proposal(NamedTuple):
    """A duel without an answer."""

    id: str
    expires: float  # seconds since 1970, by the device's clock when it was proposed
    first_key: str | None  # the application's names for the two arms
    second_key: str | None
    contents: Any  # what a page shows of the two arms


class Evidence(NamedTuple):
    """Answers in the order of their numbers."""

    numbers: IntArray  # (n,)
    differences: FloatArray  # phi(first) - phi(second), (n, d)
    preferences: FloatArray  # 1, 0, or 0.5 for a tie, (n,)
    predicted: FloatArray  # P(first preferred) when proposed, (n,); NaN before the first broadcast

    def after(self, number: int) -> Evidence:
        """Return the answers after a number."""
        later = self.numbers > number
        return Evidence._make(column[later] for column in self)

    def scaled(self, features: Features) -> Evidence:
        """Return the answers with scaled differences, (n, d), also if d is not known yet."""
        rows = self.differences.reshape(-1, features.dimension)
        return self._replace(differences=features.scaled(rows))


@dataclass(frozen=True)
class Synchronization:
    """The estimate of the last broadcast."""

    received: float  # seconds since 1970
    round: int  # of the server
    counted: int  # answers of this device that the server has acknowledged
    duels: int  # of all devices, that theta is computed from
    theta: FloatArray  # theta_sync, (d,)
    information: FloatArray  # W_sync, or A of FLDB-ONS, packed in the form of the parameters
    parameters: dict[str, Any]  # the SELECTION_SETTINGS of the run
    prior: CommonPrior | None = None  # of FLDB-Personal
    features: Features | None = None  # whose scales are the units of the estimate; None: 1


def selection_settings(parameters: Mapping[str, Any], dimension: int) -> Settings:
    """Return the settings with which a device selects, from those of a server's run."""
    # A newer server may have other settings.
    chosen = {name: parameters[name] for name in SELECTION_SETTINGS if name in parameters}
    if str(chosen.get("algorithm")) not in ALGORITHMS:  # only registered in the ClientApp's process
        chosen.pop("algorithm", None)
    return replace(Settings(), dimension=dimension, **chosen)


def _distinct(duels: Evidence) -> int:
    """Return the number of distinct duels, without duels of equal arms."""
    return len({duel_key(each) for each in duels.differences[duels.differences.any(axis=1)]})


def system_uptime() -> float:
    """Return the seconds since the device started, by a clock that is never set."""
    if hasattr(time, "CLOCK_BOOTTIME"):  # includes the time in which it was suspended
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class DuelStore(Database):
    """The duels of one device.

    Every method is one transaction, safe for concurrent threads and processes, and durable when it
    returns. Threads that share a store wait for each other, even to read; open the store twice if
    this matters. A store is also a context manager.

    Parameters
    ----------
    path : str or Path
        SQLite file; created with mode 0600 if it does not exist.
    clock : callable
        Returns the time in seconds since 1970.
    uptime : callable, optional
        Returns the seconds since the device started, by a clock that is never set: the time within
        which duels can be answered is measured with it. By default, that of the system, or
        ``clock`` if it was given.

    Raises
    ------
    DataError
        The file is not a duel store, is damaged, or was written by another version.
    OutputError
        The file cannot be written.

    Examples
    --------
    >>> import numpy as np
    >>> from clients.store import DuelStore
    >>> with DuelStore("duels.db") as store:
    ...     proposal = store.propose(np.array([1.0, 0.0]), np.nan, expire_after=60.0)
    ...     numbers = store.record([(proposal.id, 1.0)])
    ...     print(numbers, store.counts())
    [1] {'open': 0, 'answered': 1, 'counted': 0}
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self._uptime = uptime or (system_uptime if clock is time.time else clock)
        super().__init__(path)
        try:
            self.check()
            self._check_estimate()
            self.device_id = str(self.value("SELECT id FROM device"))
        except BaseException:
            self.close()
            raise

    def _check_estimate(self) -> None:
        d, query = self.dimension or 0, "SELECT information, parameters, prior FROM synchronized"
        for information, parameters, prior in self.rows(query):
            try:
                form = make_form(selection_settings(json.loads(parameters), d))
            except SettingsError as reason:
                raise self.damaged(f"synchronized.parameters: {reason}") from None
            size = 8 * (form.size if prior is None else d * (d + 1) // 2)
            if len(information) != size:
                raise self.damaged(f"synchronized.information must have {size} bytes")
        offers, text = self.secure_part("offers"), self._features_text()
        if offers is not None and len(offers) != 8 * (d + 1):
            raise self.damaged("the squares of offers have another number of features")
        if text is not None and parse_features(text, f"{self.path} is damaged").dimension != d:
            raise self.damaged("the scales have another number of features")

    def backup(self, path: str | Path) -> None:
        """Write a copy into a new file; other processes may use the store meanwhile.

        Before a copy replaces the store, delete the old ``-wal`` and ``-shm`` files: SQLite would
        apply them to the copy. The ledger of secure sums (``clients.vault.ledger``) is not part of
        a backup, and stays as it is.
        """
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with contextlib.closing(sqlite3.connect(path)) as copy:
                self._connection.backup(copy)
        except FileExistsError:
            raise OutputError(f"{path} already exists: a backup replaces no file") from None
        except (OSError, sqlite3.Error) as error:
            raise OutputError(f"cannot write the backup {path}: {error}") from None

    # The device.

    @property
    def dimension(self) -> int | None:
        """d, or None before the first duel or broadcast."""
        dimension: int | None = self.value("SELECT dimension FROM device")
        return dimension

    def settle_dimension(self, dimension: int) -> int:
        """Set d of a store without duels, before a server sets it; return d of the store."""
        with self.transaction():
            known = self.dimension
            if known != dimension and self.last == 0 and not self.row("SELECT 1 FROM proposals"):
                self.execute("UPDATE device SET dimension = ?", dimension)
                self.execute("DELETE FROM synchronized")
                self._keep_features(None)
                known = dimension
        return known or dimension

    def _fix_dimension(self, dimension: int) -> None:
        known = self.dimension
        if known is None:
            self.execute("UPDATE device SET dimension = ?", dimension)
        elif known != dimension:
            raise DataError(
                f"{self.path} contains duels of dimension {known}, not {dimension}: use another"
                " store for another model"
            )

    def name_features(self, names: Sequence[str] | None) -> None:
        """Set the names of the d features; None removes them.

        DataError if those of the federation are others.
        """
        text = None if names is None else json.dumps(list(names))
        with self.transaction():
            if known := self._features_text():
                Features.from_json(known).expect(names, "this device")
            self.execute("UPDATE device SET features = ?", text)

    @property
    def feature_names(self) -> list[str] | None:
        """Names of the d features, or None if they have none, or another number of them."""
        text, dimension = self.row("SELECT features, dimension FROM device")
        names: list[str] | None = None if text is None else json.loads(text)
        return None if names is None or dimension not in {None, len(names)} else names

    # Scales of features. Differences are stored in the units of the application.

    def features(self, dimension: int) -> Features:
        """Return the features of the last broadcast, or before it those of the arms offered."""
        text = self._features_text()
        return Features.unscaled(dimension) if text is None else Features.from_json(text)

    def offer(self, arms: FloatArray) -> None:
        """Estimate the scales from offered arms, (K, d), unless there was a broadcast.

        They are estimated again after 1, 2, 4, ... offers, and when a feature first varies.
        """
        with self.transaction():
            self._fix_dimension(arms.shape[1])
            if self.row("SELECT 1 FROM synchronized"):
                return
            stored = self.secure_part("offers")
            before = np.zeros(arms.shape[1] + 1) if stored is None else np.frombuffer(stored)
            after = before + np.append(mean_squares(arms), 1.0)
            self.keep_secure_part("offers", after.tobytes())
            count = int(after[-1])
            if count.bit_count() == 1 or (after[before == 0.0] > 0.0).any():
                scales = Features.of_squares(after[:-1] / count)
                self.keep_secure_part("features", scales.to_json().encode())

    def _features_text(self) -> str | None:
        content = self.secure_part("features")
        return None if content is None else content.decode("utf-8", "replace")

    def _keep_features(self, features: Features | None) -> None:
        self.execute("DELETE FROM secure WHERE name IN ('features', 'offers')")
        if features is not None:
            self.keep_secure_part("features", features.to_json().encode())

    def _running(self) -> float:
        """Return for how many seconds the device was seen to run, whatever its clock says."""
        # After a restart of the device, its uptime begins at 0; unknown time is not counted.
        running, last = self.row("SELECT running, uptime FROM device")
        passed = 0.0 if last is None else self._uptime() - last
        return float(running + (passed if 0.0 < passed <= LONGEST_STEP else 0.0))

    def _count_running(self) -> float:
        """Store what :meth:`_running` returns, within a transaction, and return it."""
        running = self._running()
        self.execute("UPDATE device SET running = ?, uptime = ?", running, self._uptime())
        return running

    def _count_removal(self) -> None:
        self.execute("UPDATE device SET removals = removals + 1")

    def counts(self) -> dict[str, int]:
        """Return the numbers of open duels, of answers, and of acknowledged answers."""
        with self.reading():
            number = self.value(f"SELECT count(*) FROM proposals WHERE {_OPEN}", self._running())
            return {"open": number, "answered": self.last, "counted": self.acknowledged}

    # Duels.

    def propose(
        self,
        difference: FloatArray,
        predicted: float,
        *,
        keys: tuple[str | None, str | None] = (None, None),
        contents: Any = None,
        expire_after: float,
    ) -> Proposal:
        """Store a duel that is about to be shown, of phi(first) - phi(second), (d,).

        ``predicted`` is P(first preferred), or NaN. Only time in which the device runs counts for
        the expiry, so setting its clock does not make a duel expire.
        """
        now, duel = self._clock(), secrets.token_urlsafe(12)
        evidence = np.concatenate([difference, [np.nan, predicted]]).tobytes()
        shown = None if contents is None else json.dumps(contents)
        row = (duel, now, now + expire_after, evidence, *keys, shown)
        with self.transaction():
            self._fix_dimension(difference.size)
            running = self._count_running()
            self.execute(f"DELETE FROM proposals WHERE NOT {_OPEN}", running)
            self.execute("INSERT INTO proposals VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row, running)
        return Proposal(duel, now + expire_after, *keys, contents)

    def open_proposals(self, limit: int = 1) -> list[Proposal]:
        """Return the oldest open duels that have contents."""
        query = (
            "SELECT id, expires, first_key, second_key, contents FROM proposals"
            f" WHERE contents IS NOT NULL AND {_OPEN} ORDER BY rowid LIMIT ?"
        )
        rows = self.rows(query, self._running(), limit)
        return [Proposal._make((*row, json.loads(contents))) for *row, contents in rows]

    def record(self, answers: Iterable[tuple[str, float]]) -> list[int | FldbError]:
        """Record answers (id of a duel; 1: first, 0: second, 0.5: tie) in one durable transaction.

        Returns for each answer its number, which is the same if the answer is repeated; or its
        error: UnknownDuelError, DuelExpiredError or ConflictingAnswerError.
        """
        with self.transaction():
            return [self._record(duel, preference) for duel, preference in answers]

    def _record(self, duel: str, preference: float) -> int | FldbError:
        if answer := self._answer(duel):
            number, evidence = answer
            before = np.frombuffer(evidence)[-EXTRA]
            if before == preference:
                return int(number)
            return ConflictingAnswerError(
                f"duel {duel!r} was already answered, by {before:g} and not {preference:g}"
                " (1: first, 0: second, 0.5: tie); the first answer stays"
            )
        proposal = self._proposal(duel)
        if not proposal:
            return _unknown(duel)
        end, evidence = proposal
        late = self._count_running() - end
        if late > 0.0:
            return DuelExpiredError(f"duel {duel!r} expired {late:.0f} s ago: propose a new one")
        self.execute("DELETE FROM proposals WHERE id = ?", duel)
        insert = "INSERT INTO answers (id, answered, evidence) VALUES (?, ?, ?)"
        row = duel, self._clock(), _with_preference(evidence, preference)
        return int(self.execute(insert, *row).lastrowid or 0)

    @property
    def undoable(self) -> str | None:
        """Id of the duel whose answer can be undone: the last one, unless it was uploaded."""
        query = "SELECT id FROM answers WHERE sequence = ? AND sequence > ?"
        with self.reading():
            duel: str | None = self.value(query, self.last, self.sent)
        return duel

    def undo(self, duel: str, *, expire_after: float, shown: Proposal | None = None) -> str:
        """Remove the last answer. Its duel is open again under a new id, which is returned.

        Because of the new id, late copies of earlier requests change nothing: neither one with the
        answer that was undone, nor one of this method, which then returns the same id. The duel is
        the first of the open ones, with the keys and contents of ``shown``.
        """
        again = f"{duel}~"
        with self.transaction():
            answer = self._answer(duel)
            if not answer:
                if self._proposal(again) or self._answer(again):
                    return again
                raise UnknownDuelError(f"duel {duel!r} has no answer that can be undone")
            number, evidence = answer
            if number <= self.sent:
                raise UndoError(
                    f"the answer to duel {duel!r} is part of an upload to the server: it can no"
                    " longer be undone"
                )
            if number < self.last:
                raise UndoError(
                    f"the answer to duel {duel!r} has number {number}, and the last one"
                    f" {self.last}: only the last one can be undone"
                )
            self.execute("DELETE FROM answers WHERE sequence = ?", number)
            self.execute("UPDATE sqlite_sequence SET seq = seq - 1 WHERE name = 'answers'")
            insert = (
                "INSERT INTO proposals (rowid, id, created, expires, evidence, first_key,"
                " second_key, contents, begun) SELECT coalesce(min(rowid), 0) - 1,"
                " ?, ?, ?, ?, ?, ?, ?, ? FROM proposals"
            )
            now, changed = self._clock(), _with_preference(evidence, np.nan)
            first, second, contents = (None, None, None) if shown is None else shown[2:]
            content = first, second, None if contents is None else json.dumps(contents)
            row = again, now, now + expire_after, changed, *content, self._count_running()
            self.execute(insert, *row)
            self._count_removal()
        return again

    def skip(self, duel: str) -> FloatArray:
        """Remove an open duel without an answer; return phi(first) - phi(second), (d,)."""
        with self.transaction():
            if self._answer(duel):
                raise ConflictingAnswerError(f"duel {duel!r} was answered: it cannot be skipped")
            proposal = self._proposal(duel)
            if not proposal:
                raise _unknown(duel)
            self.execute("DELETE FROM proposals WHERE id = ?", duel)
        difference: FloatArray = np.frombuffer(proposal[1])[:-EXTRA]
        return difference

    def _answer(self, duel: str) -> Any:
        """Return number and evidence of the answer to a duel, if there is one."""
        return self.row("SELECT sequence, evidence FROM answers WHERE id = ?", duel)

    def _proposal(self, duel: str) -> Any:
        """Return until when a duel is open, as seconds that the device runs, and its evidence."""
        query = "SELECT begun + (expires - created), evidence FROM proposals WHERE id = ?"
        return self.row(query, duel)

    # Answers, and which of them an upload covers.

    @property
    def last(self) -> int:
        """Number of the last answer; 0 if there is none."""
        return int(self.value("SELECT seq FROM sqlite_sequence WHERE name = 'answers'", default=0))

    @property
    def acknowledged(self) -> int:
        """Number of the last answer that the server has acknowledged."""
        return int(self.value("SELECT counted FROM synchronized", default=0))

    @property
    def sent(self) -> int:
        """Number of the last answer that is part of an upload, whether or not it arrived."""
        return max(self._last_cut(), self.acknowledged)

    @property
    def minimum(self) -> int | None:
        """Distinct duels of an upload, at least; None before one was requested."""
        minimum: int | None = self.value("SELECT minimum FROM device")
        return minimum

    @property
    def needed(self) -> int | None:
        """Distinct duels that the next upload lacks; None before one was requested."""
        with self.reading():
            minimum = self.minimum
            return None if minimum is None else max(0, minimum - self._waiting())

    def held_back(self) -> tuple[int, int]:
        """Return how many answers no upload covers yet, and how many distinct duels these lack."""
        with self.reading():
            return self.last - self._last_cut(), self.needed or 0

    def _waiting(self, end: int = MAX_ANSWERS) -> int:
        """Return the number of distinct duels since the last upload."""
        return _distinct(self.answers(self._last_cut(), end))

    def asked(self) -> set[bytes]:
        """Return the keys of the duels since the last upload; none if none was ever requested."""
        if self.minimum is None:
            return set()
        query = (
            "SELECT evidence FROM answers WHERE sequence > ?"
            f" UNION ALL SELECT evidence FROM proposals WHERE {_OPEN}"
        )
        with self.reading():
            rows = self.rows(query, self._last_cut(), self._running())
        return {duel_key(np.frombuffer(row[0])[:-EXTRA]) for row in rows}

    def cut(self, start: int, at_least: int, at_most: int = MAX_ANSWERS) -> int:
        """Return where an upload that begins after answer ``start`` ends; make a cut if possible.

        Uploads begin and end at cuts only, and at least ``at_least`` distinct duels were answered
        between two cuts. Therefore every upload, and every difference of two uploads, covers at
        least that many. If there are too few since the last cut, that cut is returned. If more than
        ``at_most`` answers would have to be uploaded together, this raises DataError.
        """
        with self.transaction():
            self.execute("UPDATE device SET minimum = ?", at_least)
            last = self.last
            if start > MAX_ANSWERS or last < start > MAX_ANSWERS // 2:  # numbers have to be left
                raise DataError(f"{self.path}: no device has {start} answers")
            if start > last:
                self._skip_to(start)
                return start
            end = min(last, start + at_most)
            if end > self._last_cut() and self._waiting(end) >= at_least:
                self.execute("INSERT INTO cuts (position) VALUES (?)", end)
            self.expect_cut(start)
            newest = self._last_cut(end)
            if newest <= start and end < last:
                raise DataError(
                    f"{self.path}: the answers after {start} must be uploaded together until"
                    f" they cover {at_least} distinct duels (min-duels-per-upload), and are more"
                    f" than the {at_most} that the server accepts (devices-max-duels)"
                )
            # Until answers are forgotten again, repeated requests return the same answers.
            self.execute("UPDATE cuts SET forgotten = 0 WHERE position = ?", newest)
            return newest

    def mark_sent(self, position: int) -> None:
        """Make a cut at the last answer of a report of secure sums, also if it is lost."""
        with self.transaction():
            if position > self.last:
                self._skip_to(position)
            elif position:
                self.execute("INSERT OR IGNORE INTO cuts (position) VALUES (?)", position)

    def expect_cut(self, position: int) -> None:
        """Raise DataError if a number is neither 0 nor that of the last answer of an upload."""
        if position and not self.row("SELECT 1 FROM cuts WHERE position = ?", position):
            raise DataError(
                f"{self.path}: no upload ever ended at answer {position}: the server refers to"
                " another store, or this store is an old backup"
            )

    def _last_cut(self, up_to: int = MAX_ANSWERS) -> int:
        query = "SELECT coalesce(max(position), 0) FROM cuts WHERE position <= ?"
        return int(self.value(query, up_to))

    def _skip_to(self, counted: int) -> None:
        """Continue the numbers of answers after those that were lost with a newer store."""
        self.execute("DELETE FROM sqlite_sequence WHERE name = 'answers'")
        self.execute("INSERT INTO sqlite_sequence VALUES ('answers', ?)", counted)
        self.execute("INSERT INTO cuts (position) VALUES (?)", counted)

    def admit(self, start: int, end: int, theta: FloatArray, at_most: int) -> None:
        """Count a question: a request for gradients at ``theta`` of the answers between two cuts.

        Each ``theta`` gives the server another equation about the same answers. After ``at_most``
        of them, this raises DataError. Repeated requests at the same ``theta`` are counted once.
        """
        between = "WHERE {0} > ? AND {0} <= ?"
        insert = "INSERT OR IGNORE INTO questions SELECT position, ? FROM cuts"
        counts = f"SELECT count(*) AS points FROM questions {between.format('cut')} GROUP BY cut"
        with self.transaction():
            point = hashlib.sha256(theta.tobytes()).digest()
            self.execute(f"{insert} {between.format('position')}", point, start, end)
            if self.value(f"SELECT coalesce(max(points), 0) FROM ({counts})", start, end) > at_most:
                raise DataError(
                    f"{self.path}: the server has asked about the same answers at {at_most}"
                    " different estimates; more would reveal single answers: refused. The device's"
                    " owner can allow more (max-questions in --node-config)"
                )

    def evidence(self, start: int, end: int) -> Evidence:
        """Return the answers after ``start`` up to ``end``, both 0 or cuts.

        Raises DataError if answers between them were pruned, or were forgotten since :meth:`cut`
        last returned ``end``: one round must not mix sums with and without them.
        """
        with self.reading():
            self.expect_cut(start)
            self.expect_cut(end)
            if start < end and self.value("SELECT forgotten FROM cuts WHERE position = ?", end):
                raise self._forgotten(end)
            found = self.answers(start, end, forgotten=True)
        left = len(found.numbers)
        if left != max(end - start, 0):
            raise DataError(
                f"{self.path}: answers {start + 1} to {end} were requested, but only {left} of"
                " them are left: the others were pruned, or lost when a backup was restored"
            )
        return found

    def _forgotten(self, end: int) -> DataError:
        return DataError(
            f"{self.path}: answers up to {end} were forgotten during this round: the round has to"
            " begin again"
        )

    def answers(
        self, start: int = 0, end: int = MAX_ANSWERS, *, forgotten: bool = False
    ) -> Evidence:
        """Return the answers after ``start`` up to ``end``; if ``forgotten``, with their ties."""
        query = (
            "SELECT sequence, evidence FROM answers"
            " WHERE sequence > ? AND sequence <= ? AND (? OR id IS NOT NULL) ORDER BY sequence"
        )
        with self.reading():
            rows = self.rows(query, start, end, forgotten)
            width = (self.dimension or 0) + EXTRA
        table = np.frombuffer(b"".join(row[1] for row in rows)).reshape(-1, width)
        numbers = np.array([row[0] for row in rows], dtype=np.int64)
        return Evidence(numbers, table[:, :-EXTRA], table[:, -EXTRA], table[:, -1])

    def prune(self, older_than: float) -> int:
        """Delete acknowledged answers that are older than ``older_than`` seconds; return how many.

        The device no longer learns from them, and with FLDB-Personal the next share lacks them. A
        server that is restored from an old backup cannot request them again.
        """
        delete = "DELETE FROM answers WHERE sequence <= ? AND answered < ?"
        with self.transaction():
            pruned = self.execute(delete, self.acknowledged, self._clock() - older_than).rowcount
            if pruned:
                self._count_removal()
        return pruned

    def forget(self) -> Forgotten:
        """Remove all open duels and all answers.

        An answer that was never uploaded is deleted, and its number is used again. An uploaded
        answer keeps its number, because the server may have counted it; its data is replaced by a
        tie between equal arms, whose gradient, information and Hessian are 0. So the numbers of
        server and device agree, whatever happens to the current exchange. With FLDB-Personal, the
        next upload subtracts the device's share from the server's sums. Earlier backups are not
        changed.
        """
        with self.transaction():
            tie = np.array([*np.zeros(self.dimension or 0), 0.5, np.nan])
            blank = self._clock(), tie.tobytes()
            sent = self._last_cut()
            counted = self._last_cut(self.acknowledged)  # an upload is kept or removed as a whole
            proposals = self.execute("DELETE FROM proposals").rowcount
            unsent = self.execute("DELETE FROM answers WHERE sequence > ?", sent).rowcount
            self.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'answers'", sent)
            query = "SELECT count(*) FROM answers WHERE sequence > ? AND id IS NOT NULL"
            uncertain = self.value(query, counted)
            update = "UPDATE answers SET id = NULL, answered = ?, evidence = ?"
            self.execute(f"{update} WHERE id IS NOT NULL", *blank)
            self.execute("UPDATE cuts SET forgotten = 1")
            if self.value("SELECT share FROM shares ORDER BY cut DESC LIMIT 1") is not None:
                # This share may be in the server's sums. At another cut, after a placeholder, the
                # share is 0: the next upload subtracts it, without new answers.
                insert = "INSERT INTO answers (answered, evidence) VALUES (?, ?)"
                cut = self.execute(insert, *blank).lastrowid
                self.execute("INSERT INTO cuts (position) VALUES (?)", cut)
                self.execute("INSERT INTO shares VALUES (?, NULL)", cut)
                self.execute("DELETE FROM shares WHERE cut < ?", counted)
            self._count_removal()
            if not self.row("SELECT 1 FROM synchronized"):
                self._keep_features(None)
        self.erase_deleted()
        return Forgotten(proposals, unsent + uncertain, uncertain, counted)

    # Estimates of the server.

    def synchronize(self, received: Synchronization) -> None:
        """Replace the estimate of the last broadcast; delete shares that it no longer needs."""
        prior, counted = received.prior, min(received.counted, MAX_ANSWERS)
        values = {**vars(received), "parameters": json.dumps(received.parameters)}
        features = values.pop("features")
        if prior is not None:
            numbers = [prior.shift, [prior.variance, prior.scale]]
            if prior.shape is not None:
                numbers += [[prior.mix], pack_symmetric(prior.shape)]
            values["prior"] = np.concatenate(numbers)
        row = [v.tobytes() if isinstance(v, np.ndarray) else v for v in values.values()]
        with self.transaction():
            self._fix_dimension(received.theta.size)
            self.execute("DELETE FROM synchronized")
            self.execute("INSERT INTO synchronized VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)
            self._keep_features(features)
            if features is not None and features.names is not None:
                self.name_features(features.names)
            self.execute("DELETE FROM shares WHERE cut < ? AND share IS NOT NULL", counted)

    def synchronized(self) -> Synchronization | None:
        """Return the estimate of the last broadcast, or None before the first."""
        row = self.row("SELECT * FROM synchronized")
        if not row:
            return None
        received, number, counted, duels, *vectors, parameters, packed = row
        theta, information = map(np.frombuffer, vectors)
        chosen, prior = json.loads(parameters), None
        if packed is not None:
            d = theta.size
            shift, (variance, scale), mix, shape = np.split(
                np.frombuffer(packed), [d, d + 2, d + 3]
            )
            prior = CommonPrior(unpack_symmetric(information, d), shift, variance, scale)
            if shape.size:
                prior = prior._replace(shape=unpack_symmetric(shape, d), mix=float(mix[0]))
        text = self._features_text()
        features = None if text is None else Features.from_json(text)
        estimate = theta, information, chosen, prior, features
        return Synchronization(received, number, counted, duels, *estimate)

    def version(self) -> tuple[int, float, int, str | None]:
        """Return a value that changes with each broadcast, removal of answers, and new scales."""
        query = "SELECT coalesce(round, 0), coalesce(received, 0.0), removals FROM device"
        number, received, removals = self.row(f"{query} LEFT JOIN synchronized")
        return number, received, removals, self._features_text()

    # Shares of FLDB-Personal. A share is computed once for each cut, so that repeated requests
    # return the same change. The server acknowledges the cut whose share its sums contain, and the
    # next upload is the change from that one.

    def share(self, cut: int) -> tuple[FloatArray, FloatArray]:
        """Return M, (d, d), and m, (d,), of the share at a cut; 0 if there is none."""
        share = self._share(cut)
        return share.precision, share.shift

    def has_share(self, cut: int) -> bool:
        """Return whether the share at a cut was computed."""
        return bool(self.row("SELECT cut FROM shares WHERE cut = ?", cut))

    def share_change(
        self,
        start: int,
        end: int,
        compute: Callable[[tuple[FloatArray, FloatArray], Evidence, Evidence], ShareChange],
        features: Features | None = None,
        hypotheses: int = len(VARIANCES),
    ) -> ShareChange:
        """Return the change between the shares at two cuts, the same each time.

        It has ``hypotheses`` log losses: shares of another ``personal_structure`` are converted.

        If the share at ``end`` is not stored, ``compute`` returns it from the share at ``start``,
        and the answers whose log losses are and are not part of earlier shares. It is not stored if
        answers were forgotten meanwhile. Shares of other ``features`` are computed again.
        """
        units = b"" if features is None else features.to_json().encode()
        with self.transaction():
            if units != (self.secure_part("units") or b""):
                self.execute("DELETE FROM shares WHERE cut > ? AND share IS NOT NULL", start)
                self.keep_secure_part("units", units)
        first, scored = self._share_span(start, end)
        if start < end and not self.has_share(end):
            known, new = self.answers(first, scored), self.answers(scored, end)
            share = compute(self.share(start), known, new)
            numbers = [share.shift, pack_symmetric(share.precision), share.losses, [share.squares]]
            if share.scatter is not None:
                numbers.append(pack_symmetric(share.scatter))
            insert = (
                "INSERT INTO shares SELECT position, ? FROM cuts"
                " WHERE position = ? AND NOT forgotten ON CONFLICT DO NOTHING"
            )
            with self.transaction():
                self.execute(insert, np.concatenate(numbers).tobytes(), end)
        with self.reading():
            if start < end and not self.has_share(end):
                raise self._forgotten(end)
            before, after = (self._share(cut).converted(hypotheses) for cut in (start, end))
            query = "SELECT cut FROM shares WHERE cut > ? AND cut <= ? ORDER BY cut"
            rows = self.rows(query, start, end)
            shares = [self._share(cut).converted(hypotheses) for (cut,) in rows]
        return ShareChange(
            precision=after.precision - before.precision,
            shift=after.shift - before.shift,
            losses=sum((each.losses for each in shares), np.zeros(hypotheses)),
            squares=math.fsum(each.squares for each in shares),
            members=after.members - before.members,
            scatter=None if after.scatter is None else after.scatter - before.scatter,
        )

    def _share_span(self, start: int, end: int) -> tuple[int, int]:
        """Return after which answer the share at ``end`` begins, and up to which it is scored.

        If the share at ``start`` is not in this store, which is an old backup or has met a server
        that was restored, it cannot be replaced: it stays in the server's sums, and later shares
        cover the later answers only.
        """
        query = (
            "SELECT coalesce(max(cut) FILTER (WHERE share IS NULL), 0), coalesce(max(cut), 0)"
            " FROM shares WHERE cut < ?"
        )
        with self.transaction():
            if start and not self.has_share(start):
                self.execute("DELETE FROM shares WHERE cut > ?", start)
                self.execute("INSERT INTO shares VALUES (?, NULL)", start)
            first, scored = self.row(query, end)
        return first, scored

    def _share(self, cut: int) -> ShareChange:
        d, stored = self.dimension or 0, self.value("SELECT share FROM shares WHERE cut = ?", cut)
        if stored is None:
            return ShareChange(np.zeros((d, d)), np.zeros(d), np.zeros(len(VARIANCES)), 0.0, 0.0)
        numbers, triangle = np.frombuffer(stored), d * (d + 1) // 2
        end = d + triangle + len(VARIANCES)
        scatter = None
        if numbers.size > end + 1:
            end += len(VARIANCES) * (len(MIXES) - 1)
            scatter = unpack_symmetric(numbers[end + 1 :], d)
        shift, packed, losses, squares = np.split(numbers[: end + 1], [d, d + triangle, end])
        precision = unpack_symmetric(packed, d)
        return ShareChange(precision, shift, losses, float(squares[0]), 1.0, scatter)

    # Secure sums: which answers reports cover (clients/vault/ledger.py), and the last report. It
    # stays after answers were forgotten or pruned: it contains them only in encrypted form.

    def secure_part(self, part: Part) -> bytes | None:
        """Return a part of the state, or None if it is not stored."""
        content: bytes | None = self.value("SELECT content FROM secure WHERE name = ?", part)
        return content

    def keep_secure_part(self, part: Part, content: bytes) -> None:
        """Replace a part of the state."""
        with self.transaction():
            self.execute("INSERT OR REPLACE INTO secure VALUES (?, ?)", part, content)


def _unknown(duel: str) -> UnknownDuelError:
    return UnknownDuelError(
        f"duel {duel!r} is unknown: it was never proposed here, expired, or was skipped, undone or"
        " forgotten"
    )


def _with_preference(evidence: bytes, preference: float) -> bytes:
    changed = np.frombuffer(evidence).copy()
    changed[-EXTRA] = preference
    return changed.tobytes()
