"""One job of a sweep, in its own process, and Hydra's callback for sweeps.

Jobs may run on other machines. The sweep reads their state from their folders. Every run imports
this module, so it imports little.
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
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fldb_flower.errors import FldbError, SettingsError
from fldb_flower.runs.directory import SUMMARY
from fldb_flower.runs.experiment import StoppedError
from fldb_flower.runs.results import STOP
from fldb_flower.settings import Settings, flatten, from_nested
from fldb_flower.system.files import replace_file
from simulations.sweeps.plan import describe_exception

ERROR = "error.txt"
"""Reason of a failed job: one line, and the stack trace of an unexpected exception."""
_SOURCE = "the command line or conf/"  # source of settings, in messages


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
        unresolved: Any = OmegaConf.to_container(config, resolve=False)
        given = dict(flatten(unresolved)).get(name)
        reason = " ".join(str(error).splitlines()[0].split())
        raise SettingsError(
            f"{name}={given} (from {_SOURCE}): {reason}; ${{NAME}} is the value of another setting;"
            " write \\${ for a literal ${"
        ) from None
    return from_nested(values, _SOURCE)


def attempt(work: Callable[[], None], directory: Path, sweep: Path) -> float | None:
    """Run one job without output, and write ``error.txt`` to its folder if it fails.

    Returns the final regret, for sweepers that optimise settings. Returns None if there is no
    result, or if the folder of the sweep contains a file ``stop``.
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
    """Return the reason why the job in a folder failed, as one line; None if it did not fail."""
    path = directory / ERROR
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"
    return f"{lines[0]} (trace: {path})" if len(lines) > 1 else "".join(lines)


class SweepCallback(Callback):
    """Registers our sweeper, and writes the tables of a sweep with another sweeper.

    The jobs of another sweeper are unknown. Its tables contain every distinct run below the folder
    of the sweep. The exit status is 1 if a job failed.
    """

    def on_multirun_start(self, config: DictConfig, **_kwargs: Any) -> None:
        """Register our sweeper."""
        from simulations.sweeps.sweeper import register  # noqa: PLC0415 - imports pandas

        register()

    def on_multirun_end(self, config: DictConfig, **_kwargs: Any) -> None:
        """Write the tables and the plot of a sweep with another sweeper."""
        if str(config.hydra.sweeper.get("_target_")).endswith(".GridSweeper"):
            return
        from simulations.saved_runs import Run, find_runs, identity_of  # noqa: PLC0415 - pandas
        from simulations.sweeps.tables import report  # noqa: PLC0415

        folder = Path(str(config.hydra.sweep.dir))
        distinct: dict[str, Run] = {}
        for run in find_runs([folder])[0]:
            distinct.setdefault(identity_of(run), run)
        failed = sorted(path.parent for path in folder.glob(f"*/{ERROR}"))
        errors = [f"job {path.name}: {failure(path)}" for path in failed]
        report(list(distinct.values()), errors, folder)
