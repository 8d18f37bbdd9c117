"""The directory of one run: claimed first, finished last, never overwritten."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from fldb_flower.errors import OutputError
from fldb_flower.files import replace_file
from fldb_flower.history import History
from fldb_flower.settings import Settings, to_nested

CONFIG, REGRET, PLOT, SUMMARY = "config.yaml", "regret.csv", "regret.png", "summary.json"
PARTICIPATION = "participation.csv"


class RunDirectory:
    """Where one run's results go.

    ``config.yaml`` is written on construction and claims the directory; ``summary.json`` is
    written last, and without it the run is not finished.

    Parameters
    ----------
    path : Path
        Created if missing; must not hold a run.
    settings : Settings
        Settings of the run.

    Raises
    ------
    OutputError
        The directory cannot be written, or it holds a run already.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path.expanduser()
        self._settings = settings
        if settings.resume and not (self.path / SUMMARY).exists():
            self.abandon()  # what an interrupted run left
        self._claim()

    def finish(self, history: History, *, engine: str, runtime_seconds: float) -> dict[str, Any]:
        """Write the results, ``summary.json`` last and atomically, and return the summary.

        Raises
        ------
        OutputError
            The disk is full, or the directory went away or became read-only.
        """
        from fldb_flower.plots import plot_regret  # noqa: PLC0415 - matplotlib takes a second

        summary = self._summary(history, engine, runtime_seconds)
        try:
            replace_file(self.path / REGRET, _regret_csv(history).encode())
            if history.participation:
                replace_file(self.path / PARTICIPATION, _participation_csv(history).encode())
            plot_regret(self.path / PLOT, history, self._settings)
            replace_file(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())
        except OSError as error:
            raise OutputError(f"cannot write results to {self.path}: {error.strerror}") from None
        return summary

    def abandon(self) -> None:
        """Give the directory up after a failure: the next run may have it."""
        for name in (CONFIG, REGRET):
            (self.path / name).unlink(missing_ok=True)

    def _claim(self) -> None:
        text = _config_yaml(self._settings)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if any((self.path / name).exists() for name in (REGRET, SUMMARY)):
                raise FileExistsError
            with (self.path / CONFIG).open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise OutputError(
                f"{self.path} already holds a run: name another directory, or remove this one"
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
        return {**summary, "complete": True}


def is_finished(path: Path, settings: Settings) -> bool:
    """Whether a directory holds the finished run of just these settings.

    Raises
    ------
    OutputError
        It holds a run of other settings.
    """
    if not (path / SUMMARY).exists():
        return False
    try:
        same = (path / CONFIG).read_text(encoding="utf-8") == _config_yaml(settings)
    except OSError as error:
        raise OutputError(f"cannot read {path / CONFIG}: {error.strerror}") from None
    if not same:
        raise OutputError(f"{path} holds a run of other settings: resume needs the same ones")
    return True


def _config_yaml(settings: Settings) -> str:
    from omegaconf import OmegaConf  # noqa: PLC0415 - agents import this module's package

    values = to_nested(settings)
    del values["resume"]  # how a run was started is not what it is
    return OmegaConf.to_yaml(OmegaConf.create(values))


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
            "rejected": "; ".join(row.rejected),
        }
        for row in history.participation
    ]
    return str(pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
