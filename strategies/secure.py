"""The Central Server of secure sums: it learns from the sum over many devices, and sees no upload.

An exchange has two trips (:mod:`fldb_flower.secure.server`). Before them, devices that are not
known introduce themselves and receive a new roster.
"""

from __future__ import annotations

import os
import time
from logging import WARNING, getLogger

import numpy as np

from fldb_flower.errors import RoundAbandonedError, SecureError
from fldb_flower.federation.exchange import Broadcast, Upload, statistics
from fldb_flower.federation.history import Counts
from fldb_flower.secure.header import EXCHANGE_BYTES, Header, new_header
from fldb_flower.secure.server import Phase, ServerExchange, Sum
from fldb_flower.settings import AUTO, Settings
from fldb_flower.wire.shared_broadcast import SharedBroadcast, describe_encoding, encode_shared
from strategies.grid_federation import GridFederation
from strategies.reasons import grouped
from strategies.secure_devices import SecureDevices
from strategies.secure_exchange import ExchangeFile, SecureExchange
from strategies.secure_noise import SumNoise
from strategies.secure_sum import upload_of_sum
from strategies.secure_trips import Trips

MOST_TRIES = 3
"""Rounds in which the members of an exchange are asked, before it is given up."""

MOST_AGE = 86400.0
"""Seconds after which an exchange with too few contributions is replaced."""

MOST_GROWTH = 1.5
"""How many times more devices may be present than such an exchange asks."""

_LOG = getLogger("flwr")


class SecureStrategy(GridFederation):
    """Runs the algorithm of the settings with secure sums over the devices of a roster.

    The set of devices in a sum is stored before the first member of the committee is asked. If the
    server is killed after that, it asks the members about the same set again. An exchange that
    cannot be finished is given up: nothing is counted, and the devices send their answers again.
    An exchange with too few contributions is continued in the next round of the same run.

    Parameters
    ----------
    settings : Settings
        ``secure`` is true and ``mode`` is ``devices``. ``quorum`` is the share of the devices whose
        replies are waited for, within ``reply_timeout`` and ``node_wait``; the sum needs fewer.
    history : Counts
        Records exchanges, bytes and participation.
    devices : SecureDevices
        The devices.
    file : ExchangeFile
        Where the exchange in progress is stored.
    noise : SumNoise, optional
        The noise that devices add; None without privacy.

    Examples
    --------
    Of 14 devices in the roster, 12 must be connected for a sum over 10 that do not cooperate with
    the server:

    >>> from pathlib import Path
    >>> from fldb_flower.deployment import rosters
    >>> from fldb_flower.federation.history import Counts
    >>> from fldb_flower.settings import from_flat
    >>> from strategies.device_directory import DeviceDirectory
    >>> from strategies.secure import SecureStrategy
    >>> from strategies.secure_devices import SecureDevices
    >>> from strategies.secure_exchange import ExchangeFile
    >>> _ = rosters.create_signing_key(Path("signer"))
    >>> names = [f"device{number}" for number in range(1, 15)]
    >>> keys = [f"{name}={rosters.create_device_key(Path(name))[1]}" for name in names]
    >>> _ = rosters.create_roster(Path("roster.json"), Path("signer"), keys)
    >>> values = {
    ...     "mode": "devices", "algorithm": "fldb_personal", "dimension": 5, "secure": True,
    ...     "max-difference": 4.0, "devices-roster": str(Path("roster.json").absolute()),
    ... }
    >>> settings = from_flat(values, "an example")
    >>> file = ExchangeFile(DeviceDirectory(Path("server"), settings))
    >>> strategy = SecureStrategy(settings, Counts(), SecureDevices(settings), file)
    >>> strategy.least_nodes
    12
    """

    def __init__(
        self,
        settings: Settings,
        history: Counts,
        devices: SecureDevices,
        file: ExchangeFile,
        noise: SumNoise | None = None,
    ) -> None:
        super().__init__(settings, history)
        self._noise = noise
        self.devices = devices
        self.file = file
        self._trips = Trips(self, devices)
        self._exchange: SecureExchange | None = None  # in progress: it is not counted
        self._is_loaded = False
        self._sum: tuple[Header, tuple[str, ...], int] | None = None  # of the last upload
        self._number = 0  # of the last exchange of this run

    @property
    def stage(self) -> str:
        """The trip whose replies are waited for."""
        return self._trips.stage

    @property
    def least_nodes(self) -> int:
        """Number of connected nodes without which no sum is possible."""
        return self.devices.least

    def collect(self, broadcast: Broadcast) -> Upload:
        """Carry out one exchange and return the sum of the uploads.

        Raises
        ------
        RoundAbandonedError
            There is no sum. An exchange whose set is fixed is continued in the next round, or
            given up; a device that spoils sums is left out in one of the next rounds.
        PrivacyError
            The budget of privacy is spent; nothing was sent.
        """
        if broadcast.play is None:
            raise RuntimeError("a secure sum asks about each answer once: it cannot be repeated")
        noise = None if self._noise is None else self._noise.shared(broadcast)
        shared = SharedBroadcast(broadcast, self.settings, self.devices.duels, noise)
        content = encode_shared(*shared)
        if not broadcast.learns:
            self._trips.deliver(content)
            nothing = np.zeros((0, self.settings.dimension))
            return statistics(broadcast, nothing, np.zeros(0), nothing, self.algorithm.form)
        exchange = self._pending(content) or self._new(shared, content)
        if exchange.state.phase is Phase.COLLECT:
            self._collect(exchange)
        found = self._opened(exchange)
        header, chosen = exchange.state.header, exchange.state.chosen
        try:
            upload = upload_of_sum(found.numbers, header, shared, len(chosen))
        except SecureError as reason:
            raise self._failed(exchange, str(reason)) from None
        self._require_first(upload, broadcast)
        if self._noise is not None:
            upload = self._noise.of_sum(upload, noise, header, len(chosen))
        self._record(exchange, broadcast.play.last, found.wrong)
        self._sum = header, chosen, upload.num_duels
        return upload

    def mark_counted(self) -> None:
        """Store that the last sum is counted; the next request to each device names it."""
        if self._sum is not None:
            if line := self.devices.count(*self._sum):
                _LOG.log(WARNING, "%s", line)
            self._exchange = self._sum = None

    # The first trip.

    def _new(self, shared: SharedBroadcast, content: bytes) -> SecureExchange:
        """Return a new exchange with the devices that are present."""
        if self._noise is not None:
            self._noise.require()
        if self._exchange is None:  # otherwise they have just been asked
            self.devices.refresh()
            self._trips.greet(with_roster=True)
        self._exchange = SecureExchange(ServerExchange(self._header(shared, content)))
        return self._exchange

    def _collect(self, exchange: SecureExchange) -> None:
        """Ask for contributions, until the set of the exchange is fixed and stored.

        If there are too few, the next round asks only the devices that have not contributed: each
        new exchange would need new answers of the others. An exchange is stored only once its set
        is fixed. Otherwise a server that is restored from a backup could fix another set.
        """
        asked = len(exchange.state.header.asked)
        self._trips.run(
            "contributions",
            exchange.state.header.exchange,
            lambda: exchange.collect_requests(self.devices.last_counted),
            exchange.receive,
            lambda: exchange.replied >= self.settings.quorum * asked,
        )
        try:
            exchange.choose()
        except SecureError:
            self._log(exchange)
            text = exchange.shortage()
            exchange.collect_again()
            raise RoundAbandonedError(f"{text}; the others are asked again") from None
        if self._noise is not None:
            self._noise.count()
        self.file.save(exchange.state)

    def _header(self, shared: SharedBroadcast, content: bytes) -> Header:
        devices = self.devices
        self._number += 1
        present = sorted(devices.present(self.connected()))
        names = self.drawn(present, self._number) if present else []
        asked = devices.suspects.asked(names, devices.least)
        max_duels = devices.max_duels(asked)
        encoding = shared.encoding(max(1, len(asked)), max_duels)
        try:
            header = new_header(
                devices.roster, asked, exchange=os.urandom(EXCHANGE_BYTES),
                round=devices.next_round(), numbers=encoding.size,
                encoding=describe_encoding(encoding), max_duels=max_duels, limits=devices.limits,
                broadcast=content,
            )  # fmt: skip
        except SecureError as reason:
            left_out = grouped(self._trips.left_out, "nodes")
            raise RoundAbandonedError("; ".join([str(reason), *left_out])) from None
        devices.ask(header)
        return header

    # The second trip.

    def _pending(self, shared: bytes) -> SecureExchange | None:
        """Return the exchange to continue, perhaps from before a restart of the server."""
        if not self._is_loaded:
            stored = self.file.load()
            self._exchange = None if stored is None else SecureExchange(stored)
            self._is_loaded = True
        exchange = self._exchange
        if exchange is None:
            return None
        header = exchange.state.header
        self.devices.round = max(self.devices.round, header.round)
        if header.broadcast != shared:  # it is counted, or the server was restored from a backup
            self._give_up()
            return None
        if exchange.state.phase is Phase.OPEN:
            self._trips.greet(with_roster=False)
            return exchange
        self.devices.refresh()
        self._trips.greet(with_roster=True)
        return exchange if self._can_be_collected(exchange) else None

    def _can_be_collected(self, exchange: SecureExchange) -> bool:
        """Whether more contributions can complete an exchange that has too few.

        It is replaced if its roster is no longer valid, if too many of its devices are absent, if
        it is a day old, or if many more devices are present than it asks.
        """
        header, devices = exchange.state.header, self.devices
        present = devices.present(self.connected())
        possible = len(set(present).intersection(header.asked).union(exchange.state.sealed))
        return (
            header.roster_digest == devices.roster.digest
            and possible >= header.least_devices
            and abs(time.time() - header.round / 1000) <= MOST_AGE
            and len(present) <= MOST_GROWTH * len(header.asked)
        )

    def _opened(self, exchange: SecureExchange) -> Sum:
        """Return the sum, once enough members have opened it."""
        exchange.ask_again()
        self._trips.run(
            "openings",
            exchange.state.header.exchange,
            exchange.open_requests,
            exchange.receive,
            lambda: exchange.is_open or not exchange.can_open,
        )
        if exchange.is_open:
            try:
                return exchange.state.combine()
            except SecureError as reason:
                raise self._failed(exchange, str(reason)) from None
        text = exchange.shortage()
        if exchange.can_open and exchange.tries < MOST_TRIES:
            self._log(exchange)
            raise RoundAbandonedError(f"{text}; they are asked again in the next round")
        lines = [text, "the exchange is given up"]
        if exchange.blames:
            lines.append(self.devices.blame(exchange.state.header, exchange.blamed))
        self._log(exchange)
        self._give_up()
        raise RoundAbandonedError("; ".join(filter(None, lines)))

    def _failed(self, exchange: SecureExchange, reason: str) -> RoundAbandonedError:
        """Give up an exchange whose sum is wrong; return the error."""
        text = f"{reason}; {self.devices.suspect(exchange.state.header)}"
        self._log(exchange)
        self._give_up()
        return RoundAbandonedError(text)

    def _give_up(self) -> None:
        self.file.remove()
        self._exchange = None

    def _require_first(self, upload: Upload, broadcast: Broadcast) -> None:
        """Require ``devices-first-duels`` in the first sum."""
        chosen = self.settings.devices.first_duels
        least = 2 * self.settings.dimension if chosen == AUTO else int(chosen)
        is_first = self.devices.duels == 0 and broadcast.theta_hat is not None
        if is_first and upload.num_duels < least:
            self._give_up()
            raise RoundAbandonedError(
                f"{upload.num_duels} answers; the first round needs {least} (devices-first-duels)"
            )

    # Records.

    def _record(self, exchange: SecureExchange, round_: int, wrong: tuple[str, ...]) -> None:
        """Store who took part in the exchange."""
        row = exchange.participation(round_, self._trips.left_out, wrong)
        self.history.participation.append(row)
        self._log(exchange)

    def _log(self, exchange: SecureExchange) -> None:
        for line in grouped(exchange.reasons()):
            _LOG.log(WARNING, "not counted: %s", line)
        for name in exchange.refused:
            self.devices.forget(name)
