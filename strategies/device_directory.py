"""The directory of a federation of devices: checkpoint, model and tables of its rounds."""

from __future__ import annotations

import csv
import datetime
import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fldb_flower.errors import FldbError
from fldb_flower.federation.history import Counts
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.runs.directory import MODEL, SUMMARY, ResultsDirectory
from fldb_flower.settings import Settings, to_flat
from strategies.devices import DeviceChannel, Tally
from strategies.dueling import DuelingStrategy

CONFIG, ROUNDS, UPLOADS, DEMAND = "config.json", "rounds.csv", "uploads.csv", "round-now"
_COLUMNS = {
    ROUNDS: "round,time,seconds,asked,replied,contributed,duels,total_duels,predicted,agreed,"
    "agreement,exchanges,rejected\n",
    UPLOADS: "round,device,start,end\n",
}
_MAY_DIFFER = re.compile(  # between two runs of one federation
    r"(environment|schedule|devices)(-.*)?|output-dir|resume|quorum|node-wait|reply-timeout|plot"
    r"|max-message-mb|checkpoint-seconds|num-agents|num-arms|seed|tau|solver|gd-.*|beta-scale"
    r"|ons-width|first-round"
)


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

    def csv(self) -> dict[str, str]:
        """Return the lines for each table."""
        when = datetime.datetime.fromtimestamp(self.time, datetime.UTC).isoformat("T", "seconds")
        counted, agreement = self.tally, self.tally.agreement
        row = (
            self.round, when, f"{self.seconds:.3f}", self.asked, self.replied,
            len(counted.uploads), counted.duels, self.total_duels, counted.predicted,
            counted.agreed, None if agreement is None else f"{agreement:.4f}", self.exchanges,
            "; ".join(self.rejected),
        )  # fmt: skip
        return {
            ROUNDS: _csv(row),
            UPLOADS: _csv(*((self.round, *each) for each in counted.uploads)),
        }


def _csv(*rows: tuple[Any, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


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
            strategy.history.count_opening(last.numbers["openings"])
            self._sizes = dict(last.numbers["sizes"])
        with self.writing():
            for name, header in _COLUMNS.items():  # removes rows after the checkpoint
                (self.path / name).touch()
                self._append(name, "" if self._sizes[name] else header)
        return 0 if last is None else int(last.numbers["round"])

    def commit(self, row: RoundRow, strategy: DuelingStrategy, devices: DeviceChannel) -> None:
        """Store a round durably; it must not be acknowledged before.

        If the directory cannot be written, an OutputError is raised: the round is not counted.
        """
        with self.writing():
            for name, text in row.csv().items():
                self._append(name, text)
        numbers = {
            "round": row.round,
            "devices": devices.state(),
            "counts": strategy.history.counts(),
            "openings": strategy.history.openings,
            "sizes": self._sizes,
        }
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

    def _append(self, name: str, text: str) -> None:
        with (self.path / name).open("r+b") as file:
            file.seek(self._sizes[name])
            file.write(text.encode())
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
            self._sizes[name] = file.tell()
