"""The page of the report: one HTML file that needs no other file."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs

from fldb_flower.errors import OutputError
from fldb_flower.runs.styles import ALGORITHM_STYLES
from fldb_flower.system.files import digest, read_part
from simulations.report.data import DARK, Data
from simulations.saved_runs import Run, Unfinished

_COSTS = {"exchanges": ["exchanges"], "bytes": ["uploaded_bytes", "downloaded_bytes"]}


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
