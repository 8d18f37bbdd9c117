"""One run from settings to results, the same whatever the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fldb_flower.algorithms import Algorithm
from fldb_flower.errors import DataError, FederationError, FldbError
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.named_arrays import join_parts, part_of
from fldb_flower.runs.plots import describe
from fldb_flower.runs.results import PLOT, RunDirectory, stop_requested
from fldb_flower.settings import Settings

_SECONDS_BETWEEN_LINES = 2.0
_SECONDS_BETWEEN_LOOKS = 0.2  # for somebody's wish to stop
_PATIENCE = 20  # a checkpoint is followed by this many times as long without one
STOPPED = "stopped"


class StoppedError(FldbError):
    """The run was saved and stopped, as somebody asked."""


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


class Resumable(Protocol):
    """A federation that can be saved and put back, with all that its agents know."""

    history: History

    def state(self) -> dict[str, Array]:
        """Return everything as arrays, for :meth:`restore`.

        Raises
        ------
        FederationError
            A node cannot be reached.
        """

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from where :meth:`state` was taken, with identical numbers.

        Raises
        ------
        FederationError
            There are not the nodes that there were.
        """


class Keeper:
    """Saves a run after some of its rounds, and puts it back to where it was saved last.

    What is saved was all true at one time, after one round: the algorithm, the history and
    every agent. So a run that goes on does what it would have done without a break.

    Parameters
    ----------
    directory : RunDirectory
        Where it is saved.
    settings : Settings
        Settings of the run.
    say : callable
        Prints one line to the user.

    Attributes
    ----------
    iteration : int
        The last iteration that is saved.
    """

    def __init__(
        self, directory: RunDirectory, settings: Settings, say: Callable[[str], None]
    ) -> None:
        self.iteration = 0
        self._directory = directory
        self._horizon = settings.horizon
        self._every = settings.checkpoint_seconds
        self._say = say
        self._stopping = False
        self._begin = time.monotonic()
        self._look, self._due = self._begin, self._begin + self._every
        if directory.saved is not None:
            self.iteration = int(directory.saved.numbers["iteration"])
            self._begin -= float(directory.saved.numbers["seconds"])
            say(f"goes on after iteration {self.iteration} of {self._horizon}")

    @property
    def seconds(self) -> float:
        """How long the run has taken, without its breaks."""
        return time.monotonic() - self._begin

    def follow(self, federation: Resumable, algorithm: Algorithm) -> Callable[[], None]:
        """Put both back to where they were saved last; return what to call after each round.

        Raises
        ------
        FederationError
            There are not the nodes that there were.
        """
        saved, self._directory.saved = self._directory.saved, None  # it may be large
        if saved is not None:
            federation.history.restore(part_of(saved.arrays, "history"))
            algorithm.restore(part_of(saved.arrays, "algorithm"))
            federation.restore(part_of(saved.arrays, "federation"))
        return lambda: self._after_round(federation, algorithm)

    def _after_round(self, federation: Resumable, algorithm: Algorithm) -> None:
        now = time.monotonic()
        if now < self._look:
            return
        self._look = now + min(self._every, _SECONDS_BETWEEN_LOOKS)
        self._stopping = self._stopping or stop_requested(self._directory.path)
        if not self._stopping and now < self._due:
            return
        try:
            self._save(federation, algorithm)
        except FederationError as reason:
            self._say(f"not saved after iteration {federation.history.iteration}: {reason}")
        if self._stopping:
            raise StoppedError(f"{STOPPED}: {self._way_on()}")
        took = time.monotonic() - now
        self._due = now + took + max(self._every, _PATIENCE * took if self._every else 0.0)

    def _save(self, federation: Resumable, algorithm: Algorithm) -> None:
        parts = {
            "history": federation.history.state(),
            "algorithm": algorithm.state(),
            "federation": federation.state(),
        }
        iteration = federation.history.iteration
        self._directory.save({"iteration": iteration, "seconds": self.seconds}, join_parts(parts))
        self.iteration = iteration

    def _way_on(self) -> str:
        if not self.iteration:
            return "nothing was saved, and resume=true begins anew"
        return f"resume=true goes on after iteration {self.iteration} of {self._horizon}"


def conduct(
    settings: Settings,
    directory: RunDirectory,
    *,
    engine: str,
    run: Callable[[History, Keeper], Array],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run, write the results, say where they are and close the directory.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    directory : RunDirectory
        A directory claimed for it.
    engine : str
        Name of the engine, for the summary.
    run : callable
        Runs the algorithm, recording into the history it is given, saved by the keeper; returns
        theta_sync.
    say : callable
        Prints one line to the user.

    Returns
    -------
    dict
        What ``summary.json`` holds.

    Raises
    ------
    DataError
        There is too little memory, or the regret is not finite.
    StoppedError
        Somebody asked the run to stop.
    """
    try:
        history = History(settings.horizon, on_progress=ProgressLines(say))
        keeper = Keeper(directory, settings, say)
        theta_sync = run(history, keeper)
        summary = directory.finish(
            history, theta_sync, engine=engine, runtime_seconds=keeper.seconds
        )
    except MemoryError as error:
        directory.abandon()
        raise DataError(
            f"out of memory ({error}): num_agents={settings.num_agents},"
            f" horizon={settings.horizon}, num_arms={settings.num_arms} or"
            f" dimension={settings.dimension} is too large for this machine"
        ) from None
    except Exception:
        directory.abandon()
        raise
    finally:
        directory.close()
    say(
        f"{describe(settings)} | final regret {summary['final_regret']:.2f} per agent,"
        f" {summary['exchanges']} exchanges, {_size(summary['uploaded_bytes'])} up,"
        f" {_size(summary['downloaded_bytes'])} down, {summary['runtime_seconds']:.1f} s"
    )
    plot = directory.path / PLOT
    say(f"results: {directory.path}" + (f"  plot: {plot}" if plot.exists() else ""))
    return summary


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
