"""Settings that hold for the whole process.

This is the only module that changes them. Call its functions from entry points, not on import.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from contextlib import AbstractContextManager

from threadpoolctl import threadpool_limits

_TRIM_BYTES, _MMAP_BYTES = 2**30, 2**25
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_sharing = [1]  # number of processes that share the processors


def keep_freed_memory() -> None:
    """Make glibc reuse freed memory instead of returning it to the system.

    Returned pages have to be cleared before they are used again. With the default threshold,
    that takes half of the time of selection. Other C libraries are not changed.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # TypeError: Windows
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def one_blas_thread() -> AbstractContextManager[object]:
    """Limit BLAS to one thread.

    The limit is set by the call. The context manager that is returned restores the previous
    limit on exit.

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
    """Leave this process its part of the processors, which so many processes use."""
    _sharing[0] = max(1, processes)


def hide_tracebacks() -> None:
    """Print uncaught exceptions without a stack trace, for errors that the user can fix."""
    sys.tracebacklimit = 0


def identify_task(run_id: int, node_id: int) -> None:
    """Set Flower's identity of this process, which names the sender of messages.

    Flower's own engines set it when they start a process. Flower is imported by this call only.
    """
    identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
    identity.run_id, identity.task_id, identity.node_id = run_id, 0, node_id
