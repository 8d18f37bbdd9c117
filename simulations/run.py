"""`python -m simulations.run`: one run, or a sweep with `-m`, composed by Hydra."""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from simulations import start

    start.begin()

import contextlib
import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import hydra
import yaml  # type: ignore[import-untyped, unused-ignore]
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fldb_flower.errors import FldbError, one_line
from fldb_flower.runs.directory import CHECKPOINT
from fldb_flower.runs.experiment import StoppedError, conduct
from fldb_flower.runs.results import RunDirectory, is_finished, request_stop, stop_requested
from fldb_flower.settings import Settings, hydra_entries
from fldb_flower.system.commands import Parser
from fldb_flower.system.signals import (
    Interrupted,
    handling_signals,
    interruptible,
    leaving_if_dropped,
)
from fldb_flower.system.startup import INTERRUPTED, SIGNALLED, leave, say_interrupted
from simulations.overrides import CONF, check_overrides, config_groups, search_path
from simulations.sweeps.callbacks import jobs_without_result
from simulations.sweeps.jobs import attempt, settings_of

_LOG = logging.getLogger("fldb_flower")
_INTERRUPTED_SWEEP = (
    "interrupted: finished jobs are kept; resume=true with the same hydra.sweep.dir runs the rest"
)


def run(settings: Settings, directory: Path) -> None:
    """Run on the engine of the settings and write the results to a directory.

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

        conduct(
            settings,
            RunDirectory(directory, settings),
            run=lambda history, checkpointer: vectorized.run(settings, history, checkpointer),
            say=_LOG.info,
        )
    else:
        logging.getLogger("alembic").setLevel(logging.WARNING)  # Flower's database, at INFO
        from simulations.engines import flower, inprocess  # noqa: PLC0415 - imports Flower

        module = inprocess if engine == "inprocess" else flower
        module.run(settings, str(directory))


def _run_one(config: DictConfig, directory: Path) -> None:
    try:
        with _stopping_on_signals(directory):
            run(settings_of(config), directory)
    except FldbError as error:
        sys.exit(f"error: {one_line(error)}")


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def _job(config: DictConfig) -> float | None:
    directory = Path(HydraConfig.get().runtime.output_dir)
    if HydraConfig.get().mode != RunMode.MULTIRUN:
        _run_one(config, directory)
        return None
    with _stopping_on_signals(directory, sweep=True):
        work = lambda: run(settings_of(config), directory)  # noqa: E731
        return attempt(work, directory, Path(HydraConfig.get().sweep.dir))


def _run_directly(overrides: Sequence[str]) -> bool:
    """Run without `hydra.main`, which composes the configuration twice; return False if a sweep."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3", job_name="run"):
        config = hydra.compose("config", list(overrides), return_hydra_config=True)
    if config.hydra.mode == RunMode.MULTIRUN:
        return False
    configure_log(config.hydra.job_logging, config.hydra.verbose)
    _run_one(config, Path(str(config.hydra.run.dir)).absolute())
    return True


class _Stopper:
    """Handles signals during a run.

    The first signal requests that the run stops, the second raises Interrupted, and the third
    ends the process.
    """

    def __init__(self, directory: Path, *, sweep: bool) -> None:
        self.received: list[int] = []
        self._directory, self._sweep = directory, sweep

    def handle(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(number)
        if len(self.received) > 2:  # the exception was caught, or closing takes long
            leave(self.received[0], self.line())
        if len(self.received) > 1:
            raise Interrupted
        try:
            request_stop(self._directory)
        except OSError as error:
            raise StoppedError(f"stopped: {error.strerror}, cannot write") from None

    def line(self) -> str:
        """Return the line for a run that did not stop by itself."""
        if self._sweep:
            return _INTERRUPTED_SWEEP
        kept = "resume=true resumes from the last checkpoint,"
        if not (self._directory / CHECKPOINT).exists():
            kept = "nothing was saved"
        return one_line(f"stopped at once: {kept} in {self._directory}")


@contextlib.contextmanager
def _stopping_on_signals(directory: Path, *, sweep: bool = False) -> Iterator[None]:
    """Let a run stop on the first signal, and end it at once on the second.

    Raises
    ------
    SystemExit
        With status 128 + number after a signal, so that no other job of a sweep starts.
    """
    stopper = _Stopper(directory, sweep=sweep)
    received, line = stopper.received, ""
    stop_requested(directory)  # clears the request of an earlier, killed run
    try:
        with handling_signals(stopper.handle), leaving_if_dropped(received, stopper.line):
            yield
    except StoppedError as stopped:
        received = received or [signal.SIGTERM]
        line = f"{stopped}, in {directory}"
    except FldbError as error:
        if not received:
            raise
        line = f"error: {error}"
    except BaseException:
        if len(received) < 2:
            raise
        line = stopper.line()
    if line and not sweep:  # a sweep prints its own line
        say_interrupted(one_line(line))
    if received:  # no line: the run finished before it could stop
        stop_requested(directory)
        sys.exit(SIGNALLED + received[0])


def help_text(config_dir: str | None = None) -> str:
    """Return the text of ``--help``: the groups, and every setting with default and meaning."""
    lines = [
        "usage: python -m simulations.run [-m] [GROUP=CHOICE ...] [SETTING=VALUE ...]",
        "",
        "-m runs a sweep over all combinations of the given values:",
        "  python -m simulations.run -m tau=1,2,4 'seed=range(3)'",
        "A value with spaces or special characters needs quotes, and quotes for the shell:",
        "  python -m simulations.run environment=movielens 'environment.path=\"~/ml (1).zip\"'",
        "--config-dir DIR adds your own choices, such as DIR/experiment/mine.yaml:",
        "  python -m simulations.run --config-dir DIR experiment=mine",
        "",
        "groups:",
    ]
    with config_groups(search_path(config_dir)) as (groups, choices):
        lines += [f"  {group}={'|'.join(choices(group))}" for group in groups]
    lines += ["", "settings:"]
    for entry in hydra_entries():
        if entry.path[-1] != "name" and entry.dotted not in groups:
            default = entry.default if entry.default != "" else "''"
            lines.append(f"  {f'{entry.dotted}={default}':32} {entry.help}")
    lines += [
        "",
        "hydra.run.dir=DIR, or hydra.sweep.dir=DIR for a sweep, sets the folder of the results.",
        "--hydra-help prints the options of Hydra.",
    ]
    return "\n".join(lines)


def _arguments() -> tuple[Namespace, list[str]]:
    """Parse the options used here; return the other arguments unparsed.

    Hydra's options with a value are declared, so that the value is not taken for an override.
    """
    parser = Parser(prog="python -m simulations.run", add_help=False, allow_abbrev=False)
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    for long, short in {
        "cfg": "c",
        "config-name": "cn",
        "config-path": "cp",
        "package": "p",
    }.items():
        parser.add_argument(f"--{long}", f"-{short}")
    return parser.parse_known_args()


def _main(asked: Namespace, rest: Sequence[str]) -> None:
    overrides = [arg for arg in rest if "=" in arg and not arg.startswith("-")]
    check_overrides(overrides, config_dir=asked.config_dir, sweep=asked.multirun)
    is_plain = len(overrides) == len(sys.argv) - 1 and all(
        text.startswith("hydra.run.dir=") or "hydra" not in text.partition("=")[0]
        for text in overrides
    )
    if is_plain and _run_directly(overrides):
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
    # Hydra accepts options only before the overrides.
    sys.argv[1:] = [*(arg for arg in sys.argv[1:] if arg not in overrides), *overrides]
    _job()
    if jobs_without_result:
        sys.exit(1)


def main() -> None:
    """Run the command; exit status 1, with one line on stderr, for an error of the user."""
    asked, rest = _arguments()
    with interruptible(lambda: _INTERRUPTED_SWEEP if asked.multirun else INTERRUPTED):
        try:
            if asked.help:
                print(help_text(asked.config_dir))
            else:
                _main(asked, rest)
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            sys.exit("error: " + " ".join(str(error).split()))
        except OSError as error:  # Hydra creates the folder of the run
            sys.exit(f"error: cannot write to {error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
