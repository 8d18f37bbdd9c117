"""One run, from settings to results, on any engine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from fldb_flower.algorithms import Algorithm
from fldb_flower.bandit.directions import features_of
from fldb_flower.environments import feature_names, stated
from fldb_flower.errors import DataError, FldbError
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array, join_parts, part_of
from fldb_flower.privacy.plan import cautions
from fldb_flower.runs.plots import describe
from fldb_flower.runs.results import PLOT, RunDirectory, outcome, stop_requested
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


class Checkpointer:
    """Saves the state of a run after some of its rounds, and restores the last one saved.

    A checkpoint holds the algorithm, the history and every agent after the same round. A resumed
    run therefore gives the same results as an uninterrupted one. ``iteration`` is the last one
    saved. ``can_save`` is whether a round has ended, in this process or before.
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

    def follow(self, federation: Any, algorithm: Algorithm) -> Callable[[], None]:
        """Restore both from the checkpoint, if any; return a function to call after each round.

        The function saves a checkpoint when one is due. If a stop was requested, it saves one and
        raises a :class:`StoppedError`.
        """
        parts = {"history": federation.history, "algorithm": algorithm, "federation": federation}
        saved, self._directory.saved = self._directory.saved, None  # frees its memory
        if saved is not None:
            for name, part in parts.items():
                part.restore(part_of(saved.arrays, name))

        def after_round() -> None:
            now = time.monotonic()
            self.can_save = True
            stopping = self._stop_requested(now)
            if not stopping and now < self._due:
                return
            iteration = federation.history.iteration
            state = join_parts({name: part.state() for name, part in parts.items()})
            self._directory.save({"iteration": iteration, "seconds": self.seconds}, state)
            self.iteration = iteration
            if stopping:
                place = f"iteration {iteration} of {self._horizon}"
                raise StoppedError(f"{STOPPED}: resume=true resumes after {place}")
            cost = time.monotonic() - now
            pause = max(self._interval, CHECKPOINT_COST * cost if self._interval else 0.0)
            self._due = now + cost + pause

        return after_round

    def check_stop(self) -> None:
        """Raise a StoppedError if a stop was requested, for engines without checkpoints."""
        if self._stop_requested(time.monotonic()):
            raise StoppedError(f"{STOPPED}: nothing was saved; resume=true starts it again")

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
) -> None:
    """Run, write the results, and close the directory.

    ``run`` runs the algorithm, records into the history, and returns theta_sync; only the
    vectorized engine uses the checkpointer. ``say`` prints one line.
    """
    for line in cautions(settings):
        say(f"warning: {line}")
    try:
        checkpointer = Checkpointer(directory, settings, say)
        with _reporting(settings, checkpointer, say) as report:
            history = History(settings.horizon, report)
            theta_sync = run(history, checkpointer)
        seconds = checkpointer.seconds
        directory.finish(history, theta_sync, seconds)
    except (Exception, KeyboardInterrupt) as error:
        directory.abandon()
        if isinstance(error, MemoryError):
            raise out_of_memory(settings, error) from None
        raise
    finally:
        directory.close()
    final = outcome(history.regret, history.log_loss, history.accuracy)
    say(
        f"{describe(settings)} | {final},"
        f" {history.exchanges} exchanges, {_size(history.uploaded_bytes)} up,"
        f" {_size(history.downloaded_bytes)} down, {seconds:.1f} s"
    )
    for name, values in stated(settings).items():
        say(f"{name}: {', '.join(f'{key} {value}' for key, value in values.items())}")
    found = history.directions(feature_names(settings)) if settings.num_agents > 1 else []
    for direction in found[:1]:
        say(f"agents differ most in {features_of(direction)}")
    plot = directory.path / PLOT
    say(f"results: {directory.path}" + (f"  plot: {plot}" if plot.exists() else ""))


@contextlib.contextmanager
def _reporting(
    settings: Settings, checkpointer: Checkpointer, say: Callable[[str], None]
) -> Iterator[Callable[[History], None]]:
    """Yield a function that reports the progress: by a bar on a terminal, else by lines.

    Flower prints its own lines, so its engines have no bar.
    """
    has_checkpoints = settings.engine.name == "vectorized"
    if has_checkpoints and is_shown():
        last = checkpointer.iteration
        with progress("", settings.horizon, "it", initial=last) as advance:

            def count(history: History) -> None:
                nonlocal last
                advance(history.iteration - last)
                last = history.iteration

            yield count
    else:
        lines = _progress_lines(say)

        def report(history: History) -> None:
            lines(history)
            if not has_checkpoints:
                checkpointer.check_stop()

        yield report


def _progress_lines(say: Callable[[str], None]) -> Callable[[History], None]:
    """Return a function that prints the regret and the time left, at most every two seconds."""
    first: tuple[float, int] | None = None  # time and iteration of the first call
    last = 0.0

    def report(history: History) -> None:
        nonlocal first, last
        now, done = time.monotonic(), history.iteration
        if first is None:
            # The time before, such as starting Ray, does not predict the remaining iterations.
            first, last = (now, done), now
        elif now - last >= _SECONDS_BETWEEN_LINES:
            last, (begin, already) = now, first
            left = (now - begin) / (done - already) * (history.horizon - done)
            say(
                f"iteration {done}/{history.horizon} | regret {history.regret:.2f}"
                f" | {history.exchanges} exchanges | {left:.0f} s left"
            )

    return report


def out_of_memory(settings: Settings, error: MemoryError) -> DataError:
    """Return the error for a run that has not enough memory."""
    return DataError(
        f"out of memory ({error}): num_agents={settings.num_agents}, horizon={settings.horizon},"
        f" num_arms={settings.num_arms} or dimension={settings.dimension} is too large for this"
        " machine"
    )


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
