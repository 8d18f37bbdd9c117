"""The progress of a sweep: a bar in a terminal, one line elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fldb_flower.runs.directory import SUMMARY
from fldb_flower.system.progress import Advance, is_shown, progress
from simulations.sweeps.jobs import ERROR


def progress_of_jobs(
    todo: Sequence[Path], total: int, sweep: Path
) -> AbstractContextManager[Advance]:
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
    earlier = total - len(todo)
    if not is_shown():
        before = f", {earlier} of them finished before" if earlier else ""
        print(f"{total} jobs in {sweep}{before}", flush=True)
    # Without a terminal too: this thread receives SIGINT while the main thread blocks it.
    return progress("", total, "job", initial=earlier, keep=True, poll=_Watcher(todo))


class _Watcher:
    """Counts the jobs that ended since the last call."""

    def __init__(self, todo: Sequence[Path]) -> None:
        self._waiting, self._failures = set(todo), 0

    def __call__(self, bar: tqdm[Any] | None) -> None:
        if bar is None:
            return
        finished = {path for path in self._waiting if (path / SUMMARY).exists()}
        failed = {path for path in self._waiting - finished if (path / ERROR).exists()}
        self._waiting -= finished | failed
        self._failures += len(failed)
        if self._failures:
            bar.set_postfix(failed=self._failures, refresh=False)
        bar.update(len(finished) + len(failed))
