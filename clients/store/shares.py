"""The shares of FLDB-Personal that a device has computed.

A share is computed once for each cut, so that repeated requests return the same change. The server
acknowledges the cut whose share its sums contain, and the next upload is the change from that one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from clients.store.answers import AnswerLog
from clients.store.schema import MAX_ANSWERS
from fldb_flower.bandit.estimate import VARIANCES, ShareChange
from fldb_flower.errors import DataError
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.forms import pack_symmetric, unpack_symmetric


class ShareSpan(NamedTuple):
    """The answers that a share is computed from."""

    start: int  # those after this number
    scored: int  # the log losses of those up to this number belong to earlier shares


class ShareLog(AnswerLog):
    """The shares in a store, beside its answers."""

    def share(self, cut: int) -> tuple[FloatArray, FloatArray]:
        """Return M, (d, d), and m, (d,), of the share at a cut; 0 if there is none."""
        with self._database.reading():
            share = self._share(cut)
        return share.precision, share.shift

    def share_span(self, start: int, end: int) -> ShareSpan:
        """Return which answers the share at ``end`` is computed from, after an upload to ``start``.

        If the share at ``start`` is not in this store, which is an old backup or has met a server
        that was restored, it cannot be replaced: it stays in the server's sums, and later shares
        cover the later answers only.
        """
        database = self._database
        with database.writing():
            if start and not self.has_share(start):
                database.execute("DELETE FROM shares WHERE cut > ?", (start,))
                database.execute("INSERT INTO shares VALUES (?, NULL)", (start,))
            query = (
                "SELECT coalesce(max(cut) FILTER (WHERE share IS NULL), 0), coalesce(max(cut), 0)"
                " FROM shares WHERE cut < ?"
            )
            return ShareSpan._make(database.row(query, end))

    def has_share(self, cut: int) -> bool:
        """Return whether the share at a cut was computed."""
        with self._database.reading():
            return bool(self._database.row("SELECT cut FROM shares WHERE cut = ?", cut))

    def keep_share(self, cut: int, share: ShareChange) -> None:
        """Store the share at a cut, unless another process was faster, or answers were forgotten.

        ``losses`` and ``squares`` are those of the answers since the share before.
        """
        numbers = [share.shift, pack_symmetric(share.precision), share.losses, [share.squares]]
        with self._database.writing():
            self._database.execute(
                "INSERT OR IGNORE INTO shares SELECT position, ? FROM cuts"
                " WHERE position = ? AND NOT forgotten",
                (np.concatenate(numbers).tobytes(), cut),
            )

    def share_change(self, start: int, end: int) -> ShareChange:
        """Return the change between the shares at two cuts, the same each time.

        Raises
        ------
        DataError
            The share at ``end`` was not stored, because answers were forgotten.
        """
        with self._database.reading():
            if start < end and not self.has_share(end):
                raise DataError(
                    f"{self._database.path}: answers up to {end} were forgotten during this round:"
                    " the round has to begin again"
                )
            before, after = self._share(start), self._share(end)
            query = "SELECT cut FROM shares WHERE cut > ? AND cut <= ? ORDER BY cut"
            rows = self._database.execute(query, (start, end)).fetchall()
            shares = [self._share(row[0]) for row in rows]
        return ShareChange(
            precision=after.precision - before.precision,
            shift=after.shift - before.shift,
            losses=sum((each.losses for each in shares), np.zeros(len(VARIANCES))),
            squares=math.fsum(each.squares for each in shares),
            members=after.members - before.members,
        )

    def _share(self, cut: int) -> ShareChange:
        d = self.dimension or 0
        row = self._database.row("SELECT share FROM shares WHERE cut = ?", cut, default=(None,))
        if row[0] is None:
            return ShareChange(np.zeros((d, d)), np.zeros(d), np.zeros(len(VARIANCES)), 0.0, 0.0)
        shift, packed, losses = np.split(np.frombuffer(row[0])[:-1], [d, d + d * (d + 1) // 2])
        squares = float(np.frombuffer(row[0])[-1])
        return ShareChange(unpack_symmetric(packed, d), shift, losses, squares, members=1.0)

    def _withdraw_share(self) -> None:
        """Make 0 the share of the next upload, within a transaction that forgets all answers.

        The share of the last cut may be in the server's sums. A placeholder for one answer makes
        another cut, at which the share is 0, so that the next upload subtracts it: without new
        answers, and whatever the minimum of an upload.
        """
        database = self._database
        newest = database.row("SELECT share FROM shares ORDER BY cut DESC LIMIT 1")
        if not newest or newest[0] is None:
            return
        cut = self._append_placeholder()
        database.execute("INSERT INTO cuts (position) VALUES (?)", (cut,))
        database.execute("INSERT INTO shares VALUES (?, NULL)", (cut,))
        database.execute("DELETE FROM shares WHERE cut < ?", (self._last_cut(self.acknowledged),))

    def _drop_acknowledged_shares(self, counted: int) -> None:
        """Delete shares before the one that the server's sums contain, within a transaction."""
        counted = min(counted, MAX_ANSWERS)
        self._database.execute("DELETE FROM shares WHERE cut < ? AND share IS NOT NULL", (counted,))
