"""Reader of MovieLens ratings: a file, a folder or a zip, plain or compressed."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from fldb_flower.environments.text_files import finite_number
from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import IntArray

FILES = ("u.data", "ratings.dat", "ratings.csv")  # in order of preference
ID_LIMIT = 10**9  # ids have at most 9 digits (GroupLens's have 6)

_NAMES = (*FILES, *(f"{name}.gz" for name in FILES))
_HEADER = ["userId", "movieId", "rating", "timestamp"]
_IDS = ("user", "item")
_RANGES = {  # of the columns, in order; limits are inclusive
    **dict.fromkeys(_IDS, (0, ID_LIMIT - 1)),
    "rating": (0, 5),
    "timestamp": (-1e18, 1e18),
}
_VALID = (
    "expected: UTF-8 text with user, item, rating (0 to 5) and optionally timestamp on each line,"
    " such as '196,242,3,881250949', separated by comma, tab or '::'; the first line may be"
    f" {','.join(_HEADER)}"
)
_CHUNK = 2_000_000  # lines; limits the memory for ml-32m
_LONGEST = 1000  # characters of a line


class Ratings(NamedTuple):
    """For each rating, the user, the item and whether it is above 3; the lowest and highest."""

    users: IntArray
    items: IntArray
    liked: NDArray[np.bool_]
    ends: tuple[float, float]


class _Layout(NamedTuple):
    separator: str
    columns: tuple[str, ...]
    has_header: bool


@contextmanager
def one_line_errors(path: Path) -> Iterator[None]:
    """Convert errors of the file system and of compressed files to DataError."""
    damaged = (EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)
    try:
        yield
    except (OSError, UnicodeError, *damaged) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it ends too early"
        raise DataError(
            f"{one_line(path)}: cannot be read ({one_line(reason)[:120]}); environment.path must"
            " be a readable MovieLens file, folder or zip; download it again if it is damaged"
        ) from error


def ratings_file(path: Path) -> Path:
    """Return the ratings file or the zip file at a path."""
    if path.is_file():
        return path
    if path.is_dir():
        next(path.iterdir(), None)  # raises if the folder is unreadable, unlike glob
        found = [file for name in _NAMES for way in (name, f"*/{name}") for file in path.glob(way)]
        names = (file.relative_to(path).as_posix() for file in found if file.is_file())
        return path / _choose(names, path)
    wrong = "is not a file or folder" if path.exists() else "no such file or folder"
    raise DataError(f"{one_line(path)}: {wrong}; environment.path must be the MovieLens ratings")


def _choose(names: Iterable[str], path: Path) -> str:
    """Return the best name in a folder or zip: by depth, then in order of _NAMES."""
    ranked = sorted(
        ((len(parts), _NAMES.index(parts[-1])), name)
        for name in names
        if (parts := PurePosixPath(name).parts)[-1:] and parts[-1] in _NAMES
        if len(parts) <= 2 and parts[0] != "__MACOSX" and not name.endswith("/")
    )
    if not ranked:
        raise DataError(
            f"{one_line(path)}: contains no MovieLens ratings ({', '.join(FILES)}, plain or .gz, at"
            " the top level or one folder down)"
        )
    best = [one_line(name) for rank, name in ranked if rank == ranked[0][0]]
    if len(best) > 1:
        raise DataError(
            f"{one_line(path)}: contains {' and '.join(best)}; give the folder of one of them"
        )
    return ranked[0][1]


@contextmanager
def _opened(file: Path) -> Iterator[io.TextIOWrapper]:
    """Open the text of the ratings in a file, a zip or a .gz."""
    with ExitStack() as stack:
        handle: IO[bytes] | gzip.GzipFile = stack.enter_context(file.open("rb"))
        if _starts_with(handle, b"PK\x03\x04") or file.suffix.lower() == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(file))
            name = _choose(archive.namelist(), file)
            if archive.getinfo(name).compress_type == zipfile.ZIP_LZMA:  # raises other errors
                raise NotImplementedError("compressed with LZMA instead of deflate")
            handle = stack.enter_context(archive.open(name))
        if _starts_with(handle, b"\x1f\x8b"):
            handle = stack.enter_context(gzip.GzipFile(fileobj=handle))
        yield stack.enter_context(io.TextIOWrapper(handle, "utf-8-sig", "replace"))


def _starts_with(handle: IO[bytes] | gzip.GzipFile, magic: bytes) -> bool:
    start = handle.read(len(magic))
    handle.seek(0)
    return start == magic


def read_ratings(file: Path) -> Ratings:
    """Return the ratings in a file."""
    with _opened(file) as text:
        layout = _layout(text.read(_LONGEST))
    try:
        with _opened(file) as text:
            ratings = _parse(text, layout)
            fault = _truncation(text, layout) if len(ratings.users) else "contains no ratings"
    except (ValueError, OverflowError, TypeError) as error:  # raised by pandas
        with _opened(file) as text:
            fault = _fault(text, layout) or f"cannot be parsed ({_shown(str(error))})"
    if fault:
        raise DataError(f"{one_line(file)}: {fault}; {_VALID}")
    return ratings


def _layout(start: str) -> _Layout:
    """Return the layout of the first line."""
    line = start.strip(" \n").partition("\n")[0]
    separator = next((mark for mark in ("::", "\t") if mark in line), ",")
    fields = _fields(line, separator)
    columns = tuple(_RANGES)[: 3 if len(fields) == 3 else 4]
    return _Layout(separator, columns, fields == _HEADER[: len(columns)])


def _fields(line: str, separator: str) -> list[str]:
    fields = (field.strip(" \r\n") for field in line.split(separator))
    return [field[1:-1] if field[:1] == field[-1:] == '"' else field for field in fields]


def _parse(text: TextIO, layout: _Layout) -> Ratings:
    """Read the columns with pandas, which is fast but does not always report the line of an error.

    pandas is fast only with separators of one character. ``::`` is read as ``:``, with an empty
    column after each column. An invalid line raises ValueError, OverflowError or TypeError.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import, and used only here

    columns, step = layout.columns, len(layout.separator)
    names = [name if n == 0 else f"{name} {n}" for name in columns for n in range(step)]
    names = names[: len(names) - step + 1]
    gaps = [name for name in names if name not in columns]
    parts, ends = [], []
    header = 0 if layout.has_header else None
    with pd.read_csv(
        text, sep=layout.separator[0], names=names, header=header, dtype="float64", chunksize=_CHUNK
    ) as chunks:
        for chunk in chunks:
            ids = chunk[[*_IDS]].to_numpy()
            inside = all(chunk[name].between(*_RANGES[name]).all() for name in columns)
            # If the first line has too many fields, pandas uses the first column as the index.
            exact = isinstance(chunk.index, pd.RangeIndex) and chunk[gaps].isna().to_numpy().all()
            if not (inside and exact and (ids % 1 == 0).all()):
                raise ValueError("a value is out of range")
            parts.append((*ids.T.astype(np.int64), (chunk["rating"] > 3).to_numpy()))
            ends += [chunk["rating"].min(), chunk["rating"].max()]
    users, items, liked = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Ratings(users, items, liked, (min(ends), max(ends)))


def _fault(text: TextIO, layout: _Layout) -> str | None:
    """Describe the first invalid line, or return None. Slow: used after an error only."""
    lines = enumerate(iter(lambda: text.readline(_LONGEST), ""), start=1)
    filled = ((number, line) for number, line in lines if line.strip(" \n"))
    for number, line in islice(filled, int(layout.has_header), None):
        wrong = _wrong(line, layout)
        if wrong:
            last = "" if text.read(1) else " (the last line: the file may be truncated)"
            while text.read(1 << 20):
                pass  # a damaged zip or .gz raises a more helpful error at its end
            return f"line {number} has {wrong}{last}"
    return None


def _wrong(line: str, layout: _Layout) -> str | None:
    fields, expected = _fields(line, layout.separator), len(layout.columns)
    if len(fields) != expected:
        return f"{len(fields)} instead of {expected} fields: {_shown(line)}"
    for name, field in zip(layout.columns, fields, strict=True):
        if not _valid(name, field):
            return f"{name} {_shown(field)}"
    return None


def _valid(name: str, field: str) -> bool:
    (low, high), number = _RANGES[name], finite_number(field)
    in_range = number is not None and low <= number <= high
    return in_range and (name not in _IDS or float(field).is_integer())


def _truncation(text: io.TextIOWrapper, layout: _Layout) -> str | None:
    """Describe a last line whose timestamp is truncated, which is not a parsing error."""
    handle = text.buffer
    if not isinstance(handle, io.BufferedReader) or len(layout.columns) < len(_RANGES):
        return None  # compressed files have a checksum
    handle.seek(-min(_LONGEST, handle.seek(0, io.SEEK_END)), io.SEEK_END)
    lines = handle.read().decode("utf-8", "replace").splitlines(keepends=True)
    before, last = (line.split(layout.separator)[-1] for line in ["", "", *lines][-2:])
    if last.endswith(("\r", "\n")) or len(last.strip()) >= len(before.strip()):
        return None
    return f"the last line has timestamp {_shown(last)}: the file may be truncated"


def _shown(text: str) -> str:
    return repr(text.strip()[:40])  # always one line
