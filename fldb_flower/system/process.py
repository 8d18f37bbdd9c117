"""BLAS threads, processors and memory of the process.

Only entry points change them; an import does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from threadpoolctl import threadpool_limits

from fldb_flower.errors import SettingsError

_TRIM_BYTES, _MMAP_BYTES = 2**30, 2**25
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_CGROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
_sharing = [1]  # number of processes that share the processors


def keep_freed_memory() -> None:
    """Make glibc reuse freed memory instead of returning it to the system.

    Returned pages must be cleared before they are used again. With the default threshold, this
    takes half of the time of selection. Other C libraries are not changed.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # TypeError: Windows
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def one_blas_thread() -> AbstractContextManager[object]:
    """Limit BLAS to one thread from now on, or until the exit of the returned context manager.

    With several threads, the last bits of a product depend on the number of processors. The threads
    wait for each other in busy loops: if another process uses the machine, such as that of other
    agents or of another job of a sweep, a run takes up to ten times as long. On an idle machine
    with two processors, they gain a tenth with d=384, and a quarter with d=1024.
    """
    threads: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return threads


def processors() -> int:
    """Return the number of processors for this process; see :func:`share_processors`."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:  # macOS, Windows
        count = os.cpu_count() or 1
    return max(1, count // _sharing[0])


def share_processors(processes: int) -> None:
    """Limit this process to its part of the processors, which ``processes`` share."""
    _sharing[0] = max(1, processes)


def require_memory(count: int, what: str) -> None:
    """Raise a SettingsError unless ``count`` bytes, a lower bound, fit in this process's memory.

    ``what`` names the settings that determine it, and its content: ``"horizon=5: its regret"``.
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
        own = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        limits = [own + 1024 * int(free[1])]  # type: ignore[index]
        for path in _CGROUPS:
            with suppress(OSError, ValueError):  # "max": no limit
                limits.append(int(path.read_text()))
        return min(limits)
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize


def size_text(count: int) -> str:
    """Return a number of bytes as text, in a suitable unit."""
    power = min((len(str(count)) - 1) // 3, len(_UNITS) - 1)
    return f"{count / 10 ** (3 * power):.3g} {_UNITS[power]}"
