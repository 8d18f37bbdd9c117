"""Which answers an upload covers, and what is left of forgotten ones.

The functions run within a transaction of :class:`~clients.store.duel_store.DuelStore`, whose
methods document them. Answers are numbered from 1; a *cut* is the number of the last answer of an
upload.
"""

from __future__ import annotations

import hashlib

import numpy as np

from clients.store.database import Database
from clients.store.records import Evidence, Forgotten
from fldb_flower.errors import DataError
from fldb_flower.linalg.arrays import FloatArray

MAX_ANSWERS = 2**53
EXTRA = 2
"""Numbers after a difference in ``evidence``: preference, predicted preference."""


def last_answer(database: Database) -> int:
    """Return the number of the last answer, 0 if there is none."""
    query = "SELECT seq FROM sqlite_sequence WHERE name = 'answers'"
    return int(database.row(query, default=(0,))[0])


def dimension(database: Database) -> int | None:
    """Return d, or None before the first duel or broadcast."""
    known: int | None = database.row("SELECT dimension FROM device")[0]
    return known


def acknowledged(database: Database) -> int:
    """Return the number of the last answer that the server has acknowledged."""
    return int(database.row("SELECT counted FROM synchronized", default=(0,))[0])


def cut(database: Database, start: int, at_least: int, at_most: int) -> int:
    """Return the end of the upload that begins after answer ``start``."""
    last = last_answer(database)
    if start > MAX_ANSWERS:
        raise DataError(f"{database.path}: no device has {start} answers")
    if start > last:
        _skip_to(database, start)
        return start
    end = min(last, start + at_most)
    newest = _last_cut(database, MAX_ANSWERS)
    if end - newest >= max(at_least, 1):
        database.execute("INSERT INTO cuts (position) VALUES (?)", (end,))
        newest = end
    _expect_cut(database, start)
    if newest > end:
        newest = _last_cut(database, end)
        if newest <= start:
            raise DataError(
                f"{database.path}: the answers after {start} must be uploaded together, and are"
                f" more than the {at_most} that the server accepts (devices-max-duels)"
            )
    # Until answers are forgotten again, repeated requests for this upload return the same answers.
    database.execute("UPDATE cuts SET forgotten = 0 WHERE position = ?", (newest,))
    return newest


def _skip_to(database: Database, counted: int) -> None:
    """Continue the numbers of answers after ``counted``: this store is an old backup.

    The server has counted its answers, and those that were lost with the newer store.
    """
    database.execute("DELETE FROM sqlite_sequence WHERE name = 'answers'")
    database.execute("INSERT INTO sqlite_sequence VALUES ('answers', ?)", (counted,))
    database.execute("INSERT INTO cuts (position) VALUES (?)", (counted,))


def admit(database: Database, start: int, end: int, theta: FloatArray, at_most: int) -> None:
    """Count a question about the answers between two cuts."""
    database.execute(
        "INSERT OR IGNORE INTO questions SELECT position, ? FROM cuts"
        " WHERE position > ? AND position <= ?",
        (hashlib.sha256(theta.tobytes()).digest(), start, end),
    )
    most = database.row(
        "SELECT coalesce(max(points), 0) FROM (SELECT count(*) AS points FROM questions"
        " WHERE cut > ? AND cut <= ? GROUP BY cut)",
        start,
        end,
    )[0]
    if most > at_most:
        raise DataError(
            f"{database.path}: the server has asked about the same answers at {at_most} different"
            " estimates; more would reveal single answers: refused. The device's owner can allow"
            " more (max-questions in --node-config)"
        )


def evidence(database: Database, start: int, end: int) -> Evidence:
    """Return the answers after ``start`` up to ``end``."""
    _expect_cut(database, start)
    _expect_cut(database, end)
    if start < end and database.row("SELECT forgotten FROM cuts WHERE position = ?", end)[0]:
        raise DataError(
            f"{database.path}: answers up to {end} were forgotten during this round: the round has"
            " to begin again"
        )
    rows = database.execute(
        "SELECT evidence FROM answers WHERE sequence > ? AND sequence <= ? ORDER BY sequence",
        (start, end),
    )
    width = (dimension(database) or 0) + EXTRA
    table = np.frombuffer(b"".join(row[0] for row in rows)).reshape(-1, width)
    if len(table) != max(end - start, 0):
        raise DataError(
            f"{database.path}: answers {start + 1} to {end} were requested, but only {len(table)}"
            " of them are left: the others were pruned, or lost when a backup was restored"
        )
    return Evidence(table[:, :-EXTRA], table[:, -EXTRA], table[:, -1])


def forget(database: Database, now: float) -> Forgotten:
    """Remove all open duels and answers."""
    sent = _last_cut(database, MAX_ANSWERS)
    counted = _last_cut(database, acknowledged(database))  # an upload is kept or removed as a whole
    proposals = database.execute("DELETE FROM proposals").rowcount
    unsent = database.execute("DELETE FROM answers WHERE sequence > ?", (sent,)).rowcount
    database.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'answers'", (sent,))
    uncertain = database.row(
        "SELECT count(*) FROM answers WHERE sequence > ? AND id IS NOT NULL", counted
    )[0]
    placeholder = np.zeros((dimension(database) or 0) + EXTRA)  # a tie between equal arms
    placeholder[-EXTRA:] = 0.5, np.nan
    database.execute(
        "UPDATE answers SET id = NULL, answered = ?, evidence = ? WHERE id IS NOT NULL",
        (now, placeholder.tobytes()),
    )
    database.execute("UPDATE cuts SET forgotten = 1")
    return Forgotten(proposals, unsent + uncertain, uncertain, counted)


def _last_cut(database: Database, up_to: int) -> int:
    query = "SELECT coalesce(max(position), 0) FROM cuts WHERE position <= ?"
    return int(database.row(query, up_to)[0])


def _expect_cut(database: Database, position: int) -> None:
    known = database.row("SELECT count(*) FROM cuts WHERE position = ?", position)[0]
    if position != 0 and not known:
        raise DataError(
            f"{database.path}: no upload ever ended at answer {position}: the server refers to"
            " another store, or this store is an old backup"
        )
