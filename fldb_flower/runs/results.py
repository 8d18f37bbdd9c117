"""The directory of one simulated run: claimed first, finished last, never overwritten."""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fldb_flower.bandit.theory import selects_by_curvature
from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS, SELECTIONS
from fldb_flower.environments import feature_names, stated
from fldb_flower.errors import FederationError, FldbError, OutputError
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.runs.directory import (
    CHECKPOINT,
    MODEL,
    SUMMARY,
    Checkpoint,
    ResultsDirectory,
    json_bytes,
)  # fmt: skip
from fldb_flower.runs.plots import plot_regret
from fldb_flower.settings import (
    AUTO,
    Settings,
    entry_of,
    from_nested,
    to_dotted,
    unflatten,
    unused,
)  # fmt: skip
from fldb_flower.system.files import remove_leftovers

CONFIG, REGRET, PLOT = "config.yaml", "regret.csv", "regret.png"
PREDICTION, PARTICIPATION, STOP = "prediction.csv", "participation.csv", "stop"
COLUMNS = {
    REGRET: ("iteration", "cumulative_regret", "exchanges"),
    PREDICTION: ("iteration", "log_loss", "accuracy"),
    PARTICIPATION: ("iteration", "asked", "replied", "absent", "rejected"),
}
"""The columns of the tables of a run."""
FILES = (CONFIG, REGRET, PREDICTION, PARTICIPATION, MODEL, SUMMARY)
"""The files of a finished run in the order in which they are written; not every run has all."""
STORAGE_SETTINGS = ("resume", "checkpoint_seconds", "plot")
"""Settings that concern the storage of a run, which are not in its files."""
_NOT_IN_IDENTITY = (  # results do not depend on these settings
    *STORAGE_SETTINGS, "node_wait", "reply_timeout", "max_message_mb",
    "engine.num_cpus", "engine.num_gpus", "engine.workers",
)  # fmt: skip


class RunDirectory(ResultsDirectory):
    """The directory of one run, claimed by its ``config.yaml`` on construction.

    ``checkpoint.bin`` holds the state of an unfinished run of the vectorized engine, and ``saved``
    is the one to resume from. ``summary.json`` is written last: a run without it is not finished.
    A file ``stop`` requests that the run stops.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        super().__init__(path, identity(settings), user="run")
        self.saved: Checkpoint | None = None
        self._settings = settings
        try:
            if settings.resume and not (self.path / SUMMARY).exists():
                if settings.engine.name == "vectorized":
                    self.saved = self.load()
                else:
                    _discard_checkpoint(self.path)
                self.abandon()  # files of a run without a checkpoint
            if self.saved is None:
                _require_no_run(self.path)
            self.write(CONFIG, _config_yaml(settings))
        except FldbError:
            self.close()
            raise

    def finish(self, history: History, theta_sync: Array, runtime_seconds: float) -> None:
        """Write the results; a plot that cannot be drawn is omitted, and the reason is logged."""
        files = result_files(self._settings, history, theta_sync, runtime_seconds)
        summary = files.pop(SUMMARY)
        for name, content in files.items():
            self.write(name, content)
        if self._settings.plot and not predicts_only(history.regret, history.log_loss):
            plot_regret(self.path / PLOT, history, self._settings)
        self.write(SUMMARY, summary)
        _discard_checkpoint(self.path)

    def abandon(self) -> None:
        """Remove the files of a failed run, unless it has a checkpoint to resume from."""
        if not (self.path / CHECKPOINT).exists():
            discard_unfinished(self.path)


def result_files(
    settings: Settings, history: History, theta_sync: Array, runtime_seconds: float
) -> dict[str, bytes]:
    """Return the files of a finished run by name, in the order of :data:`FILES`.

    Raises a DataError or a FederationError if the regret or the estimate is not finite.
    """
    iterations = np.arange(1, history.horizon + 1)
    tables = {REGRET: [history.cumulative_regret, history.exchanges_by_iteration]}
    if history.log_loss is not None:
        tables[PREDICTION] = list(history.cumulative_predictions)
    files = {CONFIG: _config_yaml(settings)}
    for name, columns in tables.items():
        values = (column.tolist() for column in (iterations, *columns))
        files[name] = _csv(name, zip(*values, strict=True))
    if history.participation:
        replies = (
            (row.iteration, row.asked, row.replied, "; ".join(row.absent), "; ".join(row.rejected))
            for row in history.participation
        )
        files[PARTICIPATION] = _csv(PARTICIPATION, replies)
    common = ALGORITHMS[settings.algorithm].agents == "common"
    if common or history.heterogeneity is not None:
        if not np.isfinite(theta_sync).all():
            raise FederationError(
                f"algorithm={settings.algorithm}: the estimate is not finite after iteration"
                f" {history.iteration}: use smaller steps or a larger lambda"
            )
        model = {
            "algorithm": settings.algorithm,
            "environment": settings.environment.name,
            "dimension": settings.dimension,
            "iteration": history.iteration,
            "round": history.rounds,
            "theta_sync": theta_sync.tolist(),
        }
        own: dict[str, Any] = {}
        if not common:
            found = history.directions(feature_names(settings))
            own = {"heterogeneity": history.heterogeneity, "directions": found}
        files[MODEL] = json_bytes(model | own)
    return files | {SUMMARY: json_bytes(_summary(settings, history, runtime_seconds))}


def predicts_only(regret: float, log_loss: float | None) -> bool:
    """Return whether a run with this final regret and log loss had predictions but no regret."""
    return not regret and log_loss is not None


def outcome(regret: float, log_loss: float | None, accuracy: float | None) -> str:
    """Return the final regret of a run as text, or what it predicted if it had no regret."""
    if not predicts_only(regret, log_loss):
        return f"final regret {regret:.2f} per agent"
    right = "" if accuracy is None else f", accuracy {accuracy:.0%}"
    return f"final log loss {log_loss:.3f}{right}"


def _csv(name: str, rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS[name], *rows])
    return text.getvalue().encode()


def _summary(settings: Settings, history: History, runtime_seconds: float) -> dict[str, Any]:
    chosen = ("algorithm", "num_agents", "horizon", "tau", "seed")
    summary: dict[str, Any] = {name: getattr(settings, name) for name in chosen}
    summary |= {"engine": settings.engine.name, "final_regret": history.regret}
    counts = ("exchanges", "rounds", "uploaded_bytes", "downloaded_bytes")
    for name in ("log_loss", "accuracy", *counts, "heterogeneity"):
        if (value := getattr(history, name)) is not None:
            summary[name] = value
    if found := history.directions(feature_names(settings)):
        summary["directions"] = found
    summary |= stated(settings)
    if code := code_of(settings):
        summary["code"] = code
    if settings.is_private:
        summary["privacy"] = ReleasePlan(settings).summary(history.openings)
    summary["runtime_seconds"] = round(runtime_seconds, 3)
    if history.participation:
        replied = sum(row.replied for row in history.participation)
        summary["participation"] = replied / sum(row.asked for row in history.participation)
        summary["node_uploaded_bytes"] = history.node_uploaded_bytes
        summary["node_downloaded_bytes"] = history.node_downloaded_bytes
    return {**summary, "complete": True}


def _config_yaml(settings: Settings) -> bytes:
    from omegaconf import OmegaConf  # noqa: PLC0415 - agents import this module's package

    values = unflatten(to_dotted(settings))
    for name in STORAGE_SETTINGS:
        del values[name]
    return OmegaConf.to_yaml(OmegaConf.create(values)).encode()


def save_files(path: Path, files: Mapping[str, bytes], *, replace: bool = False) -> None:
    """Write the files of a finished run, from :func:`result_files`, to a directory without one.

    ``replace`` allows an unfinished or damaged run there, and removes its files.
    """
    directory = ResultsDirectory(path, "", user="run")
    try:
        if replace:
            _remove(directory.path, *reversed(FILES))
            _discard_checkpoint(directory.path)
        _require_no_run(directory.path)
        for name, content in files.items():
            directory.write(name, content)
    finally:
        directory.close()


def _require_no_run(path: Path) -> None:
    if (path / CHECKPOINT).exists() and not (path / SUMMARY).exists():
        raise OutputError(f"{path} holds an unfinished run: resume=true resumes it")
    if any((path / name).exists() for name in (CONFIG, REGRET, SUMMARY, CHECKPOINT)):
        raise OutputError(f"{path} already holds a run: name another directory, or remove this one")


def is_finished(path: Path, settings: Settings) -> bool:
    """Return whether a directory holds the finished run of these settings; refuse another one."""
    import yaml  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - as OmegaConf above

    if not (path / SUMMARY).exists():
        return False
    try:
        there = yaml.safe_load((path / CONFIG).read_bytes())
        same = identity(from_nested(there, str(path / CONFIG))) == identity(settings)
        code = json.loads((path / SUMMARY).read_bytes()).get("code", "")
    except (AttributeError, FldbError, OSError, ValueError, yaml.YAMLError):
        same = False
    if not same:
        raise OutputError(
            f"{path} holds a run of other settings: resume=true needs the same settings"
        )
    if code != code_of(settings):
        raise OutputError(f"{path} holds a run of other code: name another directory")
    _discard_checkpoint(path)  # left by a kill at the very end
    return True


def code_of(settings: Settings) -> str:
    """Return digests of the source of the user's own classes and functions, "" without any."""
    names = (ALGORITHMS, settings.algorithm), (SELECTIONS, settings.selection)
    every = (*names, (ENVIRONMENTS, settings.environment.name))
    return "".join(catalogue.code(name) for catalogue, name in every)


def identity(settings: Settings) -> str:
    """Return the settings and the user's code that determine the results of a run, by line."""
    values = to_dotted(settings)
    values |= {name: entry_of(name).default for name in unused(values)}
    if values["beta_scale"] == AUTO and not selects_by_curvature(settings):
        values["beta_scale"] = 1.0
    if values["quorum"] == AUTO:
        values["quorum"] = 1.0
    if settings.engine.name != "inprocess":
        # The vectorized engine has no nodes; the server of `flwr run` does not know their number.
        values["engine.num_nodes"] = None
    kept = {name: value for name, value in values.items() if name not in _NOT_IN_IDENTITY}
    lines = "".join(f"{name}={value!r}\n" for name, value in kept.items())
    return f"{lines}code={code}\n" if (code := code_of(settings)) else lines


def request_stop(path: Path) -> None:
    """Request that the run in a directory stops, on whatever machine it runs."""
    (path / STOP).touch()


def stop_requested(path: Path) -> bool:
    """Return whether a stop was requested for the run in a directory, and clear the request."""
    try:
        (path / STOP).unlink()
    except OSError:
        return False
    return True


def discard_unfinished(path: Path) -> None:
    """Remove the files of a run that did not finish from its directory."""
    _remove(path, *FILES[:-1])


def _discard_checkpoint(path: Path) -> None:
    _remove(path, CHECKPOINT, STOP)
    remove_leftovers(path / CHECKPOINT)


def _remove(path: Path, *names: str) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            (path / name).unlink()


def default_directory() -> Path:
    """Return a new directory below ``~/fldb-runs``, the default for `flwr run`."""
    now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    return Path.home() / "fldb-runs" / now
