"""Reader of paired-comparison studies: the answers of people, and the features of arms."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from fldb_flower.bandit.preference import PREFERENCES
from fldb_flower.environments.arms import error_at, indicators, parse_arms, read_rows
from fldb_flower.errors import DataError, one_line
from fldb_flower.linalg.arrays import FloatArray, IntArray, finite_number
from fldb_flower.system.files import read_file

ARMS, DUELS = "arms.csv", "duels.csv"
COLUMNS = ("person", "first", "second", "preference")
ANSWERS = (
    "must be first, 1 or A; second, 0 or B; tie or 0.5; a number between 0 and 1; or the name of"
    " the winner"
)
"""What a preference must be."""

_FOLDER = f"the folder of a study, with {DUELS} and, if arms have features, {ARMS}"
_ALIASES = {
    "user": "person", "user_id": "person", "userid": "person", "respondent": "person",
    "participant": "person",
    "item_a": "first", "option_a": "first", "item_1": "first", "option_1": "first",
    "item_b": "second", "option_b": "second", "item_2": "second", "option_2": "second",
    "choice": "preference", "which_won": "preference", "won": "preference",
    "preferred": "preference",
}  # fmt: skip
OTHER_NAMES = "; ".join(
    f"{column} may be {', '.join(name for name in _ALIASES if _ALIASES[name] == column)}"
    for column in COLUMNS
)
"""Other names of the columns of answers, for messages."""

_VALID = (
    f"it must be UTF-8 text with the header {','.join(COLUMNS)} and one duel per line"
    f" ({OTHER_NAMES} or winner)"
)
_LETTERS = {"a": 1.0, "b": 0.0}
_T = TypeVar("_T")


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
    names: tuple[str, ...]  # of the features
    warning: str = ""  # about the features

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
    features, see :func:`~fldb_flower.environments.arms.parse_arms`. Without this file, the arms are
    those of the duels, in order of appearance, with one indicator each. ``duels.csv`` has a header
    and one line per answer, with the columns ``person``, ``first``, ``second`` (names of arms) and
    ``preference``, in any order; see :func:`columns_of` and :func:`shares`. Other columns are
    ignored. A preference between 0 and 1 is a degree: 0.75 is three wins of the first arm out of
    four.
    """
    if not path:
        raise DataError(f"environment.path is empty: set it to {_FOLDER}")
    try:
        folder = Path(path).expanduser().absolute()
        arms = [folder / ARMS] if (folder / ARMS).exists() else []
        states = [file.stat() for file in (folder / DUELS, *arms)]
        return _study(folder, tuple((state.st_mtime_ns, state.st_size) for state in states))
    except (OSError, RuntimeError, ValueError) as error:  # ~ of an unknown user, a zero byte
        file = getattr(error, "filename", None) or path
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{one_line(file)}: cannot be read ({reason}); environment.path must be {_FOLDER}"
        ) from None


@lru_cache(maxsize=8)
def _study(folder: Path, version: object) -> Study:  # noqa: ARG001 - a key of the cache
    file = folder / ARMS
    table = _read(file, parse_arms) if file.exists() else None
    known = None if table is None else {arm: number for number, arm in enumerate(table.arms)}
    file = folder / DUELS
    rows = _read(file, lambda content: _duels(content, known))
    numbers = known or _numbered(arm for _, *pair, _ in rows for arm in pair)
    people = _numbered(person for person, *_ in rows)
    duels = [(people[row[0]], numbers[row[1]], numbers[row[2]], row[3]) for row in rows]
    person, first, second, preference = map(np.array, zip(*duels, strict=True))
    features = _read(file, lambda _: indicators(len(numbers))) if table is None else table.features
    names = tuple(numbers) if table is None else table.names
    answers = person, first, second, preference
    warning = "" if table is None else table.warning
    return Study(folder, tuple(numbers), tuple(people), features, *answers, names, warning)


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _read(file: Path, parse: Callable[[bytes], _T]) -> _T:
    """Parse the content of a file; an error names the file."""
    content = read_file(file, 2**30)
    try:
        return parse(content)
    except DataError as error:
        raise DataError(f"{one_line(file)}: {error}") from None


def columns_of(header: Iterable[object]) -> list[str]:
    """Return the names of columns of answers in lower case, other common names replaced.

    Other names of ``person`` are not replaced if there is a column ``person``.
    """
    names = [str(name).strip().lower().replace(" ", "_") for name in header]
    aliases = _ALIASES if "loser" in names else {**_ALIASES, "winner": "preference"}
    own = {"person"}.intersection(names)
    return [name if aliases.get(name) in own else aliases.get(name, name) for name in names]


def required(answer: str) -> str:
    """Return what a preference must be, for the message about an invalid answer."""
    return ANSWERS if answer else f"{ANSWERS}; leave out rows without an answer"


def shares(
    answers: Sequence[str], firsts: Sequence[str], seconds: Sequence[str]
) -> list[float | None]:
    """Return the preference for the first item that each answer states; None if it is invalid.

    An answer is a number from 0 (second) to 1 (first), ``first``, ``second``, ``tie``, or the name
    of one of the two items. What could be both is a name if other answers can only be names. ``A``
    and ``B`` are the first and the second item if no item has such a name. Case is ignored, except
    in names of two items that differ in case only.
    """
    named = [*map(_named, answers, firsts, seconds)]
    has_letters = _LETTERS.keys() & {item.lower() for item in (*firsts, *seconds)}
    known = PREFERENCES if has_letters else PREFERENCES | _LETTERS
    words = {answer: known.get(columns_of([answer])[0]) for answer in {*answers}}
    for answer in words:
        number = finite_number(answer)
        if number is not None and 0.0 <= number <= 1.0:
            words[answer] = number
    others = [words[answer] for answer in answers]
    both = [*zip(named, others, strict=True)]
    if any(name is not None and other is None for name, other in both):
        both = [(other, name) for name, other in both]
    return [name if other is None else other for name, other in both]


def _named(answer: str, first: str, second: str) -> float | None:
    """Return 1 if the answer is the name of the first item, 0 if of the second, else None."""
    if answer not in {first, second} and first.casefold() != second.casefold():
        answer, first, second = answer.casefold(), first.casefold(), second.casefold()
    return float(answer == first) if answer in {first, second} else None


def _duels(content: bytes, arms: Container[str] | None) -> list[tuple[str, str, str, float]]:
    """Return person, first, second and preference of each duel; any arm is valid if None are."""
    (line, header), *rows = read_rows(content, _VALID)
    names = columns_of(header)
    if any(names.count(column) != 1 for column in COLUMNS):
        raise error_at(line, f"the header is {','.join(header)[:40]!r}", _VALID)
    if not rows:
        raise DataError(f"has no duels; {_VALID}")
    places = [names.index(column) for column in COLUMNS]
    who, one, other, what = (one_line(header[place])[:40] for place in places)
    duels = [[row[place] for place in places] for _, row in rows]
    found, read = shares(*zip(*((row[3], *row[1:3]) for row in duels), strict=True)), []
    for (line, _), duel, share in zip(rows, duels, found, strict=True):
        person, first, second, preference = duel
        for column, arm in ((one, first), (other, second)):
            if not arm or (arms is not None and arm not in arms):
                valid = f"must be an arm of {ARMS}" if arms else "must be the name of an arm"
                raise error_at(line, f"{column} is {arm[:40]!r}", valid)
        if not person or first == second:
            fault = f"{one} and {other} are both {first[:40]!r}" if person else f"{who} is empty"
            raise error_at(line, fault, _VALID)
        if share is None:
            raise error_at(line, f"{what} is {preference[:40]!r}", required(preference))
        read.append((person, first, second, share))
    return read
