"""A federation of devices: rounds by the clock or on request, until the server is stopped."""

from __future__ import annotations

import csv
import itertools
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fldb_flower.algorithms.schedules import Round
from fldb_flower.deployment.keys import load_helper_public_key
from fldb_flower.errors import FederationError, FldbError, PrivacyError, TooFewAnswersError
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.federation.history import Counts
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.runs.directory import MODEL, SUMMARY, ResultsDirectory
from fldb_flower.secure.protocol import task_of
from fldb_flower.settings import Settings, to_flat
from strategies import DuelingStrategy, make_strategy
from strategies.devices import DeviceChannel, Tally, features_of
from strategies.helper_client import HelperClient
from strategies.secure import PlannedExchanges, SecureChannel

CONFIG, ROUNDS, UPLOADS, DEMAND = "config.json", "rounds.csv", "uploads.csv", "round-now"
REPORT_SECONDS = 15.0  # time between two lines about one wait
RETRY_SECONDS = 1.0  # least pause after a round that could not be counted
_DUE_POLL_SECONDS = 0.2
_CONNECT_POLL_SECONDS = 0.5
SPREAD = 1e4
"""Ratio of the largest and the smallest entry of W's diagonal above which the server warns."""
FALLS = 3
"""Number of consecutive rounds with falling accuracy after which the server warns."""
_PREDICTIONS = 30  # fewer of them say little, and their share is not in the log
_LEAST_ROUNDS = 10  # with secure sums: an exchange may cost a tenth of a device's budget
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
        # With privacy, the noise is calibrated to the number of rounds.
        fixed = {"devices-federation", *(["devices-rounds"] if settings.is_private else [])}
        identity = "".join(
            f"{name}={value!r}\n"
            for name, value in flat.items()
            if name in fixed or not _MAY_DIFFER.fullmatch(name)
        )
        if (features := features_of(settings)) is not None:  # the file, not its name
            identity += f"devices-features={features.to_json()!r}\n"
        super().__init__(path, identity, user="server")
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
        last, number = self.load(), 0
        if last is not None:
            number = last.numbers["round"]
            strategy.algorithm.restore(dict(last.arrays))
            devices.restore(last.numbers["devices"])
            strategy.history.restore_counts(last.numbers["counts"])
            # Secure sums store their number before each exchange: after a kill, theirs is larger.
            openings = max(strategy.history.openings, last.numbers["openings"])
            strategy.history.openings = openings
            self._sizes = dict(last.numbers["sizes"])
        with self.writing():
            for name in self._sizes:
                (self.path / name).touch()
                self._append(name, [])  # removes rows after the checkpoint
        return number

    def commit(
        self, row: Mapping[str, Any], strategy: DuelingStrategy, devices: DeviceChannel
    ) -> None:
        """Store a round durably, with its row of ``rounds.csv``; devices are told afterwards.

        If the directory cannot be written, an OutputError is raised: the round is not counted.
        """
        number, algorithm, history = row["round"], strategy.algorithm, strategy.history
        uploads = [(number, *each) for each in devices.tally.uploads]
        with self.writing():
            self._append(ROUNDS, [row.values()], header=row)
            self._append(UPLOADS, uploads, header=("round", "device", "start", "end"))
        numbers = {
            "round": number,
            "devices": devices.state(),
            "counts": history.counts(),
            "openings": history.openings,
            "sizes": self._sizes,
        }
        self.save(numbers, algorithm.state())
        features, theta = devices.features, algorithm.theta_sync
        model = {
            "algorithm": self._settings.algorithm,
            "round": number,
            "duels": devices.duels,
            "devices": len(devices.counted),
            "theta_sync": (theta if features is None else features.per_unit(theta)).tolist(),
            "heterogeneity": algorithm.heterogeneity,
            "directions": algorithm.directions(None if features is None else features.names),
        }
        if features is not None:
            model["features"] = features.to_json()
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

    def _append(self, name: str, rows: Sequence[Iterable[Any]], header: Iterable[str] = ()) -> None:
        with (self.path / name).open("r+", encoding="utf-8", newline="") as file:
            # A file that was lost, or restored from an older backup, is shorter.
            end = file.seek(min(self._sizes[name], os.fstat(file.fileno()).st_size))
            if header and not end:
                rows = [header, *rows]
            csv.writer(file, lineterminator="\n").writerows(rows)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
            self._sizes[name] = file.tell()


class DeviceServer:
    """Runs rounds with devices, and writes each one to disk before it is acknowledged.

    A round is counted once its checkpoint is written. The next broadcast acknowledges it to the
    devices. A killed server resumes from the last checkpoint, and the devices still have every
    answer that is not in it. ``say`` prints one line.
    """

    def __init__(
        self,
        devices: DeviceChannel,
        history: Counts,
        directory: DeviceDirectory,
        say: Callable[[str], None],
    ) -> None:
        self._settings, self.devices, self.directory = devices.settings, devices, directory
        self.strategy, self._say = make_strategy(self._settings, history, devices), say
        self._wait, self._due = "", 0.0  # what is waited for, and when to report it again
        self._asked = 0  # devices, in this wait
        self._failure = ""  # the last line about a round that was not counted
        self._sends_last = False
        self._is_warned = self._settings.is_private or devices.features is not None  # about units
        self._is_explained = False  # what the share of correct predictions means
        self._predicted: list[Tally] = []  # of the last rounds with predictions
        self.round = directory.restore(self.strategy, devices)  # the last one that was counted
        if self.round:
            say(f"resumes after round {self.round}, {devices.duels} duels counted")

    def serve(self, grid: Grid) -> None:
        """Run rounds until ``devices-rounds`` of them were learned from.

        A round begins when it is due and enough devices are connected. A missed quorum or a lack
        of new answers is reported, and the round is tried again when the next one is due.

        With privacy, ``devices-rounds`` is the number of rounds in all runs of the federation, and
        the largest number of opened sums. A sum that was opened without a round counts as well.
        """
        chosen, is_private = self._settings.devices, self._settings.is_private
        self.devices.connect(grid)
        self.devices.watch = self._watch
        last = chosen.rounds + (0 if is_private else self.round)
        due = time.monotonic()
        end = ""  # why, with privacy
        while not chosen.rounds or self.round < last:
            while time.monotonic() < due and not self.directory.round_demanded():
                time.sleep(min(_DUE_POLL_SECONDS, max(0.0, due - time.monotonic())))
            while (connected := len(self.devices.connected())) < chosen.at_least:
                state = f"{connected} of {chosen.at_least} devices are connected, waiting for more"
                self.report(f"round {self.round + 1}", state)
                time.sleep(_CONNECT_POLL_SECONDS)
            due = time.monotonic() + chosen.round_seconds
            try:
                if not self.try_round():
                    due = max(due, time.monotonic() + RETRY_SECONDS)
            except PrivacyError as reason:
                end = str(reason)
                break
        if is_private:
            end = end or ReleasePlan(self._settings).exhausted()
            self._say(f"the run ends after round {self.round}: {end}")
        self._send_estimate()
        self.directory.finish(self.round, self.devices, self.strategy.history)

    def report(self, wait: str, state: str) -> None:
        """Print a line about a wait when it begins, and every 15 s while it lasts."""
        now = time.monotonic()
        if wait != self._wait or now >= self._due:
            self._wait, self._due = wait, now + REPORT_SECONDS
            self._say(f"{wait}: {state}")

    def _watch(self, waiting: int, seconds: float) -> None:
        wait = f"round {self.round + 1}, exchange {self.devices.number}"
        if self._sends_last:
            wait = "sending the last estimate"
        if wait != self._wait:
            self._asked = waiting
        replied = f"{self._asked - waiting} of {self._asked} devices have replied"
        self.report(wait, f"{replied}, waiting up to {seconds:.0f} s")

    def try_round(self) -> bool:
        """Run one round; return whether it was counted."""
        number, strategy, begin = self.round + 1, self.strategy, datetime.now(UTC)
        self._wait = ""  # report the next wait
        exchanges = strategy.history.participation
        exchanges.clear()
        try:
            strategy.algorithm.round(strategy, device_round(number))
        except FederationError as reason:
            how = "waits" if isinstance(reason, TooFewAnswersError) else "is not counted"
            failure = f"round {number} {how}: {reason}"
            if failure != self._failure:
                self._say(failure)
            self._failure = failure
            return False
        self.round = number
        counted, duels, first = self.devices.tally, self.devices.duels, exchanges[0]
        agreement = counted.agreed / counted.predicted if counted.predicted else None
        row = {
            "round": number,
            "time": begin.isoformat("T", "seconds"),
            "seconds": f"{(datetime.now(UTC) - begin).total_seconds():.3f}",
            "asked": first.asked,
            "replied": first.replied,
            "contributed": len(counted.uploads),
            "duels": counted.duels,
            "total_duels": duels,
            "predicted": counted.predicted,
            "agreed": counted.agreed,
            "agreement": None if agreement is None else f"{agreement:.4f}",
            "exchanges": len(exchanges),
            "rejected": "; ".join(line for each in exchanges for line in each.rejected),
        }
        self.directory.commit(row, strategy, self.devices)
        is_shown = counted.predicted is not None and counted.predicted >= _PREDICTIONS
        if is_shown and not self._is_explained:
            self._is_explained = True
            self._say("devices show pairs that are close, so about 50% as predicted is normal")
        self._say(
            f"round {number}: {counted.duels} duels of {len(counted.uploads)} devices"
            f"{f', {agreement:.0%} as predicted' if is_shown else ''};"
            f" {first.replied} of {first.asked} devices replied, {duels} duels so far"
            f"{counted.held_back and f'; {counted.held_back}'}"
        )
        self.advise(counted)
        return True

    def advise(self, counted: Tally) -> None:
        """Print advice if the estimate depends on units, or if predictions get worse."""
        matrix = np.asarray(self.strategy.algorithm.information)
        squares = matrix if matrix.ndim == 1 else np.diagonal(matrix)
        ridge = self._settings.ridge / self._settings.kappa_mu  # alone if a feature never varied
        squares = squares[(squares > 0.0) & ~np.isclose(squares, ridge, rtol=1e-9, atol=0.0)]
        spread = squares.max() / squares.min() if len(squares) else 1.0
        if spread > SPREAD and not self._is_warned:
            self._is_warned = True
            self._say(
                f"warning: sizes of features differ by a factor of {spread**0.5:.0f}, so estimates"
                " depend on units: declare scales with devices-features=FILE, in a new output-dir"
            )
        if not counted.predicted:
            return
        last = self._predicted = [*self._predicted, counted][-1 - FALLS :]
        shares = [each.agreed / each.predicted for each in last]
        if len(shares) <= FALLS or any(a <= b for a, b in itertools.pairwise(shares)):
            return
        mean = (shares[0] + shares[-1]) / 2.0
        variance = mean * (1.0 - mean) * (1.0 / last[0].predicted + 1.0 / last[-1].predicted)
        if shares[0] - shares[-1] > 2.0 * math.sqrt(variance):
            self._predicted = []
            self._say(
                f"warning: fewer predictions were right in each of {FALLS} rounds, from"
                f" {shares[0]:.0%} to {shares[-1]:.0%}: tastes may have changed; set half-life, or"
                " make rounds more frequent (devices-round-seconds)"
            )

    def _send_estimate(self) -> None:
        """Send the last estimate; otherwise, devices would receive it in the next run."""
        self._sends_last = True
        play = self.strategy.algorithm.play(device_round(self.round))
        try:
            self.strategy.exchange(Broadcast(play, None))
        except FederationError as reason:
            self._say(f"the last estimate did not reach every device: {reason}")


def device_round(number: int) -> Round:
    """Return a round of devices: without iterations, round n is iteration n, as with tau = 1."""
    return Round(number, first=number, last=number)


def make_device_server(settings: Settings, path: Path, say: Callable[[str], None]) -> DeviceServer:
    """Return the server for the settings: of secure sums, or of single uploads."""
    directory, history, chosen = DeviceDirectory(path, settings), Counts(), settings.devices
    if not settings.secure:
        return DeviceServer(DeviceChannel(settings), history, directory, say)
    planned = PlannedExchanges(settings, history, directory)
    if chosen.rounds < _LEAST_ROUNDS:
        say(
            f"devices-rounds={chosen.rounds}: one exchange costs more than a tenth of the budget of"
            f" privacy-epsilon={settings.privacy.epsilon:g}; devices whose max_epsilon is not"
            " larger refuse it"
        )
    signer = load_helper_public_key(Path(chosen.helper_key))
    helper = HelperClient(chosen.helper, Path(chosen.helper_token), signer, settings.node_wait)
    task = task_of(chosen.federation, signer.public_bytes_raw(), settings.dimension)
    devices = SecureChannel(settings, helper, task, planned)
    return DeviceServer(devices, history, directory, say)
