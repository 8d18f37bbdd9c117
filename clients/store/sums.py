"""What a device in secure sums keeps in its store, and where its contributions end.

The journal (:mod:`fldb_flower.secure.journal`) has the cuts of all contributions; they are cuts of
the store as well, beside which it may have others: of plain uploads, and of a withdrawn share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from clients.store.answers import distinct_duels
from clients.store.schema import MAX_ANSWERS
from clients.store.shares import ShareLog
from fldb_flower.errors import DeclinedError

Part = Literal["journal", "numbers", "roster", "key", "ledger"]
"""The journal; the numbers of its last contribution; the signed roster; the public key of both; the
ledger of privacy."""


class SumLog(ShareLog):
    """The state of secure sums in a store, beside its answers."""

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make one durable transaction of all calls within, by this thread.

        Other processes cannot write meanwhile. An exception rolls everything back.
        """
        with self._database.writing():
            yield

    def secure_part(self, part: Part) -> bytes | None:
        """Return a part of the state of secure sums, or None if it is not stored."""
        with self._database.reading():
            query = "SELECT content FROM secure WHERE name = ?"
            content: bytes | None = self._database.row(query, part, default=(None,))[0]
        return content

    def keep_secure_part(self, part: Part, content: bytes) -> None:
        """Replace a part of the state of secure sums."""
        with self._database.writing():
            self._database.execute("INSERT OR REPLACE INTO secure VALUES (?, ?)", (part, content))

    @property
    def pruned(self) -> int:
        """Number of the last answer before the first one that is left."""
        with self._database.reading():
            query = "SELECT min(sequence) FROM answers"
            (first,) = self._database.row(query)
        return self.last if first is None else int(first) - 1

    def add_cut(self, start: int, end: int, at_least: int) -> None:
        """Add the cuts of a contribution to a secure sum.

        Parameters
        ----------
        start, end : int
            The contribution covers the answers after ``start`` up to ``end``. The start is an
            earlier cut, or a number before the last one.
        at_least : int
            Distinct duels since the last cut, as in :meth:`cut`.

        Raises
        ------
        DeclinedError
            There are fewer.
        """
        database = self._database
        with database.writing():
            newest = self._last_cut(MAX_ANSWERS)
            found = distinct_duels(self._evidence(newest, end).differences)
            if found < at_least:
                raise DeclinedError(f"{found} new distinct duels: must be at least {at_least}")
            database.execute("INSERT INTO cuts (position) VALUES (?)", (end,))
            self._insert_cut(start)

    def expect(self, at_least: int) -> None:
        """Store how many distinct duels a contribution needs, for :attr:`needed`."""
        with self._database.writing():
            self._database.execute("UPDATE device SET minimum = ?", (at_least,))

    def skip_to(self, position: int) -> None:
        """Continue after an answer that a newer store had: this one is an old backup of it.

        The answers up to this number that are still here are not sent again.
        """
        with self._database.writing():
            if position > self.last:
                self._skip_to(position)
            else:
                self._insert_cut(position)

    def _insert_cut(self, position: int) -> None:
        if position:
            insert = "INSERT OR IGNORE INTO cuts (position) VALUES (?)"
            self._database.execute(insert, (position,))

    def _erase_numbers(self) -> None:
        """Delete the numbers of the last contribution, its seed, and the hash of the numbers.

        Few answers could be guessed from the hash. A repeated request is declined then.
        """
        if (content := self.secure_part("journal")) is None:
            return
        from fldb_flower.secure.journal import Journal  # noqa: PLC0415 - imports slowly

        self._database.execute("DELETE FROM secure WHERE name = 'numbers'")
        journal = Journal.from_bytes(content)
        if (last := journal.contribution) is not None:
            erased = replace(last, seed=bytes(len(last.seed)), numbers=bytes(len(last.numbers)))
            journal = replace(journal, contribution=erased)
            self.keep_secure_part("journal", journal.to_bytes())
