"""Helpers for self-contained HTML pages."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from fldb_flower.errors import DataError


def read_part(package: str, name: str) -> str:
    """Return the text of a page, script or style in the folder of a package.

    Raises
    ------
    DataError
        It is missing, as in the folder of a published Flower app.
    """
    path = files(package).joinpath(*name.split("/"))
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: a published Flower app has no pages, scripts and styles; use"
            " fldb-flower from a clone of its repository, or a wheel built there"
        ) from None


def digest(text: str) -> str:
    """Return the hash of an inline script or style for a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
