"""A federation of real devices: rounds by the clock or on demand, until somebody stops them."""

from __future__ import annotations

import time
from collections.abc import Callable

from flwr.serverapp import Grid

from fldb_flower.errors import FederationError
from fldb_flower.federation import Broadcast
from fldb_flower.schedules import Round
from fldb_flower.settings import Settings
from strategies.device_results import DeviceDirectory, RoundRow
from strategies.devices import Devices, Mark
from strategies.dueling import DuelingStrategy

_LOOK_SECONDS = 0.2
_AGAIN_SECONDS = 1.0  # at least, after a round that could not be counted


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
    devices : Devices
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
        devices: Devices,
        directory: DeviceDirectory,
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self.strategy = strategy
        self.devices = devices
        self.directory = directory
        self._say = say
        self.round = directory.restore(strategy, devices)
        if self.round:
            say(f"goes on after round {self.round}, {devices.duels} duels counted")

    def serve(self, grid: Grid) -> None:
        """Conduct rounds until ``devices-rounds`` of them were learned from.

        Too few devices, a missed quorum or no new answers are said, and tried again when the
        next round is due.
        """
        chosen, strategy = self._settings.devices, self.strategy
        strategy.connect(grid)
        last = self.round + chosen.rounds
        due = time.monotonic()
        while not chosen.rounds or self.round < last:
            self._wait(due)
            due = time.monotonic() + chosen.round_seconds
            if not self._try_round():
                due = max(due, time.monotonic() + _AGAIN_SECONDS)
        self._tell()
        self.directory.finish(self.round, self.devices, strategy.history)

    def _wait(self, due: float) -> None:
        while time.monotonic() < due and not self.directory.round_demanded():
            time.sleep(min(_LOOK_SECONDS, max(0.0, due - time.monotonic())))

    def _try_round(self) -> bool:
        """Conduct a round if that can be done now; return whether it was counted."""
        number, strategy, begin = self.round + 1, self.strategy, time.time()
        connected, wanted = len(strategy.look()), self._settings.devices.at_least
        if connected < wanted:
            self._say(f"round {number} waits: {connected} devices connected of {wanted} wanted")
            return False
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
        marks: list[Mark] = [each.mark for each in strategy.contributions()]
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
        play = strategy.algorithm.play(Round(self.round, self.round, self.round))
        try:
            strategy.exchange(Broadcast(play, None))
        except FederationError as reason:
            self._say(f"the last estimate did not reach every device: {reason}")
