"""The page of the report: one HTML file with tables of runs and of groups, and charts of Plotly."""

from __future__ import annotations

import base64
import datetime
import itertools
import math
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
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
from fldb_flower.runs.styles import DARK_SEQUENCE, DASHES, SEQUENCE, encode, order_of, styles_of
from fldb_flower.system.files import digest, read_part
from simulations.saved_runs import (
    NUMBERS,
    PREDICTIONS,
    Run,
    Unfinished,
    predictions,
    read,
    text_of,
    varying,
)
from simulations.sweeps.tables import width_note

MAX_POINTS = 200
"""Maximum number of points of a curve, apart from the ends of shorter runs."""
DARK = {"#1a2027": "#e8ecf1", "#dfe3e8": "#36404b", "#56606b": "#a3aeba", "#ffffff": "#191f26"}
"""Colors of text, grid, buttons and the background on a dark page, by those on white."""

_INK, _GRID, _MUTED, _PAPER = DARK
_SHOWN_ALONE = ("algorithm", "environment.name", "schedule.name", "engine.name", "selection")
_FINAL, _REGRET = NUMBERS[0], "cumulative regret per agent"
_COSTS = {"exchanges": "exchanges", "bytes": "bytes per agent"}  # of the charts, and their titles
_TITLES = {
    "uploaded_bytes": "bytes up",
    "downloaded_bytes": "bytes down",
    "runtime_seconds": "seconds",
}


class Group(NamedTuple):
    """Runs with equal values of some settings, by their places among all runs.

    In a mixed group, runs differ in more than the seed: it has no standard error.
    """

    label: str
    values: dict[str, str]
    places: list[int]
    is_mixed: bool


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
        algorithms = sorted({str(run.settings.get("algorithm")) for run in runs})
        self.styles = dict(zip(algorithms, styles_of(algorithms), strict=True))
        self.kept = kept_iterations([len(run.curve) for run in runs])
        self.measures = [*predictions(runs), *NUMBERS[1:]]
        summaries = [run.summary for run in runs]
        self.numbers = pd.DataFrame(summaries, columns=[_FINAL, *self.measures], dtype=float)
        counts = [run.settings.get("num_agents") for run in runs]
        agents = [each if isinstance(each, int) else 1 for each in counts]
        size = self.numbers["uploaded_bytes"] + self.numbers["downloaded_bytes"]
        self.costs = {"exchanges": self.numbers["exchanges"], "bytes": size / agents}

    def ways_to_group(self) -> dict[str, list[str]]:
        """Return the settings whose equal values form a group, by title."""
        single = {name_of(key): [key] for key in self.keys} if len(self.keys) > 1 else {}
        return {"configuration": [key for key in self.keys if key != "seed"], **single}

    def groups(self, by: Sequence[str]) -> list[Group]:
        """Return the groups in the order of their values; a repeated run counts once."""
        found: dict[tuple[Any, ...], dict[tuple[Any, ...], int]] = {}
        for place, own in enumerate(self.settings):
            key = tuple(order_of(own.get(name, "")) for name in by)
            found.setdefault(key, {}).setdefault(tuple(own.items()), place)
        groups = []
        for key in sorted(found):
            places = list(found[key].values())
            own = self.settings[places[0]]
            values = {name: own[name] for name in by if name in own}
            configurations = {tuple(_without_seed(self.settings[each]).items()) for each in places}
            is_mixed = len(configurations) > 1
            groups.append(Group(_label(values) or "all runs", values, places, is_mixed))
        return groups

    def names(self) -> list[str]:
        """Return the names of runs: what differs, the seed if only it differs, else a number."""
        others = [_without_seed(own) for own in self.settings]
        full = [
            _label(rest | own) or "run" for rest, own in zip(others, self.settings, strict=True)
        ]
        labels = pd.Series([_label(rest) or "run" for rest in others])
        labels = labels.mask(labels.duplicated(keep=False), pd.Series(full))
        numbers = "\N{NO-BREAK SPACE}#" + (labels.groupby(labels).cumcount() + 1).astype(str)
        return (labels + numbers.where(labels.duplicated(keep=False), "")).tolist()

    def run_table(self, paths: Sequence[str]) -> dict[str, Any]:
        """Return titles, formats and rows of the table of runs."""
        rows = [
            [name, final, *(own.get(key, "") for key in self.keys), *numbers, path]
            for name, path, own, (final, *numbers) in zip(
                self.names(), paths, self.settings, self.numbers.to_numpy().tolist(), strict=True
            )
        ]
        titles = ["Run", "Final regret", *map(name_of, self.keys), *self.measures, "folder"]
        table = _table(titles, rows)
        table["columns"][-1]["kind"] = "path"
        return table

    def direction_table(self) -> dict[str, Any] | None:
        """Return a row for each direction in which people differ that a run has learned, if any."""
        rows = [
            [name, round(100 * each["share"]), _weights(each["weights"])]
            for name, run in zip(self.names(), self.runs, strict=True)
            for each in run.summary.get("directions", ())
        ]
        return _table(["Run", "Share (%)", "Features"], rows) if rows else None

    def group_table(self, groups: Sequence[Group]) -> dict[str, Any]:
        """Return titles, formats and rows of a table of groups: statistics of the final regret."""
        rows = []
        for group in groups:
            numbers = self.numbers.iloc[group.places]
            final, means = numbers[_FINAL], numbers[self.measures].mean()
            values = [group.values.get(key, "") for key in self.keys]
            error = math.nan if group.is_mixed else final.sem()
            statistics = [final.mean(), error, len(final), final.median()]
            rows.append([group.label, *values, *statistics, *means])
        titles = ["Mean regret", "Std. error", "Runs", "Median", *self.measures]
        return _table(["Group", *map(name_of, self.keys), *titles], rows)

    def regret_chart(self, groups: Sequence[Group]) -> go.Figure:
        """Return the mean regret of each group, with standard errors; the highest end is first."""
        figure = _figure("iteration", _REGRET)
        figure.update_layout(
            hovermode="x unified", hoversort="value descending", legend_traceorder="normal",
            xaxis_unifiedhovertitle_text="iteration %{x:,}", xaxis_spikethickness=1,
        )  # fmt: skip
        curves = []
        for number, group in enumerate(groups):
            own = [_regret(self.runs[place]) for place in group.places]
            x = self.kept[: np.searchsorted(self.kept, min(map(len, own)), side="right")]
            mean, error = _mean_and_error([curve[x - 1] for curve in own])
            curves.append((number, x, mean, None if group.is_mixed else error))
        for number, x, mean, error in sorted(curves, key=lambda curve: -curve[2][-1]):
            name = _short(groups[number].label)
            common = {"name": name, "legendgroup": str(number), "meta": number}
            reading = "%{y:,.2f}"
            if error is not None:
                reading += " ± %{customdata:,.2f}"
                low = np.where(mean > error, mean - error, mean / 10)  # above 0, for a log axis
                figure.add_scatter(
                    x=_small([*x, *x[::-1]]), y=_small([*(mean + error), *low[::-1]]),
                    fill="toself", mode="none", hoverinfo="skip", showlegend=False, **common,
                )  # fmt: skip
            figure.add_scatter(
                x=_small(x), y=_small(mean), customdata=None if error is None else _small(error),
                mode="lines", hovertemplate=reading, **common,
            )  # fmt: skip
        return figure

    def cost_chart(self, groups: Sequence[Group], cost: str) -> go.Figure:
        """Return the final regret of each group against a cost."""
        title = _COSTS[cost]
        figure = _figure(title, "final regret per agent")
        figure.update_layout(showlegend=False, xaxis_rangemode="normal")
        for number, group in enumerate(groups):
            regret = self.numbers[_FINAL].iloc[group.places]
            has_error = len(regret) > 1 and not group.is_mixed
            error = [regret.sem()] if has_error else None
            x = self.costs[cost].iloc[group.places].mean()
            figure.add_scatter(
                x=[x], y=[regret.mean()], customdata=error,
                mode="markers", meta=number, name=_short(group.label),
                error_y={"array": error, "thickness": 1.5},
                hovertemplate=f"{title} %{{x:,.5~s}}<br>regret %{{y:,.2f}}"
                + (" ± %{customdata:,.2f}" if has_error else ""),
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
        shown = {
            name: {"x": _packed(x), "y": _packed(y), "end": float(np.asarray(y)[-1])}
            for name, (x, y) in curves.items()
        }
        style = self.styles[str(run.settings.get("algorithm"))]
        return {"curves": shown, "notes": notes, "color": style["color"]}


def name_of(key: str) -> str:
    """Return a setting as users write it."""
    return key.removesuffix(".name")


def _without_seed(values: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if key != "seed"}


def _label(values: Mapping[str, str]) -> str:
    """Return the values of settings in one line; some need no name."""
    parts = (v if k in _SHOWN_ALONE else f"{name_of(k)}={v}" for k, v in values.items())
    return ", ".join(filter(None, parts))


def _weights(weights: Mapping[str, float]) -> str:
    """Return the features of a direction and their weights in one line."""
    parts = []
    for name, weight in weights.items():
        part = f"{name} " + f"{weight:+.2f}".replace("-", "\N{MINUS SIGN}")
        parts.append(part.replace(" ", "\N{NO-BREAK SPACE}") if len(part) < 20 else part)
    return ", ".join(parts)


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
    """Return text of a few lines for Plotly, which reads some markup."""
    lines = textwrap.wrap(label if len(label) <= 120 else f"{label[:119]}…", 40)
    return "<br>".join(escape(line, quote=False) for line in lines)


def _table(titles: Sequence[str], rows: list[list[Any]]) -> dict[str, Any]:
    kinds = ["text" if isinstance(cell, str) else "number" for cell in rows[0]]
    shown = [_TITLES.get(title, title)[:40] for title in titles]
    digits = [4 if title in PREDICTIONS else 0 if title in NUMBERS[1:4] else 2 for title in titles]
    for place, kind in enumerate(kinds):
        numbers = (row[place] for row in rows)
        if kind == "number" and all(pd.isna(n) or float(n).is_integer() for n in numbers):
            digits[place] = 0
    columns = zip(shown, kinds, digits, strict=True)
    return {"columns": [{"title": t, "kind": k, "digits": d} for t, k, d in columns], "rows": rows}


def _figure(x: str, y: str) -> go.Figure:
    clear = "rgba(0,0,0,0)"
    axis = {
        "gridcolor": _GRID, "zeroline": False, "automargin": True, "rangemode": "tozero",
        "ticks": "outside", "tickcolor": clear,
    }  # fmt: skip
    return go.Figure(
        layout={
            "template": "none", "height": 430, "hovermode": "closest", "showlegend": True,
            "font": {"color": _INK, "family": "system-ui, sans-serif"}, "legend": {"itemwidth": 44},
            "margin": {"l": 10, "r": 10, "t": 30, "b": 10}, "paper_bgcolor": clear,
            "modebar": {"bgcolor": clear, "color": _MUTED, "activecolor": _INK},
            "hoverlabel": {"bgcolor": _PAPER, "namelength": -1}, "plot_bgcolor": clear,
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
    groupings = {}
    for title, by in data.ways_to_group().items():
        groups = data.groups(by)
        rows = [{name_of(key): group.values.get(key, "") for key in by} for group in groups]
        charts = {cost: data.cost_chart(groups, cost) for cost in _COSTS}
        groupings[title] = {
            "charts": {"regret": data.regret_chart(groups), **charts},
            "table": data.group_table(groups),
            "mixed": any(group.is_mixed for group in groups),
            **encode(rows, list(data.styles)),
        }
    scales = [scale for each in groupings.values() for scale in each["scales"].values()]
    styles = itertools.chain(data.styles.values(), *scales)
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "groupings": groupings,
        "note": width_note(runs),
        "directions": data.direction_table(),
        "runs": data.run_table(paths),
        # "./": a name must not be read as a scheme
        "links": ["./" + quote(os.fsencode(f"{path}/")) for path in paths],
        "details": [data.details(run) for run in runs],
        "common": data.common,
        "unfinished": [[_relative(item.path, folder), item.reason] for item in unfinished],
        "dashes": DASHES,
        "dark": DARK
        | dict(zip(SEQUENCE, DARK_SEQUENCE, strict=True))
        | {style["color"]: style["dark"] for style in styles},
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
