"""Read finished runs from their directories.

The content of a directory is not trusted: files may be incomplete or written by other programs. A
directory without a complete run is reported with the reason.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml  # type: ignore[import-untyped, unused-ignore]

from fldb_flower.errors import DataError, FldbError
from fldb_flower.runs.directory import SUMMARY
from fldb_flower.runs.results import CONFIG, PARTICIPATION, PREDICTION, REGRET, identity
from fldb_flower.settings import from_nested, unused
from fldb_flower.system.files import read_file
from fldb_flower.system.progress import progress

CURVE_COLUMNS = ("iteration", "cumulative_regret", "exchanges")
NUMBERS = ("final_regret", "exchanges", "uploaded_bytes", "downloaded_bytes", "runtime_seconds")
"""The numbers in every summary."""
PREDICTIONS = ("log_loss", "accuracy")
"""The numbers in the summary of a run that predicted answers."""

_MOST_BYTES = 2**30
_MAX_DEPTH = 8  # of nested settings, which have two levels
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if it was built


@dataclass(frozen=True)
class Run:
    """One finished run: the content of its files.

    ``settings`` has Hydra's dotted names, in the order of ``config.yaml``. Each of :data:`NUMBERS`
    is a finite number in ``summary``, and so are those of :data:`PREDICTIONS` that it has.
    ``curve`` has one row per iteration, and the columns :data:`CURVE_COLUMNS`.
    """

    path: Path
    settings: dict[str, Any]
    summary: dict[str, Any]
    curve: pd.DataFrame


@dataclass(frozen=True)
class Unfinished:
    """A directory of a run that cannot be used, and the reason in one line."""

    path: Path
    reason: str


def find_runs(
    folders: Iterable[Path], on_read: Callable[[], object] = lambda: None
) -> tuple[list[Run], list[Unfinished]]:
    """Read every run below the given folders.

    A directory belongs to a run if it holds ``config.yaml``, or both ``summary.json`` and
    ``regret.csv``. Hidden folders and links to folders are not searched. A run below two of the
    folders is read once.

    Parameters
    ----------
    folders : iterable of Path
        Folders to search; each may be the directory of a run.
    on_read : callable, optional
        Called after each directory that was read.

    Returns
    -------
    runs : list of Run
        In the order of the folders, then of the paths; numbers in names sort by value.
    unfinished : list of Unfinished
        Directories without a complete run.

    Raises
    ------
    DataError
        A folder does not exist.
    """
    found: dict[Path, Run | Unfinished] = {}
    for folder in folders:
        if not folder.is_dir():
            reason = "is not a folder" if folder.exists() else "does not exist"
            raise DataError(f"{folder}: {reason}")
        denied: list[OSError] = []
        for path in _directories(folder, denied):
            if (real := path.resolve()) not in found:
                found[real] = read_run(path)
                on_read()
        for error in denied:
            path = Path(error.filename)
            reason = f"cannot be read: {error.strerror}"
            found.setdefault(path.resolve(), Unfinished(path, reason))
    runs = [item for item in found.values() if isinstance(item, Run)]
    return runs, [item for item in found.values() if isinstance(item, Unfinished)]


def find_finished(folder: Path, wanted: Collection[str] | None = None) -> dict[str, Run]:
    """Return one finished run per identity below a folder.

    Parameters
    ----------
    folder : Path
        The folder; it need not exist.
    wanted : collection of str, optional
        Identities to return; all by default. See :func:`fldb_flower.runs.results.identity`.
    """
    finished: dict[str, Run] = {}
    with progress("read", unit="run") as done:
        runs, _ = find_runs([folder], done) if folder.is_dir() else ([], [])
    for run in runs:
        key = identity_of(run)
        if key and (wanted is None or key in wanted):
            finished.setdefault(key, run)
    return finished


def identity_of(run: Run) -> str:
    """Return the identity of the settings of a run; empty if they are not valid in this version."""
    try:
        return identity(from_nested(run.settings, str(run.path)))
    except FldbError:
        return ""


def relevant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Drop settings without effect, such as tau with ``algorithm=ldb``."""
    ignored = unused(settings)
    return {key: value for key, value in settings.items() if key not in ignored}


def predictions(runs: Sequence[Run]) -> list[str]:
    """Return which of :data:`PREDICTIONS` some of the runs have."""
    return [key for key in PREDICTIONS if any(key in run.summary for run in runs)]


def varying(runs: Sequence[Run]) -> list[str]:
    """Return the settings that differ between runs, in the order of ``config.yaml``.

    A setting that only some runs have differs, unless it is irrelevant in the others.
    """
    values: dict[str, set[Any]] = {key: set() for run in runs for key in run.settings}
    for run in runs:
        used = relevant(run.settings)
        for key, seen in values.items():
            if key in used or key not in run.settings:
                seen.add(_identity(run.settings.get(key)))
    return [key for key, seen in values.items() if len(seen) > 1]


def group_by_seed(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs whose relevant settings are equal except for the seed, in order of appearance."""
    groups: dict[frozenset[Any], list[Run]] = {}
    for run in runs:
        others = (item for item in relevant(run.settings).items() if item[0] != "seed")
        key = frozenset((name, _identity(value)) for name, value in others)
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def one_per_seed(group: Sequence[Run]) -> list[Run]:
    """Return the first run of each seed: its repetitions are not independent runs."""
    return list({run.settings.get("seed"): run for run in reversed(group)}.values())[::-1]


def _identity(value: Any) -> Any:
    """Return a value for comparisons: ``1`` equals ``1.0``, but not ``True``."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return (isinstance(value, bool), "nan" if is_nan else value)


def _directories(folder: Path, denied: list[OSError]) -> Iterator[Path]:
    """Yield the directories of runs in a folder and below it; add errors to ``denied``."""
    for root, folders, files in os.walk(folder, onerror=denied.append):
        folders[:] = sorted(
            (name for name in folders if not name.startswith(".")), key=natural_order
        )
        if CONFIG in files or {SUMMARY, REGRET} <= set(files):
            yield Path(root)


def natural_order(value: Any) -> tuple[Any, ...]:
    """Return a sort key: numbers by value, before texts."""
    if isinstance(value, int | float):
        return (0, float(value), "")
    text = str(value)
    return (0, float(text), text) if text.isdecimal() else (1, 0.0, text)


def read_run(path: Path) -> Run | Unfinished:
    """Read the run in a directory, or return the reason why it cannot be used."""
    try:
        settings = _settings(path / CONFIG)
        summary = _summary(path / SUMMARY)
        return Run(path, settings, summary, _curve(path / REGRET, settings))
    except DataError as error:
        return Unfinished(path, str(error))


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path.name} is not a file")
        return read_file(path, _MOST_BYTES).decode()
    except FileNotFoundError:
        raise DataError(f"no {path.name}") from None
    except OSError as error:
        raise DataError(f"{path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path.name} is not UTF-8 text") from None


def _settings(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        _check_structure(path, text)
        values = yaml.load(text, _LOADER)  # OmegaConf would resolve ${oc.env:...}
    except (yaml.YAMLError, ValueError, RecursionError):
        raise DataError(f"{path.name} is not valid YAML") from None
    if not isinstance(values, dict):
        raise DataError(f"{path.name} holds no settings")
    settings = dict(_flatten(values, path.name))
    if not isinstance(settings.get("horizon"), int):
        raise DataError(f"{path.name} has no integer as horizon")
    return settings


def _check_structure(path: Path, text: str) -> None:
    """Refuse YAML that could expand without limit, or exhaust the stack of the loader."""
    depth = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise DataError(f"{path.name} has YAML aliases, which runs do not write")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > 2 * _MAX_DEPTH:
            raise DataError(f"{path.name} is nested too deeply")


def _flatten(
    values: Mapping[Any, Any], file: str, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            yield from _flatten(value, file, f"{prefix}{key}.", depth + 1)
        elif value is None or isinstance(value, str | int | float):
            yield f"{prefix}{key}", value
        else:
            raise DataError(f"{file}: {prefix}{key} is neither a number nor a text")


def _summary(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        summary = json.loads(text)
    except (ValueError, RecursionError):
        raise DataError(f"{path.name} is not valid JSON") from None
    if not isinstance(summary, dict) or summary.get("complete") is not True:
        raise DataError(f"{path.name} does not mark the run as complete")
    for key in (*NUMBERS, *(key for key in PREDICTIONS if key in summary)):
        if not _is_finite(summary.get(key)):
            raise DataError(f"{path.name} has no finite number as {key}")
    return summary


def _is_finite(value: Any) -> bool:
    with contextlib.suppress(TypeError, OverflowError):  # a text; an integer too large for a float
        return not isinstance(value, bool) and math.isfinite(value)
    return False


def _curve(path: Path, settings: Mapping[str, Any]) -> pd.DataFrame:
    curve = _table(path, CURVE_COLUMNS, settings["horizon"])
    if not np.isfinite(curve.to_numpy(dtype=float)).all():
        raise DataError(f"{path.name} holds numbers that are missing or not finite")
    return curve


def _table(path: Path, columns: Sequence[str], horizon: int) -> pd.DataFrame:
    """Read numbers with one row per iteration."""
    text = _text(path)
    table = _parsed(path, text, columns)
    if len(table) != horizon or not text.endswith("\n"):
        raise DataError(f"{path.name} has {len(table)} rows, complete or not, instead of {horizon}")
    if not all(pd.api.types.is_numeric_dtype(table[name]) for name in columns):
        raise DataError(f"{path.name} holds values that are not numbers")
    if (table["iteration"] != np.arange(1, horizon + 1)).any():
        raise DataError(f"{path.name} does not count iterations 1, 2, ..., {horizon}")
    return table


def _parsed(
    path: Path, text: str, columns: Sequence[str], texts: Sequence[str] = ()
) -> pd.DataFrame:
    """Parse a table; columns of ``texts`` are texts."""
    try:
        table = pd.read_csv(
            io.StringIO(text), dtype=dict.fromkeys(texts, "str"), keep_default_na=not texts
        )
    except (ValueError, pd.errors.ParserError):
        raise DataError(f"{path.name} is not a table") from None
    if list(table.columns) != list(columns):
        raise DataError(f"{path.name} has other columns than {', '.join(columns)}")
    return table


def read_predictions(run: Run) -> pd.DataFrame | None:
    """Return log loss and accuracy up to each iteration, or None if the run has no such file.

    Raises
    ------
    DataError
        The file cannot be used.
    """
    path = run.path / PREDICTION
    if not path.exists():
        return None
    return _table(path, ("iteration", *PREDICTIONS), len(run.curve))


def read_participation(run: Run) -> pd.DataFrame | None:
    """Return the replies of nodes by exchange, or None if the run has no such file.

    Raises
    ------
    DataError
        The file cannot be used.
    """
    path = run.path / PARTICIPATION
    if not path.exists():
        return None
    numbers, texts = ("iteration", "asked", "replied"), ("absent", "rejected")
    table = _parsed(path, _text(path), (*numbers, *texts), texts)
    if table.empty or not all(pd.api.types.is_integer_dtype(table[name]) for name in numbers):
        raise DataError(f"{path.name} holds no counts of replies")
    return table
