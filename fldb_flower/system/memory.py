"""Checks that arrays fit in the machine's memory, made before they are allocated."""

from __future__ import annotations

import functools
import os
import sys

from fldb_flower.errors import SettingsError

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def require_memory(count: int, what: str) -> None:
    """Raise SettingsError unless ``count`` bytes fit in the memory of this machine, used or free.

    Use a lower bound, so that nothing that fits is refused. ``what`` names the settings that
    determine it, and its content: ``"horizon=5: its regret"``.
    """
    available = machine_memory()
    if count > available:
        raise SettingsError(
            f"{what} would take at least {size_text(count)} of memory, and this machine has"
            f" {size_text(available)}"
        )


@functools.cache
def machine_memory() -> int:
    """Return the bytes of main memory; ``sys.maxsize`` if the system does not report them."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize


def size_text(count: int) -> str:
    """Return a number of bytes as text, in a suitable unit."""
    power = min((len(str(count)) - 1) // 3, len(_UNITS) - 1)
    return f"{count / 10 ** (3 * power):.3g} {_UNITS[power]}"
