"""Table `deployment`: a real SuperLink under load by many light nodes, our app and a bare one.

A SuperNode is a process that starts another one for each message. Here a node is a thread, with the
connection of Flower's SuperNode: it registers itself, sends heartbeats, asks for messages every
three seconds, and replies, with the same requests. Flower has no public API for this; what is used
of its internals is in :class:`Nodes` only.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import httpx
import numpy as np
import pandas as pd
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supernode.fleet_http_connection import http_request_response

import bare_app
import capacity
from clients.device import DeviceAgent, Limits
from clients.store import DuelStore
from fldb_flower.bandit.streams import keyed_generator
from fldb_flower.settings import Settings, from_flat
from fldb_flower.wire import content_bytes, pack_vector, unpack_vector
from simulations.local_federation import LocalFederation
from strategies.device_rounds import DEMAND

SIZES: Mapping[str, Sequence[int]] = {"file": (10, 50), "memory": (10, 50, 200)}
"""Numbers of nodes, by where the SuperLink has its database."""
COMPARED = 50
"""Number of nodes at which our app is compared with the bare one, with the database in memory."""
BARE = {"array": "array", "bytes": "bytes", "empty": "none"}
"""Name of a bare exchange -> its kind of record."""
POLL_SECONDS = 3.0
"""Pause of a SuperNode after it has found no message."""


def deployment() -> pd.DataFrame:
    """Measure rounds of FLDB-ONS with 3 new answers of each node, d = 5, over a real SuperLink.

    Columns:

    - *database*: of the SuperLink, in a file or in memory;
    - *app*: ours, or one that only sends and receives: messages of the same size, with one *array*
      or with *bytes* in a ConfigRecord, or *empty* ones;
    - *s*: seconds from the first message to the last reply. A node looks for messages every 3 s;
    - *a second*: messages with their replies;
    - *SuperLink, ms*, *ServerApp, ms*: time of processors for one message and its reply, beyond
      that of nodes that wait;
    - *busy*: share of a processor that the SuperLink uses in a round;
    - *HTTP*: share of the SuperLink's processor time in the thread that serves HTTP, with TLS and
      middleware. Other threads check signatures and store messages;
    - *requests*, *up, bytes*, *down, bytes*: of a node to the SuperLink for one message and its
      reply, with HTTP's headers;
    - *idle, ms*: time of processors of the SuperLink in a second without a round;
    - *idle node, bytes*: what an idle node sends and receives in a second.
    """
    rows: list[dict[str, Any]] = []
    for database, sizes in SIZES.items():
        compared = COMPARED if database == "memory" else 0
        with tempfile.TemporaryDirectory(prefix="fldb-load-") as folder:
            rows += measurements(Path(folder), database, sizes, compared)
    return pd.DataFrame(rows)


def measurements(
    folder: Path, database: str, sizes: Sequence[int], compared: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows for one SuperLink, with more and more nodes.

    With ``compared`` nodes, our app and the bare one exchange messages alternately.
    """
    with Load(folder, database) as load:
        load.grow(sizes[0])
        load.start()
        for nodes in sizes:
            load.grow(nodes)
            load.round()  # in which new nodes introduce themselves
            before = load.use()
            time.sleep(3 * POLL_SECONDS)
            idle = load.use().since(before)
            apps: dict[str, Callable[[], float]] = {"ours": load.round}
            if nodes == compared:
                apps |= {name: partial(load.bare, kind) for name, kind in BARE.items()}
            for _ in range(3 if nodes == compared else 1):
                for name, exchange in apps.items():
                    yield {"database": database, "app": name, **_row(load, name, exchange, idle)}


def _row(load: Load, app: str, exchange: Callable[[], float], idle: Use) -> dict[str, Any]:
    before = load.use()
    seconds = exchange()
    used = load.use().since(before)
    nodes = len(load.people)
    # Each node asks once for its message. What its other polls take was measured without a round.
    waits = (used.polls - nodes) / idle.polls
    net = Use(*(float(now - waits * then) / nodes for now, then in zip(used, idle, strict=True)))
    return {
        "nodes": nodes,
        "s": round(seconds, 2),
        "a second": round(nodes / seconds, 2),
        "SuperLink, ms": round(1000 * net.superlink, 2),
        "ServerApp, ms": round(1000 * (net.ours if app == "ours" else net.bare), 2),
        "busy": round(used.superlink / used.seconds, 3),
        "HTTP": round(used.loop / used.superlink, 3),
        "requests": round(net.requests, 2),
        "up, bytes": round(net.up),
        "down, bytes": round(net.down),
        "idle, ms": round(1000 * idle.superlink / idle.seconds, 2),
        "idle node, bytes": round((idle.up + idle.down) / idle.seconds / nodes, 1),
    }


def limits(nodes: int = 20) -> list[dict[str, Any]]:
    """Return the time of processors of our app for a message, in units of the bare app's.

    It is that of SuperLink and ServerApp together, measured alternately on one SuperLink.
    """
    with tempfile.TemporaryDirectory(prefix="fldb-load-") as folder:
        rows = list(measurements(Path(folder), "memory", [nodes], nodes))
    found = round(capacity.ratio(rows, "memory", "ours", "array"), 3)
    return [{"figure": "SuperLink and ServerApp, per message", "ratio": found, "goal": 1.3}]


class Person:
    """The device of one node: replies to our app from a store, and to the bare app.

    Before each new upload, it answers three duels by the BTL model with theta = (1, ..., 1).
    """

    def __init__(self, path: Path, settings: Settings, number: int) -> None:
        self.path, self._settings = path, settings
        self._generator = keyed_generator(settings.seed, "deployment", number)
        self.answers = 0
        self.sizes = [0, 0]  # bytes of the last message of our app, and of the reply

    def __call__(self, message: Message) -> RecordDict:
        """Return the content of the reply."""
        if (reply := bare_app.reply(message)) is not None:
            return reply
        content: Any = message.content
        config = dict(content["config"])
        with DuelStore(self.path) as store:
            for _ in range(3 if config["upto"] < 0 else 0):
                difference = self._generator.standard_normal(self._settings.dimension)
                proposal = store.propose(difference, np.nan, expire_after=60.0)
                chance = 1 / (1 + np.exp(-difference.sum()))
                store.record([(proposal.id, float(self._generator.random() < chance))])
                self.answers += 1
            agent = DeviceAgent(store, self._settings, Limits(min_duels=1))
            arrays, _, config = agent.fit([unpack_vector(content["arrays"])], config)
        reply = RecordDict({"arrays": pack_vector(arrays[0]), "config": ConfigRecord(config)})
        self.sizes = [content_bytes(content), content_bytes(reply)]
        return reply


class Nodes:
    """Serves nodes, each with a thread, until it is closed; counts requests and their bytes.

    ``failure`` is the first error of a node, whose thread has ended.
    """

    def __init__(self, address: str, certificates: Path) -> None:
        self._link = (address, False, str(certificates))
        self._closed, self._lock = threading.Event(), threading.Lock()
        self._threads: list[threading.Thread] = []
        self.failure: BaseException | None = None
        self.requests = self.polls = self.sent = self.received = 0

    def __enter__(self) -> Nodes:
        send = httpx.Client.send

        def counted(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
            response = send(client, request, **options)
            with self._lock:
                self.requests += 1
                self.polls += request.url.path.endswith("/pull-messages")
                self.sent += _bytes(request)
                self.received += _bytes(response)
            return response

        self._patch = mock.patch.object(httpx.Client, "send", counted)
        self._patch.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join()
        self._patch.stop()

    def add(self, reply: Callable[[Message], RecordDict]) -> None:
        """Connect a node; ``reply`` returns the content of the reply to a message."""
        connected = threading.Event()
        arguments = (reply, connected)
        self._threads.append(threading.Thread(target=self._serve, args=arguments, daemon=True))
        self._threads[-1].start()
        connected.wait()

    def _serve(self, reply: Callable[[Message], RecordDict], connected: threading.Event) -> None:
        try:
            with http_request_response(*self._link) as link:
                _, receive, send, _, _, pull, push, confirm = link
                connected.set()
                while not self._closed.is_set():
                    if (found := receive()) is None:
                        self._closed.wait(POLL_SECONDS)
                        continue
                    message = _received(*found, pull, confirm)
                    _send(Message(reply(message), reply_to=message), send, push)
        except BaseException as error:  # Flower exits; whoever waits for the nodes reports it
            self.failure = self.failure or error
        connected.set()


def _received(
    stub: Message, tree: Any, pull: Callable[..., bytes], confirm: Callable[..., None]
) -> Message:
    """Receive the parts of a message, and confirm it."""
    run, keys = stub.metadata.run_id, [each.object_id for each in iterate_object_tree(tree)]
    contents = pull_objects(keys, partial(pull, run))
    confirm(run, tree.object_id)
    message = inflate_object_from_contents(tree.object_id, contents)
    assert isinstance(message, Message)
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def _send(reply: Message, send: Callable[..., Any], push: Callable[..., None]) -> None:
    """Send a reply, and those of its parts that the SuperLink does not have."""
    reply.metadata.__dict__["_message_id"] = reply.object_id
    objects = get_all_nested_objects(reply)
    wanted, session = send(reply, get_object_tree(reply), 0.0)
    push_part = partial(push, reply.metadata.run_id, session)
    push_objects(objects, push_part, object_ids_to_push=wanted)


def _bytes(part: httpx.Request | httpx.Response) -> int:
    """Return the bytes of the headers, of the first line approximately, and of the body."""
    return 40 + sum(len(k) + len(v) + 4 for k, v in part.headers.raw) + len(part.content)


class Use(NamedTuple):
    """What has been used so far: seconds, seconds of processors, and the nodes' requests."""

    seconds: float
    superlink: float
    loop: float  # of the SuperLink's seconds, those of the thread that serves HTTP
    ours: float
    bare: float
    requests: float
    polls: float  # of the requests, those for a message
    up: float  # bytes that the nodes sent
    down: float

    def since(self, earlier: Use) -> Use:
        """Return what was used after ``earlier``."""
        return Use._make(now - then for now, then in zip(self, earlier, strict=True))


class Load:
    """A SuperLink with light nodes, a run of our app, and one of a bare app; a context manager.

    The SuperLink has its database in a ``file`` or in ``memory``.
    """

    def __init__(self, folder: Path, database: str) -> None:
        options = ["--database", str(folder / "superlink.db")] if database == "file" else []
        self.federation = LocalFederation(folder, 0, options=options)
        flat = {"algorithm": "fldb-ons", "dimension": 5, "first-round": "step"}
        self._chosen = {name.replace("-", "_"): value for name, value in flat.items()}
        self._settings = from_flat({**flat, "mode": "devices"}, "a measurement")
        self.people: list[Person] = []
        self._nodes = Nodes(self.federation.address, folder / "keys" / "ca.crt")
        self._folder = folder / "bare-app"
        bare_app.write_app(self._folder, bare_app.SERVER, 'folder = ""')
        words = ["run", str(self._folder), "local", "--stream", "--run-config"]
        self._bare = self.federation.flwr("bare", *words, f"folder='{self._folder}'")
        self._pids: dict[str, int] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Load:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.federation)
            self.federation.start_superlink()
            self._pids["superlink"] = self._process("flower-superlink")
            stack.callback(self._bare.stop)
            stack.enter_context(self._nodes)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def grow(self, nodes: int) -> None:
        """Connect nodes until there are so many."""
        for number in range(len(self.people), nodes):
            path = self.federation.folder / f"{number}.db"
            self.people.append(Person(path, self._settings, number))
            self._nodes.add(self.people[-1])

    def start(self) -> None:
        """Start both apps; our first round begins."""
        settings = {"devices_round_seconds": 1e6, "devices_rounds": 1_000_000, **self._chosen}
        run = self.federation.run(devices_at_least=len(self.people), **settings)
        run.wait_until(self._ended(0), "done with a round", 300.0)
        self._pids["ours"] = self._process("flwr-serverapp")
        self._bare.start()
        self._bare.wait_until((self._folder / "ready").exists, "ready")
        self._pids["bare"] = self._process("flwr-serverapp")

    def _process(self, name: str) -> int:
        """Return the id of a process of the SuperLink that is not known yet."""
        for pid in self.federation.superlink.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:2]
                if pid not in self._pids.values() and any(name in word for word in words):
                    return pid
        raise RuntimeError(f"the SuperLink has no process {name}")

    def round(self) -> float:
        """Run a round of our app with all nodes; return its seconds."""
        before = len(self.federation.rounds())
        (self.federation.results / DEMAND).touch()
        run = self.federation.runs[-1]
        run.wait_until(self._ended(before), "done with a round", 900.0)
        return float(self.federation.rounds()[before]["seconds"])

    def _ended(self, before: int) -> Callable[[], bool]:
        run = self.federation.runs[-1]

        def ended() -> bool:
            if self._nodes.failure is not None:
                raise self._nodes.failure
            if found := re.search(r"round \d+ is not counted.*", run.output()):
                raise RuntimeError(found[0])
            rows, model = self.federation.rounds(), self.federation.model()
            return model is not None and len(rows) > before and model["round"] == len(rows)

        return ended

    def bare(self, kind: str) -> float:
        """Exchange messages as large as our larger one by the bare app; return the seconds."""
        sent, writing = self._folder / "sent", self._folder / "writing"
        writing.write_text(f"{kind} {max(self.people[0].sizes)}")
        writing.rename(self._folder / "send")
        self._bare.wait_until(sent.exists, "done", 600.0)
        seconds = float(sent.read_text())
        sent.unlink()
        return seconds

    def use(self) -> Use:
        """Return what has been used so far."""
        superlink, ours, bare = (_seconds(self._pids[n]) for n in ("superlink", "ours", "bare"))
        thread = self._pids["superlink"]  # the first thread has the id of the process
        loop, nodes = _seconds(thread, f"task/{thread}/stat"), self._nodes
        counts = nodes.requests, nodes.polls, nodes.sent, nodes.received
        return Use(time.perf_counter(), superlink, loop, ours, bare, *counts)


def _seconds(pid: int, file: str = "stat") -> float:
    """Return the seconds of processors that a process has used, or a thread of it."""
    fields = Path(f"/proc/{pid}/{file}").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
