"""`python -m simulations.report DIR [DIR ...] [--output FILE]`: one page about many runs.

The page is a single HTML file that needs nothing else: it opens offline, from a mail or a
folder. Its parts lie in this folder; the runs travel in it as one block of JSON.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from simulations import start

    start.begin()

import argparse
import datetime
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from fldb_flower.errors import DataError, FldbError, OutputError, one_line
from fldb_flower.system.commands import Parser
from fldb_flower.system.pages import digest
from fldb_flower.system.signals import interruptible
from simulations.saved_runs import (
    Run,
    Unfinished,
    find_runs,
    group_by_seed,
    natural_order,
    relevant,
    varying,
)

REPORT = "report.html"
MAX_POINTS = 200
"""Points kept of a curve; the page says so where there were more."""
_SPEAK_FOR_THEMSELVES = (
    "algorithm",
    "environment.name",
    "schedule.name",
    "engine.name",
    "selection",
)
"""Settings whose values need no name beside them."""


def build(runs: Sequence[Run], unfinished: Sequence[Unfinished], folder: Path) -> str:
    """Return the page about some runs.

    Parameters
    ----------
    runs : sequence of Run
        At least one.
    unfinished : sequence of Unfinished
        Listed in the page with their reasons.
    folder : Path
        Where the page will lie; links to the runs are relative to it.
    """
    page = files("simulations.report")
    style, script, frame = (
        (page / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "page.html")
    )
    parts = {
        "style": style,
        "script": script,
        "style_hash": digest(style),
        "script_hash": digest(script),
        "data": _embeddable(payload(runs, unfinished, folder)),
    }
    # One pass: what is put in is not searched for further places.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], frame)


def payload(runs: Sequence[Run], unfinished: Sequence[Unfinished], folder: Path) -> dict[str, Any]:
    """Return what the page shows, as JSON values; arguments as for :func:`build`."""
    differing = varying(runs)
    groups = sorted(
        group_by_seed(runs), key=lambda group: _setting_order(group[0], _without_seed(differing))
    )
    ordered = [run for group in groups for run in sorted(group, key=_seed_order)]
    number = {id(run): index for index, group in enumerate(groups) for run in group}
    horizons = sorted({len(run.curve) for run in runs})
    return {
        "created": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "varying": [_shown_name(key) for key in differing],
        "values": [_values(runs, key) for key in differing],
        "common": _common(runs, differing),
        "grids": [kept_iterations(horizon).tolist() for horizon in horizons],
        "thinned": horizons[-1] > MAX_POINTS,
        "groups": [
            _group(group, differing, horizons.index(len(group[0].curve))) for group in groups
        ],
        "runs": [
            _run(run, differing, folder, group=number[id(run)], alone=len(groups[number[id(run)]]))
            for run in ordered
        ],
        "unfinished": [
            {"path": _relative(item.path, folder), "reason": item.reason} for item in unfinished
        ],
    }


def kept_iterations(horizon: int) -> npt.NDArray[np.int64]:
    """Return the iterations that the page keeps: all of them, or at most :data:`MAX_POINTS`.

    Half are evenly spaced and half by ratio, so that a logarithmic axis has its share; the first
    and the last are always kept.
    """
    if horizon <= MAX_POINTS:
        return np.arange(1, horizon + 1)
    half = MAX_POINTS // 2
    even = np.linspace(1, horizon, half)
    ratio = np.geomspace(1, horizon, half)
    return np.unique(np.rint(np.concatenate([even, ratio])).astype(np.int64))


def write(path: Path, text: str) -> None:
    """Write the page whole or not at all.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with partial.open("x", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror}; name another file with --output"
        ) from None


def _embeddable(value: Any) -> str:
    """Return JSON that no HTML parser can take for markup."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _without_seed(keys: Sequence[str]) -> list[str]:
    return [key for key in keys if key != "seed"]


def _seed_order(run: Run) -> tuple[Any, ...]:
    return natural_order(run.settings.get("seed"))


def _setting_order(run: Run, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    return [natural_order(run.settings.get(key)) for key in keys]


def _shown_name(key: str) -> str:
    """Return what the user writes: a group's ``name`` is the group's key."""
    return key.removesuffix(".name")


def _shown(run: Run, key: str) -> str:
    """Return a setting as text (JavaScript would round a large seed), or why there is none."""
    if key not in run.settings:
        return "not set"
    value = run.settings[key]
    if key not in relevant(run.settings):
        return "not used"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) and value == float(f"{value:g}") else f"{value}"


def _label(run: Run, key: str) -> str:
    shown = _shown(run, key)
    return shown if key in _SPEAK_FOR_THEMSELVES and shown else f"{_shown_name(key)}={shown}"


def _values(runs: Sequence[Run], key: str) -> list[str]:
    by_order = sorted(runs, key=lambda run: natural_order(run.settings.get(key)))
    return list(dict.fromkeys(_shown(run, key) for run in by_order))


def _common(runs: Sequence[Run], differing: Sequence[str]) -> list[list[str]]:
    """Return names and values of the settings that all runs share, and that they use."""
    used = [(run, relevant(run.settings)) for run in runs]
    keys = dict.fromkeys(key for _, settings in used for key in settings)
    holders = {
        key: next(run for run, settings in used if key in settings)
        for key in keys
        if key not in differing
    }
    return [[_shown_name(key), _shown(run, key)] for key, run in holders.items()]


def _rounded(values: npt.ArrayLike) -> list[float]:
    """Return numbers with eight significant digits: more than the page shows, in half the size."""
    return [float(f"{value:.8g}") for value in np.asarray(values, dtype=float)]


def _one_per_seed(group: Sequence[Run]) -> list[Run]:
    """Drop repetitions of a seed: they would pass for independent runs in a standard error."""
    return list({run.settings.get("seed"): run for run in reversed(group)}.values())[::-1]


def _mean(values: npt.NDArray[np.float64]) -> tuple[list[float], list[float] | None]:
    """Return mean and standard error over the first axis; no error from a single run."""
    if len(values) == 1:
        return _rounded(values[0]), None
    error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
    return _rounded(values.mean(axis=0)), _rounded(error)


def _regrets(run: Run) -> npt.NDArray[np.float64]:
    regret = run.curve["cumulative_regret"].to_numpy(dtype=float)
    return regret[kept_iterations(len(regret)) - 1]


def _figures(run: Run) -> dict[str, float]:
    summary = run.summary
    return {
        "regret": float(summary["final_regret"]),
        "exchanges": float(summary["exchanges"]),
        "up": float(summary["uploaded_bytes"]),
        "down": float(summary["downloaded_bytes"]),
        "seconds": float(summary["runtime_seconds"]),
    }


def _group(group: Sequence[Run], differing: Sequence[str], grid: int) -> dict[str, Any]:
    runs = _one_per_seed(group)
    mean, error = _mean(np.stack([_regrets(run) for run in runs]))
    figures = [_figures(run) for run in runs]
    table = np.array([list(row.values()) for row in figures])  # (seeds, figures)
    centre, spread = _mean(table)
    used = relevant(group[0].settings)
    return {
        "label": [_label(group[0], key) for key in _without_seed(differing) if key in used],
        "seeds": len(runs),
        "grid": grid,
        "mean": mean,
        "error": error,
        "figures": dict(zip(figures[0], centre, strict=True)),
        "spread": None if spread is None else dict(zip(figures[0], spread, strict=True)),
    }


def _run(
    run: Run, differing: Sequence[str], folder: Path, *, group: int, alone: int
) -> dict[str, Any]:
    """Return a run's row; its curve is left out where it is its group's mean."""
    path = _relative(run.path, folder)
    return {
        "path": path,
        "href": "./" + quote(os.fsencode(path + "/")),  # "./": a name is never a URL's scheme
        "settings": [_shown(run, key) for key in differing],
        "seed": _shown(run, "seed"),
        "group": group,
        "curve": None if alone == 1 else _rounded(_regrets(run)),
        **_figures(run),
    }


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m simulations.report",
        description="Make one self-contained page about the runs below some folders.",
    )
    parser.add_argument("folders", metavar="DIR", nargs="+", type=Path, help="searched for runs")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help=f"the page (default: {REPORT} in the first DIR)"
    )
    return parser.parse_args(argv)


def _require_finished(
    runs: Sequence[Run], unfinished: Sequence[Unfinished], folders: Sequence[Path]
) -> None:
    if runs:
        return
    where = ", ".join(str(folder) for folder in folders)
    if not unfinished:
        raise DataError(f"there are no runs below {where}")
    first = unfinished[0]
    raise DataError(
        f"none of the {len(unfinished)} runs below {where} is finished;"
        f" the first is {first.path}: {first.reason}"
    )


def report(folders: Sequence[Path], output: Path | None = None) -> Mapping[str, Any]:
    """Make the page about the runs below some folders; return its path and the counts.

    Raises
    ------
    DataError
        A folder is missing, or there is no finished run.
    OutputError
        The page cannot be written.
    """
    runs, unfinished = find_runs(folders)
    _require_finished(runs, unfinished, folders)
    path = folders[0] / REPORT if output is None else output
    write(path, build(runs, unfinished, path.parent))
    return {"path": path, "runs": len(runs), "unfinished": unfinished}


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: exit status 1, with one line on stderr, for a mistake of the user's."""
    arguments = _arguments(argv)
    with interruptible():
        try:
            made = report(arguments.folders, arguments.output)
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")
        for item in made["unfinished"]:
            print(one_line(f"skipped {item.path}: {item.reason}"), file=sys.stderr)
        print(one_line(f"report: {made['path']} ({made['runs']} runs)"))


if __name__ == "__main__":
    main()
