"""Ratings as GroupLens publishes them: a file, a folder or the zip, whichever layout it has."""

from __future__ import annotations

import csv
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fldb_flower.errors import DataError

FILES = ("u.data", "ratings.dat", "ratings.csv")  # the first one found is read

_HEADER = "userId,movieId,rating,timestamp"
_LAYOUTS = f"tab-separated (u.data), '::'-separated (ratings.dat) or headed {_HEADER} (ratings.csv)"
_FIELDS = ("user", "item", "rating", "timestamp")
ID_LIMIT = 10**9  # ids of at most 9 digits: GroupLens's have 6
_CHUNK = 2_000_000  # lines; bounds the memory that ml-32m takes

IntArray = NDArray[np.int64]


@contextmanager
def one_line_errors(path: Path) -> Iterator[None]:
    """Turn what the file system and zip files raise into a DataError."""
    try:
        yield
    except (OSError, EOFError, RuntimeError, UnicodeError, zipfile.BadZipFile, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it ends too early"
        shown = " ".join(reason.split())[:120]
        raise DataError(
            f"{path}: cannot be read ({shown}); a MovieLens file, folder or zip is needed,"
            " whole and readable: download it again if it is damaged"
        ) from error


def ratings_file(path: Path) -> Path:
    """Return the ratings file that a path means, or the zip file."""
    if path.is_file():
        return path
    if path.is_dir():
        next(path.iterdir(), None)  # glob would take a folder that cannot be read for empty
        found = [file for name in FILES for way in (name, f"*/{name}") for file in path.glob(way)]
        names = (file.relative_to(path).as_posix() for file in found if file.is_file())
        return path / _choose(names, path)
    wrong = "is not a file or folder" if path.exists() else "no such file or folder"
    raise DataError(f"{path}: {wrong}; environment.path must name the MovieLens ratings")


def _choose(names: Iterable[str], path: Path) -> str:
    """Choose among the names in a folder or zip: top level first, then in order of FILES."""
    ranked: dict[tuple[int, int], list[str]] = {}
    for name in names:
        parts = PurePosixPath(name).parts
        if parts and parts[-1] in FILES and len(parts) <= 2 and not name.endswith("/"):
            ranked.setdefault((len(parts), FILES.index(parts[-1])), []).append(name)
    if not ranked:
        raise DataError(
            f"{path}: holds no MovieLens ratings; looked for {', '.join(FILES)}, at top level"
            " and one folder down"
        )
    best = sorted(ranked[min(ranked)])
    if len(best) > 1:
        raise DataError(f"{path}: holds {' and '.join(best)}; name the folder of one of them")
    return best[0]


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """Open the ratings, inside the zip if it is one."""
    with file.open("rb") as plain:
        is_zip = file.suffix.lower() == ".zip" or plain.read(4) == b"PK\x03\x04"
        plain.seek(0)
        if not is_zip:
            yield plain
            return
        archive = zipfile.ZipFile(plain)
        with archive, archive.open(_choose(archive.namelist(), file)) as member:
            yield member


def read_ratings(file: Path) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Return users, items and whether the rating is above 3, in the order of the file."""
    with _opened(file) as handle:
        first = handle.readline(1000)
    separator = _separator(first)
    if separator is None:
        wrong = f"line 1 is {_shown(first.decode('latin-1'))}" if first else "is empty"
        raise DataError(f"{file}: {wrong}; ratings must be {_LAYOUTS}")
    reason = ""
    with _opened(file) as handle:
        try:
            columns = _parse(handle, separator)
        except (ValueError, OverflowError, TypeError) as error:  # all that pandas raises
            reason = str(error)
            while handle.read(1 << 20):
                pass  # a damaged zip says so at its end, which tells more than a line
        else:
            if _is_whole(handle):
                return columns
    with _opened(file) as handle:
        fault = _fault(handle, separator)
    if fault or reason:
        example = separator.join(("196", "242", "3", "881250949"))
        fault = fault or f"cannot be read as ratings ({_shown(reason)})"
        raise DataError(
            f"{file}: {fault}; right is user, item, rating (0 to 5), timestamp, as in {example!r}"
        )
    return columns


def _is_whole(handle: IO[bytes]) -> bool:
    """Tell that the end is there: a file cut inside its last timestamp can be parsed too."""
    if isinstance(handle, zipfile.ZipExtFile):
        return True  # read to its end, it has passed its checksum
    handle.seek(-1, 2)
    return handle.read() == b"\n"


def _separator(first: bytes) -> str | None:
    """Tell the layout by its first line, so that a file may have any name."""
    text = first.decode("latin-1").strip()
    if text == _HEADER:
        return ","
    return next((mark for mark in ("::", "\t") if mark in text), None)


def _parse(handle: IO[bytes], separator: str) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Read the lines with pandas, fast but without telling where a fault is.

    Columns are split at one character, as pandas is slow otherwise: ``::`` gives an empty
    column after each. One more column catches lines that are too long.

    Raises
    ------
    ValueError, OverflowError, TypeError
        Some line is not as it should be.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import, and no other environment needs it

    step = len(separator)
    names = list(range(4 * step + 1))
    user, item, rating, time = names[:-1:step]
    kinds = dict.fromkeys(names, "float64") | dict.fromkeys((user, item, time), "int64")
    parts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what pandas only warns of is checked here
        with pd.read_csv(
            handle, sep=separator[0], header=None, names=names, index_col=False, dtype=kinds,
            quoting=csv.QUOTE_NONE, skiprows=int(separator == ","), chunksize=_CHUNK,
        ) as chunks:  # fmt: skip
            for chunk in chunks:
                ids = chunk[[user, item]].to_numpy()
                surplus = chunk.drop(columns=[user, item, rating, time]).notna().to_numpy()
                outside = (ids < 0).any() or (ids >= ID_LIMIT).any()
                if outside or surplus.any() or not chunk[rating].between(0, 5).all():
                    raise ValueError("a value is out of range")
                parts.append((ids[:, 0], ids[:, 1], (chunk[rating] > 3).to_numpy()))
    users, items, liked = (np.concatenate(column) for column in zip(*parts, strict=True))
    return users, items, liked


def _fault(lines: Iterable[bytes], separator: str) -> str | None:
    """Say what is wrong with the first line that is, or None: slow, after a failure only."""
    before: list[str] = []
    for number, line in enumerate(lines, start=1):
        text = line.decode("latin-1").strip("\r\n ")
        if not text or (number == 1 and text == _HEADER):
            continue
        fields = text.split(separator)
        cut = "" if line.endswith(b"\n") else " (the file seems cut short: download it again)"
        if len(fields) != len(_FIELDS):
            return f"line {number} has {len(fields)} fields instead of 4{cut}"
        for name, field in zip(_FIELDS, fields, strict=True):
            if not _is_valid(name, field.strip()):
                return f"line {number} has {name} {_shown(field)}{cut}"
        if cut and before and len(fields[-1]) < len(before[-1]):
            return f"line {number} has timestamp {_shown(fields[-1])}{cut}"
        before = fields
    return None


def _is_valid(name: str, field: str) -> bool:
    if name == "timestamp":
        return re.fullmatch(r"-?\d{1,18}", field, re.ASCII) is not None
    if name != "rating":
        return re.fullmatch(r"\d{1,9}", field, re.ASCII) is not None
    try:
        return 0 <= float(field) <= 5
    except ValueError:
        return False


def _shown(text: str) -> str:
    return repr(text.strip()[:40])  # one line, whatever the text
