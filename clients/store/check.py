"""The check of a store's content on opening: the types, lengths and ranges of all values.

A file may be intact for SQLite although its content is not that of a duel store. Error messages
contain no value, since a device reports them to its server.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from clients.store.database import Database
from clients.store.records import EXTRA, MAX_ANSWERS, selection_settings
from fldb_flower.bandit.prior import VARIANCES
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.linalg.forms import make_form
from fldb_flower.settings import MAX_DIMENSION

_LONGEST = 2e100  # of a difference of two features, which are at most 1e100


def _is(kind: str, least: float, most: float) -> str:
    return f"typeof({{0}}) = '{kind}' AND {{0}} BETWEEN {least!r} AND {most!r}"


def _floats(count: int) -> str:
    return f"typeof({{0}}) = 'blob' AND length({{0}}) = {8 * count}"


def _json(condition: str) -> str:
    return f"typeof({{0}}) = 'text' AND CASE WHEN json_valid({{0}}) THEN {condition} ELSE 0 END"


_TEXT, _BLOB = "typeof({0}) = 'text'", "typeof({0}) = 'blob'"
_COUNT, _NUMBER = _is("integer", 0, MAX_ANSWERS), _is("integer", 1, MAX_ANSWERS)
_SECONDS = _is("real", -1e15, 1e15)
_NULL = "{0} IS NULL OR "
_NAMES = _json(
    "json_type({0}) = 'array' AND NOT EXISTS"
    " (SELECT 1 FROM json_each({0}) AS each WHERE each.type != 'text')"
)
_DEVICE = {
    "id": f"{_TEXT} AND length({{0}}) = 32 AND {{0}} NOT GLOB '*[^0-9a-f]*'",
    "dimension": _NULL + _is("integer", 1, MAX_DIMENSION),
    "removals": _COUNT, "minimum": _NULL + _NUMBER, "features": _NULL + _NAMES,
    "running": _SECONDS, "uptime": _NULL + _SECONDS,
}  # fmt: skip


def check(database: Database) -> None:
    """Raise DataError if a value is not one that a store contains, or rows are missing."""
    with database.reading():
        if fault := _fault(database):
            raise DataError(f"{database.path} is damaged: {fault}")


def _fault(database: Database) -> str | None:
    """Return the first fault; the conditions of values are written in SQL."""
    if database.row("SELECT count(*) FROM device") != (1,):
        return "the table device has not one row"
    if fault := _wrong_value(database, "device", _DEVICE):
        return fault
    d = database.row("SELECT dimension FROM device")[0] or 0
    evidence, contents = _floats(d + EXTRA), _json("json_array_length({0}) = 2")
    share = _floats(d + d * (d + 1) // 2 + len(VARIANCES) + 1)
    tables = {
        "proposals": {
            "id": _TEXT, "created": _SECONDS, "expires": _SECONDS, "evidence": evidence,
            "first_key": _NULL + _TEXT, "second_key": _NULL + _TEXT,
            "contents": _NULL + contents, "begun": _SECONDS,
        },
        "answers": {
            "sequence": _NUMBER, "id": _NULL + _TEXT, "answered": _SECONDS, "evidence": evidence,
        },
        "sqlite_sequence": {"seq": _COUNT},
        "cuts": {"position": _NUMBER, "forgotten": _is("integer", 0, 1)},
        "questions": {"cut": _NUMBER, "point": _floats(4)},
        "synchronized": {
            "received": _SECONDS, "round": _COUNT, "counted": _COUNT, "duels": _COUNT,
            "theta": _floats(d), "information": _BLOB, "parameters": _json("1"),
            "prior": _NULL + _floats(d + 2),
        },
        "shares": {"cut": _NUMBER, "share": _NULL + share},
        "secure": {"name": _TEXT, "content": _BLOB},
    }  # fmt: skip
    for table, columns in tables.items():
        if fault := _wrong_value(database, table, columns):
            return fault
    query = "SELECT count(*), coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'answers'"
    rows, last = database.row(query)
    queries = "SELECT max(sequence) AS number FROM answers UNION ALL SELECT max(position) FROM cuts"
    (newest,) = database.row(f"SELECT coalesce(max(number), 0) FROM ({queries})")
    if rows > 1 or newest > last:
        return f"sqlite_sequence.seq of the answers is {last}: must be {newest} or more"
    return _wrong_number(database, d) or _wrong_estimate(database, d)


def _wrong_value(database: Database, table: str, columns: dict[str, str]) -> str | None:
    valid = [f"({condition.format(column)})" for column, condition in columns.items()]
    found = database.row(
        f"SELECT {', '.join(valid)} FROM {table} WHERE NOT ({' AND '.join(valid)}) LIMIT 1"
    )
    if not found:
        return None
    wrong = found.index(0)
    return f"{table}.{list(columns)[wrong]} must satisfy {valid[wrong]}"


def _wrong_number(database: Database, d: int) -> str | None:
    for table, valid in (("answers", (0.0, 0.5, 1.0)), ("proposals", None)):
        numbers = _numbers(database, f"SELECT evidence FROM {table}").reshape(-1, d + EXTRA)
        differences, preferred, predicted = numbers[:, :d], numbers[:, d], numbers[:, d + 1]
        if not (np.abs(differences) <= _LONGEST).all():  # NaN too
            return f"{table}.evidence contains a difference that is not a finite number"
        if not (np.isnan(predicted) | ((predicted >= 0.0) & (predicted <= 1.0))).all():
            return f"{table}.evidence contains a prediction that is no probability"
        if valid and not np.isin(preferred, valid).all():
            return f"{table}.evidence contains a preference that is not 0, 0.5 or 1"
    if not np.isfinite(_numbers(database, "SELECT share FROM shares WHERE share NOTNULL")).all():
        return "shares.share contains a number that is not finite"
    return None


def _numbers(database: Database, query: str) -> Any:
    return np.frombuffer(b"".join(row[0] for row in database.rows(query)))


def _wrong_estimate(database: Database, d: int) -> str | None:
    estimates = database.rows("SELECT theta, information, parameters, prior FROM synchronized")
    if len(estimates) > 1:
        return f"the table synchronized has {len(estimates)} rows: must have at most one"
    for theta, information, parameters, prior in estimates:
        chosen = json.loads(parameters)
        if not isinstance(chosen, dict):
            return "synchronized.parameters are not settings by name"
        try:
            form = make_form(selection_settings(chosen, d))
        except SettingsError as reason:
            return f"synchronized.parameters: {reason}"
        size = d * (d + 1) // 2 if prior is not None else form.size
        if len(information) != 8 * size:
            return f"synchronized.information must have {size} numbers in {8 * size} bytes"
        if not np.isfinite(np.frombuffer(theta + information + (prior or b""))).all():
            return "the table synchronized contains a number that is not finite"
    return None
