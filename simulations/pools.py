"""Parallel calls in several processes, which end with the command that started them."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import BaseContext
from typing import TypeVar

_A = TypeVar("_A")
_R = TypeVar("_R")


def map_in_processes(
    function: Callable[[_A], _R],
    arguments: Iterable[_A],
    processes: int | None = None,
    context: BaseContext | None = None,
) -> list[_R]:
    """Return the results of the calls; any exception, such as Ctrl-C, ends the processes at once.

    ``function`` is a function of a module. By default, there is one process per processor.
    """
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        try:
            # Processes inherit the mask, so Ctrl-C in a terminal reaches this process only.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures = [pool.submit(function, each) for each in arguments]
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return [future.result() for future in futures]
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()
            raise
