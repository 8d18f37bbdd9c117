"""The results of a sweep: a table of its jobs, their curves, and a plot."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fldb_flower.runs.plots import (
    MARKER_CODES,
    MAX_LABELS,
    Curve,
    errors_text,
    line_style,
    regret,
    save_figure,
    settings_text,
    title_of,
    wrap,
)
from fldb_flower.runs.styles import encode
from fldb_flower.settings import AUTO
from fldb_flower.system.progress import progress
from simulations.saved_runs import (
    NUMBERS,
    Run,
    by_configuration,
    predictions,
    text_of,
    varying,
)

TABLE, CURVES, PICTURE = "sweep.csv", "curves.csv", "sweep.png"
_MAX_ROWS = 60  # rows of the printed table
_MAX_LETTERS = 40  # letters in a line of a label
_MARKS = {"markevery": (0.08, 0.16), "markersize": 3}  # first, and distance, in diagonals of axes
_LABEL_HEIGHT = 0.14  # height of a line of a label, in inches


def report(
    runs: Sequence[Run], errors: Sequence[str], folder: Path, swept: Collection[str] = ()
) -> None:
    """Write and print the tables of a sweep, and its errors; exit with status 1 after errors.

    The tables have a column for each swept setting, even if only one of its values has a result.
    Tables of an earlier sweep are removed.
    """
    for name in (TABLE, CURVES, PICTURE):
        (folder / name).unlink(missing_ok=True)
    if runs:
        with progress("write the tables"):
            keys = _columns(runs, swept)
            tables = {TABLE: table(runs, keys, folder), CURVES: curves(runs, keys)}
            for name, rows in tables.items():
                rows.to_csv(folder / name, index=False, lineterminator="\n")
            picture(runs, folder / PICTURE)
        print(statistics_text(runs, swept))
        files = [name for name in (TABLE, CURVES, PICTURE) if (folder / name).exists()]
        print(f"results of {len(runs)} jobs: {', '.join(files)} in {folder}")
    for line in errors:
        print(f"error: {line}", file=sys.stderr)
    if errors:
        sys.exit(1)


def _columns(runs: Sequence[Run], swept: Collection[str]) -> list[str]:
    """Return the settings that were swept or differ, in the order of ``config.yaml``."""
    chosen = {*varying(runs), *swept}
    return [key for key in dict.fromkeys(k for run in runs for k in run.settings) if key in chosen]


def table(runs: Sequence[Run], keys: Sequence[str], folder: Path | None) -> pd.DataFrame:
    """Return one row per job: its folder, if any, settings, regret, exchanges, bytes and seconds.

    A setting that a job does not use is missing in its row. Log loss and accuracy follow the
    regret, if some of the jobs predicted answers.
    """
    regret, exchanges, *others = NUMBERS
    names = [regret, *predictions(runs), exchanges, "rounds", *others]
    rows = pd.DataFrame({name: run.summary.get(name) for name in names} for run in runs)
    jobs = {} if folder is None else {"job": [str(run.path.relative_to(folder)) for run in runs]}
    return pd.concat([pd.DataFrame(jobs, rows.index), _settings(runs, keys), rows], axis=1)


def _settings(runs: Sequence[Run], keys: Sequence[str]) -> pd.DataFrame:
    """Return settings of runs; integers remain integers if some runs do not use them."""
    columns = {}
    for key in keys:
        values = [run.used.get(key) for run in runs]
        kinds = {type(value) for value in values if value is not None}
        columns[key] = pd.Series(
            values, dtype="Int64" if kinds == {int} and None in values else None
        )
    return pd.DataFrame(columns, range(len(runs)))


def statistics(runs: Sequence[Run], swept: Collection[str] = ()) -> pd.DataFrame:
    """Return one row per configuration: varying settings, final regret and exchanges.

    The standard error is that of the mean, ``deviation / sqrt(seeds)``; it is NaN for one seed. If
    answers were predicted only, log loss and accuracy replace the regret.
    """
    groups, names = by_configuration(runs), predictions(runs)
    places = np.repeat(range(len(groups)), [len(group) for group in groups])
    rows = pd.DataFrame([run.summary for group in groups for run in group])
    by_group = rows.select_dtypes("number").astype(float).groupby(places)
    final = by_group["final_regret"]
    numbers = pd.DataFrame({"mean": final.mean(), "std. error": final.sem()})
    if names and not rows.final_regret.any():
        numbers = by_group[names].mean()
    numbers["exchanges"] = by_group["exchanges"].mean()
    keys = [key for key in _columns(runs, swept) if key != "seed"]
    settings = _settings([group[0] for group in groups], keys)
    return pd.concat([settings, numbers.assign(seeds=final.size())], axis=1)


def statistics_text(runs: Sequence[Run], swept: Collection[str] = ()) -> str:
    """Return :func:`statistics` as aligned text, limited to 60 rows."""
    table = statistics(runs, swept)
    what = "final regret" if "mean" in table else "predictions"
    digits = {"mean": 2, "std. error": 2, "log_loss": 4, "accuracy": 4, "exchanges": 1}
    for name in digits.keys() & set(table):
        table[name] = table[name].map(f"{{:.{digits[name]}f}}".format, na_action="ignore")
    shown = table.head(_MAX_ROWS).astype(object).where(table.notna(), "-")
    text = shown.to_string(index=False, float_format=lambda value: f"{value:.6g}")
    left = len(table) - _MAX_ROWS
    more = f"\n... and {left} more configurations in {TABLE}" if left > 0 else ""
    note = width_note(runs)
    return f"{what} by configuration:\n{text}{more}" + (f"\nnote: {note}" if note else "")


def width_note(runs: Sequence[Run]) -> str:
    """Return a line if algorithms with the width of the theory are beside narrower ones, or ""."""
    widths = [{"ons_width", "personal_width"} & run.used.keys() for run in runs]
    theory = {run.used.get("beta_scale") for run, own in zip(runs, widths, strict=True) if not own}
    if not any(widths) or not theory & {AUTO, 1}:
        return ""
    names = " or ".join(sorted(set().union(*widths)))
    return (
        f"algorithms with {names} explore less than those with the width of the theory"
        " (beta_scale); to compare algorithms, tune the width of each (docs/howto/sweeps.md)"
    )


def curves(runs: Sequence[Run], keys: Sequence[str]) -> pd.DataFrame:
    """Return one row per iteration of each job: swept settings and cumulative regret."""
    parts = [run.curve.assign(**{key: run.used.get(key) for key in keys}) for run in runs]
    columns = [*keys, "iteration", "cumulative_regret"]
    return pd.concat(parts, ignore_index=True)[columns]


def picture(runs: Sequence[Run], path: Path) -> None:
    """Plot mean and standard error over the seeds, with a curve per configuration."""
    shown = mean_curves(runs)
    differing = varying(runs)
    common = {key: value for key, value in runs[0].used.items() if key not in differing}
    lines = sum(1 + each.label.count("\n") for each in shown) if len(shown) <= MAX_LABELS else 0

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        regret(axes, shown)
        more = "" if lines else f", {len(shown)} configurations: see {TABLE}"
        seeds = [len(np.atleast_2d(curve.values)) for curve in shown]
        axes.set_title(f"{wrap(title_of(common), 90)}\n{errors_text(seeds)}{more}")

    save_figure(path, draw, width="page", height=max(3.2, 0.8 + _LABEL_HEIGHT * lines))


def mean_curves(runs: Sequence[Run]) -> list[Curve]:
    """Return a curve per configuration, labelled with the settings that differ and that it uses."""
    differing = [key for key in varying(runs) if key != "seed"]
    groups = by_configuration(runs)
    names = [str(group[0].used["algorithm"]) for group in groups]
    shown = [{k: group[0].used[k] for k in differing if k in group[0].used} for group in groups]
    found = []
    for group, name, own, look in zip(groups, names, shown, _looks(names, shown), strict=True):
        values = np.array([run.curve.cumulative_regret for run in group])
        found.append(Curve(name, values, wrap(settings_text(own), _MAX_LETTERS), look))
    return found


def _looks(names: Sequence[str], shown: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return styles that encode settings as in the report; empty if some curves look the same."""
    rows = [{key: text_of(value) for key, value in own.items()} for own in shown]
    scales, levels, chosen = encode(rows, sorted(set(names))).values()
    is_marked = chosen["marker"] not in (chosen["color"], chosen["dash"])
    looks = []
    for level in levels:
        style = {each: scales[key][level.get(key, 0)][each] for each, key in chosen.items()}
        marks = {"marker": MARKER_CODES[style["marker"]], **_MARKS} if is_marked else {}
        looks.append(line_style(style) | marks)
    return looks if len(set(map(repr, looks))) == len(looks) else [{} for _ in looks]
