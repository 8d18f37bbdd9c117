"""Reader of ratings, such as MovieLens's: a file, a folder or a zip, plain or compressed."""

from __future__ import annotations

import gzip
import io
import lzma
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fldb_flower.environments.arms import is_text
from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import FloatArray, IntArray, finite_number

if TYPE_CHECKING:
    import pandas as pd

FILES = ("u.data", "ratings.dat", "ratings.csv")  # in order of preference
ID_LIMIT = 10**9  # ids have at most 9 digits (those of GroupLens have 6)

_NAMES = (*FILES, *(f"{name}.gz" for name in FILES))
_ROLES = {  # names of the columns in a header, in lower case and without spaces and the like
    "user": ("user", "userid", "person"), "item": ("item", "itemid", "movie", "movieid"),
    "rating": ("rating", "score", "stars", "like", "liked"), "timestamp": ("timestamp",),
}  # fmt: skip
_RANGES = {  # of numbers, by column; limits are inclusive
    "user": (0, ID_LIMIT - 1), "item": (0, ID_LIMIT - 1), "rating": (-1e100, 1e100),
    "timestamp": (-1e18, 1e18),
}  # fmt: skip
_VALID = (
    "expected: UTF-8 text with user, item, rating and optionally timestamp on each line, such as"
    " '196,242,3,881250949', separated by comma, semicolon, tab or '::'; a header may name the"
    " columns user, userId, user_id or person; item, itemId, item_id, movie, movieId or movie_id;"
    " rating, score, stars, like or liked (without this column, each line is a like); and others"
)
_CHUNK = 2_000_000  # lines; limits the memory for ml-32m
_LONGEST = 1000  # largest number of characters of a line


class Ratings(NamedTuple):
    """Numbers of the users and of the items, and what they rated: one entry per rating.

    Users and items that are strings are numbered in alphabetical order.
    """

    users: IntArray
    items: IntArray
    stars: FloatArray

    def liked(self, threshold: float | str) -> tuple[NDArray[np.bool_], str]:
        """Return which ratings are likes, and a description of the rule.

        ``auto`` means above 0.5 for likes (0 and 1), above 3 for five stars, including half stars,
        as in the paper, and above the person's mean for other scales.
        """
        stars = self.stars
        if isinstance(threshold, str):
            if np.isin(stars, (0, 1)).all():
                threshold = 0.5
            elif stars.min() >= 0 and 4 < stars.max() <= 5 and (stars % 0.5 == 0).all():
                threshold = 3.0
            else:
                counts = np.maximum(np.bincount(self.users), 1)
                excess = stars - (np.bincount(self.users, stars) / counts)[self.users]
                return excess > 1e-9 * np.abs(stars).max(), "above the person's mean"
        return stars > threshold, f"above {threshold:g}"


class _Layout(NamedTuple):
    """The format of the lines of a file; columns that are not in _ROLES are not read."""

    separator: str
    columns: list[str]
    has_header: bool

    @classmethod
    def of(cls, line: str) -> _Layout:
        """Return the layout that a first line shows; ValueError if its columns are not known."""
        marks = "::", "\t", max(";,", key=line.count) if ";" in line else ","
        separator = next((mark for mark in marks if mark in line), ",")
        fields = cls(separator, [], has_header=False).fields(line)
        words = [re.sub(r"[\W_]", "", field).lower() for field in fields]
        roles = {word: role for role, known in _ROLES.items() for word in known}
        columns = [roles.get(word, f"column {number}") for number, word in enumerate(words)]
        if "user" in columns or "item" in columns:
            if columns.count("user") == columns.count("item") == 1 >= columns.count("rating"):
                return cls(separator, columns, has_header=True)
        elif len(fields) < 2 or any(finite_number(field) is not None for field in fields):
            return cls(separator, [*_ROLES][: 3 if len(fields) == 3 else 4], has_header=False)
        raise ValueError(f"the columns are {one_line(', '.join(fields)[:80])}")

    def fields(self, line: str) -> list[str]:
        fields = (field.strip(" \r\n") for field in line.split(self.separator))
        return [field[1:-1] if field[:1] == field[-1:] == '"' else field for field in fields]

    def fault(self, line: str) -> str:
        """Return what is wrong with a line; empty if it is valid."""
        fields = self.fields(line)
        if len(fields) != len(self.columns):
            return f"{len(fields)} instead of {len(self.columns)} fields: {line.strip()[:40]!r}"
        for name, field in zip(self.columns, fields, strict=True):
            if name in {"user", "item"}:
                is_valid = _is_id(field)
            elif name == "rating" or (name == "timestamp" and not self.has_header):
                low, high = _RANGES[name]
                is_valid = low <= (math.inf if (n := finite_number(field)) is None else n) <= high
            else:
                continue
            if not is_valid:
                return f"{name} {field[:40]!r}"
        return ""


def _is_id(text: str) -> bool:
    """Return whether a string is a whole number, or a name that is not a number in any notation."""
    if (number := finite_number(text)) is not None:
        return number >= 0 and number.is_integer()
    is_readable = text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text
    return is_text(text) and is_readable and text[:1] != '"'  # a quote that does not end


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
    """Return the ratings in a file; a DataError names the first invalid line.

    Users and items are read as numbers, which is fast, or otherwise as text.
    """
    with _opened(file) as text:
        first = text.read(_LONGEST).strip(" \n").partition("\n")[0]
    try:
        layout = _Layout.of(first)
    except ValueError as error:
        with _opened(file) as text:
            _read_to_end(text)
        raise DataError(f"{one_line(file)}: {error}; {_VALID}") from None
    for has_names in (False, True):
        try:
            with _opened(file) as text:
                return _parse(text, layout, has_names=has_names)
        except (ValueError, OverflowError, TypeError) as error:  # raised by pandas
            reason = str(error)
    with _opened(file) as text:
        fault = _first_fault(text, layout) or f"cannot be parsed ({reason[:40]!r})"
    raise DataError(f"{one_line(file)}: {fault}; {_VALID}")


def _parse(text: io.TextIOWrapper, layout: _Layout, *, has_names: bool) -> Ratings:
    """Read the columns with pandas; an invalid line raises ValueError, OverflowError or TypeError.

    pandas is fast only with separators of one character. ``::`` is read as ``:``, with an empty
    column after each column.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import, and used only here

    columns = layout.columns
    gaps = [f"after {column}" for column in columns[1:]] if layout.separator == "::" else []
    names = columns if not gaps else [columns[0], *chain(*zip(gaps, columns[1:], strict=True))]
    numeric = {"user", "item", "rating", "timestamp"} - ({"user", "item"} if has_names else set())
    numeric -= {"timestamp"} if has_names and layout.has_header else set()
    known: list[dict[str, int]] = [{}, {}]
    parts = []
    with pd.read_csv(
        text, sep=layout.separator[0], names=names, header=0 if layout.has_header else None,
        dtype={name: "float64" if name in numeric else str for name in names}, chunksize=_CHUNK,
        keep_default_na=not has_names,
    ) as chunks:  # fmt: skip
        for chunk in chunks:
            are_valid = [chunk[name].between(*_RANGES[name]).all() for name in numeric & {*columns}]
            are_valid += [chunk[name].isin(["", math.nan]).all() for name in gaps]
            # If the first line has too many fields, pandas uses the first column as the index.
            if not (len(chunk) and all(are_valid) and isinstance(chunk.index, pd.RangeIndex)):
                raise ValueError("a value is out of range")
            ids = [
                _numbered(chunk[name], numbers) if has_names else chunk[name].to_numpy()
                for name, numbers in zip(("user", "item"), known, strict=True)
            ]
            if any((each != np.floor(each)).any() for each in ids):
                raise ValueError("an id is not a whole number")
            stars = chunk["rating"].to_numpy() if "rating" in columns else np.ones(len(chunk))
            parts.append((*(each.astype(np.int64) for each in ids), stars))
    users, items, stars = (np.concatenate(column) for column in zip(*parts, strict=True))
    if has_names:
        users, items = (
            np.argsort(np.argsort(np.array([*numbers])))[ids]
            for numbers, ids in zip(known, (users, items), strict=True)
        )
    return Ratings(users, items, stars)


def _numbered(column: pd.Series[str], known: dict[str, int]) -> IntArray:
    """Return the number of each string; ``known`` has earlier ones and receives new ones."""
    import pandas as pd  # noqa: PLC0415

    codes, texts = pd.factorize(column.str.strip())
    if (codes < 0).any() or not all(text in known or _is_id(text) for text in texts):
        raise ValueError("an id is neither a whole number nor a name")
    numbers: IntArray = np.array([known.setdefault(text, len(known)) for text in texts])
    return numbers[codes]


def _read_to_end(text: io.TextIOWrapper) -> None:
    """Read the rest: a damaged zip or .gz raises a more helpful error at its end."""
    while text.read(1 << 20):
        pass


def _first_fault(text: io.TextIOWrapper, layout: _Layout) -> str:
    """Describe the first invalid line; empty if there is none."""
    skips, has_ratings = layout.has_header, False
    for number, line in enumerate(iter(lambda: text.readline(_LONGEST), ""), start=1):
        if not line.strip(" \n"):
            continue
        if not skips and (fault := layout.fault(line)):
            _read_to_end(text)
            return f"line {number} has {fault}"
        skips, has_ratings = False, has_ratings or not skips
    return "" if has_ratings else "contains no ratings"
