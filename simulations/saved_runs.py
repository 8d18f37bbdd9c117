"""Read finished runs from their directories."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml  # type: ignore[import-untyped, unused-ignore]

from fldb_flower.errors import DataError, FldbError
from fldb_flower.runs.directory import MODEL, SUMMARY
from fldb_flower.runs.results import COLUMNS, CONFIG, REGRET, identity
from fldb_flower.settings import flatten, from_nested, unused

NUMBERS = ("final_regret", "exchanges", "uploaded_bytes", "downloaded_bytes", "runtime_seconds")
"""The numbers in every summary."""
PREDICTIONS = ("log_loss", "accuracy")
"""The numbers in the summary of a run that predicted answers."""

_DAMAGED = "damaged, or another program's"
_TEXTS = {"absent": str, "rejected": str}  # columns of participation.csv
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if it was built


@dataclass(frozen=True)
class Run:
    """One finished run: the content of its files.

    ``settings`` has Hydra's dotted names, in the order of ``config.yaml``. ``curve`` has the
    columns of ``regret.csv``.
    """

    path: Path
    settings: dict[str, Any]
    summary: dict[str, Any]
    curve: pd.DataFrame

    @cached_property
    def used(self) -> dict[str, Any]:
        """The settings with an effect, for example without tau with ``algorithm=ldb``."""
        ignored = unused(self.settings)
        return {key: value for key, value in self.settings.items() if key not in ignored}


@dataclass(frozen=True)
class Unfinished:
    """A directory of a run that cannot be used, and the reason in one line."""

    path: Path
    reason: str


def find_runs(
    folders: Iterable[Path], on_read: Callable[[], object] = lambda: None
) -> tuple[list[Run], list[Unfinished]]:
    """Read every run below the given folders, each once; ``on_read`` is called after each.

    A directory belongs to a run if it holds ``config.yaml``, or both ``summary.json`` and
    ``regret.csv``. Hidden folders and links to folders are not searched. Runs are in the order of
    the folders, then of the paths; numbers in names sort by value.
    """
    found: dict[Path, Run | Unfinished] = {}
    denied: list[OSError] = []
    for folder in folders:
        if not folder.is_dir():
            reason = "is not a folder" if folder.exists() else "does not exist"
            raise DataError(f"{folder}: {reason}")
        for root, below, files in os.walk(folder, onerror=denied.append):
            visible = (name for name in below if not name.startswith("."))
            below[:] = sorted(visible, key=_natural_order)
            path = Path(root)
            if (CONFIG in files or {SUMMARY, REGRET} <= set(files)) and path.resolve() not in found:
                found[path.resolve()] = read_run(path)
                on_read()
    for error in denied:
        path = Path(error.filename)
        found[path.resolve()] = Unfinished(path, f"cannot be read: {error.strerror}")
    runs = [item for item in found.values() if isinstance(item, Run)]
    return runs, [item for item in found.values() if isinstance(item, Unfinished)]


def _natural_order(name: str) -> tuple[bool, int, str]:
    """Return a sort key: numbers by value, before strings."""
    return (False, int(name), name) if name.isdecimal() else (True, 0, name)


def read_run(path: Path, expected: str | None = None) -> Run | Unfinished:
    """Read the run in a directory, or return the reason why it cannot be used.

    ``expected`` is its identity, if it is known.
    """
    try:
        settings, summary, curve = map(read, (path / CONFIG, path / SUMMARY, path / REGRET))
        if len(curve) != settings["horizon"]:
            raise DataError(f"{REGRET} is {_DAMAGED}")
        if not np.isfinite(curve).all(axis=None):
            raise DataError(f"{REGRET} has a number that is not finite")
    except DataError as error:
        return Unfinished(path, str(error))
    run = Run(path, settings, summary, curve)
    if expected not in (None, identity_of(run)):
        return Unfinished(path, "holds a run of other settings")
    return run


def text_of(value: Any) -> str:
    """Return the value of a setting as text, since JavaScript would round a large seed."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) and value == float(f"{value:g}") else f"{value}"


def identity_of(run: Run) -> str:
    """Return the identity of the settings of a run; empty if they are not valid in this version."""
    try:
        return identity(from_nested(run.settings, str(run.path)))
    except FldbError:
        return ""


def read(path: Path) -> Any:
    """Return the content of a file of a run; raise a DataError in one line that names it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"no {path.name}") from None
    except OSError as error:
        raise DataError(f"{path.name} cannot be read: {error.strerror}") from None
    return parse(path.name, content)


def parse(name: str, content: bytes) -> Any:
    """Return the content of a file of a run: tables as data frames, ``model.json`` as theta_sync.

    A DataError names a damaged file in one line.
    """
    try:
        return _PARSERS[name](content) if name in _PARSERS else _table(name, content)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError, yaml.YAMLError):
        raise DataError(f"{name} is {_DAMAGED}") from None


def _settings(content: bytes) -> dict[str, Any]:
    settings = dict(flatten(yaml.load(content, _LOADER)))  # OmegaConf would resolve ${oc.env:...}
    if not isinstance(settings["horizon"], int):
        raise TypeError
    return settings


def _summary(content: bytes) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(content)
    numbers = [summary[key] for key in (*NUMBERS, *PREDICTIONS) if key in NUMBERS or key in summary]
    for each in summary.get("directions", []):
        numbers += [each["share"], *each["weights"].values()]
    if not summary["complete"] or not all(map(math.isfinite, numbers)):
        raise ValueError
    return summary


def _table(name: str, content: bytes) -> pd.DataFrame:
    """Return a table of a run: numbers, and lists of nodes as strings."""
    # Python's float, so that numbers are exactly those of the run.
    exact = dict.fromkeys(("cumulative_regret", *PREDICTIONS), float)
    table = pd.read_csv(io.BytesIO(content), dtype=_TEXTS, converters=exact)
    if tuple(table.columns) != COLUMNS[name]:
        raise ValueError
    table.drop(columns=list(_TEXTS), errors="ignore").astype(float)  # raises a ValueError
    return table.fillna(dict.fromkeys(_TEXTS, ""))


_PARSERS: Mapping[str, Callable[[bytes], Any]] = {
    CONFIG: _settings,
    SUMMARY: _summary,
    MODEL: lambda content: np.array(json.loads(content)["theta_sync"], dtype=float),
}


def predictions(runs: Sequence[Run]) -> list[str]:
    """Return which of :data:`PREDICTIONS` some of the runs have."""
    return [key for key in PREDICTIONS if any(key in run.summary for run in runs)]


def varying(runs: Sequence[Run]) -> list[str]:
    """Return the settings that differ between runs, in the order of ``config.yaml``.

    A setting that only some runs have differs, unless it is irrelevant in the others.
    """
    values: dict[str, set[str]] = {key: set() for run in runs for key in run.settings}
    for run in runs:
        for key, seen in values.items():
            if key in run.used or key not in run.settings:
                seen.add(repr(run.settings.get(key)))
    return [key for key, seen in values.items() if len(seen) > 1]


def by_configuration(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs that differ in the seed only, in order of appearance.

    A group has the first run of each seed: its repetitions are not independent runs.
    """
    groups: dict[str, dict[Any, Run]] = {}
    for run in runs:
        others = {key: value for key, value in run.used.items() if key != "seed"}
        of_seeds = groups.setdefault(repr(sorted(others.items())), {})
        of_seeds.setdefault(run.settings.get("seed"), run)
    return [list(each.values()) for each in groups.values()]
