"""Reader of MovieLens ratings: a file, a folder or a zip, plain or compressed."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import IntArray, finite_number

FILES = ("u.data", "ratings.dat", "ratings.csv")  # in order of preference
ID_LIMIT = 10**9  # ids have at most 9 digits (GroupLens's have 6)

_NAMES = (*FILES, *(f"{name}.gz" for name in FILES))
_HEADER = "userId,movieId,rating,timestamp"
_RANGES = {  # of the columns, in order; limits are inclusive
    "user": (0, ID_LIMIT - 1), "item": (0, ID_LIMIT - 1), "rating": (0, 5),
    "timestamp": (-1e18, 1e18),
}  # fmt: skip
_VALID = (
    "expected: UTF-8 text with user, item, rating (0 to 5) and optionally timestamp on each line,"
    " such as '196,242,3,881250949', separated by comma, tab or '::'; the first line may be"
    f" {_HEADER}"
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
    """How the lines of a file are written."""

    separator: str
    columns: list[str]
    has_header: bool

    def fields(self, line: str) -> list[str]:
        fields = (field.strip(" \r\n") for field in line.split(self.separator))
        return [field[1:-1] if field[:1] == field[-1:] == '"' else field for field in fields]

    def fault(self, line: str) -> str:
        """Return what is wrong with a line; empty if it is valid."""
        fields = self.fields(line)
        if len(fields) != len(self.columns):
            return f"{len(fields)} instead of {len(self.columns)} fields: {line.strip()[:40]!r}"
        for name, field in zip(self.columns, fields, strict=True):
            (low, high), number = _RANGES[name], finite_number(field)
            is_id = name in {"user", "item"}
            if number is None or not low <= number <= high or is_id > number.is_integer():
                return f"{name} {field[:40]!r}"
        return ""


@contextmanager
def one_line_errors(path: Path) -> Iterator[None]:
    """Convert errors of the file system and of compressed files to DataError."""
    damaged = (EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error)
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
        found = [file for name in _NAMES for way in (name, f"*/{name}") for file in path.glob(way)]
        names = (file.relative_to(path).as_posix() for file in found if file.is_file())
        return path / _choose(names, path)
    wrong = "is not a file or folder" if path.exists() else "no such file or folder"
    raise DataError(f"{one_line(path)}: {wrong}; environment.path must be the MovieLens ratings")


def _choose(names: Iterable[str], path: Path) -> str:
    """Return the best name in a folder or zip: by depth, then in order of _NAMES."""
    ranks: dict[tuple[int, int], list[str]] = {}
    for name in names:
        *folders, file = PurePosixPath(name).parts
        if len(folders) < 2 and file in _NAMES and folders != ["__MACOSX"] and name[-1] != "/":
            ranks.setdefault((len(folders), _NAMES.index(file)), []).append(name)
    if not ranks:
        raise DataError(
            f"{one_line(path)}: contains no MovieLens ratings ({', '.join(FILES)}, plain or .gz, at"
            " the top level or one folder down)"
        )
    best = sorted(ranks[min(ranks)])
    if len(best) > 1:
        several = " and ".join(map(one_line, best))
        raise DataError(f"{one_line(path)}: contains {several}; give the folder of one of them")
    return best[0]


@contextmanager
def _opened(file: Path) -> Iterator[io.TextIOWrapper]:
    """Open the text of the ratings in a file, a zip or a .gz."""
    with ExitStack() as stack:
        name = file.name
        handle: IO[bytes] | gzip.GzipFile = stack.enter_context(file.open("rb"))
        if file.suffix.lower() == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(file))
            name = _choose(archive.namelist(), file)
            handle = stack.enter_context(archive.open(name))
        if name.lower().endswith(".gz"):
            handle = stack.enter_context(gzip.GzipFile(fileobj=handle))
        yield stack.enter_context(io.TextIOWrapper(handle, "utf-8-sig", "replace"))


def read_ratings(file: Path) -> Ratings:
    """Return the ratings in a file; a DataError names the first invalid line."""
    with _opened(file) as text:
        first = text.read(_LONGEST).strip(" \n").partition("\n")[0]
    separator = next((mark for mark in ("::", "\t") if mark in first), ",")
    fields = _Layout(separator, [], has_header=False).fields(first)
    columns = [*_RANGES][: 3 if len(fields) == 3 else 4]
    layout = _Layout(separator, columns, fields == _HEADER.split(",")[: len(columns)])
    try:
        with _opened(file) as text:
            return _parse(text, layout)
    except (ValueError, OverflowError, TypeError) as error:  # raised by pandas
        with _opened(file) as text:
            fault = _first_fault(text, layout) or f"cannot be parsed ({str(error)[:40]!r})"
        raise DataError(f"{one_line(file)}: {fault}; {_VALID}") from None


def _parse(text: io.TextIOWrapper, layout: _Layout) -> Ratings:
    """Read the columns with pandas; an invalid line raises ValueError, OverflowError or TypeError.

    pandas is fast only with separators of one character. ``::`` is read as ``:``, with an empty
    column after each column.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import, and used only here

    names, columns = list(layout.columns), layout.columns
    if layout.separator == "::":
        names = [name for column in columns for name in (column, f"after {column}")][:-1]
    parts, ends = [], []
    with pd.read_csv(
        text, sep=layout.separator[0], names=names, header=0 if layout.has_header else None,
        dtype="float64", chunksize=_CHUNK,
    ) as chunks:  # fmt: skip
        for chunk in chunks:
            ids, gaps = chunk[["user", "item"]].to_numpy(), chunk.drop(columns=columns)
            are_valid = [chunk[name].between(*_RANGES[name]).all() for name in columns]
            are_valid += [(ids == np.floor(ids)).all(), gaps.isna().to_numpy().all()]
            # If the first line has too many fields, pandas uses the first column as the index.
            if not (len(chunk) and all(are_valid) and isinstance(chunk.index, pd.RangeIndex)):
                raise ValueError("a value is out of range")
            parts.append((*ids.T.astype(np.int64), (chunk["rating"] > 3).to_numpy()))
            ends += [chunk["rating"].min(), chunk["rating"].max()]
    users, items, liked = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Ratings(users, items, liked, (min(ends), max(ends)))


def _first_fault(text: io.TextIOWrapper, layout: _Layout) -> str:
    """Describe the first invalid line; empty if there is none."""
    skips, has_ratings = layout.has_header, False
    for number, line in enumerate(iter(lambda: text.readline(_LONGEST), ""), start=1):
        if not line.strip(" \n"):
            continue
        if not skips and (fault := layout.fault(line)):
            while text.read(1 << 20):
                pass  # a damaged zip or .gz raises a more helpful error at its end
            return f"line {number} has {fault}"
        skips, has_ratings = False, has_ratings or not skips
    return "" if has_ratings else "contains no ratings"
