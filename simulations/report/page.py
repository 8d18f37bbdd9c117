"""The page of the report: one HTML file that needs no other file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fldb_flower.errors import OutputError, extra_missing
from fldb_flower.system.files import digest, read_part, reason_of, replace_file
from simulations.report.data import payload
from simulations.saved_runs import Run, Unfinished

EXTRA = ("report", "plotly", "itables")
"""The extra of the report, and its modules."""
_SCRIPTS = ("basics.js", "charts.js", "tables.js", "page.js")  # in this order, one script


def build(runs: Sequence[Run], unfinished: Sequence[Unfinished], folder: Path) -> str:
    """Return the page; its links to the runs are relative to its folder.

    ``runs`` has at least one run. The page lists the unfinished ones with their reasons.

    Raises
    ------
    SettingsError
        The ``report`` extra is not installed.
    DataError
        The files of the page are missing.
    """
    charts, tables, table_style = _libraries()
    scripts = {
        "theme": _read("theme.js"),
        "charts": charts,
        "tables": tables,
        "script": "\n".join(['"use strict";', *map(_read, _SCRIPTS)]),
    }
    parts = {
        **scripts,
        "style": table_style + _read("page.css"),
        "hashes": " ".join(f"'{digest(text)}'" for text in scripts.values()),
        "data": _embeddable(payload(runs, unfinished, folder)),
    }
    # One pass: placeholders in inserted text are not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("page.html"))


def write(path: Path, text: str) -> None:
    """Write the page atomically.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {reason_of(error)}; name another file with --output"
        ) from None


def _libraries() -> tuple[str, str, str]:
    """Return the scripts of Plotly and DataTables, and the style of DataTables."""
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - an extra

        folder = files("itables") / "html"
    except ImportError as error:
        raise extra_missing("simulations.report", EXTRA[0], reason=error) from None
    module = (folder / "dt_bundle.js").read_text(encoding="utf-8")
    style = (folder / "dt_bundle.css").read_text(encoding="utf-8")
    return get_plotlyjs(), _as_script(module), style


def _as_script(module: str) -> str:
    """Return an ECMAScript module as a script that sets its default export as ``DataTable``."""
    exported = re.search(r"export\s*\{[^}]*?([\w$]+) as default[^}]*\};?", module)
    if exported is None:
        raise OutputError("this version of itables has an unknown bundle: install itables 2.9")
    body = (
        f"{module[: exported.start()]}globalThis.DataTable={exported[1]};{module[exported.end() :]}"
    )
    return f"(()=>{{{body}\n}})();"


def _read(name: str) -> str:
    return read_part("simulations.report", name)


def _embeddable(value: Any) -> str:
    """Return JSON without characters that an HTML parser could interpret."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
