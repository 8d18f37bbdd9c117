"""Many runs from Python: all combinations of the given values, as one table."""

from __future__ import annotations

import hashlib
import itertools
import math
import multiprocessing
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sized
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from functools import partial
from multiprocessing.context import BaseContext
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS, SELECTIONS
from fldb_flower.errors import FldbError, OutputError, SettingsError
from fldb_flower.runs.results import identity
from fldb_flower.settings import Settings, from_keywords, to_dotted, unused
from fldb_flower.system.files import reason_of
from fldb_flower.system.progress import Advance
from fldb_flower.system.progress import progress as shown
from simulations.api.results import checked_path
from simulations.api.runs import SOURCE, merged, run_settings, warn_of
from simulations.pools import map_in_processes
from simulations.saved_runs import Run, find_finished
from simulations.sweeps.jobs import MAX_JOBS, check_number, describe_exception
from simulations.sweeps.tables import TABLE, numbers, table

_REGISTRIES = (ALGORITHMS, ENVIRONMENTS, SELECTIONS)


class SweepError(FldbError):
    """Some runs of a sweep failed; the others finished.

    Attributes
    ----------
    table : DataFrame
        The table of the runs that finished.
    errors : dict
        The error of each failed run, in one line, by its swept settings.

    Examples
    --------
    >>> import fldb_flower as fldb
    >>> try:
    ...     fldb.sweep(algorithm="fldb_gd", solver="gd", gd_step_size=[0.1, 1e9], num_agents=3,
    ...                horizon=5, progress=False)
    ... except fldb.SweepError as error:
    ...     print(len(error.table), list(error.errors))
    1 ['gd_step_size=1000000000.0']
    """

    def __init__(self, table: pd.DataFrame, errors: dict[str, str]) -> None:
        name, reason = next(iter(errors.items()))
        others = f" (and {len(errors) - 1} more, see .errors)" if len(errors) > 1 else ""
        super().__init__(
            f"{len(errors)} of {len(table) + len(errors)} runs failed: {name}: {reason}{others};"
            " .table has the others"
        )
        self.table, self.errors = table, errors

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table, self.errors)


def sweep(
    settings: Mapping[str, Any] | None = None,
    /,
    *,
    jobs: int = 1,
    directory: str | PathLike[str] | None = None,
    progress: bool = True,
    **values: Any,
) -> pd.DataFrame:
    """Run all combinations of the given values and return one row per run.

    Lists, ranges and arrays are swept; texts and numbers are not. Equal runs are run once.

    Parameters
    ----------
    settings : mapping, optional
        Settings by name, as in :func:`run`. Keyword arguments take precedence.
    jobs : int
        Number of processes. On Linux they are forks of this one, so what was registered is known.
        Elsewhere, a script needs ``if __name__ == "__main__":``.
    directory : path-like, optional
        Folder for the files of all runs and their table ``sweep.csv``. Runs that finished there
        before are read back. By default, no files are written.
    progress : bool
        Whether to show a progress bar, on a terminal or in a notebook.
    **values
        Settings by name, each a value or several values.

    Returns
    -------
    DataFrame
        The swept settings by dotted name, then numbers of the summary such as ``final_regret`` and
        ``exchanges``; with ``directory``, first the folder of the run as ``job``.

    Raises
    ------
    SettingsError
        Settings are invalid. No run is started.
    SweepError
        Some runs failed. The others are in its ``table``.

    Examples
    --------
    >>> import fldb_flower as fldb
    >>> small = {"num_agents": 10, "horizon": 20}
    >>> fldb.sweep(small, tau=[1, 2], seed=range(3), progress=False).groupby("tau").size().to_list()
    [3, 3]
    """
    chosen, swept = _combinations(merged(settings, values))
    return _table(chosen, swept, _checked_jobs(jobs), directory, progress)


def _table(
    chosen: list[Settings],
    swept: list[str],
    jobs: int,
    directory: str | PathLike[str] | None,
    progress: bool,
) -> pd.DataFrame:
    """Run what is not yet in the directory; see :func:`sweep`."""
    warn_of(chosen, stacklevel=4)
    folder = None if directory is None else _prepared(checked_path(directory, "directory"))
    wanted = {identity(each): each for each in chosen}
    found = {} if folder is None else find_finished(folder, wanted)
    todo = {key: each for key, each in wanted.items() if key not in found}
    errors: dict[str, str] = {}
    bar = shown("", len(wanted), "run", initial=len(found), keep=True)
    with bar if progress else nullcontext(lambda: None) as done:
        outcomes = _outcomes(partial(_attempt, folder=folder), list(todo.values()), jobs, done)
    for (key, each), outcome in zip(todo.items(), outcomes, strict=True):
        if isinstance(outcome, str):
            errors[_name(each, swept)] = outcome
        else:
            found[key] = outcome
    return _finished([found[key] for key in wanted if key in found], swept, folder, errors)


def _prepared(folder: Path) -> Path:
    """Create the folder of a sweep; check that the results can be written before the first run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        if (folder / TABLE).exists():
            with (folder / TABLE).open(encoding="utf-8", errors="replace") as file:
                if not file.readline().startswith("job,"):
                    raise OutputError(f"{folder / TABLE} is not a table of runs: not overwritten")
    except OSError as error:
        raise OutputError(f"directory={str(folder)!r}: {reason_of(error)}") from None
    return folder


def _finished(
    runs: list[Run], swept: list[str], folder: Path | None, errors: dict[str, str]
) -> pd.DataFrame:
    """Return the table of the runs; raise a SweepError if some failed."""
    if folder is None:
        result = numbers(runs, swept)
    else:
        result = table(runs, swept, folder)
        if runs:
            result.to_csv(folder / TABLE, index=False, lineterminator="\n")
    if errors:
        raise SweepError(result, errors)
    return result


def _combinations(values: Mapping[str, Any]) -> tuple[list[Settings], list[str]]:
    """Return the checked settings of all runs, and the names that have several values."""
    choices: dict[str, list[Any]] = {}
    swept = []
    for name, value in values.items():
        if isinstance(value, Mapping | set | frozenset):
            raise SettingsError(f"{name}={value!r} (from {SOURCE}): must be a value or a list")
        is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes)
        if is_list and getattr(value, "ndim", 1) > 0:
            choices[name] = _values(name, value)
            swept.append(name)
        else:
            choices[name] = [value]
        if not choices[name]:
            raise SettingsError(f"{name}={value!r} (from {SOURCE}): needs at least one value")
    check_number({name: len(each) for name, each in choices.items()}, SOURCE)
    combinations = itertools.product(*choices.values())
    return [
        from_keywords(dict(zip(choices, each, strict=True)), SOURCE) for each in combinations
    ], swept


def _values(name: str, values: Iterable[Any]) -> list[Any]:
    """Return several values as a list; those of an iterator only up to the limit of jobs."""
    if isinstance(values, range):  # len() fails above 2^63 - 1
        check_number({name: max(0, -((values.start - values.stop) // values.step))}, SOURCE)
    elif isinstance(values, Sized):
        check_number({name: len(values)}, SOURCE)
    found = list(itertools.islice(values, MAX_JOBS + 1))
    check_number({name: math.inf if len(found) > MAX_JOBS else 1}, SOURCE)
    return found


def _checked_jobs(jobs: Any) -> int:
    if not isinstance(jobs, Integral) or isinstance(jobs, bool) or jobs < 1:
        raise SettingsError(f"jobs={jobs!r} (from {SOURCE}): must be a whole number, at least 1")
    return int(jobs)


def _outcomes(
    work: partial[Run | str], todo: list[Settings], jobs: int, done: Advance
) -> list[Run | str]:
    if min(jobs, len(todo)) < 2:
        outcomes = []
        for each in todo:
            outcomes.append(work(each))
            done()
        return outcomes
    try:
        return map_in_processes(work, todo, min(jobs, len(todo)), _context(todo), done)
    except BrokenProcessPool:
        raise FldbError(
            f"a process of the sweep with jobs={jobs} ended: out of memory, or a script without"
            ' `if __name__ == "__main__":`; jobs=1 needs no other process'
        ) from None


def _context(todo: list[Settings]) -> BaseContext:
    """Return how processes start: as forks if that is safe, else with new imports."""
    if sys.platform == "linux" and all(each.backend == "numpy" for each in todo):
        return multiprocessing.get_context("fork")
    added = [name for registry in _REGISTRIES for name in registry.added]
    used = {getattr(each, key) for each in todo for key in ("algorithm", "selection")}
    used |= {each.environment.name for each in todo}
    if names := used & set(added):
        raise SettingsError(
            f"jobs above 1 (from {SOURCE}): {', '.join(sorted(names))} is registered in this"
            " process only, and others here import the package's own; use jobs=1"
        )
    return multiprocessing.get_context("spawn")


def _attempt(settings: Settings, folder: Path | None) -> Run | str:
    """Run and save one job; return why it failed, in one line."""
    try:
        result = run_settings(settings, [])
        if folder is None:
            return result.as_run()
        name = hashlib.sha256(identity(settings).encode()).hexdigest()[:12]
        # A folder with this name holds an unfinished run: it is kept, and named by `load`.
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        path = next(path for path in map(folder.joinpath, names) if not path.exists())
        return result.as_run(result.save(path))
    except Exception as error:
        return describe_exception(error)


def _name(settings: Settings, swept: list[str]) -> str:
    values = to_dotted(settings)
    ignored = unused(values)
    shown = (f"{name}={values[name]}" for name in swept if name not in ignored)
    return ", ".join(shown) or "the run"
