"""Checks that arrays fit in the machine's memory, made before they are allocated."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from fldb_flower.errors import SettingsError

_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def require_memory(count: int, what: str) -> None:
    """Raise SettingsError unless ``count`` bytes fit in the memory that this process can have.

    Use a lower bound, so that nothing that fits is refused. ``what`` names the settings that
    determine it, and its content: ``"horizon=5: its regret"``.
    """
    available = machine_memory()
    if count > available:
        raise SettingsError(
            f"{what} would take at least {size_text(count)} of memory, and this machine has"
            f" {size_text(available)} available"
        )


def machine_memory() -> int:
    """Return the bytes that this process has or can get; ``sys.maxsize`` if they are not known.

    On Linux, they do not exceed the limit of a container, which is that of its control group.
    """
    with suppress(AttributeError, OSError, TypeError, ValueError):
        free = re.search(r"^MemAvailable: *(\d+) kB$", Path("/proc/meminfo").read_text(), re.M)
        pages = Path("/proc/self/statm").read_text().split()[1]
        own = int(pages) * os.sysconf("SC_PAGE_SIZE")
        return min([own + 1024 * int(free[1]), *_limits()])  # type: ignore[index]
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize


def _limits() -> list[int]:
    """Return the limits of the control group, of version 2 or 1."""
    found = []
    for path in _LIMITS:
        with suppress(OSError, ValueError):  # "max": no limit
            found.append(int(path.read_text()))
    return found


def size_text(count: int) -> str:
    """Return a number of bytes as text, in a suitable unit."""
    power = min((len(str(count)) - 1) // 3, len(_UNITS) - 1)
    return f"{count / 10 ** (3 * power):.3g} {_UNITS[power]}"
