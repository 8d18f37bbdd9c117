"""Canonical bytes: exactly one sequence of bytes for each value, so that hashes can be compared.

The bytes are JSON with sorted names, without spaces, in ASCII. Other spellings of the same value
are refused. Bytes within are hexadecimal, in lower case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fldb_flower.errors import DataError, shown

_LENGTH_BYTES = 4


def to_json(fields: Mapping[str, Any]) -> bytes:
    """Return the canonical bytes of JSON values, bytes, and dataclasses of them."""
    text = json.dumps(
        fields, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain
    )
    return text.encode()


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else vars(value)


def from_json(content: bytes, what: str, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of canonical bytes; raise DataError if they are others, or damaged."""
    try:
        fields = json.loads(content.decode("ascii"))
        is_canonical = to_json(fields) == content  # not if a name is repeated
    except (ValueError, RecursionError) as reason:
        raise DataError(f"{what} is not JSON in ASCII: {reason}") from None
    if not is_canonical:
        raise DataError(f"{what} is not in canonical form")
    return checked_fields(fields, what, names)


def checked_fields(fields: Any, what: str, names: Iterable[str]) -> dict[str, Any]:
    """Return a mapping with exactly these names, or raise DataError."""
    if not isinstance(fields, dict) or set(fields) != set(names):
        has = [*fields] if isinstance(fields, dict) else fields
        raise DataError(f"{what} has {shown(has)}: must have {', '.join(sorted(names))}")
    return fields


def checked_integer(value: Any, what: str, low: int, high: int) -> int:
    """Return a value that is an int from low to high, or raise DataError."""
    if type(value) is not int or not low <= value <= high:
        raise DataError(f"{what} is {shown(value)}: must be a whole number, {low} to {high}")
    return value


def unhex(value: Any, what: str, size: int) -> bytes:
    """Return the bytes of a hexadecimal string in lower case, or raise DataError."""
    try:
        content = bytes.fromhex(value)
    except (TypeError, ValueError):
        content = b""
    if len(content) != size or content.hex() != value:
        raise DataError(f"{what} is {shown(value)}: must be {2 * size} hexadecimal digits")
    return content


def framed(fields: Mapping[str, Any], body: bytes) -> bytes:
    """Return 4 bytes of length, canonical JSON of that length, and a body."""
    index = to_json(fields)
    return len(index).to_bytes(_LENGTH_BYTES, "big") + index + body


def unframed(content: Any, what: str, names: Iterable[str]) -> tuple[dict[str, Any], bytes]:
    """Invert :func:`framed`; raise DataError if the bytes are damaged, or no bytes."""
    if type(content) is not bytes:  # a list of integers, for example
        raise DataError(f"{what} is {type(content).__name__}: must be bytes")
    end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "big")
    if len(content) < end:
        raise DataError(f"{what} has {len(content)} bytes: must have at least {end}")
    return from_json(content[_LENGTH_BYTES:end], what, names), content[end:]
