"""Helpers for self-contained HTML pages."""

from __future__ import annotations

import base64
import hashlib


def digest(text: str) -> str:
    """Return the hash of an inline script or style for a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
