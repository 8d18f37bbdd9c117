"""The page of the report: one HTML file that needs no other file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fldb_flower.errors import OutputError
from fldb_flower.system.files import replace_file
from fldb_flower.system.pages import digest
from simulations.report.data import payload
from simulations.saved_runs import Run, Unfinished

_SCRIPTS = ("basics.js", "chart.js", "page.js")  # in this order, one script


def build(runs: Sequence[Run], unfinished: Sequence[Unfinished], folder: Path) -> str:
    """Return the page; its links to the runs are relative to its folder.

    ``runs`` has at least one run. The page lists the unfinished ones with their reasons.
    """
    style, script = _read("page.css"), "\n".join(map(_read, _SCRIPTS))
    parts = {
        "style": style,
        "script": script,
        "style_hash": digest(style),
        "script_hash": digest(script),
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
            f"cannot write {path}: {error.strerror}; name another file with --output"
        ) from None


def _read(name: str) -> str:
    return (files("simulations.report") / name).read_text(encoding="utf-8")


def _embeddable(value: Any) -> str:
    """Return JSON without characters that an HTML parser could interpret."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
