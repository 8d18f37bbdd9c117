"""The page of the report: one HTML file with tables of runs and of groups, and charts of Plotly."""

from __future__ import annotations

import base64
import datetime
import json
import os
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs

from fldb_flower.errors import DataError, OutputError
from fldb_flower.runs.results import PARTICIPATION, PREDICTION
from fldb_flower.runs.styles import ALGORITHM_STYLES, Style, styles_of
from fldb_flower.system.files import digest, read_part
from simulations.saved_runs import (
    NUMBERS,
    PREDICTIONS,
    Run,
    Unfinished,
    predictions,
    read,
    varying,
)

MAX_POINTS = 200
"""Maximum number of points of a curve, apart from the ends of shorter runs."""
DARK = {"#1a2027": "#e8ecf1", "#dfe3e8": "#36404b"}
"""Colors of text and grid on a dark background, by those on white."""

_INK, _GRID = DARK
_SHOWN_ALONE = ("algorithm", "environment.name", "schedule.name", "engine.name", "selection")
_FINAL, _REGRET = NUMBERS[0], "cumulative regret per agent"
_COSTS = {"exchanges": ["exchanges"], "bytes": ["uploaded_bytes", "downloaded_bytes"]}
_TITLES = {
    "uploaded_bytes": "bytes up",
    "downloaded_bytes": "bytes down",
    "runtime_seconds": "seconds",
}


class Group(NamedTuple):
    """Runs with equal values of some settings, by their places among all runs."""

    label: str
    values: dict[str, str]
    places: list[int]
    style: Style


class Data:
    """The runs of a report, and the settings that differ between them, as text.

    A setting without effect on a run is missing in its settings.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs, self.keys = runs, varying(runs)
        self.settings = [
            {key: text_of(run.used[key]) for key in self.keys if key in run.used} for run in runs
        ]
        self.common = {
            name_of(key): text_of(value)
            for run in runs
            for key, value in run.used.items()
            if key not in self.keys
        }
        self.kept = kept_iterations([len(run.curve) for run in runs])
        self.measures = [*predictions(runs), *NUMBERS[1:]]
        summaries = [run.summary for run in runs]
        self.numbers = pd.DataFrame(summaries, columns=[_FINAL, *self.measures], dtype=float)

    def ways_to_group(self) -> dict[str, list[str]]:
        """Return the settings whose equal values form a group, by title."""
        single = {name_of(key): [key] for key in self.keys} if len(self.keys) > 1 else {}
        return {"configuration": [key for key in self.keys if key != "seed"], **single}

    def groups(self, by: Sequence[str]) -> list[Group]:
        """Return the groups in the order of their values; a repeated run counts once."""
        found: dict[tuple[Any, ...], dict[tuple[Any, ...], int]] = {}
        for place, own in enumerate(self.settings):
            key = tuple((name not in own, *_order(own.get(name, ""))) for name in by)
            found.setdefault(key, {}).setdefault(tuple(own.items()), place)
        members = [list(found[key].values()) for key in sorted(found)]
        algorithms = [
            {str(self.runs[i].settings.get("algorithm")) for i in each} for each in members
        ]
        are_single = all(len(each) == 1 for each in algorithms)
        styles = styles_of([min(each) if are_single else "" for each in algorithms])
        groups = []
        for places, style in zip(members, styles, strict=True):
            own = self.settings[places[0]]
            values = {name: own[name] for name in by if name in own}
            parts = [v if k in _SHOWN_ALONE else f"{name_of(k)}={v}" for k, v in values.items()]
            label = ", ".join(filter(None, parts)) or "all runs"
            groups.append(Group(label, values, places, style))
        return groups

    def run_table(self, paths: Sequence[str]) -> dict[str, Any]:
        """Return titles, formats and rows of the table of runs."""
        rows = [
            [path, final, *(own.get(key, "") for key in self.keys), *numbers]
            for path, own, (final, *numbers) in zip(
                paths, self.settings, self.numbers.to_numpy().tolist(), strict=True
            )
        ]
        return _table(["Run", "Final regret", *map(name_of, self.keys), *self.measures], rows)

    def group_table(self, groups: Sequence[Group]) -> dict[str, Any]:
        """Return titles, formats and rows of a table of groups: statistics of the final regret."""
        rows = []
        for group in groups:
            numbers = self.numbers.iloc[group.places]
            final, means = numbers[_FINAL], numbers[self.measures].mean()
            values = [group.values.get(key, "") for key in self.keys]
            statistics = [len(final), final.mean(), final.sem(), final.median()]
            rows.append([group.label, *values, *statistics, *means])
        titles = ["Runs", "Mean regret", "Std. error", "Median", *self.measures]
        return _table(["Group", *map(name_of, self.keys), *titles], rows)

    def regret_chart(self, groups: Sequence[Group]) -> go.Figure:
        """Return the mean regret of each group, with a band of one standard error."""
        figure = _figure("iteration", _REGRET)
        for number, group in enumerate(groups):
            curves = [_regret(self.runs[place]) for place in group.places]
            x = self.kept[: np.searchsorted(self.kept, min(map(len, curves)), side="right")]
            mean, error = _mean_and_error([curve[x - 1] for curve in curves])
            common = {"name": _short(group.label), "legendgroup": str(number), "meta": number}
            line, band = group.style["color"], f"{group.style['color']}26"
            reading = "iteration %{x:,}<br>regret %{y:,.5~g}"
            if error is not None:
                reading += " ± %{customdata:.4~g}"
                low = np.where(mean > error, mean - error, mean / 10)  # above 0, for a log axis
                figure.add_scatter(
                    x=_small([*x, *x[::-1]]), y=_small([*(mean + error), *low[::-1]]),
                    fill="toself", mode="none", fillcolor=band, hoverinfo="skip",
                    showlegend=False, **common,
                )  # fmt: skip
            dash = ",".join(f"{2 * length}px" for length in group.style["dash"]) or "solid"
            figure.add_scatter(
                x=_small(x), y=_small(mean), customdata=None if error is None else _small(error),
                mode="lines", line={"color": line, "dash": dash, "width": 2.25},
                hovertemplate=reading, **common,
            )  # fmt: skip
        return figure

    def cost_chart(self, groups: Sequence[Group], title: str, names: list[str]) -> go.Figure:
        """Return the final regret of each group against a cost; filled marks are not dominated."""
        figure = _figure(title, "final regret per agent")
        figure.update_layout(showlegend=False, xaxis_rangemode="normal")
        numbers = [self.numbers.iloc[group.places] for group in groups]
        points = [(own[names].sum(axis=1).mean(), own[_FINAL].mean()) for own in numbers]
        errors = [own[_FINAL].sem() if len(own) > 1 else 0.0 for own in numbers]
        best = pareto_frontier(points)
        for number, (group, (x, y), error) in enumerate(zip(groups, points, errors, strict=True)):
            color, symbol = group.style["color"], group.style["marker"]
            figure.add_scatter(
                x=[x], y=[y], customdata=[error], mode="markers", meta=number,
                name=_short(group.label), error_y={"array": [error], "thickness": 1.5},
                marker={
                    "symbol": symbol if number in best else f"{symbol}-open", "size": 11,
                    "color": color, "line": {"width": 2, "color": color},
                },
                hovertemplate=f"{title} %{{x:,.5~s}}<br>regret %{{y:,.5~g}} ± %{{customdata:.4~g}}",
            )  # fmt: skip
        return figure

    def details(self, run: Run) -> dict[str, Any]:
        """Return the curves of a run by title, for comparisons, and notes on its nodes."""
        x = self.kept[: np.searchsorted(self.kept, len(run.curve), side="right")]
        curves: dict[str, tuple[Any, Any]] = {_REGRET: (x, _regret(run)[x - 1])}
        notes = {}
        try:
            if (run.path / PREDICTION).exists():
                table = read(run.path / PREDICTION)
                if len(table) != len(run.curve):
                    raise DataError(f"{PREDICTION} has {len(table)} rows, not {len(run.curve)}")
                for name in PREDICTIONS:
                    curves[name.replace("_", " ")] = (x, table[name].to_numpy()[x - 1])
            if (run.path / PARTICIPATION).exists():
                table = read(run.path / PARTICIPATION)
                notes["Replies"] = f"{table['replied'].sum():,} of {table['asked'].sum():,}"
                for name in ("absent", "rejected"):
                    nodes = table[name][table[name] != ""].str.split("; ").explode()
                    counts = [f"{node} ({n})" for node, n in nodes.value_counts().head(10).items()]
                    notes |= {f"{name} nodes".capitalize(): ", ".join(counts)} if counts else {}
                parts = np.arange(len(table)) * min(len(table), MAX_POINTS) // len(table)
                sums = table[["asked", "replied"]].groupby(parts).sum()
                ends = table["iteration"].groupby(parts).last()
                curves["share of replies"] = (ends, sums["replied"] / sums["asked"].clip(lower=1))
        except DataError as error:
            notes["Problem"] = str(error)
        shown = {name: {"x": _packed(x), "y": _packed(y)} for name, (x, y) in curves.items()}
        return {"curves": shown, "notes": notes}


def text_of(value: Any) -> str:
    """Return the value of a setting as text, since JavaScript would round a large seed."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) and value == float(f"{value:g}") else f"{value}"


def name_of(key: str) -> str:
    """Return a setting as users write it."""
    return key.removesuffix(".name")


def _order(text: str) -> tuple[bool, float, str]:
    """Return a sort key of the text of a setting: numbers by value, before other texts."""
    try:
        return (False, float(text), "")
    except ValueError:
        return (True, 0.0, text)


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


def pareto_frontier(points: Sequence[tuple[float, float]]) -> set[int]:
    """Return the places of the points (cost, regret) that no other point dominates."""
    return {
        place
        for place, (x, y) in enumerate(points)
        if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)
    }


def _mean_and_error(values: npt.ArrayLike) -> tuple[Any, Any]:
    """Return the mean over the first axis and its standard error; None for one value."""
    rows = np.asarray(values, dtype=float)
    error = rows.std(axis=0, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else None
    return rows.mean(axis=0), error


def _regret(run: Run) -> npt.NDArray[np.float64]:
    return run.curve["cumulative_regret"].to_numpy(dtype=float)


def _small(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return seven significant digits, which Plotly writes as base64."""
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float32)


def _packed(values: npt.ArrayLike) -> dict[str, str]:
    """Return the same as Plotly writes an array in a figure."""
    return {"dtype": "f4", "bdata": base64.b64encode(_small(values).tobytes()).decode()}


def _short(label: str) -> str:
    """Return text for Plotly, which reads some markup."""
    return escape(label if len(label) <= 48 else f"{label[:47]}…")


def _table(titles: Sequence[str], rows: list[list[Any]]) -> dict[str, Any]:
    kinds = ["text" if isinstance(cell, str) else "number" for cell in rows[0]]
    shown = [_TITLES.get(title, title)[:40] for title in titles]
    digits = [4 if title in PREDICTIONS else 2 for title in titles]
    for place, kind in enumerate(kinds):
        numbers = (row[place] for row in rows)
        if kind == "number" and all(pd.isna(n) or float(n).is_integer() for n in numbers):
            digits[place] = 0
    columns = zip(shown, kinds, digits, strict=True)
    return {"columns": [{"title": t, "kind": k, "digits": d} for t, k, d in columns], "rows": rows}


def _figure(x: str, y: str) -> go.Figure:
    clear = "rgba(0,0,0,0)"
    axis = {"gridcolor": _GRID, "zeroline": False, "automargin": True, "rangemode": "tozero"}
    return go.Figure(
        layout={
            "template": "none", "height": 430, "font": {"color": _INK}, "hovermode": "closest",
            "margin": {"l": 10, "r": 10, "t": 30, "b": 10}, "modebar": {"bgcolor": clear},
            "paper_bgcolor": clear, "plot_bgcolor": clear, "showlegend": True,
            "xaxis": {**axis, "title": {"text": x}}, "yaxis": {**axis, "title": {"text": y}},
        }
    )  # fmt: skip


def build(runs: Sequence[Run], unfinished: Sequence[Unfinished], folder: Path) -> str:
    """Return the page about one or more runs; its links are relative to its folder."""
    parts = {
        "charts": get_plotlyjs(),
        "tables": _as_script((files("itables") / "html" / "dt_bundle.js").read_text("utf-8")),
        "script": _read("page.js"),
    }
    parts |= {
        "hashes": " ".join(f"'{digest(text)}'" for text in parts.values()),
        "style": (files("itables") / "html" / "dt_bundle.css").read_text("utf-8")
        + _read("page.css"),
        "data": _embeddable(payload(runs, unfinished, folder)),
    }
    # One pass: placeholders in inserted text are not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("page.html"))


def payload(runs: Sequence[Run], unfinished: Sequence[Unfinished], folder: Path) -> dict[str, Any]:
    """Return the data of the page."""
    data = Data(runs)
    paths = [_relative(run.path, folder) for run in runs]
    groupings, styles = {}, list(ALGORITHM_STYLES.values())
    palette = [style["color"] for style in styles]
    for title, by in data.ways_to_group().items():
        groups = data.groups(by)
        styles += [group.style for group in groups]
        charts = {name: data.cost_chart(groups, name, names) for name, names in _COSTS.items()}
        groupings[title] = {
            "charts": {"regret": data.regret_chart(groups), **charts},
            "table": data.group_table(groups),
            "colors": [group.style["color"] for group in groups],
        }
    return {
        "created": datetime.datetime.now().astimezone().isoformat(" ", timespec="minutes"),
        "groupings": groupings,
        "runs": data.run_table(paths),
        # "./": a name must not be read as a scheme
        "links": ["./" + quote(os.fsencode(f"{path}/")) for path in paths],
        "details": [data.details(run) for run in runs],
        "common": data.common,
        "unfinished": [[_relative(item.path, folder), item.reason] for item in unfinished],
        "palette": palette,
        "dark": DARK | {style["color"]: style["dark"] for style in styles},
    }


def _as_script(module: str) -> str:
    """Return an ECMAScript module as a script that sets its default export as ``DataTable``."""
    exported = re.search(r"export\s*\{[^}]*?([\w$]+) as default[^}]*\};?", module)
    if exported is None:
        raise OutputError("this version of itables has an unknown bundle: install itables 2.9")
    before, after = module[: exported.start()], module[exported.end() :]
    return f"(()=>{{{before}globalThis.DataTable={exported[1]};{after}\n}})();"


def _read(name: str) -> str:
    return read_part("simulations.report", name)


def _embeddable(value: Any) -> str:
    """Return JSON without characters that an HTML parser could interpret."""
    text = str(to_json_plotly(value))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
