"""A federation with secure sums in this process: real devices, a real helper, and a real server.

Messages are Flower's, over a grid in this process. Requests, replies and answers can be lost, and
devices, helper and server can be killed before and after each durable write.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from flwr.app import ConfigRecord, Message, RecordDict
from vaults import SIGNER, TASK, Clock, D, Killed, Kills, Phone

from clients.helper import sums
from clients.helper.sums import Helper
from fldb_flower.errors import FederationError, SecureError
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.federation.history import Counts
from fldb_flower.linalg.arrays import FloatArray, IntArray
from fldb_flower.secure import KEY
from fldb_flower.secure.protocol import (
    HELLO,
    KINDS,
    REPORT,
    HelperKey,
    Reply,
    Report,
    Request,
    SumAnswer,
    SumRequest,
    integers_of,
    make_report,
)
from fldb_flower.secure.statistics import Shared, vector_of
from fldb_flower.settings import from_flat, to_flat
from fldb_flower.system.files import replace_file
from simulations.engines.inprocess import InProcessGrid, failure
from strategies.device_rounds import DeviceDirectory, DeviceServer
from strategies.secure import PlannedExchanges, SecureChannel

CLIP = 8.0
RUN = {
    "mode": "devices", "algorithm": "fldb_ons", "dimension": D, "secure": True,
    "privacy-epsilon": 3.0, "privacy-clip": CLIP, "devices-rounds": 20,
    "devices-federation": "tea", "devices-helper": "http://127.0.0.1:1",
    "devices-helper-key": "/k", "devices-helper-token": "/t",
}  # fmt: skip
"""Settings of a run."""
TRIES = 3
"""How often a device without a usable reply is asked in one exchange."""


def no_noise(scales: FloatArray) -> IntArray:
    return np.zeros(scales.shape, dtype=np.int64)


class TinyNoise:
    """Noise below every tolerance that is never the same twice."""

    def __init__(self) -> None:
        self.drawn = 0

    def __call__(self, scales: FloatArray) -> IntArray:
        self.drawn += 1
        return np.full(scales.shape, self.drawn, dtype=np.int64)


class Release(NamedTuple):
    """One answer of the helper that left it."""

    number: int
    kind: str
    sealed: tuple[bytes, ...]
    multiplier: float


class Link:
    """The server's connection to a real helper, in place of ``HelperClient``.

    ``fault`` returns for a question what happens to it: "none"; "restart" or "dies before", the
    helper ends before it stores the answer; "dies after", it ends then; "lost", the answer is lost
    and asked for again; "gone", it is lost; "server before" and "server after", the server's
    process ends.
    """

    def __init__(self, folder: Path, clock: Clock, noise: Callable[[FloatArray], IntArray]) -> None:
        self._folder, self._clock, self._noise = folder, clock, noise
        self.is_down = False
        self.fault: Callable[[str], str] = lambda _kind: "none"
        # What the helper has returned, of all times: each release, and its bytes.
        self.released: dict[tuple[int, str], tuple[Release, set[bytes]]] = {}
        self._dies = ""
        self.start()

    def start(self, signer: Ed25519PrivateKey = SIGNER) -> None:
        self.helper = Helper(self._folder, signer, clock=self._clock, noise=self._noise)

    def restart(self, signer: Ed25519PrivateKey = SIGNER) -> None:
        self.helper.close()
        self._clock.now += 0.001
        self.start(signer)

    def key(self) -> HelperKey:
        self._require()
        return self.helper.keys()

    def sums(self, request: SumRequest) -> SumAnswer:
        self._require()
        fault = self.fault(request.kind)
        if fault == "server before":
            raise Killed
        if fault == "restart":
            self.restart()
        if fault in {"dies before", "dies after"}:
            self._dies = fault
        content = self._answer(request)
        self._dies = ""
        if fault in {"lost", "dies before", "dies after"}:
            content = self._answer(request)
        if fault == "server after":
            raise Killed
        if fault == "gone" or content is None:
            raise FederationError("the helper at http://127.0.0.1:1 does not reply: timed out")
        return SumAnswer.from_bytes(content, request)

    def store(self, *arguments: Any) -> None:
        """Store an answer, as ``clients.helper.sums`` does, or die."""
        dies, self._dies = self._dies, ""
        if dies == "dies before":
            raise Killed
        replace_file(*arguments)
        if dies == "dies after":
            raise Killed

    def _answer(self, request: SumRequest) -> bytes | None:
        try:
            content = self.helper.answer(request.to_bytes())
        except Killed:
            self.restart()
            return None
        except SecureError as reason:
            raise FederationError(f"the helper replied 409: {reason}") from None
        header = request.header
        release = Release(header.number, request.kind, request.sealed, header.multiplier)
        _, contents = self.released.setdefault((header.number, request.kind), (release, set()))
        contents.add(content)
        return content

    def _require(self) -> None:
        if self.is_down:
            raise FederationError("the helper at http://127.0.0.1:1 does not reply: refused")


class SecureGrid(InProcessGrid):
    """A grid whose nodes are devices with real vaults.

    ``fault`` returns for a device what happens to a request: "none", "request lost", "reply lost",
    "late", "twice", "raises", "restart", or at which of its writes the device is killed.
    """

    def __init__(self, phones: list[Phone], config: dict[str, Any], kills: Kills) -> None:
        super().__init__(len(phones), config)
        self.phones = dict(zip(self.contexts, phones, strict=True))
        self._kills = kills
        self.fault: Callable[[int], str | int] = lambda _node: "none"
        self.absent: set[int] = set()  # nodes that are not connected
        self.asked: list[tuple[int, Request]] = []  # what reached a vault, by node
        self.sealed: dict[bytes, int] = {}  # sealed seed of each report that was sent -> its node
        self._late: list[Message] = []

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.absent]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        before, self._late = self._late, []
        return [*super().send_and_receive(messages), *before]

    def replies(self, message: Message) -> list[Message]:
        node, content = message.metadata.dst_node_id, message.content
        fault = self.fault(node)
        if fault == "request lost":
            return []
        if fault == "raises":
            return [failure(message, "ConnectionRefusedError: the service is down")]
        if fault == "restart":
            self.phones[node].restart()
        config: Any = content["config"]
        request = Request.from_bytes(config[KEY])
        reply = self._reply(message, node, request, fault if isinstance(fault, int) else -1)
        if reply is not None and fault == "late":
            self._late.append(reply)
        if reply is None or fault in {"reply lost", "late"}:
            return []
        if fault == "twice":
            again = self._reply(message, node, request, -1)
            assert again is not None
            return [reply, again]
        return [reply]

    def _reply(self, message: Message, node: int, request: Request, at: int) -> Message | None:
        self.asked.append((node, request))
        reply = self._kills.run(at, self.phones[node], request)
        if reply is None:
            return None
        if reply.kind == REPORT:
            assert request.header is not None
            sealed = Report.from_bytes(reply.report, request.header.numbers).sealed
            assert self.sealed.setdefault(sealed, node) == node
        record = RecordDict({"config": ConfigRecord({KEY: reply.to_bytes()})})
        return Message(record, reply_to=message)


class SecureFederation:
    """Devices, a helper and a server in a folder; use it as a context manager."""

    def __init__(
        self,
        folder: Path,
        devices: int = 3,
        noise: Callable[[FloatArray], IntArray] = no_noise,
        entries: dict[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        self.folder, self.clock, self._noise = folder, Clock(), noise
        self._patch = pytest.MonkeyPatch()
        self.kills = Kills(self._patch)
        self._entries = {"max_epsilon": 1000.0, **(entries or {})}
        self.phones = [
            Phone(folder / f"device{place}", self.clock, **self._entries)
            for place in range(devices)
        ]
        self.helper = Link(folder / "helper", self.clock, noise)
        self._patch.setattr(sums, "replace_file", self.helper.store)
        now = SimpleNamespace(time=self.clock)
        self._patch.setattr("strategies.secure.time", now)
        self._patch.setattr("strategies.channel.MAX_TRIES", TRIES)
        self._patch.setattr("strategies.device_rounds.RETRY_SECONDS", 0.0)
        values = {"devices-round-seconds": 0.0, "node-wait": 60.0, "quorum": 0.01, **changes}
        self.config = to_flat(from_flat({**RUN, **values}, "a test"))
        self.grid = SecureGrid(self.phones, self.config, self.kills)
        self.rng = np.random.default_rng(5)
        self.lines: list[str] = []
        self.sums: list[tuple[Broadcast, Upload]] = []  # each that the server obtained
        self.counted: dict[int, Upload] = {}  # by round, the sum that the server stored last

    def __enter__(self) -> SecureFederation:
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        self.helper.helper.close()
        for phone in self.phones:
            phone.store.close()

    def answer(self, *places: int, count: int = 2) -> None:
        """Record answers on some devices, or on all."""
        for place in places or range(len(self.phones)):
            differences = self.rng.uniform(-1.0, 1.0, (count, D)).tolist()
            preferences = self.rng.integers(0, 2, count).tolist()
            self.phones[place].answer(*zip(differences, preferences, strict=True))

    @contextlib.contextmanager
    def serving(
        self, mortal: Callable[[Callable[..., None]], Any] = lambda write: write
    ) -> Iterator[DeviceServer]:
        """Provide a server that resumes from its directory; its process ends without a word.

        ``mortal`` wraps its durable writes.
        """
        self.clock.now += 0.001
        settings, history = from_flat(self.config, "a test"), Counts()
        directory: Any = DeviceDirectory(self.folder / "server", settings)
        with contextlib.closing(directory):
            for name in ("write", "save", "commit"):
                setattr(directory, name, mortal(getattr(directory, name)))
            planned = PlannedExchanges(settings, history, directory)
            helper: Any = self.helper
            nodes = SecureChannel(settings, helper, TASK, planned, self._noise)
            server = DeviceServer(nodes, history, directory, self.lines.append)
            nodes.connect(self.grid)
            strategy: Any = server.strategy
            strategy.collect = self._watched_sums(strategy.collect)
            directory.commit = self._watched_rounds(directory.commit)
            yield server

    def _watched_sums(self, collect: Callable[[Broadcast], Any]) -> Callable[[Broadcast], Any]:
        def watched(broadcast: Broadcast) -> Any:
            upload = collect(broadcast)
            if broadcast.learns:
                self.sums.append((broadcast, upload))
            return upload

        return watched

    def _watched_rounds(self, commit: Callable[..., None]) -> Callable[..., None]:
        def watched(row: Mapping[str, Any], *others: Any) -> None:
            self.counted[row["round"]] = self.sums[-1][1]
            commit(row, *others)

        return watched

    def round(self, server: DeviceServer) -> bool:
        """Run a round, a second after the last one."""
        self.clock.now += 1.0
        return server.try_round()

    @property
    def last(self) -> Request:
        """The last request for a report."""
        return next(request for _, request in reversed(self.grid.asked) if request.header)

    @property
    def units(self) -> dict[str, float]:
        """The units of the last exchange."""
        return Shared.from_bytes(self.last.broadcast).units

    def total(self, server: DeviceServer) -> tuple[int, np.ndarray]:
        """Return the number of duels and W in the sums that the server has counted."""
        uploads = [self.counted[number] for number in range(1, server.round + 1)]
        information = sum((upload.information for upload in uploads), np.zeros((D, D)))
        return sum(upload.num_duels for upload in uploads), information

    def check_once(self, server: DeviceServer) -> None:
        """Check that each answer of each device is in exactly one sum that was counted."""
        given = [duel for phone in self.phones for duel in phone.given]
        x = np.array([difference for difference, _ in given])
        duels, information = self.total(server)
        assert duels == len(given) == server.devices.duels
        np.testing.assert_allclose(information, x.T @ x, rtol=0.0, atol=0.005)

    def check_releases(self) -> None:
        """Check that no answer was given twice, and that devices have charged for all of them."""
        cost = dict.fromkeys(self.grid.phones, 0.0)
        for (_, kind), (release, contents) in self.helper.released.items():
            assert len(contents) == 1
            for node in {self.grid.sealed[sealed] for sealed in release.sealed}:
                cost[node] += (release.multiplier * KINDS[kind]) ** -2
        for node, phone in self.grid.phones.items():
            ledger = phone.ledger
            assert ledger is not None
            assert ledger.spent() >= cost[node] * (1.0 - 1e-9)
            headers = {request.header for each, request in self.grid.asked if each == node}
            most = sum(header.cost for header in headers if header is not None)
            assert ledger.spent() <= most * (1.0 + 1e-9)


class QuietHelper:
    """A real helper without noise that records what it is asked, and may add to the first values.

    It also answers about reports that it cannot open.
    """

    def __init__(self, shift: int = 0) -> None:
        self.asked, self._shift = list[SumRequest](), np.uint64(shift)
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self._helper = Helper(folder, SIGNER, noise=no_noise, min_reports=0)

    def key(self) -> HelperKey:
        return self._helper.keys()

    def sums(self, request: SumRequest) -> SumAnswer:
        self.asked.append(request)
        answer = SumAnswer.from_bytes(self._helper.answer(request.to_bytes()), request)
        sums = answer.sums.copy()
        sums[:, 0] += self._shift
        return replace(answer, sums=sums)


class ServerAlone:
    """The server's nodes, with devices that send given statistics; node n has the device n."""

    def __init__(
        self,
        noise: Callable[[FloatArray], IntArray] = no_noise,
        multiplier: float = 20.0,
        helper: Any = None,
        **values: Any,
    ) -> None:
        self.settings = from_flat({**RUN, "privacy-clip": 2.0, **values}, "a test")
        self.helper, self.numbers = helper or QuietHelper(), list[int]()
        planned: Any = SimpleNamespace(multiplier=multiplier, spend=self._spend)
        self.nodes = SecureChannel(self.settings, self.helper, TASK, planned, noise)
        self.form = self.nodes.form

    def _spend(self, number: int) -> int:
        self.numbers.append(max(number, *self.numbers, 0) + 1)
        return self.numbers[-1]

    def ask(self, broadcast: Broadcast, nodes: Iterable[int]) -> list[Request]:
        """Begin an exchange, and let devices introduce themselves; return their requests."""
        self.nodes.begin(broadcast)
        self.nodes.broadcast = broadcast
        for node in nodes:
            if not self.nodes.device_at(node):
                assert self.reply(node, Reply(HELLO, device(node))) is None
        self.nodes.disputes([*nodes])
        contents: Any = self.nodes.contents([*nodes])
        return [Request.from_bytes(each["config"][KEY]) for each in contents]

    def reply(self, node: int, reply: Reply) -> Any:
        content: Any = RecordDict({"config": ConfigRecord({KEY: reply.to_bytes()})})
        message: Any = SimpleNamespace(content=content)
        return self.nodes.check(node, message)

    def report(
        self, node: int, request: Request, integers: IntArray,
        public: X25519PublicKey | None = None,
    ) -> Any:  # fmt: skip
        """Send a report, sealed for the helper or for another public key."""
        assert request.header is not None
        assert request.key is not None
        public = public or request.key.verified(SIGNER.public_key(), time.time())
        report = make_report(request.header, integers, public).to_bytes()
        return self.reply(node, Reply(REPORT, device(node), "", report, request.header.digest))

    def exchange(self, broadcast: Broadcast, uploads: list[Any]) -> Any:
        """Carry out and count an exchange with a device per upload, or vector of integers."""
        nodes, contributions = range(1, len(uploads) + 1), []
        requests = self.ask(broadcast, nodes)
        self.units = Shared.from_bytes(requests[0].broadcast).units
        for node, request, upload in zip(nodes, requests, uploads, strict=True):
            values = upload
            if isinstance(upload, Upload):
                values = integers_of(vector_of(upload, broadcast, self.units, self.form))
            contributions.append(self.report(node, request, values))
        self.nodes.contributions = dict(enumerate(contributions))
        total = self.nodes.total()
        self.nodes.acknowledge()
        return total


def device(node: int) -> str:
    """Return the identifier of the store of the device at a node."""
    return f"{node:032x}"
