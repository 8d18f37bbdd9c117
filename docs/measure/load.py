"""A SuperLink under load: light nodes, a run of our app, and one of a bare app."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

import bare_app
from bare_app import BareApp
from clients.device import DeviceAgent, Limits
from clients.store import DuelStore
from fldb_flower.bandit.streams import keyed_generator
from fldb_flower.errors import FederationError
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.settings import Settings, from_flat
from fldb_flower.wire.records import content_bytes, pack_vector, unpack_vector
from fleet import Fleet, LightNode, Traffic
from simulations.local_federation import LocalFederation
from strategies.device_directory import DEMAND

_ANSWERS = 3  # of a device, in each round
_DIMENSION = 5
_ROUNDS = 1_000_000  # more than there are; the SuperLink is stopped before
_ROUND_SECONDS = 900.0  # a round that takes longer is an error
_START_SECONDS = 300.0


class Person:
    """The device of one node: replies to our app from a store, and to the bare app.

    Before each new upload, it answers three duels by the BTL model with theta = (1, ..., 1).
    """

    def __init__(self, path: Path, settings: Settings, number: int) -> None:
        self.path, self._settings = path, settings
        self._generator = keyed_generator(settings.seed, "deployment", number)
        self.answers: list[tuple[FloatArray, float]] = []  # difference and preference
        self.sizes = [0, 0]  # bytes of the last message of our app, and of the reply

    def __call__(self, message: Message) -> RecordDict:
        """Return the content of the reply."""
        if (reply := bare_app.reply(message)) is not None:
            return reply
        content: Any = message.content
        config = dict(content["config"])
        with DuelStore(self.path) as store:
            if config["upto"] < 0:
                for _ in range(_ANSWERS):
                    self._answer(store)
            agent = DeviceAgent(store, self._settings, Limits(min_duels=1))
            arrays, _, config = agent.fit([unpack_vector(content["arrays"])], config)
        reply = RecordDict({"arrays": pack_vector(arrays[0]), "config": ConfigRecord(config)})
        self.sizes = [content_bytes(content), content_bytes(reply)]
        return reply

    def _answer(self, store: DuelStore) -> None:
        difference = self._generator.standard_normal(self._settings.dimension)
        proposal = store.propose(difference, np.nan, expire_after=60.0)
        chance = 1 / (1 + np.exp(-difference.sum()))
        preference = float(self._generator.random() < chance)
        store.record([(proposal.id, preference)])
        self.answers.append((difference, preference))


class Use(NamedTuple):
    """What has been used so far: seconds, seconds of processors, and the nodes' requests."""

    seconds: float
    superlink: float
    loop: float  # of the SuperLink's seconds, those of the thread that serves HTTP
    ours: float
    bare: float
    nodes: float
    requests: int
    polls: int  # of the requests, those for a message
    failed: int  # of the requests, sent again
    up: int  # bytes that the nodes sent
    down: int

    def since(self, earlier: Use) -> Use:
        """Return what was used after ``earlier``."""
        return Use._make(now - then for now, then in zip(self, earlier, strict=True))


class Load:
    """A SuperLink with light nodes, a run of our app, and one of a bare app; a context manager.

    The SuperLink has its database in a ``file`` or in ``memory``. ``settings`` are those of the run
    that differ from the defaults.
    """

    def __init__(self, folder: Path, database: str, settings: Mapping[str, Any]) -> None:
        options = ["--database", str(folder / "superlink.db")] if database == "file" else []
        self.federation = LocalFederation(folder, 0, options=options)
        self._chosen = {"algorithm": "fldb-ons", "dimension": _DIMENSION, **settings}
        self._settings = from_flat(
            {
                **{name.replace("_", "-"): value for name, value in self._chosen.items()},
                "mode": "devices",
            },
            "a benchmark",
        )
        self.people: list[Person] = []
        self.traffic = Traffic()
        self._bare = BareApp(self.federation)
        self._pids: dict[str, int] = {}
        self._fleet = Fleet()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Load:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.federation)
            self.federation.start_superlink()
            self._pids["superlink"] = self._process("flower-superlink")
            stack.callback(self._bare.stop)
            stack.enter_context(self._fleet)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def grow(self, nodes: int) -> None:
        """Connect nodes until there are so many."""
        folder, certificates = self.federation.folder, self.federation.folder / "keys" / "ca.crt"
        for number in range(len(self.people), nodes):
            person = Person(folder / f"{number}.db", self._settings, number)
            node = LightNode(self.federation.address, certificates, person, self.traffic)
            self.people.append(person)
            self._fleet.add(node)

    def start(self) -> None:
        """Start both apps; our first round begins."""
        settings = {"devices_round_seconds": 1e6, "devices_rounds": _ROUNDS, **self._chosen}
        run = self.federation.run(devices_at_least=len(self.people), **settings)
        run.wait_until(self._ended(0), "done with a round", _START_SECONDS)
        self._pids["ours"] = self._process("flwr-serverapp")
        self._bare.start()
        self._pids["bare"] = self._process("flwr-serverapp")

    def _process(self, name: str) -> int:
        """Return the id of a process of the SuperLink that is not known yet."""
        for pid in self.federation.superlink.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:2]
                if pid not in self._pids.values() and any(name in word for word in words):
                    return pid
        raise FederationError(f"the SuperLink has no process {name}")

    def round(self) -> float:
        """Run a round of our app with all nodes; return its seconds."""
        before = len(self.federation.rounds())
        (self.federation.results / DEMAND).touch()
        run = self.federation.runs[-1]
        run.wait_until(self._ended(before), "done with a round", _ROUND_SECONDS)
        return float(self.federation.rounds()[before]["seconds"])

    def _ended(self, before: int) -> Callable[[], bool]:
        run = self.federation.runs[-1]

        def ended() -> bool:
            if self._fleet.failure is not None:
                raise FederationError(f"a node failed: {self._fleet.failure!r}")
            if found := re.search(r"round \d+ is not counted.*", run.output()):
                raise FederationError(found[0])
            rows = self.federation.rounds()
            model = self.federation.model()
            return model is not None and len(rows) > before and model["round"] == len(rows)

        return ended

    def bare(self, kind: str) -> float:
        """Exchange a message with all nodes by the bare app; return its seconds.

        It is as large as the larger one of our app; see :meth:`BareApp.exchange`.
        """
        return self._bare.exchange(kind, max(self.people[0].sizes))

    def use(self) -> Use:
        """Return what has been used so far."""
        traffic = self.traffic
        superlink, ours, bare = (_seconds(self._pids[n]) for n in ("superlink", "ours", "bare"))
        thread = self._pids["superlink"]  # the first thread has the id of the process
        return Use(
            time.perf_counter(),
            superlink,
            _seconds(thread, f"task/{thread}/stat"),
            ours,
            bare,
            time.process_time(),
            traffic.requests.total(),
            traffic.requests["pull-messages"],
            traffic.failed,
            traffic.sent,
            traffic.received,
        )


def _seconds(pid: int, file: str = "stat") -> float:
    """Return the seconds of processors that a process has used, or a thread of it."""
    fields = Path(f"/proc/{pid}/{file}").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
