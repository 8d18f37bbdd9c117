"""The numbered answers of a device, and which of them an upload covers.

Answers are numbered from 1; a *cut* is the number of the last answer of an upload.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from clients.store.check import check
from clients.store.database import Database
from clients.store.records import Evidence, Forgotten
from clients.store.schema import EXTRA, MAX_ANSWERS
from fldb_flower.errors import DataError
from fldb_flower.linalg.arrays import FloatArray

OPEN = "begun + (expires - created) >= ?"
"""Condition of an open duel, with the seconds for which the device has run."""
LONGEST_STEP = 366 * 24 * 3600.0
"""Seconds; an uptime that is further ahead is that of another device, and counts as no time."""


def duel_key(difference: FloatArray) -> bytes:
    """Return what identifies a duel: its difference up to the sign.

    Examples
    --------
    >>> import numpy as np
    >>> from clients.store import duel_key
    >>> duel_key(np.array([1.0, -2.0])) == duel_key(np.array([-1.0, 2.0]))
    True
    """
    sign = np.sign(difference[difference != 0.0][:1]).sum()
    key: FloatArray = sign * difference + 0.0  # no negative zeros
    return key.tobytes()


def distinct_duels(differences: FloatArray) -> int:
    """Return the number of distinct duels, without duels of equal arms: (n, d) -> int."""
    return len({duel_key(each) for each in differences[differences.any(axis=1)]})


def system_uptime() -> float:
    """Return the seconds since the device started, the same in all processes; nobody sets them."""
    if hasattr(time, "CLOCK_BOOTTIME"):  # includes the time in which it was suspended
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class AnswerLog:
    """The answers in a store: which an upload covers, and what is left of deleted ones."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self._uptime = uptime or (system_uptime if clock is time.time else clock)
        self._database = Database(path)
        self._dimension: int | None = None
        try:
            check(self._database)
        except BaseException:
            self._database.close()
            raise
        with self._database.reading():
            self.device_id = str(self._database.row("SELECT id FROM device")[0])

    @property
    def dimension(self) -> int | None:
        """d, or None before the first duel or broadcast."""
        if self._dimension is None:
            with self._database.reading():
                self._dimension = self._database.row("SELECT dimension FROM device")[0]
        return self._dimension

    @property
    def last(self) -> int:
        """Number of the last answer; 0 if there is none."""
        query = "SELECT seq FROM sqlite_sequence WHERE name = 'answers'"
        with self._database.reading():
            return int(self._database.row(query, default=(0,))[0])

    @property
    def acknowledged(self) -> int:
        """Number of the last answer that the server has acknowledged."""
        with self._database.reading():
            return int(self._database.row("SELECT counted FROM synchronized", default=(0,))[0])

    @property
    def sent(self) -> int:
        """Number of the last answer that is part of an upload, whether or not it arrived."""
        with self._database.reading():
            return max(self._last_cut(MAX_ANSWERS), self.acknowledged)

    @property
    def minimum(self) -> int | None:
        """Distinct duels of an upload, at least; None before one was requested."""
        with self._database.reading():
            minimum: int | None = self._database.row("SELECT minimum FROM device")[0]
        return minimum

    @property
    def needed(self) -> int | None:
        """Distinct duels that the next upload lacks; None before one was requested."""
        minimum = self.minimum
        if minimum is None:
            return None
        with self._database.reading():
            waiting = self._evidence(self._last_cut(MAX_ANSWERS), MAX_ANSWERS)
        return max(0, minimum - distinct_duels(waiting.differences))

    def held_back(self) -> tuple[int, int]:
        """Return how many answers no upload covers yet, and how many distinct duels these lack."""
        with self._database.snapshot():
            return self.last - self._last_cut(MAX_ANSWERS), self.needed or 0

    def asked(self) -> set[bytes]:
        """Return the keys of all duels proposed since the last upload, open or answered.

        It is empty before an upload was requested: then none needs distinct duels.
        """
        database = self._database
        with database.reading():
            if self.minimum is None:
                return set()
            rows = database.execute(
                "SELECT evidence FROM answers WHERE sequence > ? UNION ALL"
                f" SELECT evidence FROM proposals WHERE {OPEN}",
                (self._last_cut(MAX_ANSWERS), self._running()),
            ).fetchall()
        return {duel_key(np.frombuffer(row[0])[:-EXTRA]) for row in rows}

    def cut(self, start: int, at_least: int, at_most: int = MAX_ANSWERS) -> int:
        """Return where an upload that begins after answer ``start`` ends.

        Uploads begin and end at *cuts* only, and at least ``at_least`` distinct duels were
        answered between two cuts. Therefore every upload, and every difference of two uploads,
        covers at least that many distinct duels. Duels with the same difference of features, up to
        its sign, are one duel, and duels of equal arms are none. If there are too few new duels
        since the last cut, that cut is returned.

        Parameters
        ----------
        start : int
            Where the upload begins: 0 or an earlier cut.
        at_least : int
            Distinct duels between two cuts, at least 1.
        at_most : int
            Answers that the upload may cover; the others are left for a later one.

        Raises
        ------
        DataError
            ``start`` is not a cut of this store, or the next cut is more than ``at_most`` answers
            away, or these cover too few distinct duels. No cut is made then.
        """
        database = self._database
        with database.writing():
            database.execute("UPDATE device SET minimum = ?", (at_least,))
            last = self.last
            if start > MAX_ANSWERS or last < start > MAX_ANSWERS // 2:  # numbers have to be left
                raise DataError(f"{database.path}: no device has {start} answers")
            if start > last:
                self._skip_to(start)
                return start
            end = min(last, start + at_most)
            newest = self._last_cut(MAX_ANSWERS)
            found = distinct_duels(self._evidence(newest, end).differences)
            if end > newest and found >= at_least:
                database.execute("INSERT INTO cuts (position) VALUES (?)", (end,))
                newest = end
            self.expect_cut(start)
            newest = self._last_cut(end)
            if newest <= start and end < last:
                raise DataError(
                    f"{database.path}: the answers after {start} must be uploaded together until"
                    f" they cover {at_least} distinct duels (min-duels-per-upload), and are more"
                    f" than the {at_most} that the server accepts (devices-max-duels)"
                )
            # Until answers are forgotten again, repeated requests return the same answers.
            database.execute("UPDATE cuts SET forgotten = 0 WHERE position = ?", (newest,))
            return newest

    def admit(self, start: int, end: int, theta: FloatArray, at_most: int) -> None:
        """Count a question: a request for gradients at ``theta`` of the answers between two cuts.

        Each ``theta`` gives the server another equation about the same answers. Repeated requests
        at the same ``theta``, for example after a lost reply, are counted once.

        Parameters
        ----------
        start, end : int
            The answers after ``start`` up to ``end``.
        theta : ndarray
            theta_hat, (d,).
        at_most : int
            Largest number of different ``theta`` for one answer.

        Raises
        ------
        DataError
            The server has asked at ``at_most`` other ``theta`` before.
        """
        database = self._database
        with database.writing():
            database.execute(
                "INSERT OR IGNORE INTO questions SELECT position, ? FROM cuts"
                " WHERE position > ? AND position <= ?",
                (hashlib.sha256(theta.tobytes()).digest(), start, end),
            )
            query = (
                "SELECT coalesce(max(points), 0) FROM (SELECT count(*) AS points FROM questions"
                " WHERE cut > ? AND cut <= ? GROUP BY cut)"
            )
            if database.row(query, start, end)[0] > at_most:
                raise DataError(
                    f"{database.path}: the server has asked about the same answers at {at_most}"
                    " different estimates; more would reveal single answers: refused. The device's"
                    " owner can allow more (max-questions in --node-config)"
                )

    def evidence(self, start: int, end: int) -> Evidence:
        """Return the answers after ``start`` up to ``end``, both 0 or cuts.

        Raises
        ------
        DataError
            ``start`` or ``end`` is not a cut, answers between them were pruned, or answers were
            forgotten since :meth:`cut` last returned ``end``: one round must not mix sums with and
            without them.
        """
        database = self._database
        with database.reading():
            self.expect_cut(start)
            self.expect_cut(end)
            query = "SELECT forgotten FROM cuts WHERE position = ?"
            if start < end and database.row(query, end)[0]:
                raise DataError(
                    f"{database.path}: answers up to {end} were forgotten during this round: the"
                    " round has to begin again"
                )
            found = self._evidence(start, end)
        left = len(found.numbers)
        if left != max(end - start, 0):
            raise DataError(
                f"{database.path}: answers {start + 1} to {end} were requested, but only {left} of"
                " them are left: the others were pruned, or lost when a backup was restored"
            )
        return found

    def answers(self, start: int = 0, end: int = MAX_ANSWERS) -> Evidence:
        """Return the answers after ``start`` up to ``end`` that are left, for use on the device.

        Forgotten answers are left out.
        """
        with self._database.reading():
            return self._evidence(start, end, "AND id IS NOT NULL")

    def _evidence(self, start: int, end: int, condition: str = "") -> Evidence:
        rows = self._database.execute(
            "SELECT sequence, evidence FROM answers WHERE sequence > ? AND sequence <= ?"
            f" {condition} ORDER BY sequence",
            (start, end),
        ).fetchall()
        width = (self.dimension or 0) + EXTRA
        table = np.frombuffer(b"".join(row[1] for row in rows)).reshape(-1, width)
        numbers = np.array([row[0] for row in rows], dtype=np.int64)
        return Evidence(numbers, table[:, :-EXTRA], table[:, -EXTRA], table[:, -1])

    def prune(self, older_than: float) -> int:
        """Delete acknowledged answers that are older than ``older_than`` seconds; return how many.

        A server that is restored from an old backup cannot request them again. The device itself no
        longer learns from them, and with FLDB-Personal the next share does not contain them.
        """
        with self._database.writing():
            pruned = self._database.execute(
                "DELETE FROM answers WHERE sequence <= ? AND answered < ?",
                (self.acknowledged, self._clock() - older_than),
            ).rowcount
            if pruned:
                self._count_removal()
        if pruned:
            self._database.erase_deleted()
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
        database = self._database
        with database.writing():
            sent = self._last_cut(MAX_ANSWERS)
            counted = self._last_cut(self.acknowledged)  # an upload is kept or removed as a whole
            proposals = database.execute("DELETE FROM proposals").rowcount
            unsent = database.execute("DELETE FROM answers WHERE sequence > ?", (sent,)).rowcount
            database.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'answers'", (sent,))
            query = "SELECT count(*) FROM answers WHERE sequence > ? AND id IS NOT NULL"
            uncertain = database.row(query, counted)[0]
            database.execute(
                "UPDATE answers SET id = NULL, answered = ?, evidence = ? WHERE id IS NOT NULL",
                (self._clock(), self._placeholder()),
            )
            database.execute("UPDATE cuts SET forgotten = 1")
            self._withdraw_share()
            self._count_removal()
        database.erase_deleted()
        return Forgotten(proposals, unsent + uncertain, uncertain, counted)

    def _withdraw_share(self) -> None:
        """Make 0 the share of FLDB-Personal; nothing without shares."""

    def _count_removal(self) -> None:
        self._database.execute("UPDATE device SET removals = removals + 1")

    def _placeholder(self) -> bytes:
        """Return the evidence of a tie between equal arms, whose statistics are 0."""
        evidence = np.zeros((self.dimension or 0) + EXTRA)
        evidence[-EXTRA:] = 0.5, np.nan
        return evidence.tobytes()

    def _append_placeholder(self) -> int:
        """Append a placeholder for an answer; return its number."""
        insert = "INSERT INTO answers (answered, evidence) VALUES (?, ?)"
        row = (self._clock(), self._placeholder())
        return int(self._database.execute(insert, row).lastrowid or 0)

    def _running(self) -> float:
        """Return for how many seconds the device was seen to run: at most the time that has passed.

        Unlike the time of the day, which can be set, it never jumps. When the device starts again,
        its uptime begins at 0, and what is unknown is not counted.
        """
        running, last = self._database.row("SELECT running, uptime FROM device")
        passed = 0.0 if last is None else self._uptime() - last
        return float(running + (passed if 0.0 < passed <= LONGEST_STEP else 0.0))

    def _count_running(self) -> float:
        """Store what :meth:`_running` returns, within a transaction, and return it."""
        running = self._running()
        update = "UPDATE device SET running = ?, uptime = ?"
        self._database.execute(update, (running, self._uptime()))
        return running

    def _fix_dimension(self, dimension: int) -> None:
        if self.dimension is None:
            self._database.execute("UPDATE device SET dimension = ?", (dimension,))
        elif self.dimension != dimension:
            raise DataError(
                f"{self._database.path} contains duels of dimension {self.dimension}, not"
                f" {dimension}: use another store for another model"
            )

    def _skip_to(self, counted: int) -> None:
        """Continue the numbers of answers after ``counted``: this store is an old backup.

        The server has counted its answers, and those that were lost with the newer store.
        """
        self._database.execute("DELETE FROM sqlite_sequence WHERE name = 'answers'")
        self._database.execute("INSERT INTO sqlite_sequence VALUES ('answers', ?)", (counted,))
        self._database.execute("INSERT INTO cuts (position) VALUES (?)", (counted,))

    def _last_cut(self, up_to: int) -> int:
        query = "SELECT coalesce(max(position), 0) FROM cuts WHERE position <= ?"
        return int(self._database.row(query, up_to)[0])

    def expect_cut(self, position: int) -> None:
        """Raise DataError if a number is neither 0 nor that of the last answer of an upload."""
        query = "SELECT count(*) FROM cuts WHERE position = ?"
        with self._database.reading():
            is_cut = position == 0 or self._database.row(query, position)[0]
        if not is_cut:
            raise DataError(
                f"{self._database.path}: no upload ever ended at answer {position}: the server"
                " refers to another store, or this store is an old backup"
            )
