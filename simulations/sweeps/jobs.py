"""One job of a sweep, in its own process: runs without output, and records why it failed.

Jobs may run on other machines. The sweep reads their state from their folders.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fldb_flower.errors import FldbError, SettingsError
from fldb_flower.runs.directory import SUMMARY
from fldb_flower.runs.experiment import StoppedError
from fldb_flower.runs.results import STOP
from fldb_flower.settings import Settings, from_nested
from fldb_flower.system.files import replace_file
from simulations.sweeps.plan import describe_exception

ERROR = "error.txt"
"""Reason of a failed job: one line, and the stack trace of an unexpected exception."""
_SOURCE = "the command line or conf/"  # of settings, in messages


def settings_of(config: DictConfig) -> Settings:
    """Return the settings in a composed configuration; Hydra's own node is ignored."""
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


def attempt(work: Callable[[], None], directory: Path, sweep: Path) -> float | None:
    """Run one job without output, and write ``error.txt`` to its folder if it fails.

    Returns the final regret, for sweepers that optimise settings; None without a result, or if the
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
        text = describe_exception(error) + "\n"
        if not isinstance(error, FldbError):
            text += "\n" + "".join(traceback.format_exception(error))
        try:
            replace_file(directory / ERROR, text.encode())
        except OSError as reason:
            print(f"error: cannot write {directory / ERROR}: {reason.strerror}", file=sys.stderr)
            print(text, file=sys.stderr)
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
