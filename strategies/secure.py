"""The Central Server of secure sums: it learns from the sum over many devices, and sees no upload.

An exchange has two trips (:mod:`fldb_flower.secure.server`). Before them, devices that are not
known introduce themselves and receive a new roster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from logging import WARNING, getLogger

import numpy as np

from fldb_flower.errors import FederationError, RoundAbandonedError, SecureError
from fldb_flower.federation.exchange import Broadcast, Upload, statistics
from fldb_flower.federation.history import Counts
from fldb_flower.secure.header import EXCHANGE_BYTES, Header, new_header
from fldb_flower.secure.server import ServerExchange, Sum
from fldb_flower.settings import AUTO, Settings
from fldb_flower.wire.secure_messages import Deliver, Hello, Introduced, Refused, Request
from fldb_flower.wire.shared_broadcast import SharedBroadcast, describe_encoding, encode_shared
from strategies.grid_federation import GridFederation
from strategies.secure_courier import Courier, Failure, short
from strategies.secure_devices import SecureDevices
from strategies.secure_exchange import ExchangeFile, SecureExchange
from strategies.secure_sum import upload_of_sum
from strategies.transport import Patience

MOST_TRIES = 3
"""Rounds in which the members of an exchange are asked, before it is given up."""

_LOG = getLogger("flwr")


class SecureStrategy(GridFederation):
    """Runs the algorithm of the settings with secure sums over the devices of a roster.

    The set of devices in a sum is stored before the first member of the committee is asked. If the
    server is killed after that, it asks the members about the same set again. An exchange that
    cannot be finished is given up: nothing is counted, and the devices send their answers again.

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
    """

    def __init__(
        self, settings: Settings, history: Counts, devices: SecureDevices, file: ExchangeFile
    ) -> None:
        super().__init__(settings, history)
        self.devices = devices
        self._file = file
        self._courier = Courier(settings, history)
        self._exchange: SecureExchange | None = None  # its set is fixed, and it is not counted
        self._is_loaded = False
        self._sum: tuple[Header, tuple[str, ...], int] | None = None  # of the last upload
        self._stage, self._number = "introductions", 0
        self._left_out: tuple[str, ...] = ()  # why nodes cannot take part

    @property
    def stage(self) -> str:
        """The trip whose replies are waited for."""
        return self._stage

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
        """
        if broadcast.play is None:
            raise RuntimeError("a secure sum asks about each answer once: it cannot be repeated")
        shared = SharedBroadcast(broadcast, self.settings, self.devices.duels)
        if not broadcast.learns:
            return self._deliver(shared)
        exchange = self._pending(encode_shared(*shared)) or self._collected(shared)
        found = self._opened(exchange)
        header, chosen = exchange.state.header, exchange.state.chosen
        try:
            upload = upload_of_sum(found.numbers, header, shared, len(chosen))
        except SecureError as reason:
            raise self._failed(exchange, str(reason)) from None
        self._require_first(upload, broadcast)
        self._record(exchange, found.wrong)
        self._sum = header, chosen, upload.num_duels
        return upload

    def mark_counted(self) -> None:
        """Store that the last sum is counted; the next request to each device names it."""
        if self._sum is not None:
            self.devices.count(*self._sum)
            self._exchange = self._sum = None

    # The first trip.

    def _collected(self, shared: SharedBroadcast) -> SecureExchange:
        """Return a new exchange whose set is fixed and stored."""
        self.devices.refresh()
        self._greet(with_roster=True)
        exchange = SecureExchange(ServerExchange(self._header(shared)))
        asked = len(exchange.state.header.asked)
        self._trip(
            "contributions",
            exchange,
            lambda: exchange.collect_requests(self.devices.last_counted),
            lambda: exchange.replied >= self.settings.quorum * asked,
        )
        try:
            exchange.choose()
        except SecureError:
            self._log(exchange)
            raise RoundAbandonedError(exchange.shortage()) from None
        self._file.save(exchange.state)
        self._exchange = exchange
        return exchange

    def _header(self, shared: SharedBroadcast) -> Header:
        devices = self.devices
        self._number += 1
        present = sorted(devices.present(self.connected()))
        names = self.drawn(present, self._number) if present else []
        asked = devices.suspects.asked(names, devices.least)
        max_duels = devices.max_duels(asked)
        encoding = shared.encoding(max(1, len(asked)), max_duels)
        try:
            return new_header(
                devices.roster, asked, exchange=os.urandom(EXCHANGE_BYTES),
                round=devices.next_round(), numbers=encoding.size,
                encoding=describe_encoding(encoding), max_duels=max_duels, limits=devices.limits,
                broadcast=encode_shared(*shared),
            )  # fmt: skip
        except SecureError as reason:
            raise RoundAbandonedError("; ".join([str(reason), *self._left_out])) from None

    # The second trip.

    def _pending(self, shared: bytes) -> SecureExchange | None:
        """Return the exchange to continue, perhaps from before a restart of the server."""
        if not self._is_loaded:
            stored = self._file.load()
            self._exchange = None if stored is None else SecureExchange(stored)
            self._is_loaded = True
        exchange = self._exchange
        if exchange is None:
            return None
        header = exchange.state.header
        self.devices.round = max(self.devices.round, header.round)
        if self.devices.is_counted(header) or header.broadcast != shared:
            self._give_up()  # in the second case, the server was restored from a backup
            return None
        return exchange

    def _opened(self, exchange: SecureExchange) -> Sum:
        """Return the sum, once enough members have opened it."""
        exchange.ask_again()
        self._greet(with_roster=False)
        self._trip(
            "openings",
            exchange,
            exchange.open_requests,
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
        if exchange.blames:
            text += self.devices.blame(exchange.state.header, exchange.blamed)
        self._log(exchange)
        self._give_up()
        raise RoundAbandonedError(f"{text}; the exchange is given up")

    def _failed(self, exchange: SecureExchange, reason: str) -> RoundAbandonedError:
        """Give up an exchange whose sum is wrong; return the error."""
        text = f"{reason}{self.devices.suspect(exchange.state.header)}"
        self._log(exchange)
        self._give_up()
        return RoundAbandonedError(text)

    def _give_up(self) -> None:
        self._file.remove()
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

    # Messages.

    def _greet(self, *, with_roster: bool) -> None:
        """Let unknown devices introduce themselves, and send the roster to those with an older one.

        A node is asked once: without a reply, it is asked before the next exchange.
        """
        connected, devices = self.wait_for_nodes(), self.devices
        reasons = self._introduced(devices.strangers(connected))
        reasons |= devices.disputes(connected)
        if with_roster:
            reasons |= self._introduced(devices.outdated(connected))
            reasons |= devices.disputes(connected) | devices.ineligible(connected)
        self._left_out = tuple(f"node {node}: {reasons[node]}" for node in sorted(reasons))
        for line in self._left_out:
            _LOG.log(WARNING, "not asked: %s", line)

    def _introduced(self, requests: Mapping[int, Hello]) -> dict[int, str]:
        """Send introductions; return the nodes that are refused, and the reasons."""
        if not requests:
            return {}
        self._stage, reasons = "introductions", {}
        self._courier.begin(requests)
        for node, answer in self._courier.ask(self.grid, requests, self.watch):
            if isinstance(answer, Introduced):
                self.devices.introduce(node, answer)
            elif isinstance(answer, Refused | Failure):
                reasons[node] = short(answer.reason)
        return reasons

    def _trip(
        self,
        stage: str,
        exchange: SecureExchange,
        requests: Callable[[], Mapping[str, Request]],
        is_enough: Callable[[], bool],
    ) -> None:
        """Ask devices until there is nothing to ask, it is enough, or the patience ends."""
        self._stage = stage
        self._courier.begin((stage, exchange.state.header.exchange))
        patience = Patience(self.grid, self.settings.node_wait)
        while waiting := requests():
            nodes = self.devices.at_nodes(self.connected())
            names = {node: name for name, node in nodes.items()}
            messages = {nodes[name]: each for name, each in waiting.items() if name in nodes}
            if messages:
                for node, answer in self._courier.ask(self.grid, messages, self.watch):
                    exchange.receive(names[node], answer)
            if is_enough() or not patience.wait():
                break

    def _deliver(self, shared: SharedBroadcast) -> Upload:
        """Send an estimate to all known devices; nothing is contributed."""
        self._greet(with_roster=False)
        nodes = self.devices.at_nodes(self.connected())
        content = encode_shared(*shared)
        waiting = {
            node: Deliver(content, self.devices.last_counted(name)) for name, node in nodes.items()
        }
        names, reasons = {node: name for name, node in nodes.items()}, dict[int, str]()
        self._stage = "deliveries"
        self._courier.begin(("deliveries", content))
        patience = Patience(self.grid, self.settings.node_wait)
        while waiting:
            for node, answer in self._courier.ask(self.grid, waiting, self.watch):
                if isinstance(answer, Failure):
                    reasons[node] = short(answer.reason)
                    continue
                waiting.pop(node, None)
                reasons.pop(node, None)
                if isinstance(answer, Refused):
                    reasons[node] = short(answer.reason)
            if not waiting or not patience.wait():
                break
        lacking = [*self._left_out, *(f"{names[node]}: {why}" for node, why in reasons.items())]
        if waiting or lacking:
            raise FederationError("; ".join(lacking) or f"{len(waiting)} devices did not reply")
        nothing = np.zeros((0, self.settings.dimension))
        return statistics(shared.broadcast, nothing, np.zeros(0), nothing, self.algorithm.form)

    # Records.

    def _record(self, exchange: SecureExchange, wrong: tuple[str, ...] = ()) -> None:
        """Store who took part in the exchange."""
        row = exchange.participation(self.history.iteration, self._left_out, wrong)
        self.history.participation.append(row)
        self._log(exchange)

    def _log(self, exchange: SecureExchange) -> None:
        for line in exchange.reasons():
            _LOG.log(WARNING, "not counted: %s", line)
        for name in exchange.refused:
            self.devices.forget(name)
