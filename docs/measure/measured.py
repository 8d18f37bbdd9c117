"""Result files: the numbers in the documents, and the runs that they were measured in.

A result file is JSON, ``docs/results/NAME.json``. An object with ``settings`` in it is a run: the
settings that differ from the defaults, the number of ``seeds`` (0, 1, ...), and one list for each
measure, with a value for each seed::

    {"settings": {"algorithm": "fldb_ons", "tau": 1}, "seeds": 10, "regret": [...]}

Runs can be repeated and are checked. ``tuned`` has further settings of a run that tuning.py chose,
and ``tried`` what it compared. Other values, such as seconds, are only rendered. The path of
MovieLens is the environment variable FLDB_ML100K. That of a study of real people is relative to
FLDB_DUELS.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fldb_flower.settings import Settings, from_nested
from simulations.figures import Result, cost, each_once, simulate

FOLDER = Path(__file__).parents[1] / "results"
VARIABLES = {"movielens": "FLDB_ML100K", "duels": "FLDB_DUELS"}  # with the path of the data
Run = dict[str, Any]


def write(path: Path, content: Any) -> None:
    """Write a result file with one line per list of numbers and per row of a table."""
    path.write_text(f"{_dump(content)}\n", encoding="utf-8")


def _dump(value: Any, indent: str = "") -> str:
    inner = f"{indent} "
    if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
        lines = [f"{inner}{json.dumps(key)}: {_dump(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(f"{inner}{_dump(item, inner)}" for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def load() -> dict[str, Any]:
    """Return the content of each result file by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def runs_in(content: Any, name: str = "") -> Iterator[tuple[str, Run]]:
    """Yield the runs in the content of a result file with their dotted names."""
    if isinstance(content, dict) and "settings" in content:
        yield name, content
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from runs_in(value, f"{name}.{key}" if name else key)
    elif isinstance(content, list):
        for place, value in enumerate(content):
            yield from runs_in(value, f"{name}[{place}]")


def world_of(run: Run) -> str:
    """Return the name of the environment of a run."""
    return str(run["settings"].get("environment", {}).get("name", "synthetic"))


def is_possible(run: Run) -> bool:
    """Return whether the data of a run are there."""
    variable = VARIABLES.get(world_of(run))
    return variable is None or bool(os.environ.get(variable))


def settings_of(run: Run, seed: int) -> Settings:
    """Return the settings of one seed of a run, with the path of its data."""
    values, world = {**run["settings"], **run.get("tuned", {}), "seed": seed}, world_of(run)
    if world in VARIABLES:
        own = values["environment"]
        path = Path(os.environ[VARIABLES[world]], own.get("path", ""))
        values["environment"] = {**own, "path": str(path)}
    return from_nested(values, "a result file")


def measures_of(run: Run) -> list[str]:
    """Return the names of the measures of a run: its lists, or the regret if it has none."""
    return [key for key, value in run.items() if isinstance(value, list)] or ["regret"]


def measure(name: str, result: Result) -> float:
    """Return ``regret`` (at the end), ``regret_T`` (after T iterations), or another number."""
    if name in result.numbers:
        return result.numbers[name]
    iteration = int(name.removeprefix("regret").removeprefix("_") or len(result.regret))
    return round(float(result.regret[iteration - 1]), 4)


def fill(run: Run, results: list[Result]) -> None:
    """Replace the measures of a run by those of its results, one for each seed."""
    for key in measures_of(run):
        run[key] = [measure(key, result) for result in results]


def repeat(content: Any) -> None:
    """Repeat all runs in the content of a result file, and replace their measures."""
    runs = [run for _, run in runs_in(content)]
    wanted = [[settings_of(run, seed) for seed in range(run["seeds"])] for run in runs]
    results = each_once(one for group in wanted for one in group)
    for run, group in zip(runs, wanted, strict=True):
        fill(run, [results[one] for one in group])


def sample(content: Any, name: str) -> Iterator[tuple[str, Run]]:
    """Yield the cheapest run of each kind in the content of a result file.

    A kind is a combination of algorithm, environment, schedule, selection and form. Runs on data
    without a path are omitted.
    """
    cheapest: dict[tuple[str, ...], tuple[float, str, Run]] = {}
    for where, run in runs_in(content, name):
        if not is_possible(run):
            continue
        settings = settings_of(run, 0)
        forms = (settings.selection, settings.matrix_form, settings.robust)
        key = (settings.algorithm, world_of(run), settings.schedule.name, *forms)
        price = cost(settings)
        if key not in cheapest or price < cheapest[key][0]:
            cheapest[key] = price, where, run
    for _, where, run in cheapest.values():
        yield where, run


def stale(where: str, run: Run) -> list[str]:
    """Repeat the first seed of a run; return one line per measure that differs."""
    result = simulate(settings_of(run, 0))
    lines = []
    for key in measures_of(run):
        values = run.get(key, [])
        if len(values) != run["seeds"]:
            lines.append(f"{where}.{key} has {len(values)} values of {run['seeds']}: recompute it")
            continue
        now, then = measure(key, result), values[0]
        if not math.isclose(now, then, rel_tol=1e-5):
            lines.append(f"{where}.{key} of seed 0 is {then} in the file and {now} now")
    return lines
