"""One job of a sweep, in its own process: runs without output, and records why it failed.

Jobs may run on other machines. The sweep reads their state from their folders.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fldb_flower.errors import FldbError, SettingsError, one_line
from fldb_flower.runs.directory import SUMMARY
from fldb_flower.runs.experiment import StoppedError
from fldb_flower.runs.results import STOP
from fldb_flower.settings import Settings, from_nested
from fldb_flower.system.files import replace_file

ERROR = "error.txt"
"""Reason of a failed job: one line, and the stack trace of an unexpected exception."""
MAX_JOBS = 100_000
"""Largest number of jobs of a sweep."""
_SOURCE = "the command line or conf/"  # of settings, in messages


def settings_of(config: DictConfig) -> Settings:
    """Return the settings in a composed configuration; Hydra's own node is ignored.

    Raises
    ------
    SettingsError
        The settings are not valid.
    """
    try:
        values = {
            str(key): OmegaConf.to_container(value, resolve=True)
            if OmegaConf.is_config(value)
            else value
            for key, value in config.items()
            if key != "hydra"
        }
    except OmegaConfBaseException as error:
        name = str(error.full_key)
        given = OmegaConf.to_container(config, resolve=False)
        for part in name.split("."):
            given = given.get(part) if isinstance(given, dict) else None
        reason = " ".join(str(error).splitlines()[0].split())
        raise SettingsError(
            f"{name}={given} (from {_SOURCE}): {reason}; ${{NAME}} stands for the value of another"
            " setting, and \\${ for these two characters"
        ) from None
    return from_nested(values, _SOURCE)


def check_number(sizes: Mapping[str, float], source: str) -> None:
    """Check the number of jobs of a sweep before they are built.

    Parameters
    ----------
    sizes : mapping
        Number of values of each setting; infinity if it is above the limit and not known.
    source : str
        Origin of the settings, for the error message.

    Raises
    ------
    SettingsError
        There are more than :data:`MAX_JOBS` jobs.
    """
    number = math.prod(sizes.values())
    if number <= MAX_JOBS:
        return
    swept = {name: size for name, size in sizes.items() if size > 1}
    factors = " x ".join(f"{_count(size)} values of {name}" for name, size in swept.items())
    total = f" are {_count(number)} jobs" if len(swept) > 1 else ""
    raise SettingsError(
        f"{factors} (from {source}){total}: a sweep has at most {MAX_JOBS:,} jobs; sweep over fewer"
        " values, or in several sweeps"
    )


def _count(number: float) -> str:
    return f"more than {MAX_JOBS:,}" if number == math.inf else f"{number:,}"


def attempt(work: Callable[[], None], directory: Path, sweep: Path) -> float | None:
    """Run one job of a sweep without output, and write ``error.txt`` to its folder if it fails.

    Returns
    -------
    float or None
        The final regret, for sweepers that optimise settings; None without a result, or if the
        folder of the sweep holds a file ``stop``.
    """
    if (sweep / STOP).exists():
        return None
    logging.disable(logging.INFO)
    try:
        (directory / ERROR).unlink(missing_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            work()
        return float(json.loads((directory / SUMMARY).read_text())["final_regret"])
    except StoppedError:
        return None  # the sweep reports it
    except Exception as error:
        _record(directory, error)
        return None
    finally:
        logging.disable(logging.NOTSET)


def failure(directory: Path) -> str | None:
    """Return why the job in a folder failed, in one line; None if it did not fail."""
    path = directory / ERROR
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"
    return f"{lines[0]} (trace: {path})" if len(lines) > 1 else "".join(lines)


def describe_exception(error: BaseException) -> str:
    """Return an exception as one line; exceptions other than ours include their type."""
    if isinstance(error, FldbError):
        return str(error)
    return one_line(f"{type(error).__name__}: {error}".removesuffix(": "))


def _record(directory: Path, error: Exception) -> None:
    text = describe_exception(error) + "\n"
    if not isinstance(error, FldbError):
        text += "\n" + "".join(traceback.format_exception(error))
    try:
        replace_file(directory / ERROR, text.encode())
    except OSError as reason:
        print(f"error: cannot write {directory / ERROR}: {reason.strerror}", file=sys.stderr)
        print(text, file=sys.stderr)
