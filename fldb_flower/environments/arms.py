"""Reader of a CSV file of arms: names, and features that are numbers or strings."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import LARGEST, FloatArray, finite_number
from fldb_flower.settings import MAX_DIMENSION

KEYS, OTHER_KEYS, CONTENTS = ("arm", "key"), ("item", "option"), ("text", "image")
"""Columns that are not features: the arm's name, and what a page shows of it."""

_VALID = "it must be UTF-8 text with the header arm,FEATURE,... and one arm per line"


class ArmTable(NamedTuple):
    """Arms in the order of the file, with the line of each, and their d features, (arms, d)."""

    arms: tuple[str, ...]
    lines: tuple[int, ...]
    names: tuple[str, ...]
    features: FloatArray
    contents: Mapping[str, Sequence[str]]  # the columns text and image, if there are any
    warning: str = ""  # about columns of texts that may be numbers


def parse_arms(content: bytes, largest: float = LARGEST) -> ArmTable:
    """Return the arms of a CSV file; a DataError names the line and the column.

    Without a column ``arm`` or ``key``, the column ``item`` or ``option`` has the names.
    A column of numbers is a feature. A column of strings gives one feature per string, such as
    ``colour=red``: 1 for the arms with this string and 0 for the others. Without features, each arm
    has an indicator, which gives the model of Bradley and Terry.
    """
    (line, header), *rows = read_rows(content, _VALID)
    key = [name for name in header if name in KEYS]
    key = key or [name for name in header if name in OTHER_KEYS]
    if not key and header[0].lower() not in {"", *CONTENTS}:
        fault = f"the first column is {header[0][:40]!r}"
        raise error_at(line, fault, f"it must be {KEYS[0]!r}, the name of each arm")
    if len(key) != 1 or "" in header or len({*header}) < len(header):
        raise error_at(line, f"the header is {','.join(header)[:40]!r}", _VALID)
    if len(rows) < 2:
        raise DataError(f"has {len(rows)} arms; a duel needs two")
    lines = tuple(line for line, _ in rows)
    columns = dict(zip(header, zip(*(row for _, row in rows), strict=True), strict=True))
    arms, seen = columns.pop(key[0]), set[str]()
    for line, arm in zip(lines, arms, strict=True):
        if not arm or arm in seen:
            raise error_at(line, f"{key[0]} is {arm[:40]!r}", "must be a name of its own")
        seen.add(arm)
    contents = {name: columns.pop(name) for name in CONTENTS if name in columns}
    if not columns:
        return ArmTable(arms, lines, arms, indicators(len(arms)), contents)
    names, features, distinct = list[str](), list[FloatArray](), list[str]()
    for column, cells in columns.items():
        numbers = _numbers(column, cells, largest, arms, lines)
        if numbers is not None:
            names, features = [*names, column], [*features, numbers]
            continue
        texts = {text: number for number, text in enumerate(dict.fromkeys(cells))}
        distinct += [one_line(column)] * (len(texts) == len(arms) > 2)
        places = np.array([texts[cell] for cell in cells])
        names += [f"{column}={text}" for text in texts]
        features += [*indicators(len(texts))[places].T]
    if len({*names}) < len(names) or len(names) > MAX_DIMENSION:
        raise DataError(f"has {len(names)} features; at most {MAX_DIMENSION}, each with its name")
    warning = f"each arm has a different text in {', '.join(distinct)}"
    warning = f"{warning}; if these are numbers, remove their unit" if distinct else ""
    return ArmTable(arms, lines, tuple(names), np.column_stack(features), contents, warning)


def indicators(count: int) -> FloatArray:
    """Return the identity matrix, (count, count): its rows tell apart ``count`` things."""
    if count > MAX_DIMENSION:
        raise DataError(f"has {count} different texts or arms: at most {MAX_DIMENSION} indicators")
    return np.eye(count)


def _numbers(
    column: str, cells: Sequence[str], largest: float, arms: Sequence[str], lines: Sequence[int]
) -> FloatArray | None:
    """Return the numbers of a column, or None if all cells are strings; raise at a fault."""
    numbers = [finite_number(cell) for cell in cells]
    wrong = [number is None or abs(number) > largest for number in numbers]
    if not any(wrong):
        return np.array(numbers, dtype=np.float64)
    texts = [is_wrong and is_text(cell) for is_wrong, cell in zip(wrong, cells, strict=True)]
    if all(texts):
        return None
    neither = [is_wrong > is_text for is_wrong, is_text in zip(wrong, texts, strict=True)]
    row = (neither if any(neither) else wrong).index(True)
    fault = f"{one_line(column)} of {arms[row][:40]!r} is {cells[row][:40]!r}"
    required = f"must be a number within +-{largest:g}, or every line must have text here"
    if "," in cells[row] and not is_text(cells[row]):
        required = "write numbers with a decimal point, without commas"
    if not cells[row]:
        fault, required = f"{one_line(column)} of {arms[row][:40]!r} is empty", "fill or remove it"
    raise error_at(lines[row], fault, required)


def is_text(cell: str) -> bool:
    """Return whether a cell is a string, not a number in another notation such as nan or 1,5."""
    try:
        float(cell.replace(",", "") or "nan")
    except ValueError:
        return True
    return False


def read_rows(content: bytes, valid: str) -> list[tuple[int, list[str]]]:
    """Return line number and fields of the header and of each row that is not blank.

    The separator is the most frequent one of comma, semicolon and tab in the header. ``valid`` says
    what the file must be, for a DataError.
    """
    try:
        text = content.decode("utf-8-sig")
        separator = max(",;\t", key=text.lstrip().partition("\n")[0].count)
        reader = csv.reader(
            io.StringIO(text, newline=""), strict=True, delimiter=separator, skipinitialspace=True
        )
        lines = [(reader.line_num, [field.strip() for field in row]) for row in reader]
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        valid += '; in Excel, save it as "CSV UTF-8"'
        raise error_at(line, "it is not in UTF-8", valid) from None
    except csv.Error as error:
        raise error_at(reader.line_num, str(error), valid) from None
    rows = [(line, row) for line, row in lines if any(row)]
    if not rows:
        raise DataError(f"is empty; {valid}")
    for line, row in rows:
        if len(row) != (columns := len(rows[0][1])):
            fault = f"{len(row)} instead of {columns} fields: {','.join(row)[:40]!r}"
            raise error_at(line, fault, valid)
    return rows


def error_at(line: int, fault: str, required: str) -> DataError:
    """Return the error of a line of a file, to which the reader of the file adds its path."""
    return DataError(f"line {line}: {fault}; {required}")
