"""A Flower grid whose nodes are devices with real vaults, and a server that can be killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from vaults import D, Fleet, Phone

from fldb_flower.secure.header import Header
from fldb_flower.secure.journal import Journal
from fldb_flower.settings import from_flat, to_flat
from fldb_flower.wire import secure_messages as messages
from simulations.engines.grid import InProcessGrid, failure
from strategies.device_directory import DeviceDirectory
from strategies.device_rounds import DeviceServer, make_device_server

Fault = Callable[[str, messages.Request], str]
Tamper = Callable[[str, messages.Request, messages.Reply], messages.Reply]


class SecureGrid(InProcessGrid):
    """A grid of phones.

    Attributes
    ----------
    fault : callable
        Returns the fault of a request to a device: "none", "request lost", "reply lost", "late",
        "twice", "raises" or "restart".
    tamper : callable
        Returns the reply that a device sends instead of its own.
    absent : set of str
        Devices that are not connected.
    spans : dict
        (device, exchange) -> the answers that it contributed.
    openings : dict
        (exchange, devices in the sum) -> the members that opened it.
    headers : dict
        Exchange -> its header.
    asked : list of (str, Request)
        All requests that reached a device.
    """

    def __init__(self, phones: dict[str, Phone], config: dict[str, Any]) -> None:
        super().__init__(len(phones), config)
        self.phones = dict(zip(self.contexts, phones.values(), strict=True))
        self.fault: Fault = lambda _name, _request: "none"
        self.tamper: Tamper = lambda _name, _request, reply: reply
        self.absent: set[str] = set()
        self.late: list[Message] = []
        self.spans: dict[tuple[str, bytes], tuple[int, int]] = {}
        self.openings: dict[tuple[bytes, tuple[str, ...]], set[str]] = {}
        self.headers: dict[bytes, Header] = {}
        self.asked: list[tuple[str, messages.Request]] = []

    def node(self, name: str) -> int:
        return next(node for node, phone in self.phones.items() if phone.name == name)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node, phone in self.phones.items() if phone.name not in self.absent]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        before, self.late = self.late, []
        return [*super().send_and_receive(messages), *before]

    def replies(self, message: Message) -> list[Message]:
        content: Any = message.content
        request = messages.decode_request(content["config"][messages.KEY])
        phone = self.phones[message.metadata.dst_node_id]
        fault = self.fault(phone.name, request)
        if fault == "request lost":
            return []
        if fault == "raises":
            return [failure(message, "ConnectionRefusedError: the service is down")]
        if fault == "restart":
            phone.restart()
        self.asked.append((phone.name, request))
        reply = self.reply(phone, message, request)
        if fault == "late":
            self.late.append(reply)
        if fault in {"late", "reply lost"}:
            return []
        return [reply, self.reply(phone, message, request)] if fault == "twice" else [reply]

    def reply(self, phone: Phone, message: Message, request: messages.Request) -> Message:
        reply = phone.ask(request)
        self.note(phone, request, reply)
        content = messages.encode(self.tamper(phone.name, request, reply))
        record = RecordDict({"config": ConfigRecord({messages.KEY: content})})
        return Message(record, reply_to=message)

    def note(self, phone: Phone, request: messages.Request, reply: messages.Reply) -> None:
        """Record what the device has sent; repetitions must be the same."""
        if isinstance(request, messages.Collect) and isinstance(reply, messages.Pieces):
            header = Header.from_bytes(request.header)
            self.headers[header.exchange] = header
            last = Journal.from_bytes(phone.store.secure_part("journal") or b"").contribution
            assert last is not None
            assert last.exchange == header.exchange
            span = last.start, last.cut
            assert self.spans.setdefault((phone.name, header.exchange), span) == span
        if isinstance(request, messages.Open) and isinstance(reply, messages.Opened):
            exchange = Header.from_bytes(request.header).exchange
            devices = tuple(sorted(request.sealed))
            self.openings.setdefault((exchange, devices), set()).add(phone.name)


class LiveFleet(Fleet):
    """A fleet whose clocks show the time."""

    @property
    def now(self) -> float:
        return time.time()

    @now.setter
    def now(self, _value: float) -> None:
        pass


class SecureFederation:
    """Devices with vaults in a folder, and a server that can be killed and restarted."""

    def __init__(
        self,
        folder: Path,
        devices: int = 8,
        budget: dict[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        self.folder = folder
        self.fleet = LiveFleet(folder, devices, budget)
        self.phones = self.fleet.phones
        values = {
            "mode": "devices", "secure": True, "dimension": D, "max-difference": 8.0,
            "algorithm": "fldb_ons", "first-round": "step", "devices-first-duels": 1,
            "devices-roster": str(self.fleet.roster_file), "devices-min-devices": 4,
            "devices-min-duels": 1, "devices-round-seconds": 0.0, "devices-rounds": 1,
            "node-wait": 0.001, "reply-timeout": 1.0, **changes,
        }  # fmt: skip
        self.config = to_flat(from_flat(values, "a test"))
        self.grid = SecureGrid(self.phones, self.config)
        self.rng = np.random.default_rng(5)
        self.lines: list[str] = []
        self.uploads: list[Any] = []  # broadcasts and sums

    def answer(self, *names: str, count: int = 2) -> None:
        """Record answers on some devices, or on all."""
        for name in names or self.phones:
            differences = self.rng.uniform(-2.0, 2.0, (count, D)).tolist()
            preferences = self.rng.integers(0, 2, count).tolist()
            self.phones[name].answer(*zip(differences, preferences, strict=True))

    def server(self, name: str = "server", **changes: Any) -> DeviceServer:
        settings = from_flat({**self.config, **changes}, "a test")
        directory = DeviceDirectory(self.folder / name, settings)
        server = make_device_server(settings, directory, self.lines.append)
        server.strategy.connect(self.grid)
        collect = server.strategy.collect

        def watched(broadcast):
            upload = collect(broadcast)
            self.uploads.append((broadcast, upload))
            return upload

        server.strategy.collect = watched  # type: ignore[method-assign]
        return server

    @contextlib.contextmanager
    def serving(self, name: str = "server", **changes: Any):
        """Provide a server, and close it without an end of the run: as after a kill."""
        server = self.server(name, **changes)
        try:
            yield server
        finally:
            server.directory.close()

    def cut_of(self, name: str, exchange: bytes) -> int:
        return self.grid.spans[name, exchange][1] if exchange else 0

    def check_counted(self, server: DeviceServer) -> int:
        """Compare the state of FLDB-ONS with the answers that the server has counted.

        W, which does not depend on the rounds, and the number of duels; return this number.
        """
        information, duels = np.eye(D) / 500, 0
        for name, exchange in server.devices.counted.items():
            given = self.phones[name].given[: self.cut_of(name, bytes.fromhex(exchange))]
            x = np.array([difference for difference, _ in given])
            information += x.T @ x
            duels += len(given)
        got = server.strategy.algorithm.information
        np.testing.assert_allclose(got, information, rtol=1e-9, atol=1e-9)
        assert server.devices.duels == duels
        return duels
