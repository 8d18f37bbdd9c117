"""One run, from settings to results, on any engine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from fldb_flower.algorithms import Algorithm
from fldb_flower.errors import DataError, FldbError
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.named_arrays import join_parts, part_of
from fldb_flower.privacy.usefulness import cautions
from fldb_flower.runs.plots import describe
from fldb_flower.runs.results import PLOT, RunDirectory, stop_requested
from fldb_flower.settings import Settings
from fldb_flower.system.progress import is_shown, progress

POLL_SECONDS = 0.2
"""Seconds between two checks for a stop request."""
CHECKPOINT_COST = 20
"""The pause after a checkpoint is at least this many times as long as saving it took."""
STOPPED = "stopped"
_SECONDS_BETWEEN_LINES = 2.0


class StoppedError(FldbError):
    """The run stopped because a stop was requested."""


class ProgressLines:
    """Prints the regret and the time left with ``say``, at most every two seconds."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._first: tuple[float, int] | None = None  # time and iteration of the first call
        self._last = 0.0

    def __call__(self, history: History) -> None:
        """Print a line if one is due."""
        now, done = time.monotonic(), history.iteration
        if self._first is None:
            # The time before, such as starting Ray, does not predict the remaining iterations.
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


class Resumable(Protocol):
    """A federation whose state, with that of its agents, can be saved and restored."""

    history: History

    def state(self) -> dict[str, Array]:
        """Return the state as arrays, for :meth:`restore`."""

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a state; the run continues with identical numbers."""


class Checkpointer:
    """Saves the state of a run after some of its rounds, and restores the last one saved.

    A checkpoint holds the algorithm, the history and every agent after the same round. A resumed
    run therefore computes what an uninterrupted run would have computed.

    Attributes
    ----------
    iteration : int
        The last iteration saved.
    can_save : bool
        Whether there is a state to save: a round ended, in this process or before.
    """

    def __init__(
        self, directory: RunDirectory, settings: Settings, say: Callable[[str], None]
    ) -> None:
        self.iteration = 0
        self.can_save = directory.saved is not None
        self._directory = directory
        self._horizon = settings.horizon
        self._interval = settings.checkpoint_seconds
        self._begin = time.monotonic()
        self._next_poll, self._due = self._begin, self._begin + self._interval
        if directory.saved is not None:
            self.iteration = int(directory.saved.numbers["iteration"])
            self._begin -= float(directory.saved.numbers["seconds"])
            say(f"resumes after iteration {self.iteration} of {self._horizon}")

    @property
    def seconds(self) -> float:
        """Running time, without interruptions."""
        return time.monotonic() - self._begin

    def follow(self, federation: Resumable, algorithm: Algorithm) -> Callable[[], None]:
        """Restore both from the checkpoint, if any; return a function to call after each round.

        The function saves a checkpoint when one is due. If a stop was requested, it saves one and
        raises a :class:`StoppedError`.
        """
        saved, self._directory.saved = self._directory.saved, None  # frees its memory
        if saved is not None:
            federation.history.restore(part_of(saved.arrays, "history"))
            algorithm.restore(part_of(saved.arrays, "algorithm"))
            federation.restore(part_of(saved.arrays, "federation"))
        return lambda: self._after_round(federation, algorithm)

    def check_stop(self) -> None:
        """Raise a StoppedError if a stop was requested, for engines without checkpoints."""
        if self._stop_requested(time.monotonic()):
            raise StoppedError(f"{STOPPED}: nothing was saved; resume=true starts it again")

    def _after_round(self, federation: Resumable, algorithm: Algorithm) -> None:
        now = time.monotonic()
        self.can_save = True
        stopping = self._stop_requested(now)
        if not stopping and now < self._due:
            return
        parts = {
            "history": federation.history.state(),
            "algorithm": algorithm.state(),
            "federation": federation.state(),
        }
        iteration = federation.history.iteration
        self._directory.save({"iteration": iteration, "seconds": self.seconds}, join_parts(parts))
        self.iteration = iteration
        if stopping:
            place = f"iteration {iteration} of {self._horizon}"
            raise StoppedError(f"{STOPPED}: resume=true resumes after {place}")
        cost = time.monotonic() - now
        pause = max(self._interval, CHECKPOINT_COST * cost if self._interval else 0.0)
        self._due = now + cost + pause

    def _stop_requested(self, now: float) -> bool:
        if now < self._next_poll:
            return False
        self._next_poll = now + min(self._interval, POLL_SECONDS)
        return stop_requested(self._directory.path)


def conduct(
    settings: Settings,
    directory: RunDirectory,
    run: Callable[[History, Checkpointer], Array],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run, write the results, close the directory, and return the content of ``summary.json``.

    Parameters
    ----------
    settings, directory
        The settings of the run, and the directory of its results.
    run : callable
        Runs the algorithm, records into the history, and returns theta_sync. Only the vectorized
        engine uses the checkpointer.
    say : callable
        Prints one line.

    Raises
    ------
    DataError
        The memory does not suffice, or the regret is not finite.
    StoppedError
        A stop was requested.
    """
    for line in cautions(settings):
        say(f"warning: {line}")
    try:
        checkpointer = Checkpointer(directory, settings, say)
        with _reporting(settings, checkpointer, say) as report:
            history = History(settings.horizon, report)
            theta_sync = run(history, checkpointer)
        summary = directory.finish(history, theta_sync, runtime_seconds=checkpointer.seconds)
    except (Exception, KeyboardInterrupt) as error:
        directory.abandon()
        if isinstance(error, MemoryError):
            raise out_of_memory(settings, error) from None
        raise
    finally:
        directory.close()
    _say_results(summary, settings, directory, say)
    return summary


@contextlib.contextmanager
def _reporting(
    settings: Settings, checkpointer: Checkpointer, say: Callable[[str], None]
) -> Iterator[Callable[[History], None]]:
    """Yield a function that reports the progress: by a bar on a terminal, else by lines.

    Flower prints its own lines, so its engines have no bar.
    """
    lines = ProgressLines(say)
    if settings.engine.name != "vectorized":

        def report(history: History) -> None:
            lines(history)
            checkpointer.check_stop()

        yield report
    elif not is_shown():
        yield lines
    else:
        last = checkpointer.iteration
        with progress("", settings.horizon, "it", initial=last) as advance:

            def count(history: History) -> None:
                nonlocal last
                advance(history.iteration - last)
                last = history.iteration

            yield count


def out_of_memory(settings: Settings, error: MemoryError) -> DataError:
    """Return the error of a run whose memory does not suffice."""
    return DataError(
        f"out of memory ({error}): num_agents={settings.num_agents}, horizon={settings.horizon},"
        f" num_arms={settings.num_arms} or dimension={settings.dimension} is too large for this"
        " machine"
    )


def _say_results(
    summary: Mapping[str, Any],
    settings: Settings,
    directory: RunDirectory,
    say: Callable[[str], None],
) -> None:
    say(
        f"{describe(settings)} | final regret {summary['final_regret']:.2f} per agent,"
        f" {summary['exchanges']} exchanges, {_size(summary['uploaded_bytes'])} up,"
        f" {_size(summary['downloaded_bytes'])} down, {summary['runtime_seconds']:.1f} s"
    )
    plot = directory.path / PLOT
    say(f"results: {directory.path}" + (f"  plot: {plot}" if plot.exists() else ""))


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
