"""`fldb run` and `fldb sweep`: one run, or all runs of a sweep, composed by Hydra."""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from fldb_flower.system import startup

    startup.begin()

import contextlib
import logging
import os
import re
import signal
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.main import get_args_parser  # type: ignore[attr-defined]
from hydra.types import RunMode
from omegaconf import DictConfig

from fldb_flower.errors import FldbError, SettingsError, one_line
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array
from fldb_flower.runs.directory import CHECKPOINT
from fldb_flower.runs.experiment import Checkpointer, StoppedError, conduct
from fldb_flower.runs.results import (
    RunDirectory,
    discard_unfinished,
    is_finished,
    request_stop,
    stop_requested,
)
from fldb_flower.settings import Settings
from fldb_flower.system.commands import Parser
from fldb_flower.system.files import reason_of
from fldb_flower.system.startup import (
    INTERRUPTED,
    SIGNALLED,
    interruptible,
    leave,
    say_interrupted,
    watching_signals,
)
from simulations.hydra_config import (
    CONF,
    check_words,
    explained,
    help_text,
    store_settings,
    undecodable,
)
from simulations.sweeps.jobs import attempt, settings_of

_LOG = logging.getLogger("fldb_flower")
_PATIENCE = 2.0  # seconds until a signal ends the process within an operation of NumPy
_INTERRUPTED_SWEEP = (
    "interrupted: finished jobs are kept; resume=true with the same hydra.sweep.dir runs the rest"
)


def run(
    settings: Settings,
    directory: Path,
    on_start: Callable[[Callable[[], bool]], None] = lambda _can_save: None,
) -> None:
    """Run on the engine of the settings and write the results to a directory.

    ``on_start`` is called once the run has its directory. Its argument is a function that returns
    whether a request to stop saves something or is needed to end other processes.

    Raises
    ------
    StoppedError
        A stop was requested.
    FldbError
        An error that the user can fix.
    """
    engine = settings.engine.name
    if settings.resume and is_finished(directory, settings):
        _LOG.info("%s: already finished", directory)
    elif engine == "vectorized":
        from simulations.engines import vectorized  # noqa: PLC0415 - imports one engine only

        def play(history: History, checkpointer: Checkpointer) -> Array:
            on_start(lambda: checkpointer.can_save)
            return vectorized.run(settings, history, checkpointer)

        conduct(settings, RunDirectory(directory, settings), run=play, say=_LOG.info)
    else:
        logging.getLogger("alembic").setLevel(logging.WARNING)  # Flower's database, at INFO
        from simulations.engines import flower, inprocess  # noqa: PLC0415 - imports Flower

        module = inprocess if engine == "inprocess" else flower
        if module is flower:
            on_start(lambda: True)
        module.run(settings, str(directory))


def _job(config: DictConfig) -> float | None:
    directory = Path(HydraConfig.get().runtime.output_dir)
    is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    try:
        with _stopping_on_signals(directory, sweep=is_sweep) as stopper:

            def work() -> None:
                run(settings_of(config), directory, stopper.start)

            if is_sweep:
                return attempt(work, directory, Path(HydraConfig.get().sweep.dir))
            work()
    except FldbError as error:  # Hydra would add lines
        if not is_sweep and not any(
            "run.dir" in each for each in HydraConfig.get().overrides.hydra
        ):
            with contextlib.suppress(OSError):  # the new folder is not empty
                directory.rmdir()
        sys.exit(f"error: {one_line(error)}")
    return None


def _run_directly(overrides: Sequence[str]) -> None:
    """Run without `hydra.main`, which composes the configuration twice."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3", job_name="run"):
        program = GlobalHydra.instance().hydra
        assert program is not None
        program.run("config", _job, list(overrides))


class _Stopper:
    """What signals do during a run.

    The first signal requests a stop, if that saves something. Otherwise it raises Interrupted, as
    the second one does. The next one ends the process.
    """

    def __init__(self, directory: Path, *, sweep: bool) -> None:
        self.handled = 0  # signals
        self.at_once = False  # whether Interrupted was raised
        self._directory, self._sweep = directory, sweep
        self._seen = 0  # signals, including those that wait for an operation of NumPy
        self._has_started = False  # then files in the directory are those of this run
        self._can_save: Callable[[], bool] = lambda: False

    def start(self, can_save: Callable[[], bool]) -> None:
        """Store a function that returns whether the first signal waits for the end of a round."""
        self._can_save, self._has_started = can_save, True

    def stop(self, count: int) -> bool:
        """Request that the run stops; False if the signal ends it at once."""
        self.handled = count
        self.at_once = count > 1 or not self._can_save()
        if not self.at_once:
            try:
                request_stop(self._directory)
            except OSError as error:
                raise StoppedError(f"stopped: {error.strerror}, cannot write") from None
        return not self.at_once

    def watch(self, number: int) -> None:
        """End the process, in another thread, if the main thread does not handle a signal."""
        self._seen += 1
        expected, deadline = self._seen, time.monotonic() + _PATIENCE
        while self.handled < expected and time.monotonic() < deadline:
            time.sleep(_PATIENCE / 100)
        if self.handled < expected and (expected > 1 or not self._can_save()):
            line = self.line()
            if self._has_started and not self._can_save():
                discard_unfinished(self._directory)
            leave(number, line)

    def line(self) -> str:
        """Return the line for a run that was stopped at once."""
        if self._sweep:
            return _INTERRUPTED_SWEEP
        kept = "resume=true resumes from the last checkpoint,"
        if not (self._directory / CHECKPOINT).exists():
            kept = "nothing was saved"
        return one_line(f"stopped at once: {kept} in {self._directory}")


@contextlib.contextmanager
def _stopping_on_signals(directory: Path, *, sweep: bool) -> Iterator[_Stopper]:
    """Let a run stop on the first signal, and end it at once on the second; see _Stopper.

    The exit status is then 128 + number, and no other job of a sweep starts.
    """
    stopper, ended = _Stopper(directory, sweep=sweep), ""

    def end() -> str:
        stop_requested(directory)  # clears the request
        if sweep:  # which prints its own line
            return ""
        return one_line(stopper.line() if stopper.at_once else ended)

    stop_requested(directory)  # clears the request of an earlier, killed run
    with (
        interruptible(stopper.line, stop=stopper.stop, end=end),
        watching_signals(stopper.watch),
    ):
        try:
            yield stopper
        except StoppedError as stopped:
            ended = f"{stopped}, in {directory}"
            if not stopper.handled:  # another process requested it
                if line := end():
                    say_interrupted(line)
                sys.exit(SIGNALLED + signal.SIGTERM)
        except FldbError as error:
            if not stopper.handled:
                raise
            ended = f"error: {error}"


def _check_options(asked: Namespace) -> None:
    """Refuse combinations of options for which Hydra would print a stack trace."""
    exclusive = ("run", "multirun", "cfg", "info", "shell_completion")
    names = [f"--{name}" for name in exclusive if getattr(asked, name) not in (None, False)]
    if len(names) > 1:
        shown = " and ".join(names).replace("_", "-")
        sweep = ": leave out -m, or use `fldb run`" if asked.multirun else ""
        raise SettingsError(f"{shown} (from the command line): cannot be combined{sweep}")


def _folders(asked: Namespace) -> list[str]:
    """Return the folders of the user's configuration files."""
    searched = re.findall(r"file://([^,\]'\"]+)", " ".join(asked.overrides))
    return [*filter(None, (asked.config_dir, asked.config_path)), *searched]


def _main(asked: Namespace, unknown: Sequence[str]) -> None:
    _check_options(asked)
    check_words([*unknown, *asked.overrides])
    store_settings(_folders(asked))
    keys = {word.partition("=")[0] for word in asked.overrides} - {"hydra.run.dir"}
    if len(asked.overrides) == len(sys.argv) - 1 and not any("hydra" in key for key in keys):
        _run_directly(asked.overrides)
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
    # Hydra accepts options only before the overrides.
    options = [word for word in sys.argv[1:] if word not in asked.overrides]
    sys.argv[1:] = [*options, *asked.overrides]
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(_job)()


def main() -> None:
    """Run the command; exit status 1, with one line on stderr, for an error of the user.

    Examples
    --------
    A script that registers a class ends with two lines, ``if __name__ == "__main__":`` and
    ``main()``, after this import:

    >>> from simulations.run import main
    """
    parser = Parser(parents=[get_args_parser()], add_help=False, allow_abbrev=False)
    asked, unknown = parser.parse_known_intermixed_args()
    with interruptible(lambda: _INTERRUPTED_SWEEP if asked.multirun else INTERRUPTED):
        try:
            if asked.help:
                print(help_text(asked.config_dir), flush=True)
            else:
                _main(asked, unknown)
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")
        except UnicodeDecodeError as error:
            sys.exit(f"error: {one_line(undecodable(error, _folders(asked)))}")
        except Exception as error:
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            if frame.f_globals["__name__"].partition(".")[0] in ("hydra", "omegaconf", "yaml"):
                sys.exit(f"error: {one_line(explained(error, asked.overrides))}")
            if not isinstance(error, OSError) or isinstance(error, BrokenPipeError):
                raise
            # Hydra creates the folder of the run.
            sys.exit(f"error: cannot write to {error.filename}: {reason_of(error)}")


if __name__ == "__main__":
    main()
