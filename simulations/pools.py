"""Parallel calls in several processes, which end with the command that started them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from multiprocessing.context import BaseContext
from typing import TypeVar

from fldb_flower.system.process import share_processors
from fldb_flower.system.progress import progress
from fldb_flower.system.startup import sigint_blocked

_A = TypeVar("_A")
_R = TypeVar("_R")


def map_in_processes(
    function: Callable[[_A], _R],
    arguments: Iterable[_A],
    processes: int | None = None,
    context: BaseContext | None = None,
    on_done: Callable[[], object] | None = None,
) -> list[_R]:
    """Return the results of the calls; any exception, such as Ctrl-C, ends the processes at once.

    By default, there is one process per processor. A run in one of them starts processes only for
    its share of the processors. ``on_done`` is called after each call; by default, the progress is
    shown.
    """
    others, processes = set(multiprocessing.active_children()), processes or os.cpu_count() or 1
    with ProcessPoolExecutor(processes, context, share_processors, (processes,)) as pool:
        try:
            # Processes inherit the mask, so Ctrl-C in a terminal reaches this process only.
            with sigint_blocked():
                futures = [pool.submit(function, each) for each in arguments]
            # After the start of the processes, which inherit no thread that shows the progress.
            shown = progress("", len(futures), "run") if on_done is None else nullcontext(on_done)
            with shown as done:
                for future in as_completed(futures):
                    future.result()
                    done()
            return [future.result() for future in futures]
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
            raise
