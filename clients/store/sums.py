"""What a device in secure sums keeps in its store, and where its reports end.

The cut of a report is a cut of the store as well, beside which it may have others: of plain
uploads, and of a withdrawn share. The last report stays after answers were forgotten or pruned: it
contains them only in encrypted form.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from clients.store.shares import ShareLog

Part = Literal["journal", "report"]
"""Which answers reports cover (:mod:`clients.vault.ledger`), and the last report."""


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

    def mark_sent(self, position: int) -> None:
        """Mark the answers up to a number as part of a report.

        If the number is that of an answer that only a newer store had, the next answer has the
        number after it.
        """
        with self._database.writing():
            if position > self.last:
                self._skip_to(position)
            elif position:
                insert = "INSERT OR IGNORE INTO cuts (position) VALUES (?)"
                self._database.execute(insert, (position,))
