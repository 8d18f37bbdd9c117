"""The progress of a sweep: a bar in a terminal, one line elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tqdm import tqdm

from fldb_flower.runs.directory import SUMMARY
from simulations.sweeps.jobs import ERROR

_POLL_SECONDS = 0.5


class Progress:
    """A progress bar over the jobs of a sweep.

    Jobs may run in any process: their progress is read from their folders.

    Parameters
    ----------
    todo : sequence of Path
        Folders of the jobs to be launched.
    total : int
        Number of all jobs, with those that are already finished.
    sweep : Path
        Folder of the sweep.
    """

    def __init__(self, todo: Sequence[Path], total: int, sweep: Path) -> None:
        self._waiting, self._before, self._failed = set(todo), total - len(todo), 0
        before = f", {self._before} of them finished before" if self._before else ""
        if not sys.stderr.isatty():
            print(f"{total} jobs in {sweep}{before}", flush=True)
        self._tqdm = tqdm(
            total=total,
            initial=self._before,
            unit="job",
            file=sys.stderr,
            disable=not sys.stderr.isatty(),
        )
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._watcher.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Show the final count and close the bar."""
        self._ended.set()
        self._watcher.join()
        self._update()
        self._tqdm.close()

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            self._update()

    def _update(self) -> None:
        if self._tqdm.disable:
            return
        ended = {path for path in self._waiting if (path / SUMMARY).exists()}
        failed = {path for path in self._waiting - ended if (path / ERROR).exists()}
        self._failed += len(failed)
        self._waiting -= ended | failed
        if self._failed:
            self._tqdm.set_postfix(failed=self._failed, refresh=False)
        self._tqdm.update(len(ended) + len(failed))
        self._tqdm.refresh()
