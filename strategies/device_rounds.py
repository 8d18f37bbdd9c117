"""A federation of devices: rounds by the clock or on request, until the server is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from flwr.serverapp import Grid

from fldb_flower.algorithms.schedules import Round
from fldb_flower.deployment.keys import load_helper_public_key
from fldb_flower.errors import FederationError, PrivacyError
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.federation.history import Counts
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.secure.protocol import task_of
from fldb_flower.settings import Settings
from strategies import make_strategy
from strategies.device_directory import DeviceDirectory
from strategies.devices import DeviceChannel
from strategies.helper_client import HelperClient
from strategies.secure import PlannedExchanges, SecureChannel

REPORT_SECONDS = 15.0  # between two lines about one wait
RETRY_SECONDS = 1.0  # least pause after a round that could not be counted
_DUE_POLL_SECONDS = 0.2
_CONNECT_POLL_SECONDS = 0.5
_LEAST_ROUNDS = 10  # with secure sums: an exchange may cost a tenth of a device's budget


class DeviceServer:
    """Runs rounds with devices, and writes each one to disk before it is acknowledged.

    A round is counted once its checkpoint is written. The next broadcast acknowledges it to the
    devices. If the server is killed, it resumes from the last checkpoint, and the devices
    still keep every answer that is not in it. ``say`` prints one line.
    """

    def __init__(
        self,
        devices: DeviceChannel,
        history: Counts,
        directory: DeviceDirectory,
        say: Callable[[str], None],
    ) -> None:
        self._settings, self.devices, self.directory = devices.settings, devices, directory
        self.strategy = make_strategy(self._settings, history, devices)
        self._say = say
        self._wait, self._due = (
            "",
            0.0,
        )  # what is waited for, and when the next line about it is due
        self._asked = 0  # devices, in this wait
        self._sends_last = False
        self.round = directory.restore(self.strategy, devices)  # the last one that was counted
        if self.round:
            say(f"resumes after round {self.round}, {devices.duels} duels counted")

    def serve(self, grid: Grid) -> None:
        """Run rounds until ``devices-rounds`` of them were learned from.

        A round begins when it is due and enough devices are connected. A missed quorum or a lack
        of new answers is reported, and the round is tried again when the next one is due.

        With privacy, ``devices-rounds`` is the number of rounds of the federation, of all its runs,
        and so many sums are opened at most. A sum that was opened without a round counts as well.
        """
        chosen = self._settings.devices
        self.devices.connect(grid)
        self.devices.watch = self._watch
        last = chosen.rounds + (0 if self._settings.is_private else self.round)
        due = time.monotonic()
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
                self._say(f"the run ends after round {self.round}: {reason}")
                break
        else:
            if self._settings.is_private:
                spent = ReleasePlan(self._settings).exhausted()
                self._say(f"the run ends after round {self.round}: {spent}")
        self._send_estimate()
        self.directory.finish(self.round, self.devices, self.strategy.history)

    def report(self, wait: str, state: str) -> None:
        """Print a line about a wait when it begins, and every 15 s while it lasts."""
        now = time.monotonic()
        if wait != self._wait or now >= self._due:
            self._wait, self._due = wait, now + REPORT_SECONDS
            self._say(f"{wait}: {state}")

    def _watch(self, waiting: int, seconds: float) -> None:
        exchange = len(self.strategy.history.participation) + 1
        wait = f"round {self.round + 1}, exchange {exchange}"
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
            self._say(f"round {number} is not counted: {reason}")
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
        self._say(
            f"round {number}: {counted.duels} duels of {len(counted.uploads)} devices"
            f"{'' if agreement is None else f', {agreement:.0%} as predicted'};"
            f" {first.replied} of {first.asked} devices replied, {duels} duels so far"
            f"{counted.held_back and f'; {counted.held_back}'}"
        )
        return True

    def _send_estimate(self) -> None:
        """Send the last estimate, so that devices do not have to wait for another run."""
        self._sends_last = True
        play = self.strategy.algorithm.play(device_round(self.round))
        try:
            self.strategy.exchange(Broadcast(play, None))
        except FederationError as reason:
            self._say(f"the last estimate did not reach every device: {reason}")


def device_round(number: int) -> Round:
    """Return a round of devices: without iterations, round n is iteration n, as with tau = 1."""
    return Round(number, first=number, last=number)


def make_device_server(
    settings: Settings, directory: DeviceDirectory, say: Callable[[str], None]
) -> DeviceServer:
    """Return the server for the settings: of secure sums, or of single uploads."""
    history = Counts()
    if not settings.secure:
        return DeviceServer(DeviceChannel(settings), history, directory, say)
    chosen = settings.devices
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
