"""The progress of a sweep: a bar in a terminal, one line elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from fldb_flower.runs.directory import SUMMARY
from simulations.sweeps.jobs import ERROR

_POLL_SECONDS = 0.5


@contextlib.contextmanager
def progress(todo: Sequence[Path], total: int, sweep: Path) -> Iterator[None]:
    """Show the progress of the jobs of a sweep, which may run in any process.

    Parameters
    ----------
    todo : sequence of Path
        Folders of the jobs to be launched; their files show which of them ended.
    total : int
        Number of all jobs, with those that are already finished.
    sweep : Path
        Folder of the sweep.
    """
    is_terminal, earlier = sys.stderr.isatty(), total - len(todo)
    if not is_terminal:
        before = f", {earlier} of them finished before" if earlier else ""
        print(f"{total} jobs in {sweep}{before}", flush=True)
    ended = threading.Event()
    with tqdm(
        total=total, initial=earlier, unit="job", file=sys.stderr, disable=not is_terminal
    ) as bar:
        # Without a terminal too: this thread receives SIGINT while the main thread blocks it.
        watcher = threading.Thread(target=_watch, args=(bar, set(todo), ended), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def _watch(bar: tqdm[None], waiting: set[Path], ended: threading.Event) -> None:
    """Update a bar until the sweep ended, and once more."""
    failures, is_last = 0, False
    while not is_last:
        is_last = ended.wait(_POLL_SECONDS)
        if bar.disable:
            continue
        finished = {path for path in waiting if (path / SUMMARY).exists()}
        failed = {path for path in waiting - finished if (path / ERROR).exists()}
        waiting -= finished | failed
        failures += len(failed)
        if failures:
            bar.set_postfix(failed=failures, refresh=False)
        bar.update(len(finished) + len(failed))
        bar.refresh()
