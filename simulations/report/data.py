"""The data of the report, as JSON values."""

from __future__ import annotations

import base64
import datetime
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pandas as pd

from fldb_flower.errors import DataError
from fldb_flower.runs.styles import Style, styles_of
from simulations.saved_runs import (
    NUMBERS,
    PREDICTIONS,
    Run,
    Unfinished,
    natural_order,
    predictions,
    read_participation,
    read_predictions,
    relevant,
    varying,
)

MAX_POINTS = 200
"""Maximum number of points of a curve, apart from the ends of shorter runs."""
MAX_NODES = 10
"""Maximum number of nodes that are named for missing or rejected replies."""
NOT_SET, NOT_USED = "not set", "not used"
SEED = "seed"
_WITHOUT_NAME = ("algorithm", "environment.name", "schedule.name", "engine.name", "selection")
"""Settings whose values are shown without their name."""
_FIGURES = ("regret", "exchanges", "up", "down", "seconds")  # short names of NUMBERS


def payload(runs: Sequence[Run], unfinished: Sequence[Unfinished], folder: Path) -> dict[str, Any]:
    """Return the data of the page as JSON values; see :func:`simulations.report.page.build`.

    Curves are base64 of little-endian float32, at those of ``iterations`` up to the horizon of
    the run. ``settings`` of a run are indices of the values of each setting.
    """
    horizons = [len(run.curve) for run in runs]
    iterations = kept_iterations(horizons)
    settings, places = _settings(runs)
    groupings = [
        _grouping(runs, settings, places, title, by) for title, by in _ways_to_group(settings)
    ]
    return {
        "created": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "iterations": iterations.tolist(),
        "thinned": len(iterations) < max(horizons),
        "settings": settings,
        "predictions": predictions(runs),
        "groupings": groupings,
        "runs": [
            {**_run(run, folder, iterations), "settings": place}
            for run, place in zip(runs, places, strict=True)
        ],
        "unfinished": [
            {"path": _relative(item.path, folder), "reason": item.reason} for item in unfinished
        ],
    }


def kept_iterations(horizons: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the iterations whose regret is on the page, in ascending order.

    If there are more than :data:`MAX_POINTS`, half of the points are spaced evenly and half by
    ratio, for a logarithmic axis. The first iteration and all horizons are included.
    """
    last = max(horizons)
    if last <= MAX_POINTS:
        return np.arange(1, last + 1)
    half = MAX_POINTS // 2
    spaced = [np.linspace(1, last, half), np.geomspace(1, last, half), np.array(horizons)]
    return np.unique(np.rint(np.concatenate(spaced)).astype(np.int64))


# ---- Settings and groups


def _shown(run: Run, key: str, used: Mapping[str, Any]) -> str:
    """Return a setting as text, since JavaScript would round a large seed."""
    if key not in run.settings:
        return NOT_SET
    if key not in used:
        return NOT_USED
    value = run.settings[key]
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) and value == float(f"{value:g}") else f"{value}"


def _settings(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Return each setting with its values in their order, and for each run their indices."""
    used = [relevant(run.settings) for run in runs]
    differing = set(varying(runs))
    settings, columns = [], []
    for key in dict.fromkeys(key for each in used for key in each):
        shown = [_shown(run, key, each) for run, each in zip(runs, used, strict=True)]
        order = {
            text: (text in (NOT_SET, NOT_USED), natural_order(run.settings.get(key)))
            for run, text in zip(runs, shown, strict=True)
        }
        values = sorted(order, key=order.__getitem__)
        settings.append(
            {
                "name": key.removesuffix(".name"),  # as users write it
                "values": values,
                "varies": key in differing,
                "bare": key in _WITHOUT_NAME,
            }
        )
        index = {text: place for place, text in enumerate(values)}
        columns.append([index[text] for text in shown])
    return settings, [list(row) for row in zip(*columns, strict=True)]


def _ways_to_group(settings: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[int]]]:
    """Return titles and the settings whose values form a group, by their index."""
    differing = [index for index, item in enumerate(settings) if item["varies"]]
    without_seed = [index for index in differing if settings[index]["name"] != SEED]
    single = [(settings[index]["name"], [index]) for index in differing]
    ways = [("configuration", without_seed), *(single if len(differing) > 1 else [])]
    return [*ways, ("run", [*without_seed, *(set(differing) - set(without_seed))])]


def _grouping(
    runs: Sequence[Run],
    settings: Sequence[Mapping[str, Any]],
    places: Sequence[Sequence[int]],
    title: str,
    by: Sequence[int],
) -> dict[str, Any]:
    """Return labels and styles of the groups, and the group of each run."""
    alone = title == "run"
    keys = [
        (*(place[index] for index in by), *([number] if alone else []))
        for number, place in enumerate(places)
    ]
    groups = {key: number for number, key in enumerate(sorted(set(keys)))}
    algorithms: list[set[str]] = [set() for _ in groups]
    for run, key in zip(runs, keys, strict=True):
        algorithms[groups[key]].add(str(run.settings.get("algorithm")))
    labels = [
        [_label(settings[index], place) for index, place in zip(by, key, strict=False)]
        for key in groups
    ]
    return {
        "title": title,
        "by": list(by),
        "groups": [
            {"label": ", ".join(filter(None, label)) or "all runs", **style}
            for label, style in zip(labels, _styles(algorithms), strict=True)
        ],
        "of": [groups[key] for key in keys],
    }


def _styles(algorithms: Sequence[set[str]]) -> list[dict[str, Any]]:
    """Return two styles of each group: among all groups, and among those of its algorithm."""
    names = ["" if len(each) > 1 else min(each) for each in algorithms]
    one_each = [name if all(names) else "" for name in names]
    alone: dict[int, Style] = {}
    for name in set(one_each):
        places = [place for place, other in enumerate(one_each) if other == name]
        alone |= zip(places, styles_of([name] * len(places)), strict=True)
    return [
        {"algorithm": name, "style": _style(style), "alone": _style(alone[place])}
        for place, (name, style) in enumerate(zip(one_each, styles_of(one_each), strict=True))
    ]


def _style(style: Style) -> dict[str, Any]:
    colors = [style["color"], style["dark"]]
    return {"colors": colors, "dash": style["dash"], "marker": style["marker"]}


def _label(setting: Mapping[str, Any], place: int) -> str:
    shown = setting["values"][place]
    if shown in (NOT_USED, ""):
        return ""
    return str(shown) if setting["bare"] else f"{setting['name']}={shown}"


# ---- Runs


def _run(run: Run, folder: Path, iterations: npt.NDArray[np.int64]) -> dict[str, Any]:
    path = _relative(run.path, folder)
    kept = iterations[: np.searchsorted(iterations, len(run.curve), side="right")] - 1
    figures = zip(_FIGURES, NUMBERS, strict=True)
    return {
        "path": path,
        "href": "./" + quote(os.fsencode(path + "/")),  # "./": a name must not be read as a scheme
        **{short: float(run.summary[name]) for short, name in figures},
        **{name: run.summary[name] for name in predictions([run])},
        "curve": _encoded(run.curve["cumulative_regret"].to_numpy(dtype=float)[kept]),
        **_optional("predicted", read_predictions, run, lambda table: _predicted(table, kept)),
        **_optional("participation", read_participation, run, _participation),
    }


def _optional(
    name: str,
    read: Callable[[Run], pd.DataFrame | None],
    run: Run,
    convert: Callable[[pd.DataFrame], dict[str, Any]],
) -> dict[str, Any]:
    """Return the content of a file that not every run has, or why it cannot be used."""
    try:
        table = read(run)
    except DataError as error:
        return {name: {"problem": str(error)}}
    return {} if table is None else {name: convert(table)}


def _predicted(table: pd.DataFrame, kept: npt.NDArray[np.int64]) -> dict[str, Any]:
    return {name: _encoded(table[name].to_numpy(dtype=float)[kept]) for name in PREDICTIONS}


def _participation(table: pd.DataFrame) -> dict[str, Any]:
    """Return replies in at most :data:`MAX_POINTS` intervals, and the nodes without one."""
    parts = np.arange(len(table)) * min(len(table), MAX_POINTS) // len(table)
    sums = table.groupby(parts).agg({"iteration": "last", "asked": "sum", "replied": "sum"})
    return {
        "iterations": sums["iteration"].tolist(),
        "share": _encoded(sums["replied"] / sums["asked"].clip(lower=1)),
        "asked": int(table["asked"].sum()),
        "replied": int(table["replied"].sum()),
        **{name: _most_frequent(table[name]) for name in ("absent", "rejected")},
    }


def _most_frequent(nodes: pd.Series[str]) -> list[list[Any]]:
    counts = nodes[nodes != ""].str.split("; ").explode().value_counts()
    return [[name, int(count)] for name, count in counts.head(MAX_NODES).items()]


def _encoded(values: npt.ArrayLike) -> str:
    """Return base64 of little-endian float32, which has seven significant digits."""
    with np.errstate(over="ignore"):
        return base64.b64encode(np.asarray(values).astype("<f4").tobytes()).decode()


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
