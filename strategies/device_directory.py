"""The directory of a federation of devices: checkpoint, model and tables of its rounds."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fldb_flower.errors import FldbError
from fldb_flower.federation.history import Counts
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.runs.directory import MODEL, SUMMARY, ResultsDirectory
from fldb_flower.settings import Settings, flower_entries, to_flat
from strategies.device_tally import Devices, Tally
from strategies.grid_federation import GridFederation

CONFIG, ROUNDS, UPLOADS, DEMAND = "config.json", "rounds.csv", "uploads.csv", "round-now"
_ROUND_COLUMNS = (
    "round,time,seconds,asked,replied,contributed,duels,total_duels,predicted,agreed,agreement,"
    "exchanges,rejected\n"
)
_UPLOAD_COLUMNS = "round,device,start,end\n"
_NOT_IN_IDENTITY = (  # settings that may differ between two runs of one federation
    "output-dir", "resume", "quorum", "node-wait", "reply-timeout", "devices-rounds",
    "devices-round-seconds", "devices-at-least", "devices-first-duels", "devices-max-duels",
    "devices-helper", "devices-helper-key", "devices-helper-token", "max-message-mb",
    "checkpoint-seconds", "num-agents", "num-arms", "seed", "tau",
    "schedule", "schedule-ratio", "environment", "environment-sigma", "environment-path",
    "solver", "gd-steps", "gd-step-size", "beta-scale", "ons-width", "first-round",
)  # fmt: skip


@dataclass(frozen=True)
class RoundRow:
    """The record of one round."""

    round: int
    time: float  # of its start, in seconds since 1970
    seconds: float
    asked: int  # devices, in the first exchange
    replied: int  # to the first exchange
    exchanges: int
    tally: Tally
    total_duels: int  # of all devices, counted so far
    rejected: tuple[str, ...]  # one line for each rejected reply

    def line(self) -> str:
        """Return the log line."""
        counted, agreement = self.tally, self.tally.agreement
        share = "" if agreement is None else f", {agreement:.0%} as predicted"
        return (
            f"round {self.round}: {counted.duels} duels of {len(counted.uploads)} devices{share};"
            f" {self.replied} of {self.asked} devices replied, {self.total_duels} duels so far"
            f"{counted.held_back and f'; {counted.held_back}'}"
        )

    def csv(self) -> tuple[str, str]:
        """Return the line for rounds.csv and the lines for uploads.csv."""
        when = datetime.datetime.fromtimestamp(self.time, datetime.UTC).isoformat("T", "seconds")
        counted, agreement = self.tally, self.tally.agreement
        share = "" if agreement is None else f"{agreement:.4f}"
        rejected = "; ".join(self.rejected).replace('"', "'").replace("\n", " ")
        row = (
            f"{self.round},{when},{self.seconds:.3f},{self.asked},{self.replied},"
            f"{len(counted.uploads)},{counted.duels},{self.total_duels},{_cell(counted.predicted)},"
            f'{_cell(counted.agreed)},{share},{self.exchanges},"{rejected}"\n'
        )
        uploads = "".join(
            f"{self.round},{device},{_cell(start)},{_cell(end)}\n"
            for device, start, end in counted.uploads
        )
        return row, uploads


def _cell(number: int | None) -> str:
    return "" if number is None else str(number)


class DeviceDirectory(ResultsDirectory):
    """The directory of a federation of devices; see :class:`ResultsDirectory`.

    A later run resumes from ``checkpoint.bin``. It holds the lengths of ``rounds.csv`` and
    ``uploads.csv``; rows written after it are removed. ``model.json`` is written after the
    checkpoint, and ``summary.json`` when a run ends normally. A file ``round-now`` starts the next
    round at once. The directory is created if it is missing.

    Parameters
    ----------
    path : Path
        The directory.
    settings : Settings
        With ``mode=devices``.

    Raises
    ------
    OutputError
        The directory cannot be written, or another server uses it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from fldb_flower.settings import Settings
    >>> from strategies.device_directory import DeviceDirectory
    >>> settings = Settings(mode="devices", algorithm="fldb_personal")
    >>> directory = DeviceDirectory(Path("server"), settings)
    >>> directory.round_demanded()
    False
    >>> Path("server/round-now").touch()
    >>> directory.round_demanded()
    True
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._settings, flat = settings, to_flat(settings)
        # The noise is calibrated to the number of rounds.
        free = tuple(
            name for name in _NOT_IN_IDENTITY
            if name != "devices-rounds" or not settings.is_private
        )  # fmt: skip
        lines = [
            f"{entry.kebab}={flat[entry.kebab]!r}\n"
            for entry in flower_entries()
            if entry.kebab not in free
        ]
        super().__init__(path, "".join(lines), user="server")
        self._sizes = {ROUNDS: 0, UPLOADS: 0}  # bytes, at the last checkpoint
        try:
            self.write_json(CONFIG, flat)
            with self.writing():
                (self.path / SUMMARY).unlink(missing_ok=True)
        except FldbError:
            self.close()
            raise

    def restore(self, strategy: GridFederation, devices: Devices) -> int:
        """Restore the state of the last checkpoint; return its round, 0 without a checkpoint.

        Raises
        ------
        CheckpointError
            The checkpoint is damaged, or belongs to a run with other settings.
        """
        last = self.load()
        if last is not None:
            strategy.algorithm.restore(dict(last.arrays))
            devices.restore(last.numbers["devices"])
            strategy.history.restore_counts(last.numbers["counts"])
            strategy.history.count_opening(last.numbers.get("openings", 0))
            self._sizes = dict(last.numbers["sizes"])
        with self.writing():
            for name, header in ((ROUNDS, _ROUND_COLUMNS), (UPLOADS, _UPLOAD_COLUMNS)):
                self._truncate(name, header)
        return 0 if last is None else int(last.numbers["round"])

    def commit(self, row: RoundRow, strategy: GridFederation, devices: Devices) -> None:
        """Store a round durably; it must not be acknowledged before.

        Raises
        ------
        OutputError
            The directory cannot be written: the round is not counted.
        """
        with self.writing():
            for name, text in zip((ROUNDS, UPLOADS), row.csv(), strict=True):
                self._append(name, text.encode())
        numbers: dict[str, Any] = {
            "round": row.round,
            "devices": devices.state(),
            "counts": strategy.history.counts(),
            "sizes": self._sizes,
        }
        if self._settings.is_private:
            numbers["openings"] = strategy.history.openings
        self.save(numbers, strategy.algorithm.state())
        model = {
            "round": row.round,
            "duels": devices.duels,
            "devices": len(devices.counted),
            "theta_sync": strategy.algorithm.theta_sync.tolist(),
            "heterogeneity": strategy.algorithm.heterogeneity,
        }
        self.write_json(MODEL, model)

    def round_demanded(self) -> bool:
        """Return whether a round was requested with a file ``round-now``, and remove the file."""
        try:
            (self.path / DEMAND).unlink()
        except FileNotFoundError:
            return False
        return True

    def finish(self, number: int, devices: Devices, history: Counts) -> None:
        """Write ``summary.json``, which marks a normal end of the run."""
        summary: dict[str, Any] = {
            "mode": "devices",
            "rounds": number,
            "devices": len(devices.counted),
            "duels": devices.duels,
            **history.counts(),
            "complete": True,
        }
        if self._settings.is_private:
            summary["privacy"] = ReleasePlan(self._settings).summary(history.openings)
        self.write_json(SUMMARY, summary)

    def _truncate(self, name: str, header: str) -> None:
        """Remove the rows of a table that the last checkpoint does not cover."""
        (self.path / name).touch()
        self._append(name, b"" if self._sizes[name] else header.encode())

    def _append(self, name: str, data: bytes) -> None:
        with (self.path / name).open("r+b") as file:
            file.seek(self._sizes[name])
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        self._sizes[name] += len(data)
