"""`python -m simulations.run`: one run, or a sweep with `-m`, composed by Hydra."""

from __future__ import annotations

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
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import conf
from fldb_flower.errors import FldbError, SettingsError, one_line
from fldb_flower.experiment import StoppedError, conduct
from fldb_flower.results import RunDirectory, is_finished, request_stop, stop_requested
from fldb_flower.settings import (
    Settings,
    defaults_nested,
    from_nested,
    hydra_entries,
    suggestion,
)
from simulations.jobs import SOURCE, attempt

_LOG = logging.getLogger("fldb_flower")
_CONF = Path(conf.__path__[0])
_SIGNALLED = 128  # exit status: this and the signal's number
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
            engine=engine,
            run=lambda history, keeper: vectorized.run(settings, history, keeper),
            say=_LOG.info,
        )
    else:
        from simulations.engines import flower, inprocess  # noqa: PLC0415 - imports Flower

        module = inprocess if engine == "inprocess" else flower
        module.run(settings, str(directory))


@hydra.main(version_base="1.3", config_path=str(_CONF), config_name="config")
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

    def stop(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        try:
            request_stop(directory)
        except OSError as error:
            print(f"stopped: cannot write to {directory}: {error.strerror}", file=sys.stderr)
            sys.exit(_SIGNALLED + number)
        if len(came) > 1:
            sys.exit(_SIGNALLED + number)

    stop_requested(directory)  # by a signal to a run that was killed then
    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except StoppedError as stopped:
        print(f"{stopped}, in {directory}", file=sys.stderr)
        sys.exit(_SIGNALLED + (came[0] if came else signal.SIGTERM))
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if came:  # in its last round
        stop_requested(directory)
        sys.exit(_SIGNALLED + came[0])


def _is_sweep() -> bool:
    return HydraConfig.get().mode == RunMode.MULTIRUN


def _groups() -> dict[str, list[str]]:
    """Return each configuration group and its choices."""
    groups: dict[str, list[str]] = {}
    for file in sorted(_CONF.glob("*/*.yaml")):
        groups.setdefault(file.parent.name, []).append(file.stem)
    return groups


def _left_unfinished() -> bool:
    """Whether the sweep of another sweeper than ours had jobs without a result."""
    sweep = sys.modules.get("simulations.sweep")
    return sweep is not None and bool(sweep.jobs_without_result)


def check_overrides(overrides: list[str]) -> None:
    """Check that each override names a setting or a group's choice, before Hydra starts.

    Hydra's own answer to a misspelt name is six lines that end in a hint about stack traces.

    Raises
    ------
    SettingsError
        An override cannot be parsed, or names nothing.
    """
    groups, parser = _groups(), OverridesParser.create()
    known = {entry.dotted for entry in hydra_entries()} | set(groups)
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            reason = str(error).splitlines()[0]
            raise SettingsError(f"{text!r} (from the command line): {reason}") from None
        key = override.key_or_group
        swept = override.is_sweep_override()
        values = list(override.sweep_string_iterator()) if swept else [override.value()]
        if not values:
            raise SettingsError(f"{text} (from the command line): an empty sweep has no job to run")
        changes = override.is_delete() or (override.is_add() and key not in groups)
        if key.startswith("hydra."):
            continue
        if key.startswith("hydra/") or (changes and key):
            if all(isinstance(value, str) or value is None for value in values):
                continue  # groups of Hydra's, or of the user's own (--config-dir)
            raise SettingsError(
                f"{text!r} (from the command line): must name a file of the group {one_line(key)}"
            )
        if key not in known:
            raise SettingsError(
                f"{one_line(key)} (from the command line): there is no such setting"
                f"{suggestion(key, tuple(known)) or '; --help lists them'}"
            )
        choices = groups.get(key, [])
        wrong = [value for value in values if value not in choices]
        if choices and wrong:
            raise SettingsError(
                f"{key}={one_line(wrong[0])} (from the command line): must be one of"
                f" {', '.join(choices)}{suggestion(str(wrong[0]), tuple(choices))}"
            )


def help_text() -> str:
    """Return what ``--help`` prints: the groups, and every setting with default and meaning."""
    lines = ["usage: python -m simulations.run [-m] [GROUP=CHOICE ...] [SETTING=VALUE ...]", ""]
    lines += ["-m runs a sweep over every combination: -m tau=1,2,4 seed=range(3)", "", "groups:"]
    lines += [f"  {group}={'|'.join(choices)}" for group, choices in _groups().items()]
    lines += ["", "settings:"]
    for entry in hydra_entries():
        if entry.path[-1] != "name" and entry.dotted not in _groups():
            default = entry.default if entry.default != "" else "''"
            lines.append(f"  {f'{entry.dotted}={default}':32} {entry.metadata['help']}")
    lines += [
        "",
        "results go to hydra.run.dir=DIR, or hydra.sweep.dir=DIR for a sweep; --hydra-help",
    ]
    return "\n".join(lines)


def main() -> None:
    """Entry point: exit status 1, with one line on stderr, for a mistake of the user's."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(help_text())
        return
    ConfigStore.instance().store(name="settings", node=defaults_nested())
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that our own errors reach the line below
    try:
        check_overrides([arg for arg in sys.argv[1:] if "=" in arg and not arg.startswith("-")])
        _job()
        if _FAILURES or _left_unfinished():
            sys.exit(1)
    except (FldbError, HydraException, OmegaConfBaseException) as error:
        sys.exit("error: " + " ".join(str(error).split()))
    except OSError as error:  # Hydra creates the run's directory
        sys.exit(f"error: cannot write to {error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
