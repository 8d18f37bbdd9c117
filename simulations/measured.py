"""Result files: the numbers in the documents, and the runs that they were measured in.

A result file is JSON, ``docs/results/NAME.json``. An object with ``settings`` in it is a run: the
settings that differ from the defaults, the number of ``seeds`` (0, 1, ...), and one list for each
measure, with a value for each seed::

    {"settings": {"algorithm": "fldb_ons", "tau": 1}, "seeds": 10, "regret": [...]}

Runs can be repeated and are checked. Other values, such as seconds, are only rendered. The path of
the data of a run on MovieLens or on a study of real people is not in the file: it is given as one
of ``Paths``, to which the ``environment.path`` of the run is relative.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import stdev
from types import MappingProxyType
from typing import Any

import pandas as pd
from threadpoolctl import threadpool_limits

from fldb_flower.errors import DataError, OutputError, SettingsError
from fldb_flower.federation.history import History
from fldb_flower.runs.results import identity
from fldb_flower.settings import Settings, from_nested
from fldb_flower.system.files import reason_of, replace_file
from simulations.pools import map_in_processes

FOLDER = Path(__file__).parent.parent / "docs" / "results"
COUNTS = ("rounds", "exchanges", "uploaded_bytes", "downloaded_bytes")
ESTIMATES = ("log_loss", "accuracy", "heterogeneity")  # of algorithms that have them
Run = dict[str, Any]
Result = tuple[list[float], dict[str, float]]  # regret by iteration, counts and estimates
Paths = Mapping[str, str]  # of the data of an environment, by its name; "" if it is not there

_NEEDED = {
    "movielens": "MovieLens ratings: name them with --movielens PATH",
    "duels": "studies of real people: name their folder with --duels DIR",
}
NOWHERE: Paths = MappingProxyType({})
_DIGITS = 4  # decimals of a regret in a result file
_TOLERANCE = 1e-5  # relative; limited by the decimals of small regrets


def read(path: Path) -> Any:
    """Return the content of a result file; raise a DataError if it is missing or not JSON."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not JSON: {error}") from None


def write(path: Path, content: Any) -> None:
    """Write a result file with one line per list of numbers and per row of a table."""
    write_text(path, f"{_dump(content)}\n")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, and its folder; raise an OutputError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    except OSError as error:
        raise OutputError(f"cannot write {path}: {reason_of(error)}") from None


def _dump(value: Any, indent: str = "") -> str:
    inner = f"{indent} "
    if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
        lines = [f"{inner}{json.dumps(key)}: {_dump(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(f"{inner}{_dump(item, inner)}" for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def sem(values: Sequence[float]) -> float:
    """Return the standard error of the mean of two or more values."""
    return stdev(values) / math.sqrt(len(values))


def runs_in(content: Any, name: str = "") -> Iterator[tuple[str, Run]]:
    """Yield the runs in the content of a result file with their dotted names."""
    if isinstance(content, dict):
        if "settings" in content:
            yield name, content
        else:
            for key, value in content.items():
                yield from runs_in(value, f"{name}.{key}" if name else key)
    elif isinstance(content, list):
        for place, value in enumerate(content):
            yield from runs_in(value, f"{name}[{place}]")


def settings_of(run: Run, seed: int, source: str, paths: Paths = NOWHERE) -> Settings:
    """Return the settings of one seed of a run, with the path of its data."""
    values, world = {**run["settings"], "seed": seed}, world_of(run)
    if world in _NEEDED:
        if not paths.get(world):
            raise SettingsError(f"{source} needs {_NEEDED[world]}")
        own = values["environment"]
        values["environment"] = {**own, "path": str(Path(paths[world], own.get("path", "")))}
    return from_nested(values, source)


def world_of(run: Run) -> str:
    """Return the name of the environment of a run."""
    return str(run["settings"].get("environment", {}).get("name", "synthetic"))


def measures_of(run: Run) -> list[str]:
    """Return the names of the measures of a run: its lists, or the regret if it has none."""
    return [key for key, value in run.items() if isinstance(value, list)] or ["regret"]


def measured(name: str, curve: Sequence[float], numbers: Mapping[str, float]) -> float:
    """Return one measure of a run, from its regret by iteration and its other numbers.

    It is ``regret`` (at the end), ``regret_T`` (after T iterations), one of ``COUNTS``, or one of
    ``ESTIMATES`` if the run has it.
    """
    if name in numbers:
        return numbers[name]
    if name == "regret":
        name = f"regret_{len(curve)}"
    iteration = name.removeprefix("regret_")
    if not (iteration.isdecimal() and 1 <= int(iteration) <= len(curve)):
        known = ", ".join(["regret", f"regret_1 to regret_{len(curve)}", *numbers])
        raise SettingsError(f"{name}: no such measure: there are {known}")
    return round(curve[int(iteration) - 1], _DIGITS)


def simulate(settings: Settings) -> Result:
    """Run on one processor; return the regret after each iteration, counts and estimates."""
    if settings.engine.name == "inprocess":
        return _simulate_in_process(settings)
    from simulations.engines import vectorized  # noqa: PLC0415 - in the worker process

    history = History(settings.horizon)
    with threadpool_limits(1, user_api="blas"):  # one run per processor
        vectorized.run(settings, history)
    numbers = {name: getattr(history, name) for name in (*COUNTS, *ESTIMATES)}
    return history.cumulative_regret.tolist(), _known(numbers)


def _simulate_in_process(settings: Settings) -> Result:
    from simulations.engines import inprocess  # noqa: PLC0415 - imports Flower

    logging.getLogger("flwr").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        inprocess.run(settings, folder)
        summary = json.loads((Path(folder) / "summary.json").read_text())
        curve = pd.read_csv(Path(folder) / "regret.csv").cumulative_regret.tolist()
    return curve, _known({name: summary.get(name) for name in (*COUNTS, *ESTIMATES)})


def _known(numbers: Mapping[str, float | None]) -> dict[str, float]:
    """Return the numbers that a run has: counts exactly, estimates with six digits."""
    found = {name: number for name, number in numbers.items() if number is not None}
    return {
        name: int(number) if name in COUNTS else float(f"{number:.6g}")
        for name, number in found.items()
    }


def cost(settings: Settings) -> float:
    """Return an estimate of the duration of a run, in arbitrary units."""
    own = {"ldb": 10, "fldb_gd": 8, "alone": 15, "fldb_personal": 20}
    factor = own.get(settings.algorithm, 1)
    size = settings.num_agents * settings.num_arms * settings.dimension * settings.horizon
    return factor * size * (50 if settings.engine.name == "inprocess" else 1)


def each_once(settings: Iterable[Settings]) -> dict[Settings, Result]:
    """Run once with each of the settings, on all processors.

    Settings share a run if they differ in settings without effect only.
    """
    keys = {each: identity(each) for each in set(settings)}
    unique = {key: each for each, key in keys.items()}
    # Longest first, so that no processor waits at the end.
    order = sorted(unique, key=lambda key: cost(unique[key]), reverse=True)
    results = map_in_processes(simulate, [unique[key] for key in order])
    found = dict(zip(order, results, strict=True))
    return {each: found[key] for each, key in keys.items()}


def fill(run: Run, results: Sequence[Result]) -> None:
    """Replace the measures of a run by those of its results, one for each seed."""
    for key in measures_of(run):
        run[key] = [measured(key, *result) for result in results]


def repeat(content: Any, name: str, paths: Paths = NOWHERE) -> None:
    """Repeat all runs in the content of the result file ``name``, and replace their measures."""
    found = list(runs_in(content, name))
    wanted = [
        [settings_of(run, seed, where, paths) for seed in range(run["seeds"])]
        for where, run in found
    ]
    results = each_once(one for group in wanted for one in group)
    for (_, run), group in zip(found, wanted, strict=True):
        fill(run, [results[one] for one in group])


def sample(content: Any, name: str, paths: Paths = NOWHERE) -> Iterator[tuple[str, Run]]:
    """Yield the cheapest run of each kind in the content of a result file.

    A kind is a combination of algorithm, environment, schedule, selection and form. Runs on data
    without a path are omitted. Runs on sentences are always omitted, since the language model takes
    longer than all other runs together.
    """
    cheapest: dict[tuple[str, ...], tuple[float, str, Run]] = {}
    for where, run in runs_in(content, name):
        world = world_of(run)
        if world == "sentences" or (world in _NEEDED and not paths.get(world)):
            continue
        settings = settings_of(run, 0, where, paths)
        forms = (settings.selection, settings.matrix_form, settings.robust)
        key = (settings.algorithm, world, settings.schedule.name, *forms)
        price = cost(settings)
        if key not in cheapest or price < cheapest[key][0]:
            cheapest[key] = price, where, run
    for _, where, run in cheapest.values():
        yield where, run


def stale(where: str, run: Run, paths: Paths = NOWHERE) -> list[str]:
    """Repeat the first seed of a run; return one line per measure that differs."""
    settings = settings_of(run, 0, where, paths)
    result = simulate(settings)
    lines = []
    for key in measures_of(run):
        values = run.get(key, [])
        if len(values) != run["seeds"]:
            lines.append(f"{where}.{key} has {len(values)} values of {run['seeds']}: recompute it")
            continue
        now, then = measured(key, *result), values[0]
        if not math.isclose(now, then, rel_tol=_TOLERANCE):
            lines.append(f"{where}.{key} of seed 0 is {then} in the file and {now} now")
    return lines
