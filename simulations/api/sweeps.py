"""Many runs from Python: all combinations of the given values, as one table."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from multiprocessing.context import BaseContext
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS, SELECTIONS
from fldb_flower.errors import FldbError, OutputError, SettingsError
from fldb_flower.privacy.plan import cautions
from fldb_flower.settings import Settings, from_keywords
from fldb_flower.system.files import reason_of
from fldb_flower.system.progress import progress as shown
from simulations.api.runs import SOURCE, checked_path, merged, run_settings
from simulations.pools import map_in_processes
from simulations.saved_runs import Run, read_run
from simulations.sweeps.plan import describe_exception, listed, plan
from simulations.sweeps.tables import TABLE, table


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

    Lists, ranges and arrays are swept; strings and numbers are not. Equal runs are run once.

    Parameters
    ----------
    settings : mapping, optional
        Settings by name, as in :func:`run`. Keyword arguments take precedence.
    jobs : int
        Number of processes. On Linux, they are forks of this one and know what it registered.
        Elsewhere, a script needs ``if __name__ == "__main__":``.
    directory : path-like, optional
        Folder for the files of all runs and their table ``sweep.csv``. Runs that have finished
        there are read back. By default, no files are written.
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
    return _run_all(*_choices(merged(settings, values)), jobs, directory, progress)


def _run_all(
    choices: dict[str, list[Any]],
    swept: list[str],
    jobs: int,
    directory: str | PathLike[str] | None,
    progress: bool,
) -> pd.DataFrame:
    """Run the jobs without a result in the directory; see :func:`sweep`."""
    if not isinstance(jobs, Integral) or isinstance(jobs, bool) or jobs < 1:
        raise SettingsError(f"jobs={jobs!r} (from {SOURCE}): must be a whole number, at least 1")
    folder = None if directory is None else checked_path(directory, "directory")
    found = plan(
        choices, swept, SOURCE, folder or Path(),
        lambda _number, chosen: (from_keywords(chosen, SOURCE), None),
    )  # fmt: skip
    for error in found.refused.values():
        raise error
    for line in cautions(*found.settings):
        warnings.warn(line, stacklevel=3)
    outcomes: dict[str, Run | str] = {}
    if folder is not None:
        _prepare(folder)
        for key, job in found.jobs.items():
            if isinstance(run := read_run(job.folder, key), Run):
                outcomes[key] = run
    todo = {key: job for key, job in found.jobs.items() if key not in outcomes}
    bar = shown("", len(found.jobs), "run", initial=len(outcomes), keep=True)
    with bar if progress else nullcontext(lambda: None) as done:
        calls = [(job.settings, folder and job.folder) for job in todo.values()]
        new = _outcomes(calls, min(int(jobs), len(todo)), done)
    outcomes |= zip(todo, new, strict=True)
    runs = [run for key in found.jobs if isinstance(run := outcomes[key], Run)]
    errors = {
        job.name: reason
        for key, job in found.jobs.items()
        if isinstance(reason := outcomes[key], str)
    }
    result = table(runs, swept, folder)
    if folder is not None and runs:
        result.to_csv(folder / TABLE, index=False, lineterminator="\n")
    if errors:
        raise SweepError(result, errors)
    return result


def _choices(given: Mapping[str, Any]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the values of each setting, and the settings that are swept."""
    choices = {}
    swept = []
    for name, value in given.items():
        if isinstance(value, Mapping | set | frozenset):
            raise SettingsError(f"{name}={value!r} (from {SOURCE}): must be a value or a list")
        is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes)
        if is_list and getattr(value, "ndim", 1) > 0:
            swept.append(name)
            choices[name] = listed(value)
        else:
            choices[name] = [value]
    return choices, swept


def _prepare(folder: Path) -> None:
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


_Call = tuple[Settings, Path | None]


def _attempt(call: _Call) -> Run | str:
    """Run one job, and save it if there is a folder; return why it failed, in one line."""
    settings, path = call
    try:
        return run_settings(settings, []).as_run(path)
    except Exception as error:
        return describe_exception(error)


def _outcomes(calls: list[_Call], jobs: int, done: Callable[..., object]) -> list[Run | str]:
    if jobs < 2:
        outcomes = []
        for call in calls:
            outcomes.append(_attempt(call))
            done()
        return outcomes
    try:
        return map_in_processes(_attempt, calls, jobs, _context(calls), done)
    except BrokenProcessPool:
        raise FldbError(
            f"a process of the sweep with jobs={jobs} ended: out of memory, or a script without"
            ' `if __name__ == "__main__":`; jobs=1 starts no process'
        ) from None


def _context(calls: list[_Call]) -> BaseContext:
    """Return how processes start: as forks if that is safe, else with new imports."""
    chosen = [settings for settings, _ in calls]
    if sys.platform == "linux" and all(each.backend == "numpy" for each in chosen):
        return multiprocessing.get_context("fork")
    added = {name for registry in (ALGORITHMS, ENVIRONMENTS, SELECTIONS) for name in registry.added}
    used = {name for each in chosen for name in (each.algorithm, each.selection)}
    used |= {each.environment.name for each in chosen}
    if names := used & added:
        raise SettingsError(
            f"jobs above 1 (from {SOURCE}): {', '.join(sorted(names))} is registered in this"
            " process only, and others here import the package's own; use jobs=1"
        )
    return multiprocessing.get_context("spawn")
