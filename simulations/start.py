"""The first import of each command; see :mod:`fldb_flower.system.startup`."""

from __future__ import annotations

import os
import sys


def begin() -> None:
    """Start a command.

    Raises
    ------
    SystemExit
        Another module shadows a package of this project.
    """
    try:
        from fldb_flower.system import startup  # noqa: PLC0415 - may be another project's
    except ImportError:
        other = getattr(sys.modules.get("fldb_flower"), "__file__", None) or "another module"
        root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
        sys.exit(f"error: {other} shadows fldb-flower's package 'fldb_flower' in {root}: rename it")
    startup.begin()
