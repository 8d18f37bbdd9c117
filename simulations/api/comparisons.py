"""Reader of tables of comparisons: CSV, TSV, with semicolons, or Excel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fldb_flower.environments.arms import read_rows
from fldb_flower.environments.studies import OTHER_NAMES, columns_of, required, shares
from fldb_flower.errors import DataError, extra_missing, one_line, shown
from fldb_flower.linalg.arrays import Array
from fldb_flower.system.files import read_file

_FORMS = ("winner", "loser"), ("first", "second", "preference")
_COLUMNS = (
    f"the columns {' or '.join(map(','.join, _FORMS))} ({OTHER_NAMES}); person, tie and count are"
    " optional"
)
_YES, _NO = {"1", "true", "yes", "y", "tie"}, {"", "0", "false", "no", "n"}
_EXCEL = (".xls", ".xlsx", ".xlsm", ".ods")


class Comparisons(NamedTuple):
    """Comparisons of items by people. Items and people are numbered in order of appearance."""

    items: tuple[str, ...]
    people: tuple[str, ...]  # one without a name if the data have no people
    person: Array  # (n,)
    first: Array  # (n,)
    second: Array  # (n,)
    preference: Array  # 1: the first item won, 0: the second, 0.5: a tie; (n,)
    times: Array  # how often it was answered so; (n,)
    ignored: tuple[str, ...] = ()  # columns that are not used

    def of(self, rows: Any) -> Comparisons:
        """Return the comparisons of some rows."""
        return Comparisons(self.items, self.people, *(column[rows] for column in self[2:7]))


def read_comparisons(file: Path) -> Comparisons:
    """Return the comparisons in a file; see :func:`parse_comparisons`."""
    name = one_line(file)
    lines: Sequence[int]
    try:
        if file.suffix.lower() in _EXCEL:
            table = pd.read_excel(file, dtype=str, keep_default_na=False)
            lines = range(2, len(table) + 2)
        else:
            (_, header), *rows = read_rows(
                read_file(file, 2**30), f"it must be UTF-8 text with {_COLUMNS}"
            )
            lines = [line for line, _ in rows]
            table = pd.DataFrame([row for _, row in rows], columns=header, dtype=str)
    except ImportError as error:
        raise extra_missing(f"{name}: Excel", "excel", "a CSV file", error) from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error})") from None
    except (DataError, ValueError) as error:  # ValueError: of pandas
        raise DataError(f"{name}: {one_line(error)}") from None
    return parse_comparisons(table, name, lines)


def parse_comparisons(
    table: pd.DataFrame, name: str = "the table", lines: Sequence[int] | None = None
) -> Comparisons:
    """Return the comparisons in a table; see :func:`simulations.api.ranking.rank_items`.

    ``lines`` are the numbers of the rows in messages, by default those of the table's index.
    """
    columns = columns_of(table.columns)
    pair = next((form for form in _FORMS if all(columns.count(each) == 1 for each in form)), None)
    if pair is None or columns.count("person") > 1:
        found = one_line(", ".join(map(str, table.columns)))[:200]
        found = f"the columns are {found}" if found else "there are no columns"
        raise DataError(f"{name}: {found}; it must have {_COLUMNS}")
    if not len(table):
        raise DataError(f"{name}: there are no comparisons below the header")
    texts = {
        key: table.iloc[:, place].fillna("").astype(str).str.strip()
        for place, key in enumerate(columns)
    }
    headers = dict(zip(columns, (one_line(each)[:40] for each in table.columns), strict=True))
    first, second = texts[pair[0]], texts[pair[1]]
    faults = [(texts[column] == "", column, "must be the name of an item") for column in pair[:2]]
    faults.append((first == second, pair[1], f"{headers[pair[0]]} is the same item"))
    preference = pd.Series(1.0, table.index)
    if len(pair) == 3:
        given = [texts[column].to_list() for column in ("preference", *pair[:2])]
        preference = pd.Series(shares(*given), table.index, dtype=float)
        faults.append((preference.isna(), "preference", ""))
    if "tie" in columns:
        ties = texts["tie"].str.lower()
        faults.append((~ties.isin(_YES | _NO), "tie", "must be yes, no, 1, 0 or empty"))
        preference = preference.mask(ties.isin(_YES), 0.5)
    count = pd.Series(1.0, index=table.index)
    if "count" in columns:
        count = pd.to_numeric(texts["count"], errors="coerce")
        faults.append((~count.between(0.0, 1e9), "count", "must be a number from 0 to 1e9"))
    people = texts.get("person", pd.Series("", index=table.index))
    if "person" in columns:
        faults.append((people == "", "person", "must be a name"))
    _refuse(faults, texts, headers, name, lines)
    if not count.any():
        raise DataError(f"{name}: count is 0 in each row")
    used = {*pair, "person", "tie", "count"}
    ignored = [header for key, header in headers.items() if key not in used and header]
    return _numbered(first, second, preference, count, people)._replace(ignored=tuple(ignored))


def _refuse(
    faults: Sequence[tuple[pd.Series[bool], str, str]],
    texts: dict[str, pd.Series[str]],
    headers: dict[str, str],
    name: str,
    lines: Sequence[int] | None,
) -> None:
    """Raise a DataError if a row has a fault; a fault is which rows, the column, what is valid."""
    for wrong, column, valid in faults:
        if wrong.any():
            kind, numbers = ("row", wrong.index) if lines is None else ("line", lines)
            rows = [numbers[row] for row in np.flatnonzero(wrong).tolist()]
            value = str(texts[column][wrong].iloc[0])
            message = f"{name}: {kind} {rows[0]}: {headers[column]} is {shown(value)}; "
            message += (valid or required(value)) + _others(kind, rows)
            rest = np.any([each & ~wrong for each, *_ in faults], axis=0).sum()
            raise DataError(message + (f"; {kind}s with other faults: {rest}" if rest else ""))


def _others(kind: str, rows: Sequence[Any]) -> str:
    """Return which rows have the fault of the first one, such as ``(also line 4, 7)``."""
    more = f" and {len(rows) - 6} more" if len(rows) > 6 else ""
    return f" (also {kind} {', '.join(map(str, rows[1:6]))}{more})" if len(rows) > 1 else ""


def _numbered(
    first: pd.Series[str],
    second: pd.Series[str],
    preference: pd.Series[float],
    count: pd.Series[float],
    people: pd.Series[str],
) -> Comparisons:
    """Return comparisons without those with a count of 0."""
    used = (count > 0).to_numpy()
    names = np.stack([first, second], axis=1)[used]
    numbers, items = pd.factorize(names.ravel())
    one, other = numbers.reshape(-1, 2).T
    person, persons = pd.factorize(people[used])
    return Comparisons(
        tuple(items), tuple(persons), person, one, other,
        preference.to_numpy(float)[used], count.to_numpy(float)[used],
    )  # fmt: skip
