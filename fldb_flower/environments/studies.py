"""Reader of paired-comparison studies: the answers of people, and the features of arms."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fldb_flower.environments.text_files import finite_number, read_text
from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import LARGEST, FloatArray, IntArray

ARMS, DUELS = "arms.csv", "duels.csv"
COLUMNS = ("person", "first", "second", "preference")

_FILES = {
    ARMS: "it must be a UTF-8 text with the header arm,FEATURE,... and one arm per line",
    DUELS: f"it must be a UTF-8 text with the header {','.join(COLUMNS)} and one duel per line",
}

Row = tuple[int, list[str]]
"""The number of a line, from 1, and its fields."""


class Study(NamedTuple):
    """Duels that people answered. People are numbered in order of their first duel.

    Attributes
    ----------
    folder : Path
        Where it was read.
    arms, people : tuple of str
        Names.
    features : ndarray
        (arms, d), float64.
    person, first, second : ndarray
        Of each duel, the number of the person and of the two arms, (duels,), int64.
    preference : ndarray
        1 if the first arm won, 0 if the second won, 0.5 for a tie, (duels,), float64.
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


def read_study(path: str) -> Study:
    """Return the study in a folder; it is read once per process, unless a file changes.

    ``arms.csv`` has a header and one line per arm: its name, in the column ``arm``, and its
    features. ``duels.csv`` has a header and one line per answer, with the columns ``person``,
    ``first``, ``second`` (names of arms) and ``preference``, in any order. Other columns of it are
    ignored. A preference between 0 and 1 is a degree: 0.75 is three wins of the first arm in four.
    """
    if not path:
        raise DataError(
            f"environment.path is empty: set it to the folder of a study, with {ARMS} and {DUELS}"
        )
    try:
        folder = Path(path).expanduser().absolute()
        if not folder.is_dir():
            wrong = "is not a folder" if folder.exists() else "no such folder"
            raise DataError(
                f"{one_line(folder)}: {wrong}; environment.path must be the folder of a study, with"
                f" {ARMS} and {DUELS}"
            )
        states = [(folder / name).stat() for name in _FILES if (folder / name).exists()]
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~ of an unknown user
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{one_line(path)}: cannot be read ({reason})") from None
    return _study(folder, tuple((state.st_mtime_ns, state.st_size) for state in states))


@lru_cache(maxsize=8)
def _study(folder: Path, version: tuple[tuple[int, int], ...]) -> Study:  # noqa: ARG001 - a key
    arms, features = _arms(folder / ARMS)
    people, duels = _duels(folder / DUELS, arms)
    columns = [np.array(column) for column in zip(*duels, strict=True)]
    person, first, second, preference = columns
    study = Study(folder, tuple(arms), tuple(people), features, person, first, second, preference)
    for array in (study.features, study.person, study.first, study.second, study.preference):
        array.flags.writeable = False
    return study


def _arms(file: Path) -> tuple[dict[str, int], FloatArray]:
    """Return the arms' numbers by name, and their features."""
    rows = _rows(file)
    line, header = next(rows)
    if header[0] != "arm" or len(header) < 2:
        raise _error(file, line, f"the header is {_shown(','.join(header))}")
    if not all(header) or len(set(header)) < len(header):
        raise _error(file, line, f"a column has no name of its own: {_shown(','.join(header))}")
    arms: dict[str, int] = {}
    features = []
    for line, (name, *texts) in rows:
        if not name or name in arms:
            fault = f"arm {_shown(name)} appears twice" if name else "an arm has no name"
            raise _error(file, line, fault)
        arms[name] = len(arms)
        numbers = [finite_number(text) for text in texts]
        for column, number, text in zip(header[1:], numbers, texts, strict=True):
            if number is None or abs(number) > LARGEST:
                fault = f"{one_line(column)} of {_shown(name)} is {_shown(text)}"
                raise _error(file, line, fault, f"must be a number within +-{LARGEST:g}")
        features.append(numbers)
    if len(arms) < 2:
        raise DataError(f"{one_line(file)}: has {len(arms)} arms; a duel needs two")
    return arms, np.array(features, dtype=np.float64)


def _duels(
    file: Path, arms: dict[str, int]
) -> tuple[dict[str, int], list[tuple[int, int, int, float]]]:
    """Return the people's numbers by name, and person, first, second, preference of each duel."""
    rows = _rows(file)
    line, header = next(rows)
    for column in COLUMNS:
        if header.count(column) != 1:
            many = "no" if column not in header else "more than one"
            raise _error(file, line, f"{many} column {column} in {_shown(','.join(header))}")
    places = [header.index(column) for column in COLUMNS]
    people: dict[str, int] = {}
    duels = []
    for line, fields in rows:
        person, first, second, preference = (fields[place] for place in places)
        for column, arm in (("first", first), ("second", second)):
            if arm not in arms:
                raise _error(file, line, f"{column} is {_shown(arm)}", f"must be an arm of {ARMS}")
        if not person or first == second:
            fault = f"first and second are both {_shown(first)}" if person else "person is empty"
            raise _error(file, line, fault)
        share = finite_number(preference)
        if share is None or not 0.0 <= share <= 1.0:
            required = "must be 1 (the first arm won), 0 (the second won) or 0.5 (a tie)"
            raise _error(file, line, f"preference is {_shown(preference)}", required)
        duels.append((people.setdefault(person, len(people)), arms[first], arms[second], share))
    if not duels:
        raise DataError(f"{one_line(file)}: has no duels; {_FILES[DUELS]}")
    return people, duels


def _rows(file: Path) -> Iterator[Row]:
    """Yield the header and the rows, all of the header's length; lines may be blank."""
    reader = csv.reader(io.StringIO(read_text(file, _FILES[file.name]), newline=""), strict=True)
    columns = 0
    try:
        for fields in reader:
            row = [field.strip() for field in fields]
            if not any(row):
                continue
            columns = columns or len(row)
            if len(row) != columns:
                fault = f"{len(row)} instead of {columns} fields: {_shown(','.join(row))}"
                raise _error(file, reader.line_num, fault)
            yield reader.line_num, row
    except csv.Error as error:
        raise _error(file, reader.line_num, str(error)) from None
    if not columns:
        raise DataError(f"{one_line(file)}: is empty; {_FILES[file.name]}")


def _error(file: Path, line: int, fault: str, required: str = "") -> DataError:
    return DataError(f"{one_line(file)}: line {line}: {fault}; {required or _FILES[file.name]}")


def _shown(text: str) -> str:
    return repr(text[:40])  # always one line


def averaged(
    study: Study, people: Sequence[int] | IntArray
) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """Return the pairs that people answered, each once.

    Returns
    -------
    place, low, high : ndarray
        Of each pair, the position of the person in ``people``, and the numbers of the two arms,
        with low < high.
    share : ndarray
        Average preference for ``low`` over the person's answers, in either order of the arms.
    """
    places = np.full(len(study.people), -1)
    places[people] = np.arange(len(people))
    used = places[study.person] >= 0
    first, second, count = study.first[used], study.second[used], len(study.arms)
    low, high = np.minimum(first, second), np.maximum(first, second)
    preference = study.preference[used]
    toward_low = np.where(first < second, preference, 1.0 - preference)
    keys, row = np.unique(
        (places[study.person[used]] * count + low) * count + high, return_inverse=True
    )
    share = np.bincount(row, toward_low) / np.bincount(row)
    return keys // count**2, keys // count % count, keys % count, share
