"""A federation of real devices: rounds by the clock or on demand, until somebody stops them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from flwr.serverapp import Grid

from fldb_flower.algorithms.schedules import Round
from fldb_flower.errors import FederationError
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.settings import Settings
from strategies.device_directory import DeviceDirectory, RoundRow
from strategies.device_nodes import CountedSpan, DeviceNodes
from strategies.dueling import DuelingStrategy

_LOOK_SECONDS = 0.2
_CONNECTED_SECONDS = 0.5  # between two looks for connected devices
_AGAIN_SECONDS = 1.0  # at least, after a round that could not be counted
_REPORT_SECONDS = 15.0  # between two lines about one wait


class WaitReport:
    """Prints a line about a wait when it begins, and every 15 s while it lasts.

    Parameters
    ----------
    say : callable
        Prints one line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._name, self._due = "", 0.0
        self._asked = 0

    def __call__(self, name: str, state: str) -> None:
        """Report the state of a wait; another name is another wait."""
        now = time.monotonic()
        if name != self._name or now >= self._due:
            self._name, self._due = name, now + _REPORT_SECONDS
            self._say(f"{name}: {state}")

    def replies(self, name: str, waiting: int, seconds: float) -> None:
        """Report how many devices have not replied in an exchange, and the seconds left."""
        if name != self._name:
            self._asked = waiting
        replied = f"{self._asked - waiting} of {self._asked} devices have replied"
        self(name, f"{replied}, waiting up to {seconds:.0f} s")

    def end(self) -> None:
        """Begin another wait with the next report, whatever its name."""
        self._name = ""


class DeviceServer:
    """Conducts rounds with devices, and commits each one to disk before it is acknowledged.

    A round is counted once its checkpoint is written, and devices learn of it with the next
    broadcast. Killed at any moment, the server goes on from the last checkpoint, and devices
    still have every answer that is not in it.

    Parameters
    ----------
    settings : Settings
        ``devices`` says when rounds begin and when to end.
    strategy : DuelingStrategy
        Carries the exchanges; its members are ``devices``.
    devices : DeviceNodes
        Knows how far each device is counted.
    directory : DeviceDirectory
        Where results and checkpoints go.
    say : callable
        Prints one line.

    Attributes
    ----------
    round : int
        The last round that was counted.
    """

    def __init__(
        self,
        settings: Settings,
        strategy: DuelingStrategy,
        devices: DeviceNodes,
        directory: DeviceDirectory,
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self.strategy = strategy
        self.devices = devices
        self.directory = directory
        self._say = say
        self._report = WaitReport(say)
        self.round = directory.restore(strategy, devices)
        if self.round:
            say(f"goes on after round {self.round}, {devices.duels} duels counted")

    def serve(self, grid: Grid) -> None:
        """Conduct rounds until ``devices-rounds`` of them were learned from.

        A round begins when it is due and enough devices are connected. A missed quorum or no
        new answers are reported, and tried again when the next round is due.
        """
        chosen, strategy = self._settings.devices, self.strategy
        strategy.connect(grid)
        strategy.watch = self._watch
        last = self.round + chosen.rounds
        due = time.monotonic()
        while not chosen.rounds or self.round < last:
            self._wait(due)
            self._wait_for_devices()
            due = time.monotonic() + chosen.round_seconds
            if not self._try_round():
                due = max(due, time.monotonic() + _AGAIN_SECONDS)
        self._tell()
        self.directory.finish(self.round, self.devices, strategy.history)

    def _wait(self, due: float) -> None:
        while time.monotonic() < due and not self.directory.round_demanded():
            time.sleep(min(_LOOK_SECONDS, max(0.0, due - time.monotonic())))

    def _wait_for_devices(self) -> None:
        wanted = self._settings.devices.at_least
        while (connected := len(self.strategy.look())) < wanted:
            name = f"round {self.round + 1}"
            self._report(name, f"{connected} of {wanted} devices are connected, waiting for more")
            time.sleep(_CONNECTED_SECONDS)

    def _watch(self, waiting: int, seconds: float) -> None:
        number = len(self.strategy.history.participation) + 1
        self._report.replies(f"round {self.round + 1}, exchange {number}", waiting, seconds)

    def _try_round(self) -> bool:
        """Conduct a round; return whether it was counted."""
        number, strategy, begin = self.round + 1, self.strategy, time.time()
        self._report.end()
        strategy.history.participation.clear()
        try:
            strategy.algorithm.round(strategy, Round(number, number, number))
        except FederationError as reason:
            self._say(f"round {number} waits: {reason}")
            return False
        self.round = number
        row = self._row(number, begin)
        self.directory.commit(row, strategy, self.devices)
        self._say(row.line())
        return True

    def _row(self, number: int, begin: float) -> RoundRow:
        strategy = self.strategy
        marks: list[CountedSpan] = [each.mark for each in strategy.contributions()]
        exchanges = strategy.history.participation
        return RoundRow(
            round=number,
            time=begin,
            seconds=time.time() - begin,
            asked=exchanges[0].asked,
            replied=exchanges[0].replied,
            exchanges=len(exchanges),
            marks=tuple(mark for mark in marks if mark.answer.num_duels),
            total_duels=self.devices.duels,
            rejected=tuple(line for each in exchanges for line in each.rejected),
        )

    def _tell(self) -> None:
        """Send the last estimate, so that devices need not wait for another run for it."""
        strategy = self.strategy
        strategy.watch = partial(self._report.replies, "sending the last estimate")
        play = strategy.algorithm.play(Round(self.round, self.round, self.round))
        try:
            strategy.exchange(Broadcast(play, None))
        except FederationError as reason:
            self._say(f"the last estimate did not reach every device: {reason}")
