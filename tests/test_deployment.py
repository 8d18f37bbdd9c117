"""Devices as they are deployed: processes, TLS, keys, services, people, curl and SIGKILL."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from test_devices import Federation

from clients.store import DuelStore
from fldb_flower.deployment import __main__ as deployment
from fldb_flower.deployment import credentials
from fldb_flower.deployment.processes import HOST, free_port, is_open, tool
from fldb_flower.errors import FederationError
from fldb_flower.linalg.forms import unpack_symmetric
from fldb_flower.wire.devices import DeviceUploadHeader
from simulations.local_federation import (
    Device,
    LocalFederation,
    Part,
    UnreachableError,
    environment,
)
from strategies.device_nodes import short_name

pytestmark = pytest.mark.xdist_group("deployment")  # one federation at a time
ROOT = Path(__file__).parent.parent
DOC = (ROOT / "docs" / "deployment.md").read_text()
D = 3
THETA = np.array([1.5, -2.0, 0.5])
ROUNDS = 20
RIDGE = 1.0


@contextlib.contextmanager
def telling(folder: Path, logs: str = "logs/*.log") -> Iterator[None]:
    """On a failure, print the end of every log below a folder."""
    try:
        yield
    except BaseException:
        for log in sorted(folder.glob(logs)):
            lines = log.read_text(errors="replace").splitlines()[-40:]
            print(f"--- {log.name}", *lines, sep="\n")
        raise


def wait(is_so, seconds: float, what: str):
    """Wait until a function returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
    return found


def processes_of(folder: Path) -> list[int]:
    """Return the processes that work below a folder: by their Flower home or their command."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            if f"{folder}/".encode() in text and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


# ---- A federation that things happen to ---------------------------------------------------


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    with LocalFederation(folder, node_config={"min-duels-per-upload": 2}) as local:
        with telling(folder):
            local.start()
        yield local
    assert not processes_of(folder)


def supernode(federation: LocalFederation, name: str, *options: str) -> Part:
    """Start a SuperNode that gives up after two tries."""
    command = [tool("flower-supernode"), "--superlink", federation.address, "--max-retries", "1"]
    ports = ["--host", HOST, "--port", str(free_port())]
    part = Part(name, federation.folder, [*command, *ports, *options])
    part.start()
    return part


def test_strangers_stay_outside(federation, tmp_path):
    """An unregistered key, no key, no TLS, a server that another CA vouches for."""
    folder = federation.folder
    credentials.create(tmp_path / "others", [HOST], 1)
    ca, own = str(folder / "keys" / "ca.crt"), federation.devices[0].key
    other = tmp_path / "others" / "devices" / "device1"
    key = "--auth-supernode-private-key"
    strangers = {
        "unregistered": (["--root-certificates", ca, key, str(other)], "code: 2004"),
        "keyless": (["--root-certificates", ca], "authentication is enabled"),
        "plain": (["--insecure"], "disconnected without sending a response"),
        "deceived": (
            ["--root-certificates", str(tmp_path / "others" / "ca.crt"), key, str(own)],
            "CERTIFICATE_VERIFY_FAILED",
        ),
    }
    parts = {name: supernode(federation, name, *what) for name, (what, _) in strangers.items()}
    try:
        for name, part in parts.items():
            with telling(folder):
                wait(lambda part=part: not part.is_running, 90, f"{name} gives up")
                assert "Exit Code: 305" in part.said()
                assert strangers[name][1] in part.said()
                assert "SuperNode ID:" not in part.said()
    finally:
        for part in parts.values():
            part.stop()


def test_the_superlink_says_nothing_without_tls(federation):
    with socket.create_connection((HOST, federation.port), timeout=30) as plain:
        plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert plain.recv(1000) == b""
    trusted = ssl.create_default_context(cafile=str(federation.folder / "keys" / "ca.crt"))
    assert health(federation, trusted) == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        health(federation, ssl.create_default_context())


def health(federation: LocalFederation, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection(HOST, federation.port, timeout=30, context=context)
    with contextlib.closing(connection):
        connection.request("GET", "/health")
        return connection.getresponse().status


@pytest.mark.parametrize("token", [None, "", "Bearer", "Bearer wrong-token-wrong-token"])
def test_a_service_wants_its_token(federation, token):
    device = federation.devices[0]
    connection = http.client.HTTPConnection(HOST, device.port, timeout=30)
    with contextlib.closing(connection):
        headers = {} if token is None else {"Authorization": token}
        connection.request("GET", "/status", headers=headers)
        reply = connection.getresponse()
        assert reply.status == 401
        assert b"the token is missing or wrong" in reply.read()
    assert device.ask("/status")["answered"] == 0
    # Of two devices on one machine, each has its own.
    assert len({device.token for device in federation.devices}) == 3


class Person(threading.Thread):
    """Answers duels on one device until stopped; insists on each answer until it is confirmed."""

    def __init__(self, device: Device, seed: int) -> None:
        super().__init__(daemon=True)
        self.device = device
        self.rng = np.random.default_rng(seed)
        self.confirmed: dict[str, tuple[int, float | None]] = {}  # id -> number, preference
        self.leaves = threading.Event()

    def run(self) -> None:
        while not self.leaves.wait(0.8):
            self.answer()

    def answer(self) -> None:
        arms = self.rng.standard_normal((4, D))
        offered = {"features": arms.tolist(), "keys": [f"secret-{i}" for i in range(4)]}
        duel = self.insist("/duels", offered)
        gap = THETA @ (arms[duel["first"]] - arms[duel["second"]])
        first = self.rng.random() < 1 / (1 + np.exp(-gap))
        preferred = {"preferred": "first" if first else "second"}
        reply = self.insist(f"/duels/{duel['id']}/answer", preferred)
        self.confirmed[duel["id"]] = (reply["number"], float(first))

    def insist(self, path: str, body: dict[str, Any]) -> Any:
        while True:
            try:
                return self.device.ask(path, body)
            except UnreachableError:
                assert not self.leaves.wait(0.2), "the service did not come back"

    def leave(self) -> None:
        self.leaves.set()
        self.join(timeout=60)


class Script:
    """The same with curl: docs/deployment/answer.sh, and a command that prefers."""

    def __init__(self, device: Device, folder: Path) -> None:
        self.device = device
        arms = folder / "arms.txt"
        rng = np.random.default_rng(99)
        arms.write_text(
            "".join(
                f"secret-{i} {' '.join(map(repr, row.tolist()))}\n"
                for i, row in enumerate(rng.standard_normal((30, D)))
            )
        )
        command = folder / "prefer.sh"
        command.write_text(
            "#!/bin/sh\nsleep 0.8\n"
            f'awk -v one="$1" -v other="$2" -v seed="$(od -An -N4 -tu4 /dev/urandom)" \'\n'
            f"  {{ worth[$1] = {THETA[0]} * $2 + {THETA[1]} * $3 + {THETA[2]} * $4 }}\n"
            "  END { srand(seed)\n"
            "    chance = 1 / (1 + exp(worth[other] - worth[one]))\n"
            '    print (rand() < chance ? "first" : "second") }\' '
            f"'{arms}'\n"
        )
        command.chmod(0o700)
        self.log = folder / "answers.txt"
        script = str(ROOT / "docs" / "deployment" / "answer.sh")
        token = device.store.with_name("duels.db.token")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["sh", script, f"http://{HOST}:{device.port}", token, arms, "0", command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def confirmed(self) -> dict[str, tuple[int, float | None]]:
        lines = self.log.read_text().splitlines()
        assert all(re.fullmatch(r"\d+ \S+", line) for line in lines), lines
        return {line.split()[1]: (int(line.split()[0]), None) for line in lines}

    def leave(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.mark.timeout(900)
def test_twenty_rounds_with_everything_killed_once_count_every_answer_once(federation, tmp_path):
    """After SIGKILL of a SuperNode, a service and the server: theta is the central one."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"the seed of this test's moments is {seed}")
    with telling(federation.folder):
        wild = random.Random(seed)
        people = [Person(device, number) for number, device in enumerate(federation.devices[:2])]
        crowd = [*people, Script(federation.devices[2], tmp_path)]
        killed = wild.choice(federation.devices)
        supervisor = threading.Thread(target=killed.wait_until_connected)
        try:
            for person in people:
                person.start()
            begin_run(federation, ROUNDS)
            # After which round each is killed; a moment later, that is.
            plan = {
                wild.randint(1, 5): lambda: kill_supernode(killed, supervisor),
                wild.randint(6, 9): lambda: kill_service(wild.choice(crowd)),
                wild.randint(10, 14): lambda: kill_server(federation),
            }
            for number, kill in plan.items():
                wait_for_round(federation, number)
                time.sleep(wild.uniform(0, 6))
                kill()
            wait_for_round(federation, ROUNDS)
            wait(lambda: not federation.runs[-1].is_running, 120, "the run ends")
        finally:
            for someone in crowd:
                someone.leave()
            if supervisor.ident is not None:
                supervisor.join()
        summary = json.loads((federation.results / "summary.json").read_text())
        assert (summary["rounds"], summary["complete"]) == (ROUNDS, True)
        assert last_round_of(federation, killed) > max(plan)  # it came back by itself
        expect_central(federation)
        for someone in crowd:
            expect_recorded(someone)
        expect_nothing_private(federation)


def begin_run(federation: LocalFederation, rounds: int) -> None:
    federation.run(
        algorithm="fldb-ons", dimension=D, devices_rounds=rounds, devices_round_seconds=0.0,
        quorum=0.3, reply_timeout=30.0, node_wait=60.0,
    )  # fmt: skip


def wait_for_round(federation: LocalFederation, number: int) -> None:
    wait(lambda: (federation.model() or {"round": 0})["round"] >= number, 400, f"round {number}")


def kill_supernode(device: Device, supervisor: threading.Thread) -> None:
    device.kill()
    assert not device.processes()
    device.start()
    # Refused as long as the SuperLink takes the one before for alive: nobody waits for it here.
    supervisor.start()


def kill_service(someone: Person | Script) -> None:
    before = len(someone.confirmed)
    someone.device.service.kill()
    time.sleep(1)
    someone.device.service.start()
    someone.device.wait_for_service()
    wait(lambda: len(someone.confirmed) > before + 1, 60, "answers again")


def kill_server(federation: LocalFederation) -> None:
    (server,) = federation.server_apps()
    os.kill(server, signal.SIGKILL)
    wait(lambda: not federation.server_apps(), 30, "the server is gone")
    federation.runs[-1].stop()
    assert not (federation.results / "summary.json").exists()
    model = federation.model()
    assert model is not None
    begin_run(federation, ROUNDS - model["round"])


def last_round_of(federation: LocalFederation, device: Device) -> int:
    name = short_name(stored(device)[0])
    return max(int(row["round"]) for row in federation.uploads() if row["device"] == name)


def stored(device: Device) -> tuple[str, dict[str, tuple[int, float]], np.ndarray]:
    """Read a store without our code: its id, the answers by duel, and the table of evidence."""
    with contextlib.closing(sqlite3.connect(device.store)) as rows:
        assert rows.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        ((device_id,),) = rows.execute("SELECT id FROM device")
        found = rows.execute("SELECT id, sequence, evidence FROM answers ORDER BY sequence")
        answers = [(duel, number, np.frombuffer(blob)) for duel, number, blob in found]
    assert [number for _, number, _ in answers] == list(range(1, len(answers) + 1))
    table = np.array([row for *_, row in answers])
    return device_id, {duel: (number, row[D]) for duel, number, row in answers}, table


def expect_recorded(someone: Person | Script) -> None:
    """Expect every answer that was confirmed by HTTP 200, as it was given."""
    _, answers, _ = stored(someone.device)
    assert len(someone.confirmed) > ROUNDS
    for duel, (number, preference) in someone.confirmed.items():
        assert answers[duel][0] == number
        assert preference in {None, answers[duel][1]}


def expect_central(federation: LocalFederation) -> None:
    """Compute FLDB-ONS from the three stores, with formulas of our own."""
    tables = {}
    for device in federation.devices:
        device_id, _, table = stored(device)
        tables[short_name(device_id)] = table
    rounds: dict[int, list[np.ndarray]] = {}
    covered = dict.fromkeys(tables, 0)
    for row in federation.uploads():
        start, end = int(row["start"]), int(row["end"])
        assert start == covered[row["device"]] < end <= len(tables[row["device"]])
        assert end - start >= 2  # min-duels-per-upload
        covered[row["device"]] = end
        rounds.setdefault(int(row["round"]), []).append(tables[row["device"]][start:end])
    assert sorted(rounds) == list(range(1, ROUNDS + 1))
    assert min(covered.values()) > 0
    theta, curvature = np.zeros(D), RIDGE * np.eye(D)
    for number in sorted(rounds):
        table = np.concatenate(rounds[number])
        if number == 1:
            theta = minimiser(table)
        gradient, hessian = derivatives(theta, table)
        curvature = curvature + hessian
        if number > 1:
            theta = theta - np.linalg.solve(curvature, gradient)
    model = federation.model()
    assert model is not None
    np.testing.assert_allclose(model["theta_sync"], theta, rtol=1e-9)
    assert model["duels"] == sum(covered.values())
    rows = federation.rounds()
    assert [int(row["round"]) for row in rows] == list(range(1, ROUNDS + 1))
    assert int(rows[-1]["total_duels"]) == sum(int(row["duels"]) for row in rows) == model["duels"]


def derivatives(theta: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = table[:, :D], table[:, D]
    p = 1 / (1 + np.exp(-x @ theta))
    return x.T @ (p - y), (x * (p * (1 - p))[:, None]).T @ x


def minimiser(table: np.ndarray) -> np.ndarray:
    """Minimise the logistic loss with ridge by Newton's method."""
    theta = np.zeros(D)
    for _ in range(100):
        gradient, hessian = derivatives(theta, table)
        step = np.linalg.solve(hessian + RIDGE * np.eye(D), gradient + RIDGE * theta)
        theta = theta - step
    assert np.linalg.norm(step) < 1e-13
    return theta


def expect_nothing_private(federation: LocalFederation) -> None:
    """Expect no number of a duel, no key and no id of one on the server's disk."""
    private = [b"secret-"]
    for device in federation.devices:
        _, answers, table = stored(device)
        private += [duel.encode() for duel in answers]
        private += [number.tobytes() for number in table[:, :D].ravel()]
    server = [*federation.folder.glob("superlink.db*"), *federation.results.iterdir()]
    server += [federation.superlink.log, *(run.log for run in federation.runs)]
    text = b"".join(path.read_bytes() for path in server)
    assert not [word for word in private if word in text]
    # What it does hold of them, to know that we looked in the right place.
    assert federation.rounds()[-1]["time"].encode() in text


# ---- What reaches the server --------------------------------------------------------------


class Recorded(Federation):
    """Devices in this process, and the bytes of every reply as they leave a device."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.replies: list[Any] = []
        self.private: list[bytes] = []
        deliver = self.grid.deliver

        def recording(message):
            reply = deliver(message)
            self.replies.append(reply)
            return reply

        self.grid.deliver = recording

    def answer(self, device: int, count: int) -> None:
        for number in range(count):
            arms = self.rng.standard_normal((4, D))
            keys = [f"key-{device}-{number}-{i}" for i in range(4)]
            texts = [f"a text for {key}" for key in keys]
            agent = self.agents[device]
            duel = agent.propose(arms, keys, [{"text": text} for text in texts])
            preferred = "first" if self.rng.random() < 0.5 else "second"
            agent.record(duel.id, preferred)
            difference = arms[duel.first] - arms[duel.second]
            words = [duel.id, *keys, *texts, *map(repr, arms.ravel().tolist())]
            self.private += [word.encode() for word in words]
            for numbers in (arms, difference):
                self.private += [number.tobytes() for number in numbers.ravel()]
                self.private += [number.tobytes() for number in numbers.astype("f4").ravel()]
            evidence = np.append(difference, float(preferred == "first"))
            self.private += [row.tobytes() for row in (*arms, difference, evidence)]


def wire(reply: Any) -> bytes:
    """Return everything of a reply that Flower sends: its envelope and the objects in it."""
    objects = get_all_nested_objects(reply).values()
    return message_to_proto(reply).SerializeToString() + b"".join(
        each.deflate() for each in objects
    )


def fields(section: str) -> set[str]:
    """Return the first column of the tables in a section of docs/deployment.md."""
    (text,) = re.findall(rf"^#+ {section}\n(.*?)(?=^#|\Z)", DOC, re.DOTALL | re.MULTILINE)
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


def test_an_upload_holds_what_the_documentation_lists_and_nothing_of_a_duel(tmp_path):
    federation = Recorded(tmp_path, min_duels=5)
    for device in range(3):
        federation.answer(device, 8)
    for count in (6, 30):
        federation.serve()
        for device in range(3):
            federation.answer(device, count)
    federation.serve()
    lengths = set()
    for reply in federation.replies:
        text = wire(reply)
        assert not [word for word in federation.private if word in text]
        vector, numbers = reply.content["arrays"], reply.content["numbers"]
        device = reply.content["device"]
        assert (set(reply.content), set(vector), set(numbers), set(device)) == (
            {"arrays", "numbers", "device"}, {"0"}, {"answer"}, {"id"},
        )  # fmt: skip
        assert len(numbers["answer"]) == len(DeviceUploadHeader._fields)
        size = vector["0"].shape[0]
        assert size in {0, D + D * (D + 1)}
        if size:
            objects = get_all_nested_objects(reply.content).values()
            lengths.add(sum(len(each.deflate()) for each in objects))
    # Nothing in it grows with the number of duels.
    assert len(lengths) == 1
    assert {reply.content["numbers"]["answer"][0] for reply in federation.replies} >= {8, 6, 30}
    assert fields("What reaches the server") == {
        "arrays.0",
        "device.id",
        *(f"numbers.answer.{name}" for name in DeviceUploadHeader._fields),
    }
    envelope = message_to_proto(federation.replies[0]).metadata.DESCRIPTOR.fields
    assert fields("What Flower adds") >= {field.name for field in envelope}


def test_an_upload_of_one_duel_reveals_it(tmp_path):
    """The caveat of the documentation: why min-duels-per-upload is not 1 by default."""
    federation = Recorded(tmp_path, devices=1, min_duels=1)
    federation.answer(0, 6)
    federation.serve()
    federation.replies.clear()
    federation.answer(0, 1)
    theta = json.loads((tmp_path / "server" / "model.json").read_text())["theta_sync"]
    federation.serve()
    with DuelStore(federation.stores[0]) as store:
        secret = store.evidence(6, 7)
    vectors = [np.frombuffer(r.content["arrays"]["0"].data, offset=128) for r in federation.replies]
    (vector,) = [vector for vector in vectors if vector.size]
    gradient, information = vector[:D], unpack_symmetric(vector[D : D + D * (D + 1) // 2], D)
    values, directions = np.linalg.eigh(information)  # phi phi^T
    phi = np.sqrt(values[-1]) * directions[:, -1]
    sign = np.sign(phi @ secret.differences[0])
    np.testing.assert_allclose(sign * phi, secret.differences[0], rtol=1e-9)
    # (mu(theta phi) - y) phi: whichever sign phi has, it says which of the two won.
    y = 1 / (1 + np.exp(-phi @ theta)) - gradient @ phi / (phi @ phi)
    assert y == pytest.approx(secret.preferences[0] if sign > 0 else 1 - secret.preferences[0])


def test_fewer_duels_than_dimensions_reveal_the_space_that_they_span(tmp_path):
    """What five duels an upload do not hide, as the documentation says."""
    federation = Recorded(tmp_path, devices=1, min_duels=2)
    federation.answer(0, 6)
    federation.serve()
    federation.replies.clear()
    federation.answer(0, 2)
    federation.serve()
    with DuelStore(federation.stores[0]) as store:
        secret = store.evidence(6, 8).differences
    vectors = [np.frombuffer(r.content["arrays"]["0"].data, offset=128) for r in federation.replies]
    (vector,) = [vector for vector in vectors if vector.size]
    values, directions = np.linalg.eigh(unpack_symmetric(vector[D : D + D * (D + 1) // 2], D))
    assert values[0] == pytest.approx(0, abs=1e-12 * values[-1])
    np.testing.assert_allclose(secret @ directions[:, 0], 0, atol=1e-9)


# ---- A device's process -------------------------------------------------------------------

ONE_MESSAGE = """
import sys, time
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 0, 1
before = set(sys.modules)
begin = time.perf_counter()
from fldb_flower import client_app
from clients import device
imported = time.perf_counter() - begin
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.wire.codec import encode_broadcast
from fldb_flower.wire.records import pack_vector
import numpy as np
play = PlayRequest(2, 2, Estimate(np.zeros(3), np.eye(3)))
vector, ask = encode_broadcast(Broadcast(play, np.zeros(3), hessian=True))
config = {"ask": list(ask._replace(counted=0)), "device": sys.argv[2], "upto": -1, "duels": 8}
content = RecordDict({"arrays": pack_vector(vector), "config": ConfigRecord(config)})
message = Message(content, 2, "train")
message.metadata.__dict__["_message_id"] = "1"
run_config = {"mode": "devices", "algorithm": "fldb_ons", "dimension": 3}
node_config = {"store-path": sys.argv[1], "min-duels-per-upload": 8}
context = Context(1, 2, node_config, RecordDict(), run_config)
begin = time.perf_counter()
reply = client_app.app(message, context)
answered = time.perf_counter() - begin
assert reply.content["numbers"]["answer"][0] == 8, reply
print(imported + answered, *sorted(set(sys.modules) - before))
"""


def test_a_message_costs_a_device_less_than_half_a_second_beside_flower(tmp_path):
    """Each message is a new process: from its start to the reply, without Flower's own import."""
    federation = Federation(tmp_path, devices=1)
    federation.answer(0, 8)
    device = federation.agents[0].store.device_id
    command = [sys.executable, "-c", ONE_MESSAGE, str(federation.stores[0]), device]
    seconds = []
    for _ in range(5):
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        number, *modules = done.stdout.split()
        seconds.append(float(number))
        heavy = {"torch", "pandas", "hydra", "omegaconf", "matplotlib", "scipy", "ray", "fastapi"}
        assert not heavy & {module.split(".")[0] for module in modules}
    assert min(seconds) < 0.5, seconds


# ---- The demonstration --------------------------------------------------------------------


@pytest.fixture
def demo(tmp_path):
    """Start `python -m simulations.demo` in a folder; nothing of it may be left."""
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "simulations.demo", "--dir", str(folder)]
    started = []

    def start(*options: str) -> subprocess.Popen[str]:
        pipes = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        started.append(subprocess.Popen([*command, *options], cwd=ROOT, text=True, **pipes))
        return started[-1]

    with telling(folder):
        yield start
        for process in started:
            assert process.poll() is not None
        assert not processes_of(folder)


@pytest.mark.timeout(600)
def test_the_demonstration_runs_and_leaves_nothing(demo):
    process = demo("--rounds", "3")
    output = process.communicate(timeout=500)[0]
    assert process.returncode == 0, output
    lines = [re.sub("(?<=#token=).{16,}", "TOKEN", line) for line in output.splitlines()]
    assert [re.sub(r":\d+/", ":PORT/", line) for line in lines[1:9]] == [
        "starting the SuperLink",
        "registering the keys of 3 devices",
        *(f"waiting for devices: {connected} of 3 are connected" for connected in range(3)),
        "simulated people are answering duels on device1, device2",
        "device3 is yours: http://127.0.0.1:PORT/#token=TOKEN",
        "starting the rounds; the first one takes several exchanges",
    ]
    # The first round takes one exchange to meet the devices' answers, and more to minimise.
    for number, exchange in ((1, 1), (1, 2), (1, 3), (2, 1), (3, 1)):
        line = f"round {number}, exchange {exchange}: 0 of 3 devices have replied, waiting up to "
        assert any(each.startswith(line) for each in lines), output
    for number in (1, 2, 3):
        assert re.search(
            rf"^round {number} of 3: \d+ duels, 67% of the devices took part, (\d+% as predicted"
            r"|no forecast), cosine to the hidden theta 0\.\d+$",
            output,
            re.MULTILINE,
        ), output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demonstration_is_stopped_by_a_signal(demo, number):
    process = demo()
    assert process.stdout is not None
    lines = []
    while "is yours" not in (line := process.stdout.readline()):
        assert line, lines
        lines.append(line)
    process.send_signal(number)
    assert process.communicate(timeout=60)[0].splitlines()[-1] == "stopped"
    assert process.returncode == 128 + number


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--people", "4"], "--people 4: must be at most --devices 3"),
        (["--devices", "0"], "argument --devices: invalid number of at least 1 value: '0'"),
        (["--rounds", "3", "--minutes", "2"], "not allowed with argument"),
        (["--dir", "/dev/null/demo"], "cannot write /dev/null/demo/arms.json: Not a directory"),
    ],
)
def test_a_mistake_is_one_line(options, words):
    done = subprocess.run(
        [sys.executable, "-m", "simulations.demo", *options],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")
    assert words in done.stderr


def test_what_does_not_start_is_said_with_its_log(tmp_path):
    part = Part("broken", tmp_path, [sys.executable, "-c", "print('no power'); exit(3)"])
    part.start()
    with pytest.raises(FederationError, match=r"broken should be ready: it ended; .*\nno power"):
        part.wait_until(lambda: False, "ready", 60)
    part = Part("slow", tmp_path, [sys.executable, "-c", "import time; time.sleep(60)"])
    part.start()
    with pytest.raises(FederationError, match=r"slow should be ready: not within 0\.1 s"):
        part.wait_until(lambda: False, "ready", 0.1)
    part.stop()
    assert not processes_of(tmp_path)


# ---- Keys and certificates ----------------------------------------------------------------


@pytest.fixture
def keys(tmp_path):
    folder = tmp_path / "keys"
    deployment.main(["credentials", str(folder), "--host", HOST, "--host", "a.example"])
    return folder


def test_credentials_are_made_from_nothing_and_are_their_owner_s_alone(tmp_path, capsys):
    keys = tmp_path / "keys"
    deployment.main(["credentials", str(keys), "--host", HOST])
    made = [Path(line) for line in capsys.readouterr().out.splitlines()]
    names = ["ca.key", "ca.crt", "server.key", "server.pem"]
    assert made == [keys / n for n in names] + [keys / "devices" / f"device{n}" for n in (1, 2, 3)]
    private = [made[0], made[2], *made[4:]]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * 5
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    for path in made[4:]:
        assert path.read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
        public = path.with_suffix(".pub").read_text()
        assert public.startswith("ecdsa-sha2-nistp384 ")
        assert public.endswith(f" {path.name}\n")
    assert len({path.read_bytes() for path in made}) == 7


def handshake(keys: Path, host: str, ca: Path | None = None) -> str:
    """Let a client that trusts a CA meet a server that shows the certificate; return its key."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys / "server.pem", keys / "server.key")
    client = ssl.create_default_context(cafile=str(ca or keys / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    one, other = socket.socketpair()
    with one, other:
        thread = threading.Thread(target=suppressed, args=(server, other))
        thread.start()
        try:
            with client.wrap_socket(one, server_hostname=host) as connection:
                shown = connection.getpeercert(binary_form=True)
        finally:
            one.close()
            thread.join()
    assert shown is not None
    return x509.load_der_x509_certificate(shown).public_key().public_numbers()


def suppressed(server: ssl.SSLContext, connection: socket.socket) -> None:
    with contextlib.suppress(OSError), server.wrap_socket(connection, server_side=True):
        pass


def test_the_server_s_certificate_is_for_its_hosts_alone_and_can_be_renewed(keys, tmp_path):
    first = handshake(keys, HOST)
    assert handshake(keys, "a.example") == first
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, "b.example")
    before = (keys / "server.pem").read_bytes()
    deployment.main(["renew", str(keys)])
    assert (keys / "server.pem").read_bytes() != before
    assert handshake(keys, HOST) == first  # the same key, trusted by the same CA
    deployment.main(["renew", str(keys), "--host", "b.example"])
    assert handshake(keys, "b.example") == first
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, "a.example")
    others = tmp_path / "others"
    deployment.main(["credentials", str(others), "--host", "b.example", "--devices", "0"])
    assert not (others / "devices").exists()
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, "b.example", others / "ca.crt")


def test_nothing_is_overwritten_and_devices_can_be_added(keys):
    before = {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit, match=r"error: .*ca\.crt exists, and nothing is overwritten"):
        deployment.main(["credentials", str(keys), "--host", HOST])
    deployment.main(["add-devices", str(keys), "--devices", "2"])
    assert {path.name for path in (keys / "devices").iterdir()} == {
        f"device{number}{end}" for number in range(1, 6) for end in ("", ".pub")
    }
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["credentials", "{new}"], "required: --host"),
        (
            ["credentials", "{new}", "--host", "not a name"],
            "host 'not a name': must be a name like",
        ),
        (["credentials", "{new}", "--host", "300.1.2.3"], "host '300.1.2.3': must be"),
        (["credentials", "{file}/x", "--host", "a"], "cannot make the folder .*: Not a directory"),
        (["add-devices", "{new}", "--devices", "0"], "0 devices: must be at least 1"),
        (["renew", "{new}"], r"cannot read .*ca\.crt: No such file or directory"),
        (["renew", "{keys}", "--host", "-"], "host '-'"),
        (["renew", "{damaged}"], r"server\.pem is no certificate"),
    ],
)
def test_a_mistake_with_credentials_is_one_line(arguments, words, keys, tmp_path):
    (tmp_path / "file").touch()
    shutil.copytree(keys, tmp_path / "damaged")
    (tmp_path / "damaged" / "server.pem").write_text("no")
    places = {name: tmp_path / name for name in ("new", "file", "keys", "damaged")}
    with pytest.raises(SystemExit, match=f"^error: .*{words}") as error:
        deployment.main([word.format(**places) for word in arguments])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "new" / "ca.crt").exists()


# ---- The documentation --------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_the_documented_commands_work_when_they_are_pasted(tmp_path):
    """All shell blocks, without a pause, in one shell: only ports and the home are ours."""
    blocks = re.findall(r"```bash\n(.*?)```", DOC, re.DOTALL)
    text = "".join(with_free_ports(blocks))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    with telling(tmp_path / "fldb", "*.log"):
        try:
            done = subprocess.run(
                ["bash"],  # which reads commands from its input, as from a terminal
                input=text, cwd=ROOT, env=environ, text=True, capture_output=True,
                check=False, timeout=500,
            )  # fmt: skip
            print(done.stdout, done.stderr, sep="\n---\n")
            assert done.returncode == 0
            asked = r"1\) \w+   2\) \w+   0\) I cannot say: "  # by answer.sh, for each answer
            assert len(re.findall(asked, done.stderr)) == 30
            rest = re.sub(asked, "", done.stderr).splitlines()
            assert not [line for line in rest if "INFO" not in line]  # of `flwr run --stream`
            assert "round 1, exchange 2: 0 of 3 devices have replied, waiting" in done.stdout
            model = json.loads((tmp_path / "fldb" / "server" / "model.json").read_text())
            assert (model["round"], model["duels"], model["devices"]) == (1, 30, 3)
            assert (tmp_path / "fldb" / "server" / "summary.json").exists()
            wait(lambda: not processes_of(tmp_path), 60, "the last block stops everything")
        finally:
            for pid in processes_of(tmp_path):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def with_free_ports(blocks: list[str]) -> Iterator[str]:
    """Replace the ports of the documented commands; `838$i` are three."""

    def three() -> int:
        while True:
            prefix = random.SystemRandom().randrange(2000, 3200)
            if not any(is_open(10 * prefix + last) for last in (1, 2, 3)):
                return prefix

    ports = {"9092": str(free_port()), "910$i": f"{three()}$i", "838$i": f"{three()}$i"}
    for block in blocks:
        yield re.sub("|".join(map(re.escape, ports)), lambda found: ports[found[0]], block)


def test_every_file_that_the_documentation_names_is_there():
    folder = ROOT / "docs" / "deployment"
    named = set(re.findall(r"\(deployment/([\w.-]+)\)", DOC))
    assert named == {path.name for path in folder.iterdir()}
    for name in named:
        assert str(Path.home()) not in (folder / name).read_text()
