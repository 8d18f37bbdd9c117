"""Canonical bytes: exactly one sequence of bytes for each value, so that hashes can be compared.

The bytes are JSON with sorted names, without spaces, in ASCII. Other spellings of the same value
are refused. Bytes within are hexadecimal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from fldb_flower.errors import DataError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of federations."""

_LENGTH_BYTES = 4


def to_json(fields: Mapping[str, Any]) -> bytes:
    """Return the canonical bytes of a mapping of integers, strings, None, lists and mappings."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def from_json(content: bytes, what: str, names: Collection[str]) -> dict[str, Any]:
    """Return the fields of canonical bytes.

    Parameters
    ----------
    content : bytes
        The result of :func:`to_json`.
    what : str
        What the bytes are, for errors: ``"the header"``.
    names : collection of str
        Names of the fields: no more and no fewer are accepted.

    Raises
    ------
    DataError
        The bytes are not canonical JSON, or a field is unknown or missing.
    """
    fields = parse(content, what)
    check_fields(fields, what, names)
    try:
        is_canonical = to_json(fields) == content
    except (ValueError, RecursionError):  # a number that is not finite, or deep nesting
        is_canonical = False
    if not is_canonical:
        raise DataError(f"{what} is not in canonical form")
    return fields


def parse(content: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object, in any layout, without repeated names."""
    try:
        fields = json.loads(content.decode("ascii"), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as reason:  # includes UnicodeDecodeError
        raise DataError(f"{what} is not valid JSON in ASCII: {reason}") from None
    if not isinstance(fields, dict):
        raise DataError(f"{what} is not a JSON object")
    return fields


def check_fields(fields: Mapping[str, Any], what: str, names: Collection[str]) -> None:
    """Raise DataError unless the fields have exactly these names."""
    if unknown := sorted(set(fields) - set(names)):
        raise DataError(f"{what} has the unknown field {_short(unknown[0])}")
    if missing := sorted(set(names) - set(fields)):
        raise DataError(f"{what} lacks the field {missing[0]!r}")


def check_integer(what: str, value: object, low: int, high: int) -> None:
    """Raise DataError unless a value is an int from low to high."""
    if type(value) is not int or not low <= value <= high:
        raise DataError(f"{what} is {_short(value)}: must be a whole number, {low} to {high}")


def check_bytes(what: str, value: object, low: int, high: int) -> None:
    """Raise DataError unless a value is bytes with a length from low to high."""
    if type(value) is not bytes or not low <= len(value) <= high:
        size = f"{len(value)} bytes" if type(value) is bytes else _short(value)
        wanted = str(low) if low == high else f"{low} to {high}"
        raise DataError(f"{what} is {size}: must be {wanted} bytes")


def check_name(what: str, value: object) -> None:
    """Raise DataError unless a value is the name of a federation."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise DataError(
            f"{what} is {_short(value)}: must be 1 to 64 letters, digits, '.', '_' or '-'"
        )


def unhex(what: str, value: object) -> bytes:
    """Return the bytes of a hexadecimal string in lower case."""
    if not isinstance(value, str) or not re.fullmatch(r"([0-9a-f]{2})*", value):
        raise DataError(f"{what} is {_short(value)}: must be hexadecimal digits in lower case")
    return bytes.fromhex(value)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name is repeated")
    return fields


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def framed(fields: Mapping[str, Any], body: bytes) -> bytes:
    """Return 4 bytes of length, canonical JSON of that length, and a body."""
    index = to_json(fields)
    return len(index).to_bytes(_LENGTH_BYTES, "big") + index + body


def unframed(content: bytes, what: str, names: Collection[str]) -> tuple[dict[str, Any], bytes]:
    """Invert :func:`framed`; raise DataError if the bytes are damaged, or no bytes."""
    if type(content) is not bytes:  # a list of integers, for example
        raise DataError(f"{what} is {type(content).__name__}: must be bytes")
    end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "big")
    if len(content) < end:
        raise DataError(f"{what} has {len(content)} bytes: must have at least {end}")
    return from_json(content[_LENGTH_BYTES:end], what, names), content[end:]
