"""The data of the report, as JSON values."""

from __future__ import annotations

import datetime
import json
import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from simulations.saved_runs import (
    NUMBERS,
    Run,
    Unfinished,
    group_by_seed,
    natural_order,
    one_per_seed,
    predictions,
    relevant,
    varying,
)

MAX_POINTS = 200
"""Maximum number of points of a curve; the page notes if there were more."""
_WITHOUT_NAME = ("algorithm", "environment.name", "schedule.name", "engine.name", "selection")
"""Settings whose values are shown without their name."""


def payload(runs: Sequence[Run], unfinished: Sequence[Unfinished], folder: Path) -> dict[str, Any]:
    """Return the data of the page as JSON values; see :func:`simulations.report.page.build`."""
    differing = varying(runs)
    labels = [key for key in differing if key != "seed"]
    groups = sorted(
        group_by_seed(runs), key=lambda group: [_order(group[0], key) for key in labels]
    )
    horizons = sorted({len(run.curve) for run in runs})
    return {
        "created": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "varying": [_shown_name(key) for key in differing],
        "values": [_values(runs, key) for key in differing],
        "common": _common(runs, differing),
        "predictions": predictions(runs),
        "grids": [kept_iterations(horizon).tolist() for horizon in horizons],
        "thinned": horizons[-1] > MAX_POINTS,
        "groups": [_group(group, labels, horizons.index(len(group[0].curve))) for group in groups],
        "runs": [
            {
                **_run(run, differing, folder),
                "group": number,
                # The only run of a group has the curve of the group.
                "curve": None if len(group) == 1 else _rounded(_regrets(run)),
            }
            for number, group in enumerate(groups)
            for run in sorted(group, key=partial(_order, key="seed"))
        ],
        "unfinished": [
            {"path": _relative(item.path, folder), "reason": item.reason} for item in unfinished
        ],
    }


def kept_iterations(horizon: int) -> npt.NDArray[np.int64]:
    """Return the iterations whose regret is on the page, at most :data:`MAX_POINTS`.

    If there are more iterations, half of the points are spaced evenly and half by ratio, for a
    logarithmic axis. The first and the last iteration are included.
    """
    if horizon <= MAX_POINTS:
        return np.arange(1, horizon + 1)
    half = MAX_POINTS // 2
    even = np.linspace(1, horizon, half)
    ratio = np.geomspace(1, horizon, half)
    return np.unique(np.rint(np.concatenate([even, ratio])).astype(np.int64))


def _order(run: Run, key: str) -> tuple[Any, ...]:
    return natural_order(run.settings.get(key))


def _shown_name(key: str) -> str:
    """Return the name that users write: the ``name`` of a group is the key of the group."""
    return key.removesuffix(".name")


def _shown(run: Run, key: str) -> str:
    """Return a setting as text, since JavaScript would round a large seed."""
    if key not in run.settings:
        return "not set"
    value = run.settings[key]
    if key not in relevant(run.settings):
        return "not used"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) and value == float(f"{value:g}") else f"{value}"


def _values(runs: Sequence[Run], key: str) -> list[str]:
    by_order = sorted(runs, key=partial(_order, key=key))
    return list(dict.fromkeys(_shown(run, key) for run in by_order))


def _label(run: Run, key: str) -> str:
    shown = _shown(run, key)
    return shown if key in _WITHOUT_NAME and shown else f"{_shown_name(key)}={shown}"


def _common(runs: Sequence[Run], differing: Sequence[str]) -> list[list[str]]:
    """Return names and values of the settings that all runs share and use."""
    shown: dict[str, str] = {}
    for run in runs:
        for key in relevant(run.settings):
            if key not in differing and key not in shown:
                shown[key] = _shown(run, key)
    return [[_shown_name(key), value] for key, value in shown.items()]


def _rounded(values: npt.ArrayLike) -> list[float]:
    """Return numbers rounded to eight significant digits, which halves the size of the page."""
    return [float(f"{value:.8g}") for value in np.asarray(values, dtype=float)]


def _mean(values: npt.NDArray[np.float64]) -> tuple[list[float], list[float] | None]:
    """Return mean and standard error over the first axis; the error of one run is None."""
    if len(values) == 1:
        return _rounded(values[0]), None
    error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
    return _rounded(values.mean(axis=0)), _rounded(error)


def _regrets(run: Run) -> npt.NDArray[np.float64]:
    regret = run.curve["cumulative_regret"].to_numpy(dtype=float)
    return regret[kept_iterations(len(regret)) - 1]


def _figures(run: Run) -> dict[str, float]:
    names = ("regret", "exchanges", "up", "down", "seconds")
    return {name: float(run.summary[key]) for name, key in zip(names, NUMBERS, strict=True)}


def _group(group: Sequence[Run], labels: Sequence[str], grid: int) -> dict[str, Any]:
    runs = one_per_seed(group)
    mean, error = _mean(np.stack([_regrets(run) for run in runs]))
    figures = [_figures(run) for run in runs]
    centre, spread = _mean(np.array([list(row.values()) for row in figures]))
    used = relevant(group[0].settings)
    return {
        "label": [_label(group[0], key) for key in labels if key in used],
        "seeds": len(runs),
        "grid": grid,
        "mean": mean,
        "error": error,
        "figures": dict(zip(figures[0], centre, strict=True)),
        "spread": None if spread is None else dict(zip(figures[0], spread, strict=True)),
    }


def _run(run: Run, differing: Sequence[str], folder: Path) -> dict[str, Any]:
    path = _relative(run.path, folder)
    return {
        "path": path,
        "href": "./" + quote(os.fsencode(path + "/")),  # "./": a name must not be read as a scheme
        "settings": [_shown(run, key) for key in differing],
        "seed": _shown(run, "seed"),
        **_figures(run),
        **{name: run.summary[name] for name in predictions([run])},
    }


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
