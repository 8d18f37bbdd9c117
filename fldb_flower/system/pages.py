"""What our self-contained pages have in common."""

from __future__ import annotations

import base64
import hashlib


def digest(text: str) -> str:
    """Return what a Content-Security-Policy calls an inline text by: nothing else may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
