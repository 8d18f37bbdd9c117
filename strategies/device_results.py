"""What a federation of devices leaves on the server's disk."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fldb_flower.errors import OutputError
from fldb_flower.federation.history import History
from fldb_flower.runs.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from fldb_flower.settings import Settings, to_flat
from fldb_flower.system.files import replace_file
from strategies.device_nodes import CountedSpan, DeviceNodes, short_name
from strategies.dueling import DuelingStrategy

CHECKPOINT, MODEL, SUMMARY, CONFIG = "checkpoint.bin", "model.json", "summary.json", "config.json"
ROUNDS, UPLOADS, LOCK, DEMAND = "rounds.csv", "uploads.csv", "lock", "round-now"
_ROUND_COLUMNS = (
    "round,time,seconds,asked,replied,contributed,duels,total_duels,predicted,agreed,agreement,"
    "exchanges,rejected\n"
)
_UPLOAD_COLUMNS = "round,device,start,end\n"
_MAY_CHANGE = (  # between two runs of one federation
    "output-dir", "resume", "quorum", "node-wait", "reply-timeout", "devices-rounds",
    "devices-round-seconds", "devices-at-least", "devices-first-duels", "devices-max-duels",
    "max-message-mb", "checkpoint-seconds", "num-agents", "num-arms", "seed", "tau",
    "schedule", "schedule-ratio", "environment", "environment-sigma", "environment-path",
    "solver", "gd-steps", "gd-step-size",
)  # fmt: skip


@dataclass(frozen=True)
class RoundRow:
    """What happened in one round.

    Attributes
    ----------
    time, seconds : float
        When it began, in seconds since 1970, and how long it took.
    asked, replied, exchanges : int
        Devices asked and heard of in its first exchange, and how many exchanges it took.
    marks : tuple of CountedSpan
        Which answers of which devices were counted.
    total_duels : int
        Duels counted so far, of all devices.
    rejected : tuple of str
        One line for each reply that was not used.
    """

    round: int
    time: float
    seconds: float
    asked: int
    replied: int
    exchanges: int
    marks: tuple[CountedSpan, ...]
    total_duels: int
    rejected: tuple[str, ...]

    @property
    def duels(self) -> int:
        """Duels counted in this round."""
        return sum(mark.answer.num_duels for mark in self.marks)

    @property
    def agreement(self) -> float | None:
        """Share of the predicted preferences that people confirmed; None without any."""
        predicted = sum(mark.answer.predicted for mark in self.marks)
        return sum(mark.answer.agreed for mark in self.marks) / predicted if predicted else None

    def line(self) -> str:
        """Return what is logged."""
        agreement = "" if self.agreement is None else f", {self.agreement:.0%} as predicted"
        return (
            f"round {self.round}: {self.duels} duels of {len(self.marks)} devices{agreement};"
            f" {self.replied} of {self.asked} devices replied, {self.total_duels} duels so far"
        )

    def csv(self) -> tuple[str, str]:
        """Return its line in rounds.csv, and its lines in uploads.csv."""
        when = datetime.datetime.fromtimestamp(self.time, datetime.UTC).isoformat("T", "seconds")
        predicted = sum(mark.answer.predicted for mark in self.marks)
        agreed = sum(mark.answer.agreed for mark in self.marks)
        agreement = "" if self.agreement is None else f"{self.agreement:.4f}"
        rejected = "; ".join(self.rejected).replace('"', "'").replace("\n", " ")
        row = (
            f"{self.round},{when},{self.seconds:.3f},{self.asked},{self.replied},"
            f"{len(self.marks)},{self.duels},{self.total_duels},{predicted},{agreed},{agreement},"
            f'{self.exchanges},"{rejected}"\n'
        )
        uploads = "".join(
            f"{self.round},{short_name(mark.device)},{mark.answer.start},{mark.answer.end}\n"
            for mark in sorted(self.marks)
        )
        return row, uploads


class DeviceDirectory:
    """The directory of one federation; a later run goes on where the last one ended.

    ``checkpoint.bin`` is the truth: ``rounds.csv`` and ``uploads.csv`` are cut back to what it
    knows of, and ``model.json`` is written after it. ``summary.json`` is there when a run has
    ended as it should. A file ``round-now`` makes the next round begin at once.

    Parameters
    ----------
    path : Path
        Created if missing.
    settings : Settings
        Settings of the run.

    Raises
    ------
    OutputError
        It cannot be written, or another server is using it.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path
        flat = {key: value for key, value in to_flat(settings).items() if key not in _MAY_CHANGE}
        self._identity = "".join(f"{key}={value!r}\n" for key, value in flat.items())
        self._sizes = {ROUNDS: 0, UPLOADS: 0}  # bytes, as of the last checkpoint
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / LOCK).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            replace_file(path / CONFIG, (json.dumps(to_flat(settings), indent=2) + "\n").encode())
            (path / SUMMARY).unlink(missing_ok=True)
        except BlockingIOError:
            raise OutputError(f"{path} is in use by another server: stop it first") from None
        except OSError as error:
            raise OutputError(f"cannot write to {path}: {error.strerror}") from None

    def restore(self, strategy: DuelingStrategy, devices: DeviceNodes) -> int:
        """Put everything back to the last checkpoint; return its round, 0 for none.

        Raises
        ------
        CheckpointError
            The checkpoint is damaged, or of a run with other settings.
        """
        last = load_checkpoint(self.path / CHECKPOINT, self._identity)
        if last is not None:
            strategy.algorithm.restore(dict(last.arrays))
            devices.restore(last.numbers["devices"])
            strategy.history.restore_counts(last.numbers["counts"])
            self._sizes = dict(last.numbers["sizes"])
        try:
            for name, header in ((ROUNDS, _ROUND_COLUMNS), (UPLOADS, _UPLOAD_COLUMNS)):
                self._cut_back(name, header)
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {error.strerror}") from None
        return 0 if last is None else int(last.numbers["round"])

    def _cut_back(self, name: str, header: str) -> None:
        with (self.path / name).open("a+b") as file:
            file.truncate(self._sizes[name])
            if self._sizes[name] == 0:
                file.write(header.encode())
            file.flush()
            os.fsync(file.fileno())
            self._sizes[name] = file.seek(0, os.SEEK_END)

    def commit(self, row: RoundRow, strategy: DuelingStrategy, devices: DeviceNodes) -> None:
        """Make a round durable; only then may it be acknowledged.

        Raises
        ------
        OutputError
            The disk is full, or the directory is gone or read-only: the round is not counted.
        """
        try:
            for name, text in zip((ROUNDS, UPLOADS), row.csv(), strict=True):
                self._append(name, text.encode())
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {error.strerror}") from None
        numbers: dict[str, Any] = {
            "round": row.round,
            "devices": devices.state(),
            "counts": strategy.history.counts(),
            "sizes": self._sizes,
        }
        checkpoint = Checkpoint(self._identity, numbers, strategy.algorithm.state())
        save_checkpoint(self.path / CHECKPOINT, checkpoint)
        model = {
            "round": row.round,
            "duels": devices.duels,
            "devices": len(devices.counted),
            "theta_sync": strategy.algorithm.theta_sync.tolist(),
        }
        replace_file(self.path / MODEL, (json.dumps(model) + "\n").encode())

    def _append(self, name: str, data: bytes) -> None:
        with (self.path / name).open("r+b") as file:
            file.seek(self._sizes[name])
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        self._sizes[name] += len(data)

    def round_demanded(self) -> bool:
        """Whether somebody asked for a round now; asks once."""
        try:
            (self.path / DEMAND).unlink()
        except FileNotFoundError:
            return False
        return True

    def finish(self, number: int, devices: DeviceNodes, history: History) -> None:
        """Say that the run ended as it should."""
        summary = {
            "mode": "devices",
            "rounds": number,
            "devices": len(devices.counted),
            "duels": devices.duels,
            **history.counts(),
            "complete": True,
        }
        replace_file(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())
