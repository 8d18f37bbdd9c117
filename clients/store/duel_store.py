"""The duels of one device, on its disk: SQLite, shared by any number of processes.

A duel is *proposed*, then *answered*, or it expires. Answers are numbered 1, 2, 3, ... in the order
in which they became durable; the server acknowledges them up to a number. Answers stay until
:meth:`DuelStore.prune` or :meth:`DuelStore.forget`.

Deleted data is overwritten in the file, and the write-ahead log is emptied after each transaction
that deletes, so that no file of the store contains it. If another process is reading at that
moment, the log is emptied within a second after it has finished.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clients.store.answers import OPEN
from clients.store.records import (
    ConflictingAnswerError,
    DuelExpiredError,
    Proposal,
    Synchronization,
    UndoError,
    UnknownDuelError,
)
from clients.store.schema import EXTRA
from clients.store.sums import SumLog
from fldb_flower.bandit.estimate import CommonPrior
from fldb_flower.errors import DataError, FldbError
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.forms import unpack_symmetric


class DuelStore(SumLog):
    """The duels of one device.

    Every method is one transaction, safe for concurrent threads and processes, and durable when it
    returns. Threads that share one store wait for each other, including those that only read; open
    the store twice where that matters.

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
        The file is not a duel store, is damaged, or was written by a newer version.
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

    @property
    def path(self) -> Path:
        """The store's file."""
        return self._database.path

    def close(self) -> None:
        """Close the file; a store is also a context manager."""
        self._database.close()

    def wait_at_most(self, seconds: float) -> None:
        """Set how many seconds each call waits for transactions of other processes: 30 at first."""
        self._database.wait_at_most(seconds)

    def __enter__(self) -> DuelStore:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def propose(
        self,
        difference: FloatArray,
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
            P(first preferred) by the current estimate; NaN if there is none.
        keys : pair of str or None
            The application's names for the two arms; they stay on the device.
        contents : JSON value, optional
            What a page shows of the two arms.
        expire_after : float
            Seconds within which the duel can be answered, at least. They are counted while the
            device runs: if its clock is set, no duel expires.
        """
        now = self._clock()
        duel = secrets.token_urlsafe(12)
        proposal = Proposal(duel, now, now + expire_after, keys[0], keys[1], contents)
        evidence = np.concatenate([difference, [np.nan, predicted]]).tobytes()
        try:
            shown = None if contents is None else json.dumps(contents)
        except (TypeError, ValueError) as error:
            raise DataError(f"contents are not JSON values: {error}") from None
        database = self._database
        with database.writing():
            self._fix_dimension(difference.size)
            running = self._count_running()
            expired = database.execute(f"DELETE FROM proposals WHERE NOT {OPEN}", (running,))
            database.execute(
                "INSERT INTO proposals VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (duel, now, proposal.expires, evidence, *keys, shown, running),
            )
        if expired.rowcount:
            database.erase_deleted()
        return proposal

    def settle_dimension(self, dimension: int) -> int:
        """Set d of a store without duels, and return d of the store.

        Otherwise the first broadcast would set it, and a server could send one of another
        dimension. An estimate of another dimension is removed.
        """
        database = self._database
        with database.writing():
            is_empty = self.last == 0 and not database.row("SELECT id FROM proposals LIMIT 1")
            if is_empty and self.dimension != dimension:
                database.execute("UPDATE device SET dimension = ?", (dimension,))
                database.execute("DELETE FROM synchronized")
                self._dimension = dimension
        return self.dimension or dimension

    def open_proposals(self, limit: int = 1) -> list[Proposal]:
        """Return the oldest open duels that have contents."""
        with self._database.reading():
            rows = self._database.execute(
                "SELECT id, created, expires, first_key, second_key, contents FROM proposals"
                f" WHERE contents IS NOT NULL AND {OPEN} ORDER BY rowid LIMIT ?",
                (self._running(), limit),
            ).fetchall()
        return [Proposal._make((*row[:-1], json.loads(row[-1]))) for row in rows]

    def record(self, answers: Iterable[tuple[str, float]]) -> list[int | FldbError]:
        """Record answers in one durable transaction.

        Parameters
        ----------
        answers : iterable of (str, float)
            Id of a duel, and preference: 1 if the first arm won, 0 if the second did, 0.5 for a
            tie.

        Returns
        -------
        list
            For each answer its number, which is the same if the answer is repeated; or the error
            of this answer: :class:`UnknownDuelError`, :class:`DuelExpiredError` or
            :class:`ConflictingAnswerError`.
        """
        with self._database.writing():
            before = self.last
            results = [self._record(duel, preference) for duel, preference in answers]
            recorded = self.last > before
        if recorded:
            self._database.erase_deleted()
        return results

    def _record(self, duel: str, preference: float) -> int | FldbError:
        database = self._database
        answer = self._answer(duel)
        if answer:
            before = np.frombuffer(answer[1])[-EXTRA]
            if before == preference:
                return int(answer[0])
            return ConflictingAnswerError(
                f"duel {duel!r} was already answered, by {before:g} and not {preference:g}"
                " (1: first, 0: second, 0.5: tie); the first answer stays"
            )
        proposal = self._proposal(duel)
        if not proposal:
            return _unknown(duel)
        late = self._count_running() - proposal[0]
        if late > 0.0:
            return DuelExpiredError(f"duel {duel!r} expired {late:.0f} s ago: propose a new one")
        database.execute("DELETE FROM proposals WHERE id = ?", (duel,))
        row = (duel, self._clock(), _with_preference(proposal[1], preference))
        insert = "INSERT INTO answers (id, answered, evidence) VALUES (?, ?, ?)"
        return int(database.execute(insert, row).lastrowid or 0)

    def undo(self, duel: str, *, expire_after: float) -> str:
        """Remove the last answer; its duel is open again, under another id.

        An answer that is part of an upload stays, since the server may have counted it. Because of
        the other id, late copies of earlier requests change nothing: neither one with the answer
        that was undone, nor one of this method, which then returns the same id. The duel has no
        keys and no contents, since they were deleted when it was answered.

        Parameters
        ----------
        duel : str
            Id of the duel that was answered last.
        expire_after : float
            Seconds within which the duel can be answered again.

        Raises
        ------
        UndoError
            The answer is part of an upload, or is not the last one.
        UnknownDuelError
            There is no such answer.
        """
        database, again = self._database, f"{duel}~"
        with database.writing():
            answer = self._answer(duel)
            if not answer:
                self._expect_undone(duel, again)
                return again
            number, evidence = answer
            self._expect_undoable(duel, number)
            now = self._clock()
            changed = _with_preference(evidence, np.nan)
            row = (again, now, now + expire_after, changed, self._count_running())
            database.execute("DELETE FROM answers WHERE sequence = ?", (number,))
            database.execute("UPDATE sqlite_sequence SET seq = seq - 1 WHERE name = 'answers'")
            columns = "id, created, expires, evidence, begun"
            database.execute(f"INSERT INTO proposals ({columns}) VALUES (?, ?, ?, ?, ?)", row)
            self._count_removal()
        database.erase_deleted()
        return again

    def _expect_undoable(self, duel: str, number: int) -> None:
        if number <= self.sent:
            raise UndoError(
                f"the answer to duel {duel!r} is part of an upload to the server: it can no longer"
                " be undone"
            )
        if number < self.last:
            raise UndoError(
                f"the answer to duel {duel!r} has number {number}, and the last one {self.last}:"
                " only the last one can be undone"
            )

    def _expect_undone(self, duel: str, again: str) -> None:
        if not (self._proposal(again) or self._answer(again)):
            raise UnknownDuelError(f"duel {duel!r} has no answer that can be undone")

    def skip(self, duel: str) -> FloatArray:
        """Remove an open duel without an answer; return phi(first) - phi(second), (d,).

        Raises
        ------
        ConflictingAnswerError
            The duel was answered.
        UnknownDuelError
            The duel is not open.
        """
        database = self._database
        with database.writing():
            if self._answer(duel):
                raise ConflictingAnswerError(f"duel {duel!r} was answered: it cannot be skipped")
            proposal = self._proposal(duel)
            if not proposal:
                raise _unknown(duel)
            database.execute("DELETE FROM proposals WHERE id = ?", (duel,))
        database.erase_deleted()
        difference: FloatArray = np.frombuffer(proposal[1])[:-EXTRA]
        return difference

    def _answer(self, duel: str) -> Any:
        """Return number and evidence of the answer to a duel, if there is one."""
        return self._duel("SELECT sequence, evidence FROM answers WHERE id = ?", duel)

    def _proposal(self, duel: str) -> Any:
        """Return until when a duel is open, as seconds that the device runs, and its evidence."""
        query = "SELECT begun + (expires - created), evidence FROM proposals WHERE id = ?"
        return self._duel(query, duel)

    def _duel(self, query: str, duel: str) -> Any:
        return self._database.row(query, duel) if duel.isascii() else ()  # no lone surrogates

    def name_features(self, names: Sequence[str] | None) -> None:
        """Set the names of the d features; None removes them."""
        text = None if names is None else json.dumps(list(names))
        with self._database.writing():
            self._database.execute("UPDATE device SET features = ?", (text,))

    @property
    def feature_names(self) -> list[str] | None:
        """Names of the d features, or None if they have none, or another number of them."""
        with self._database.reading():
            text, dimension = self._database.row("SELECT features, dimension FROM device")
        names: list[str] | None = None if text is None else json.loads(text)
        return None if names is None or dimension not in {None, len(names)} else names

    def synchronize(self, received: Synchronization) -> None:
        """Replace the estimate of the last broadcast."""
        prior = received.prior
        values = {**vars(received), "parameters": json.dumps(received.parameters)}
        if prior is not None:
            values["prior"] = np.append(prior.shift, [prior.variance, prior.scale])
        row = [v.tobytes() if isinstance(v, np.ndarray) else v for v in values.values()]
        with self._database.writing():
            self._fix_dimension(received.theta.size)
            self._database.execute("DELETE FROM synchronized")
            self._database.execute("INSERT INTO synchronized VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._drop_acknowledged_shares(received.counted)

    def synchronized(self) -> Synchronization | None:
        """Return the estimate of the last broadcast, or None before the first."""
        with self._database.reading():
            row = self._database.row("SELECT * FROM synchronized")
        if not row:
            return None
        received, number, counted, duels, *vectors, parameters, packed = row
        theta, information = map(np.frombuffer, vectors)
        chosen = json.loads(parameters)
        prior = None
        if packed is not None:
            *shift, variance, scale = np.frombuffer(packed).tolist()
            precision = unpack_symmetric(information, len(shift))
            prior = CommonPrior(precision, np.array(shift), variance, scale)
        return Synchronization(received, number, counted, duels, theta, information, chosen, prior)

    def version(self) -> tuple[int, float, int]:
        """Return a value that changes with each broadcast and each removal of answers.

        It is cheaper than :meth:`synchronized`.
        """
        with self._database.reading():
            query = "SELECT round, received FROM synchronized"
            number, received = self._database.row(query, default=(0, 0.0))
            (removals,) = self._database.row("SELECT removals FROM device")
        return number, received, removals

    def counts(self) -> dict[str, int]:
        """Return the numbers of open duels, of answers, and of acknowledged answers."""
        with self._database.reading():
            query = f"SELECT count(*) FROM proposals WHERE {OPEN}"
            return {
                "open": self._database.row(query, self._running())[0],
                "answered": self.last,
                "counted": self.acknowledged,
            }

    def backup(self, path: str | Path) -> None:
        """Write a copy of the store; other processes may use the store meanwhile.

        Before a copy replaces the store, delete the old ``-wal`` and ``-shm`` files: SQLite would
        apply them to the copy. The ledger of secure sums (``clients.vault.ledger``) is not part of
        a backup, and stays as it is.

        Raises
        ------
        OutputError
            The file already exists, or cannot be written.
        """
        self._database.backup(path)


def _unknown(duel: str) -> UnknownDuelError:
    return UnknownDuelError(
        f"duel {duel!r} is unknown: it was never proposed here, expired, or was skipped, undone or"
        " forgotten"
    )


def _with_preference(evidence: bytes, preference: float) -> bytes:
    changed = np.frombuffer(evidence).copy()
    changed[-EXTRA] = preference
    return changed.tobytes()
