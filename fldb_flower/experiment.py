"""One run from settings to results, the same whatever the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fldb_flower.errors import FldbError
from fldb_flower.history import History
from fldb_flower.plots import describe
from fldb_flower.results import PLOT, RunDirectory
from fldb_flower.settings import Settings

_SECONDS_BETWEEN_LINES = 2.0


class ProgressLines:
    """Says how far a run is, at most every two seconds: regret so far and time left."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._first: tuple[float, int] | None = None  # time and iteration of the first call
        self._last = 0.0

    def __call__(self, history: History) -> None:
        """Print a line if it is time for one; call it with the history as it grows."""
        now, done = time.monotonic(), history.iteration
        if self._first is None:
            # What came before, such as starting Ray, says nothing about the iterations left.
            self._first, self._last = (now, done), now
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        begin, already = self._first
        left = (now - begin) / (done - already) * (history.horizon - done)
        self._say(
            f"iteration {done}/{history.horizon} | regret {history.regret:.2f}"
            f" | {history.exchanges} exchanges | {left:.0f} s left"
        )


def conduct(
    settings: Settings,
    directory: RunDirectory,
    *,
    engine: str,
    run: Callable[[History], Any],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run, write the results and say where they are.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    directory : RunDirectory
        A directory claimed for it.
    engine : str
        Name of the engine, for the summary.
    run : callable
        Runs the algorithm, recording into the history it is given.
    say : callable
        Prints one line to the user.

    Returns
    -------
    dict
        What ``summary.json`` holds.
    """
    begin = time.monotonic()
    history = History(settings.horizon, on_progress=ProgressLines(say))
    try:
        run(history)
    except FldbError:
        directory.abandon()
        raise
    summary = directory.finish(history, engine=engine, runtime_seconds=time.monotonic() - begin)
    say(
        f"{describe(settings)} | final regret {summary['final_regret']:.2f} per agent,"
        f" {summary['exchanges']} exchanges, {_size(summary['uploaded_bytes'])} up,"
        f" {_size(summary['downloaded_bytes'])} down, {summary['runtime_seconds']:.1f} s"
    )
    say(f"results: {directory.path}  plot: {directory.path / PLOT}")
    return summary


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
