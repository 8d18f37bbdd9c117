"""Reader of paired-comparison studies: the answers of people, and the features of arms."""

from __future__ import annotations

import csv
import io
from collections.abc import Container, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import LARGEST, FloatArray, IntArray, finite_number
from fldb_flower.system.files import read_file

ARMS, DUELS = "arms.csv", "duels.csv"
COLUMNS = ("person", "first", "second", "preference")

_REQUIRED = {
    ARMS: "it must be a UTF-8 text with the header arm,FEATURE,... and one arm per line",
    DUELS: f"it must be a UTF-8 text with the header {','.join(COLUMNS)} and one duel per line",
}
_FOLDER = f"the folder of a study, with {ARMS} and {DUELS}"


class Study(NamedTuple):
    """Duels that people answered. People are numbered in order of their first duel.

    ``features`` is (arms, d). The other arrays have one entry per duel: the numbers of the person
    and of the two arms, and the preference for the first arm.
    """

    folder: Path
    arms: tuple[str, ...]
    people: tuple[str, ...]
    features: FloatArray
    person: IntArray
    first: IntArray
    second: IntArray
    preference: FloatArray

    @property
    def answers(self) -> IntArray:
        """Number of answers of each person."""
        return np.bincount(self.person, minlength=len(self.people))

    def averaged(
        self, people: Sequence[int] | IntArray
    ) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
        """Return the pairs that people answered, each once, as arrays: place, low, high, share.

        They are the position of the person in ``people``, the numbers of the two arms, low < high,
        and the person's average preference for ``low``, in either order of the arms.
        """
        places = np.full(len(self.people), -1)
        places[people] = np.arange(len(people))
        used = places[self.person] >= 0
        first, second, count = self.first[used], self.second[used], len(self.arms)
        low, high = np.minimum(first, second), np.maximum(first, second)
        preference = self.preference[used]
        toward_low = np.where(first < second, preference, 1.0 - preference)
        keys, row = np.unique(
            (places[self.person[used]] * count + low) * count + high, return_inverse=True
        )
        share = np.bincount(row, toward_low) / np.bincount(row)
        return keys // count**2, keys // count % count, keys % count, share


def read_study(path: str) -> Study:
    """Return the study in a folder; it is read once per process, unless a file changes.

    ``arms.csv`` has a header and one line per arm: its name, in the column ``arm``, and its
    features. ``duels.csv`` has a header and one line per answer, with the columns ``person``,
    ``first``, ``second`` (names of arms) and ``preference``, in any order. Other columns of it are
    ignored. A preference between 0 and 1 is a degree: 0.75 is three wins of the first arm in four.
    """
    if not path:
        raise DataError(f"environment.path is empty: set it to {_FOLDER}")
    try:
        folder = Path(path).expanduser().absolute()
        states = [(folder / name).stat() for name in _REQUIRED]
        return _study(folder, tuple((state.st_mtime_ns, state.st_size) for state in states))
    except (OSError, RuntimeError, ValueError) as error:  # ~ of an unknown user, a zero byte
        file = getattr(error, "filename", None) or path
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{one_line(file)}: cannot be read ({reason}); environment.path must be {_FOLDER}"
        ) from None


@lru_cache(maxsize=8)
def _study(folder: Path, version: object) -> Study:  # noqa: ARG001 - a key of the cache
    features = _arms(folder / ARMS)
    numbers = {arm: number for number, arm in enumerate(features)}
    people: dict[str, int] = {}
    duels = [
        (people.setdefault(person, len(people)), numbers[first], numbers[second], preference)
        for person, first, second, preference in _duels(folder / DUELS, numbers)
    ]
    columns = [np.array(column) for column in zip(*duels, strict=True)]
    return Study(folder, tuple(features), tuple(people), np.array([*features.values()]), *columns)


def _arms(file: Path) -> dict[str, list[float]]:
    """Return the features of each arm by its name."""
    (line, header), *rows = _rows(file)
    if header[0] != "arm" or len(set(header) - {""}) < max(2, len(header)):
        raise _error(file, line, f"the header is {','.join(header)[:40]!r}")
    arms: dict[str, list[float]] = {}
    for line, (name, *texts) in rows:
        if not name or name in arms:
            raise _error(file, line, f"arm is {name[:40]!r}", "must be a name of its own")
        arms[name] = []
        for column, text in zip(header[1:], texts, strict=True):
            number = finite_number(text)
            if number is None or abs(number) > LARGEST:
                fault = f"{one_line(column)} of {name[:40]!r} is {text[:40]!r}"
                raise _error(file, line, fault, f"must be a number within +-{LARGEST:g}")
            arms[name].append(number)
    if len(arms) < 2:
        raise DataError(f"{one_line(file)}: has {len(arms)} arms; a duel needs two")
    return arms


def _duels(file: Path, arms: Container[str]) -> Iterator[tuple[str, str, str, float]]:
    """Yield person, first, second and preference of each duel."""
    (line, header), *rows = _rows(file)
    if any(header.count(column) != 1 for column in COLUMNS):
        raise _error(file, line, f"the header is {','.join(header)[:40]!r}")
    if not rows:
        raise DataError(f"{one_line(file)}: has no duels; {_REQUIRED[DUELS]}")
    for line, row in rows:
        person, first, second, preference = (row[header.index(column)] for column in COLUMNS)
        for column, arm in (("first", first), ("second", second)):
            if arm not in arms:
                raise _error(file, line, f"{column} is {arm[:40]!r}", f"must be an arm of {ARMS}")
        if not person or first == second:
            fault = f"first and second are both {first[:40]!r}" if person else "person is empty"
            raise _error(file, line, fault)
        share = finite_number(preference)
        if share is None or not 0.0 <= share <= 1.0:
            required = "must be 1 (the first arm won), 0 (the second won) or 0.5 (a tie)"
            raise _error(file, line, f"preference is {preference[:40]!r}", required)
        yield person, first, second, share


def _rows(file: Path) -> list[tuple[int, list[str]]]:
    """Return line number and fields of the header and of each row that is not blank."""
    content = read_file(file, 2**30)
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        lines = [(reader.line_num, [field.strip() for field in row]) for row in reader]
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise _error(file, line, "it is not in UTF-8") from None
    except csv.Error as error:
        raise _error(file, reader.line_num, str(error)) from None
    rows = [(line, row) for line, row in lines if any(row)]
    if not rows:
        raise DataError(f"{one_line(file)}: is empty; {_REQUIRED[file.name]}")
    for line, row in rows:
        if len(row) != (columns := len(rows[0][1])):
            fault = f"{len(row)} instead of {columns} fields: {','.join(row)[:40]!r}"
            raise _error(file, line, fault)
    return rows


def _error(file: Path, line: int, fault: str, required: str = "") -> DataError:
    return DataError(f"{one_line(file)}: line {line}: {fault}; {required or _REQUIRED[file.name]}")
