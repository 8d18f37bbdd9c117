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
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import hydra
import yaml  # type: ignore[import-untyped, unused-ignore]
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fldb_flower.errors import FldbError, one_line
from fldb_flower.runs.directory import CHECKPOINT
from fldb_flower.runs.experiment import StoppedError, conduct
from fldb_flower.runs.results import RunDirectory, is_finished, request_stop, stop_requested
from fldb_flower.settings import Settings, defaults_nested, from_nested, hydra_entries
from fldb_flower.system.commands import Parser
from fldb_flower.system.signals import Interrupted, interruptible, leaving_if_dropped
from fldb_flower.system.startup import INTERRUPTED, SIGNALLED, SIGNALS, leave, say_interrupted
from simulations.overrides import CONF, check_overrides, config_groups, search_path
from simulations.sweeps.callbacks import jobs_without_result
from simulations.sweeps.jobs import SOURCE, attempt

_LOG = logging.getLogger("fldb_flower")
_INTERRUPTED_SWEEP = (
    "interrupted: finished jobs are kept; resume=true with the same hydra.sweep.dir runs the rest"
)
_FAILURES: list[str] = []  # of a single run, reported already


def run(settings: Settings, directory: Path) -> None:
    """Run the settings on their engine and leave the results in a directory.

    Raises
    ------
    StoppedError
        Somebody asked the run to stop, and it was saved.
    FldbError
        Something the user can put right.
    """
    engine = settings.engine.name
    if settings.resume and is_finished(directory, settings):
        _LOG.info("%s: finished already", directory)
    elif engine == "vectorized":
        from simulations.engines import vectorized  # noqa: PLC0415 - engines import only their own

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


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def _job(config: DictConfig) -> float | None:
    directory = Path(HydraConfig.get().runtime.output_dir)

    def work() -> None:
        values: Any = OmegaConf.to_container(config, resolve=True)
        run(from_nested(values, SOURCE), directory)

    if _is_sweep():
        with _stopping_on_signals(directory):
            return attempt(work, directory, Path(HydraConfig.get().sweep.dir))
    try:
        with _stopping_on_signals(directory):
            work()
    except FldbError as error:
        _FAILURES.append(str(error))
        print(f"error: {error}", file=sys.stderr)
    return None


@contextlib.contextmanager
def _stopping_on_signals(directory: Path) -> Iterator[None]:
    """Let a run save itself and end on the first SIGTERM or SIGINT, and end at once on another.

    Raises
    ------
    SystemExit
        With 128 + the signal's number, once a signal came: no other job of a sweep begins.
    """
    if threading.current_thread() is not threading.main_thread():  # Python's rule for handlers
        yield
        return
    came: list[int] = []

    def at_once() -> str:
        kept = f"stopped at once: {_kept(directory)}"
        return _INTERRUPTED_SWEEP if _is_sweep() else one_line(kept)

    def stop(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 2:  # what the second one raised was caught, or closing takes long
            leave(came[0], at_once())
        if len(came) > 1:
            raise Interrupted
        try:
            request_stop(directory)
        except OSError as error:
            raise StoppedError(f"stopped: {error.strerror}, cannot write") from None

    stop_requested(directory)  # by a signal to a run that was killed then
    before = {each: signal.signal(each, stop) for each in SIGNALS}
    line = ""
    try:
        with leaving_if_dropped(came, at_once):
            yield
    except StoppedError as stopped:
        came = came or [signal.SIGTERM]
        line = f"{stopped}, in {directory}"
    except FldbError as error:
        if not came:
            raise
        line = f"error: {error}"
    except BaseException:
        if len(came) < 2:
            raise
        line = at_once()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if line and not _is_sweep():  # the sweep prints a line of its own
        say_interrupted(one_line(line))
    if came:  # without a line: in its last round
        stop_requested(directory)
        sys.exit(SIGNALLED + came[0])


def _kept(directory: Path) -> str:
    if (directory / CHECKPOINT).exists():
        return f"resume=true resumes from the last checkpoint, in {directory}"
    return f"nothing was saved in {directory}"


def _is_sweep() -> bool:
    return HydraConfig.get().mode == RunMode.MULTIRUN


def help_text(config_dir: str | None = None) -> str:
    """Return what ``--help`` prints: the groups, and every setting with default and meaning."""
    lines = [
        "usage: python -m simulations.run [-m] [GROUP=CHOICE ...] [SETTING=VALUE ...]",
        "",
        "-m runs a sweep over every combination of the values given:",
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
            lines.append(f"  {f'{entry.dotted}={default}':32} {entry.metadata['help']}")
    lines += [
        "",
        "results go to hydra.run.dir=DIR, or hydra.sweep.dir=DIR for a sweep; --hydra-help",
    ]
    return "\n".join(lines)


def _arguments() -> Parser:
    """Return a parser of the options that matter here, and of those whose next word is a value."""
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
    return parser


def main() -> None:
    """Entry point: exit status 1, with one line on stderr, for a mistake of the user's."""
    asked, rest = _arguments().parse_known_args()
    with interruptible(lambda: _INTERRUPTED_SWEEP if asked.multirun else INTERRUPTED):
        try:
            if asked.help:
                print(help_text(asked.config_dir))
                return
            ConfigStore.instance().store(name="settings", node=defaults_nested())
            os.environ["HYDRA_FULL_ERROR"] = "1"  # so that our own errors reach the line below
            overrides = [arg for arg in rest if "=" in arg and not arg.startswith("-")]
            # Hydra takes an option only where no override precedes it.
            sys.argv[1:] = [*(arg for arg in sys.argv[1:] if arg not in overrides), *overrides]
            check_overrides(overrides, config_dir=asked.config_dir, sweep=asked.multirun)
            _job()
            if _FAILURES or jobs_without_result:
                sys.exit(1)
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            sys.exit("error: " + " ".join(str(error).split()))
        except OSError as error:  # Hydra creates the run's directory
            sys.exit(f"error: cannot write to {error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
