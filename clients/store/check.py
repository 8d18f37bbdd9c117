"""The check of a store's content on opening: the types, lengths and ranges of all values.

A file may be intact for SQLite although its content is not that of a duel store. Error messages
contain no value, since a device reports them to its server.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from clients.store.database import Database
from clients.store.records import selection_settings
from clients.store.schema import EXTRA, MAX_ANSWERS
from fldb_flower.bandit.estimate import VARIANCES
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.linalg.forms import make_form
from fldb_flower.settings import MAX_DIMENSION

_LONGEST = 2e100  # of a difference of two features, which are at most 1e100
_TIME = 1e15  # seconds
_FLOAT = 8  # bytes


class _Fault(Exception):  # noqa: N818 - never leaves this module
    """What is wrong, without the name of the file."""


def check(database: Database) -> None:
    """Check all tables of a store.

    Raises
    ------
    DataError
        A value is not one that a store contains, or a table has a wrong number of rows.
    """
    try:
        with database.snapshot():
            _check_device(database)
            d = database.row("SELECT dimension FROM device")[0] or 0
            _check_tables(database, d)
            _check_numbers(database, d)
            _check_estimate(database, d)
    except _Fault as damage:
        raise DataError(f"{database.path} is damaged: {damage}") from None


def _integer(least: int, most: int) -> tuple[str, str]:
    condition = f"typeof({{0}}) = 'integer' AND {{0}} BETWEEN {least} AND {most}"
    return condition, f"an integer from {least} to {most}"


def _real(least: float, most: float) -> tuple[str, str]:
    condition = f"typeof({{0}}) = 'real' AND {{0}} BETWEEN {least!r} AND {most!r}"
    return condition, f"a number from {least:g} to {most:g}"


def _floats(count: int) -> tuple[str, str]:
    condition = f"typeof({{0}}) = 'blob' AND length({{0}}) = {_FLOAT * count}"
    return condition, f"{count} numbers in {_FLOAT * count} bytes"


def _or_null(kind: tuple[str, str]) -> tuple[str, str]:
    return f"{{0}} IS NULL OR {kind[0]}", f"{kind[1]}, or NULL"


_TEXT = "typeof({0}) = 'text'", "text"
_BLOB = "typeof({0}) = 'blob'", "bytes"
_COUNT, _BOOLEAN, _NUMBER = _integer(0, MAX_ANSWERS), _integer(0, 1), _integer(1, MAX_ANSWERS)
_SECONDS = _real(-_TIME, _TIME)
_DEVICE = {
    "id": (
        f"{_TEXT[0]} AND length({{0}}) = 32 AND {{0}} NOT GLOB '*[^0-9a-f]*'",
        "32 hexadecimal digits",
    ),
    "dimension": _or_null(_integer(1, MAX_DIMENSION)),
    "removals": _COUNT,
    "minimum": _or_null(_NUMBER),
    "features": _or_null(_TEXT),
    "running": _SECONDS,
    "uptime": _or_null(_SECONDS),
}


def _check_columns(database: Database, table: str, columns: dict[str, tuple[str, str]]) -> None:
    valid = {column: f"({kind[0].format(column)})" for column, kind in columns.items()}
    if not database.row(
        f"SELECT 1 FROM {table} WHERE NOT ({' AND '.join(valid.values())}) LIMIT 1"
    ):
        return
    for column, (_, expected) in columns.items():
        query = f"SELECT typeof({column}), length({column}) FROM {table} WHERE NOT {valid[column]}"
        if found := database.row(f"{query} LIMIT 1"):
            raise _Fault(
                f"{table}.{column} contains a value of type {found[0]} and length {found[1]}:"
                f" must be {expected}"
            )


def _check_device(database: Database) -> None:
    (rows,) = database.row("SELECT count(*) FROM device")
    if rows != 1:
        raise _Fault(f"the table device has {rows} rows: must have one")
    _check_columns(database, "device", _DEVICE)
    names = _from_json(database.row("SELECT features FROM device")[0], "device.features", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _Fault("device.features is not a list of texts")


def _check_tables(database: Database, d: int) -> None:
    duel = _floats(d + EXTRA)
    share = _floats(d + d * (d + 1) // 2 + len(VARIANCES) + 1)
    tables = {
        "proposals": {
            "id": _TEXT, "created": _SECONDS, "expires": _SECONDS, "evidence": duel,
            "first_key": _or_null(_TEXT), "second_key": _or_null(_TEXT),
            "contents": _or_null(_TEXT), "begun": _SECONDS,
        },
        "answers": {
            "sequence": _NUMBER, "id": _or_null(_TEXT), "answered": _SECONDS, "evidence": duel,
        },
        "sqlite_sequence": {"seq": _COUNT},
        "cuts": {"position": _NUMBER, "forgotten": _BOOLEAN},
        "questions": {"cut": _NUMBER, "point": _floats(4)},
        "synchronized": {
            "received": _SECONDS, "round": _COUNT, "counted": _COUNT, "duels": _COUNT,
            "theta": _floats(d), "information": _BLOB, "parameters": _TEXT,
            "prior": _or_null(_floats(d + 2)),
        },
        "shares": {"cut": _NUMBER, "share": _or_null(share)},
        "secure": {"name": _TEXT, "content": _BLOB},
    }  # fmt: skip
    for table, columns in tables.items():
        _check_columns(database, table, columns)
    query = "SELECT count(*), coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'answers'"
    rows, last = database.row(query)
    queries = "SELECT max(sequence) AS number FROM answers UNION ALL SELECT max(position) FROM cuts"
    (newest,) = database.row(f"SELECT coalesce(max(number), 0) FROM ({queries})")
    if rows > 1 or newest > last:
        raise _Fault(f"sqlite_sequence.seq of the answers is {last}: must be {newest} or more")


def _check_numbers(database: Database, d: int) -> None:
    answers = _numbers(database, "SELECT evidence FROM answers", d + EXTRA)
    proposals = _numbers(database, "SELECT evidence FROM proposals", d + EXTRA)
    for table, duels in (("answers", answers), ("proposals", proposals)):
        predicted = duels[:, -1]
        if not (np.abs(duels[:, :-EXTRA]) <= _LONGEST).all():  # NaN too
            raise _Fault(f"{table}.evidence contains a difference that is not a finite number")
        if not (np.isnan(predicted) | ((predicted >= 0.0) & (predicted <= 1.0))).all():
            raise _Fault(f"{table}.evidence contains a prediction that is no probability")
    preferred = answers[:, -EXTRA]
    if not ((preferred == 0.0) | (preferred == 0.5) | (preferred == 1.0)).all():
        raise _Fault("answers.evidence contains a preference that is not 0, 0.5 or 1")
    query = "SELECT share FROM shares WHERE share IS NOT NULL"
    shares = database.execute(query).fetchall()
    if not all(np.isfinite(np.frombuffer(share)).all() for (share,) in shares):
        raise _Fault("shares.share contains a number that is not finite")
    rows = database.execute("SELECT contents FROM proposals WHERE contents IS NOT NULL")
    for (contents,) in rows:
        shown = _from_json(contents, "proposals.contents", [])
        if not isinstance(shown, list) or len(shown) != 2:
            raise _Fault("proposals.contents does not describe two arms")


def _numbers(database: Database, query: str, width: int) -> Any:
    rows = database.execute(query).fetchall()
    return np.frombuffer(b"".join(row[0] for row in rows)).reshape(-1, width)


def _check_estimate(database: Database, d: int) -> None:
    rows = database.execute("SELECT theta, information, parameters, prior FROM synchronized")
    estimates = rows.fetchall()
    if len(estimates) > 1:
        raise _Fault(f"the table synchronized has {len(estimates)} rows: must have at most one")
    for theta, information, parameters, prior in estimates:
        chosen = _from_json(parameters, "synchronized.parameters", {})
        if not isinstance(chosen, dict):
            raise _Fault("synchronized.parameters are not settings by name")
        try:
            form = make_form(selection_settings(chosen, d))
        except SettingsError as reason:
            raise _Fault(f"synchronized.parameters: {reason}") from None
        size = d * (d + 1) // 2 if prior is not None else form.size
        if len(information) != _FLOAT * size:
            raise _Fault(
                f"synchronized.information has {len(information)} bytes: must be {size} numbers in"
                f" {_FLOAT * size} bytes"
            )
        if not np.isfinite(np.frombuffer(theta + information + (prior or b""))).all():
            raise _Fault("the table synchronized contains a number that is not finite")


def _from_json(text: str | None, name: str, default: Any) -> Any:
    try:
        return default if text is None else json.loads(text)
    except (ValueError, RecursionError):
        raise _Fault(f"{name} is not JSON") from None
