"""The directory of one run: claimed first, finished last, never overwritten."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.errors import FederationError, FldbError, OutputError
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array
from fldb_flower.runs.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from fldb_flower.runs.plots import plot_regret
from fldb_flower.settings import (
    Settings,
    current_names,
    from_nested,
    hydra_entries,
    to_nested,
)
from fldb_flower.system.files import lock_folder, partial_of, replace_file

CONFIG, REGRET, PLOT, SUMMARY = "config.yaml", "regret.csv", "regret.png", "summary.json"
PARTICIPATION, CHECKPOINT, STOP = "participation.csv", "checkpoint.bin", "stop"
MODEL = "model.json"
_FORMAT = 2  # of what a run's checkpoint holds
_HOW_IT_IS_KEPT = ("resume", "checkpoint_seconds", "plot")
_MAY_CHANGE = (  # between two parts of one run: no result depends on it
    *_HOW_IT_IS_KEPT, "node_wait", "reply_timeout", "max_message_mb",
    "engine.num_cpus", "engine.num_gpus",
)  # fmt: skip


class RunDirectory:
    """Where one run's results go; one process at a time has it.

    ``config.yaml`` is written on construction and claims the directory; ``checkpoint.bin`` is
    what an unfinished run goes on from; ``summary.json`` is written last, and without it the run
    is not finished. A file ``stop`` asks the run to save itself and end.

    Parameters
    ----------
    path : Path
        Created if missing; must not hold a run, or with ``resume`` none but this one.
    settings : Settings
        Settings of the run.

    Attributes
    ----------
    saved : Checkpoint or None
        What there is to go on from.

    Raises
    ------
    CheckpointError
        The checkpoint is damaged, or of a run with other settings; nothing was touched.
    OutputError
        The directory cannot be written, is in use, or holds a run already.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path.expanduser()
        self.saved: Checkpoint | None = None
        self._settings = settings
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.path)
        except BlockingIOError:
            raise OutputError(f"{self.path} is in use by another run: wait for its end") from None
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {error.strerror}") from None
        try:
            if settings.resume and not (self.path / SUMMARY).exists():
                self.saved = load_checkpoint(self.path / CHECKPOINT, identity(settings))
                self.abandon()  # what a run left that saved nothing
            self._claim()
        except FldbError:
            self.close()
            raise

    def close(self) -> None:
        """Let another process have the directory."""
        os.close(self._lock)

    def save(self, numbers: dict[str, Any], arrays: Mapping[str, Array]) -> None:
        """Write a checkpoint durably, in place of the one before.

        Raises
        ------
        OutputError
            It cannot be written; the one before is as it was.
        """
        checkpoint = Checkpoint(identity(self._settings), numbers, arrays)
        save_checkpoint(self.path / CHECKPOINT, checkpoint)

    def finish(
        self, history: History, theta_sync: Array, *, engine: str, runtime_seconds: float
    ) -> dict[str, Any]:
        """Write the results, ``summary.json`` last and atomically, and return the summary.

        ``model.json`` holds the estimate that the federation learned. Where agents learn alone
        or not at all, there is none. A picture that cannot be drawn is left out; a line in the
        log gives the reason.

        Raises
        ------
        DataError
            The regret is not finite; nothing was written.
        FederationError
            The estimate is not finite.
        OutputError
            The disk is full, or the directory went away or became read-only.
        """
        summary = self._summary(history, engine, runtime_seconds)
        model = self._model(history, theta_sync)
        try:
            replace_file(self.path / REGRET, _regret_csv(history).encode())
            if history.participation:
                replace_file(self.path / PARTICIPATION, _participation_csv(history).encode())
            if self._settings.plot:
                plot_regret(self.path / PLOT, history, self._settings)
            if model is not None:
                replace_file(self.path / MODEL, _json(model))
            replace_file(self.path / SUMMARY, _json(summary))
        except OSError as error:
            raise OutputError(f"cannot write results to {self.path}: {error.strerror}") from None
        _discard_checkpoint(self.path)
        return summary

    def abandon(self) -> None:
        """Give the directory up after a failure: the next run may have it.

        If anything was saved, that is the same run with ``resume``.
        """
        if not (self.path / CHECKPOINT).exists():
            _remove(self.path, CONFIG, REGRET, MODEL)

    def _claim(self) -> None:
        text = _config_yaml(self._settings)
        try:
            if self.saved is not None:
                replace_file(self.path / CONFIG, text.encode())
                return
            if any((self.path / name).exists() for name in (REGRET, SUMMARY, CHECKPOINT)):
                raise FileExistsError
            with (self.path / CONFIG).open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            unfinished = (self.path / CHECKPOINT).exists() and not (self.path / SUMMARY).exists()
            raise OutputError(
                f"{self.path} holds an unfinished run: resume=true goes on with it"
                if unfinished
                else f"{self.path} already holds a run: name another directory, or remove this one"
            ) from None
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {error.strerror}") from None

    def _summary(self, history: History, engine: str, runtime_seconds: float) -> dict[str, Any]:
        settings = self._settings
        summary: dict[str, Any] = {
            "algorithm": settings.algorithm,
            "num_agents": settings.num_agents,
            "horizon": settings.horizon,
            "tau": settings.tau,
            "seed": settings.seed,
            "engine": engine,
            "final_regret": history.regret,
            "exchanges": history.exchanges,
            "rounds": history.rounds,
            "uploaded_bytes": history.uploaded_bytes,
            "downloaded_bytes": history.downloaded_bytes,
            "runtime_seconds": round(runtime_seconds, 3),
        }
        if history.participation:
            asked = sum(row.asked for row in history.participation)
            replied = sum(row.replied for row in history.participation)
            summary["participation"] = replied / asked
            summary["node_uploaded_bytes"] = history.node_uploaded_bytes
            summary["node_downloaded_bytes"] = history.node_downloaded_bytes
        return {**summary, "complete": True}

    def _model(self, history: History, theta_sync: Array) -> dict[str, Any] | None:
        settings = self._settings
        if ALGORITHMS[settings.algorithm].agents != "common":
            return None
        if not np.isfinite(theta_sync).all():
            raise FederationError(
                f"algorithm={settings.algorithm}: the estimate is not finite after iteration"
                f" {history.iteration}: smaller steps or a larger lambda help"
            )
        return {
            "algorithm": settings.algorithm,
            "environment": settings.environment.name,
            "dimension": settings.dimension,
            "iteration": history.iteration,
            "round": history.rounds,
            "theta_sync": theta_sync.tolist(),
        }


def is_finished(path: Path, settings: Settings) -> bool:
    """Whether a directory holds the finished run of just these settings.

    What a kill at the very end left of its checkpoint is removed.

    Raises
    ------
    OutputError
        It holds a run of other settings.
    """
    if not (path / SUMMARY).exists():
        return False
    if _identity_there(path / CONFIG) != identity(settings):
        raise OutputError(f"{path} holds a run of other settings: resume needs the same ones")
    _discard_checkpoint(path)
    return True


def _identity_there(config: Path) -> str:
    """Return what makes the run of a ``config.yaml`` the one it is; "" if that cannot be said."""
    import yaml  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - as OmegaConf below

    try:
        values = yaml.safe_load(config.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            return ""
        return identity(from_nested(current_names(values), str(config)))
    except OSError as error:
        raise OutputError(f"cannot read {config}: {error.strerror}") from None
    except (FldbError, ValueError, yaml.YAMLError):
        return ""


def identity(settings: Settings) -> str:
    """Return what makes a run the one it is, a line for each setting that must not change."""
    # Vectorized has no nodes, and how many Flower's run has is not known to its server.
    nodes = () if settings.engine.name == "inprocess" else ("engine.num_nodes",)
    ignored = (*_MAY_CHANGE, *nodes)
    lines = [
        f"{entry.dotted}={entry.value(settings)!r}\n"
        for entry in hydra_entries()
        if entry.dotted not in ignored
    ]
    return f"run, format {_FORMAT}\n" + "".join(lines)


def request_stop(path: Path) -> None:
    """Ask the run in a directory, on whatever machine it is, to save itself and end.

    Raises
    ------
    OSError
        The directory cannot be written.
    """
    (path / STOP).touch()


def stop_requested(path: Path) -> bool:
    """Whether somebody asked the run in a directory to stop; asks once."""
    if not (path / STOP).exists():
        return False
    _remove(path, STOP)
    return True


def _discard_checkpoint(path: Path) -> None:
    """Remove what a finished run need not go on from."""
    _remove(path, CHECKPOINT, partial_of(path / CHECKPOINT).name, STOP)


def _remove(path: Path, *names: str) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            (path / name).unlink()


def _config_yaml(settings: Settings) -> str:
    from omegaconf import OmegaConf  # noqa: PLC0415 - agents import this module's package

    values = to_nested(settings)
    for name in _HOW_IT_IS_KEPT:  # which is not what the run is
        del values[name]
    return OmegaConf.to_yaml(OmegaConf.create(values))


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, allow_nan=False) + "\n").encode()


def default_directory() -> Path:
    """Return a new directory under ``~/fldb-runs`` for runs that were given none."""
    now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    return Path.home() / "fldb-runs" / now


def _regret_csv(history: History) -> str:
    import pandas as pd  # noqa: PLC0415 - takes half a second, and agents need none of it

    table = pd.DataFrame(
        {
            "iteration": range(1, history.horizon + 1),
            "cumulative_regret": history.cumulative_regret,
            "exchanges": history.exchanges_by_iteration,
        }
    )
    return str(table.to_csv(index=False, lineterminator="\n"))


def _participation_csv(history: History) -> str:
    import pandas as pd  # noqa: PLC0415 - see above

    rows = [
        {
            "iteration": row.iteration,
            "asked": row.asked,
            "replied": row.replied,
            "absent": "; ".join(row.absent),
            "rejected": "; ".join(row.rejected),
        }
        for row in history.participation
    ]
    return str(pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
