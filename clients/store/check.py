"""The check of a store's content on opening: the types, lengths and ranges of all values.

A file may be intact for SQLite although its content is not that of a duel store. Error messages
contain no value, since a device reports them to its server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clients.store.database import EXTRA, MAX_ANSWERS, Database
from fldb_flower.bandit.estimate import VARIANCES
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.linalg.linear import make_form
from fldb_flower.settings import MAX_DIMENSION, SELECTION_SETTINGS, Settings

_LONGEST = 2e100  # of a difference of two features, which are at most 1e100
_FINITE = float(np.finfo(float).max)


def _is(kind: str, least: float, most: float) -> str:
    return f"typeof({{0}}) = '{kind}' AND {{0}} BETWEEN {least!r} AND {most!r}"


def _floats(count: int) -> str:
    return f"typeof({{0}}) = 'blob' AND length({{0}}) = {8 * count}"


def _json(condition: str) -> str:
    return f"typeof({{0}}) = 'text' AND CASE WHEN json_valid({{0}}) THEN {condition} ELSE 0 END"


def _conditions(d: int) -> dict[str, dict[str, str]]:
    """Return the condition of each column in SQL, with {0} for the column."""
    null, text, blob = "{0} IS NULL OR ", "typeof({0}) = 'text'", "typeof({0}) = 'blob'"
    count, number = _is("integer", 0, MAX_ANSWERS), _is("integer", 1, MAX_ANSWERS)
    seconds, duel, pair = _is("real", -1e15, 1e15), _floats(d + EXTRA), "json_array_length({0}) = 2"
    names = "NOT EXISTS (SELECT 1 FROM json_each({0}) AS each WHERE each.type != 'text')"
    return {
        "device": {
            "id": f"{text} AND length({{0}}) = 32 AND {{0}} NOT GLOB '*[^0-9a-f]*'",
            "dimension": null + _is("integer", 1, MAX_DIMENSION), "removals": count,
            "minimum": null + number, "running": seconds, "uptime": null + seconds,
            "features": null + _json(f"json_type({{0}}) = 'array' AND {names}"),
        },
        "proposals": {
            "id": text, "created": seconds, "expires": seconds, "evidence": duel,
            "first_key": null + text, "second_key": null + text,
            "contents": null + _json(pair), "begun": seconds,
        },
        "answers": {"sequence": number, "id": null + text, "answered": seconds, "evidence": duel},
        "sqlite_sequence": {"seq": count},
        "cuts": {"position": number, "forgotten": _is("integer", 0, 1)},
        "questions": {"cut": number, "point": _floats(4)},
        "synchronized": {
            "received": seconds, "round": count, "counted": count, "duels": count,
            "theta": _floats(d), "information": blob,
            "parameters": _json("json_type({0}) = 'object'"), "prior": null + _floats(d + 2),
        },
        "shares": {
            "cut": number, "share": null + _floats(d + d * (d + 1) // 2 + len(VARIANCES) + 1),
        },
        "secure": {"name": text, "content": blob},
    }  # fmt: skip


def check(database: Database) -> None:
    """Raise DataError if a value is not one that a store contains, or rows are missing."""
    with database.reading():
        for fault in _faults(database):
            raise DataError(f"{database.path} is damaged: {fault}")


def _faults(database: Database) -> Iterator[str]:
    d = database.value("SELECT dimension FROM device", default=0)
    d = d if isinstance(d, int) and 0 <= d <= MAX_DIMENSION else 0
    for table, least in (("device", 1), ("synchronized", 0)):
        rows = database.value(f"SELECT count(*) FROM {table}")
        if not least <= rows <= 1:
            yield f"the table {table} has {rows} rows: must have one"
    for table, columns in _conditions(d).items():
        valid = [f"({condition.format(column)})" for column, condition in columns.items()]
        query = f"SELECT {', '.join(valid)} FROM {table} WHERE NOT ({' AND '.join(valid)}) LIMIT 1"
        if found := database.row(query):
            wrong = found.index(0)
            yield f"{table}.{list(columns)[wrong]} must satisfy {valid[wrong]}"
    query = "SELECT count(*), coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'answers'"
    rows, last = database.row(query)
    queries = "SELECT max(sequence) AS number FROM answers UNION ALL SELECT max(position) FROM cuts"
    newest = database.value(f"SELECT coalesce(max(number), 0) FROM ({queries})")
    if rows > 1 or newest > last:
        yield f"sqlite_sequence.seq is {last}: must be {newest} or more"
    query = "SELECT information, parameters, prior FROM synchronized"
    for information, parameters, prior in database.rows(query):
        try:
            form = make_form(selection_settings(json.loads(parameters), d))
        except SettingsError as reason:
            yield f"synchronized.parameters: {reason}"
        size = 8 * (form.size if prior is None else d * (d + 1) // 2)
        if len(information) != size:
            yield f"synchronized.information must have {size} bytes"
    for table, column, width, most in (
        *(("answers", "evidence", d + 1, _LONGEST), ("proposals", "evidence", d, _LONGEST)),
        *(("synchronized", name, None, _FINITE) for name in ("theta", "information", "prior")),
        ("shares", "share", None, _FINITE),
    ):
        blobs = database.rows(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL")
        numbers = np.frombuffer(b"".join(row[0] for row in blobs))
        if width is not None:
            numbers = numbers.reshape(-1, d + EXTRA)[:, :width]
        if not (np.abs(numbers) <= most).all():  # NaN too
            yield f"{table}.{column} contains a number that is not finite"


def selection_settings(parameters: Mapping[str, Any], dimension: int) -> Settings:
    """Return the settings with which a device selects, from those of a server's run."""
    # A newer server may have other settings.
    chosen = {name: parameters[name] for name in SELECTION_SETTINGS if name in parameters}
    if str(chosen.get("algorithm")) not in ALGORITHMS:  # only registered in the ClientApp's process
        chosen.pop("algorithm", None)
    return replace(Settings(), dimension=dimension, **chosen)
