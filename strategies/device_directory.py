"""The directory of a federation of devices: checkpoint, model and tables of its rounds."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fldb_flower.errors import FldbError
from fldb_flower.federation.history import Counts
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.runs.directory import MODEL, SUMMARY, ResultsDirectory
from fldb_flower.settings import Settings, to_flat
from strategies.devices import DeviceChannel
from strategies.dueling import DuelingStrategy

CONFIG, ROUNDS, UPLOADS, DEMAND = "config.json", "rounds.csv", "uploads.csv", "round-now"
_UPLOAD = ("round", "device", "start", "end")
_MAY_DIFFER = re.compile(  # between two runs of one federation
    r"(environment|schedule|devices)(-.*)?|output-dir|resume|quorum|node-wait|reply-timeout|plot"
    r"|max-message-mb|checkpoint-seconds|num-agents|num-arms|seed|tau|solver|gd-.*|beta-scale"
    r"|ons-width|first-round"
)


class DeviceDirectory(ResultsDirectory):
    """The directory of a federation of devices, with ``mode=devices``.

    A later run resumes from ``checkpoint.bin``. It holds the lengths of ``rounds.csv`` and
    ``uploads.csv``; rows written after it are removed. ``model.json`` is written after the
    checkpoint, and ``summary.json`` when a run ends normally. A file ``round-now`` starts the next
    round at once. The directory is created if it is missing, and locked.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._settings, flat = settings, to_flat(settings)
        fixed = {"devices-federation"}
        if settings.is_private:  # the noise is calibrated to the number of rounds
            fixed |= {"devices-rounds"}
        lines = [
            f"{name}={value!r}\n"
            for name, value in flat.items()
            if name in fixed or not _MAY_DIFFER.fullmatch(name)
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

    def restore(self, strategy: DuelingStrategy, devices: DeviceChannel) -> int:
        """Restore the state of the last checkpoint; return its round, 0 without a checkpoint."""
        last = self.load()
        if last is not None:
            strategy.algorithm.restore(dict(last.arrays))
            devices.restore(last.numbers["devices"])
            strategy.history.restore_counts(last.numbers["counts"])
            strategy.history.openings = last.numbers["openings"]
            self._sizes = dict(last.numbers["sizes"])
        with self.writing():
            for name in self._sizes:
                (self.path / name).touch()
                self._append(name, [])  # removes rows after the checkpoint
        return 0 if last is None else int(last.numbers["round"])

    def commit(
        self, row: Mapping[str, Any], strategy: DuelingStrategy, devices: DeviceChannel
    ) -> None:
        """Store a round durably, with its row of ``rounds.csv``; it is not acknowledged before.

        If the directory cannot be written, an OutputError is raised: the round is not counted.
        """
        uploads = [(row["round"], *each) for each in devices.tally.uploads]
        with self.writing():
            for name, header, rows in (
                (ROUNDS, tuple(row), [tuple(row.values())]), (UPLOADS, _UPLOAD, uploads)
            ):  # fmt: skip
                self._append(name, rows if self._sizes[name] else [header, *rows])
        numbers = {
            "round": row["round"],
            "devices": devices.state(),
            "counts": strategy.history.counts(),
            "openings": strategy.history.openings,
            "sizes": self._sizes,
        }
        self.save(numbers, strategy.algorithm.state())
        model = {
            "round": row["round"],
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

    def finish(self, number: int, devices: DeviceChannel, history: Counts) -> None:
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

    def _append(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        with (self.path / name).open("r+", encoding="utf-8", newline="") as file:
            file.seek(self._sizes[name])
            csv.writer(file, lineterminator="\n").writerows(rows)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
            self._sizes[name] = file.tell()
