"""The tables of a duel store, and migrations from older versions."""

from __future__ import annotations

import secrets
import sqlite3

SCHEMA_VERSION = 6
APPLICATION_ID = 0x666C6462
"""SQLite's identifier of the application that owns a file: "fldb"."""

EXTRA = 2
"""Numbers after a difference in ``evidence``: preference, predicted preference."""
MAX_ANSWERS = 2**53

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
    information BLOB NOT NULL,   -- W_sync, packed (fldb_flower/linalg/forms.py): float64
    parameters TEXT NOT NULL,    -- JSON: how pairs are selected
    prior BLOB                   -- FLDB-Personal: c, v and the scale, d + 2 float64; else NULL
);
CREATE TABLE shares (            -- of FLDB-Personal (clients/store/shares.py)
    cut INTEGER PRIMARY KEY,     -- computed from the answers up to this cut
    share BLOB                   -- NULL: 0, and later shares cover the later answers only
);
CREATE TABLE secure (            -- of secure sums (clients/store/sums.py)
    name TEXT PRIMARY KEY,       -- journal, report
    content BLOB NOT NULL
) WITHOUT ROWID;
"""

# Schema 1 stored the keys of answered duels, which nothing needed.
_FROM_1 = """
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
"""

# Schema 2 had no shares of FLDB-Personal.
_FROM_2 = """
ALTER TABLE device ADD COLUMN removals INTEGER NOT NULL DEFAULT 0;
ALTER TABLE synchronized ADD COLUMN prior BLOB;
CREATE TABLE shares (
    cut INTEGER PRIMARY KEY,
    share BLOB
);
"""

# Schema 3 had neither the minimum of an upload nor names of features.
_FROM_3 = """
ALTER TABLE device ADD COLUMN minimum INTEGER;
ALTER TABLE device ADD COLUMN features TEXT;
"""

# Schema 4 had no secure sums.
_FROM_4 = """
CREATE TABLE secure (
    name TEXT PRIMARY KEY,
    content BLOB NOT NULL
) WITHOUT ROWID;
"""

# Schema 5 compared the expiry of a duel with the time of the day.
_FROM_5 = """
ALTER TABLE device ADD COLUMN running REAL NOT NULL DEFAULT 0;
ALTER TABLE device ADD COLUMN uptime REAL;
ALTER TABLE proposals ADD COLUMN begun REAL NOT NULL DEFAULT 0;
"""


def create(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty database, within a transaction."""
    _execute(connection, _TABLES)
    connection.execute("INSERT INTO device (id) VALUES (?)", (secrets.token_hex(16),))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Migrate the tables of an older version, within a transaction."""
    for script in (_FROM_1, _FROM_2, _FROM_3, _FROM_4, _FROM_5)[version - 1 :]:
        _execute(connection, script)


def _execute(connection: sqlite3.Connection, script: str) -> None:
    for statement in script.strip().split(";\n"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
