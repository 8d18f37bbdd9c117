"""A deployed federation of real processes: TLS, keys, services, curl and SIGKILL."""

from __future__ import annotations

import contextlib
import csv
import http.client
import json
import os
import random
import re
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from local_processes import end_processes_of, logs_on_failure, processes_of, wait_until
from reference_ons import ons

from fldb_flower.deployment.keys import create
from fldb_flower.deployment.processes import HOST, free_port, tool
from simulations.local_federation import (
    Device,
    LocalFederation,
    UnreachableError,
)
from simulations.local_process import LocalProcess
from strategies.devices import short_name

# One federation of processes at a time in each file: each message starts a process.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]
ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "deployment.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorials" / "engineer.md").read_text()
FLDB = f"{sys.executable} -m simulations.command"
D = 3
THETA = np.array([1.5, -2.0, 0.5])
ROUNDS_AFTER = 2  # after the last kill
MANY = 20  # answers of each person


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    with LocalFederation(folder, 2, node_config={"min-duels-per-upload": 2}) as local:
        with logs_on_failure(folder):
            local.start()
        yield local
    assert not processes_of(folder)


def supernode(federation: LocalFederation, name: str, *options: str) -> LocalProcess:
    """Start a SuperNode that exits after one retry."""
    command = [tool("flower-supernode"), "--superlink", federation.address, "--max-retries", "1"]
    ports = ["--host", HOST, "--port", str(free_port())]
    part = LocalProcess(name, federation.folder, [*command, *ports, *options])
    part.start()
    return part


def test_unauthenticated_nodes_are_refused(federation, tmp_path):
    """No connection without a registered key, without TLS or with an unknown CA."""
    folder = federation.folder
    create(tmp_path / "others", [HOST], 1)
    ca, own = str(folder / "keys" / "ca.crt"), federation.devices[0].key
    other = tmp_path / "others" / "devices" / "device1"
    key = "--auth-supernode-private-key"
    strangers = {
        "unregistered": (["--root-certificates", ca, key, str(other)], "code: 2004"),
        "keyless": (["--root-certificates", ca], "authentication is enabled"),
        "plain": (["--insecure"], "disconnected without sending a response|reset by peer"),
        "deceived": (
            ["--root-certificates", str(tmp_path / "others" / "ca.crt"), key, str(own)],
            "CERTIFICATE_VERIFY_FAILED",
        ),
    }
    parts = {name: supernode(federation, name, *what) for name, (what, _) in strangers.items()}
    try:
        for name, part in parts.items():
            with logs_on_failure(folder):
                wait_until(lambda part=part: not part.is_running, 300, f"{name} gives up")
                assert "Exit Code: 305" in part.output()
                assert re.search(strangers[name][1], part.output())
                assert "SuperNode ID:" not in part.output()
    finally:
        for part in parts.values():
            part.stop()


def test_the_superlink_does_not_answer_without_tls(federation):
    with socket.create_connection((HOST, federation.port), timeout=30) as plain:
        plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
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


def test_a_service_requires_its_token(federation):
    device, other = federation.devices
    assert device.token != other.token  # on one machine
    for token in (None, "Bearer wrong-token-wrong-token", f"Bearer {other.token}"):
        connection = http.client.HTTPConnection(HOST, device.port, timeout=30)
        with contextlib.closing(connection):
            headers = {} if token is None else {"Authorization": token}
            connection.request("GET", "/status", headers=headers)
            reply = connection.getresponse()
            assert reply.status == 401
            assert b"the token is missing or wrong" in reply.read()
    assert device.ask("/status")["answered"] == 0


class Person(threading.Thread):
    """Answers duels on one device until stopped; repeats requests until they are confirmed."""

    def __init__(self, device: Device, seed: int) -> None:
        super().__init__(daemon=True)
        self.device = device
        self.rng = np.random.default_rng(seed)
        self.confirmed: dict[str, tuple[int, float | None]] = {}  # id -> number, preference
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.8):
            self.answer()

    def answer(self) -> None:
        arms = self.rng.standard_normal((4, D))
        offered = {"features": arms.tolist(), "keys": [f"secret-{i}" for i in range(4)]}
        duel = self.request_until_confirmed("/duels", offered)
        gap = THETA @ (arms[duel["first"]] - arms[duel["second"]])
        first = self.rng.random() < 1 / (1 + np.exp(-gap))
        preferred = {"preferred": "first" if first else "second"}
        reply = self.request_until_confirmed(f"/duels/{duel['id']}/answer", preferred)
        self.confirmed[duel["id"]] = (reply["number"], float(first))

    def request_until_confirmed(self, path: str, body: dict[str, Any]) -> Any:
        while True:
            try:
                return self.device.ask(path, body)
            except UnreachableError:
                assert not self.stopping.wait(0.2), "the service did not come back"

    def finish(self) -> None:
        self.stopping.set()
        self.join(timeout=60)


class Script:
    """Answers duels with curl: docs/deployment/answer.sh and a command that chooses an arm."""

    def __init__(self, device: Device, folder: Path) -> None:
        self.device = device
        arms = folder / "arms.csv"
        rng = np.random.default_rng(99)
        table = rng.standard_normal((30, D)).tolist()
        rows = [f"secret-{i},{','.join(map(repr, row))}\n" for i, row in enumerate(table)]
        arms.write_text("".join(["arm,a,b,c\n", *rows]))
        command = folder / "prefer.sh"
        command.write_text(
            "#!/bin/sh\nsleep 0.8\n"
            f'awk -F , -v one="$1" -v other="$2" -v seed="$(od -An -N4 -tu4 /dev/urandom)" \'\n'
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

    def finish(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.mark.timeout(900)
def test_each_answer_is_counted_once_after_every_process_was_killed(federation, tmp_path):
    """After SIGKILL of a SuperNode, a service and the server, theta equals the central estimate."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed of the times of the kills: {seed}")
    with logs_on_failure(federation.folder):
        wild = random.Random(seed)
        person = Person(federation.devices[0], 0)
        crowd = [person, Script(federation.devices[1], tmp_path)]
        killed = wild.choice(federation.devices)
        try:
            person.start()
            begin_run(federation, rounds=1000)
            wait_for_round(federation, wild.randint(1, 2))
            time.sleep(wild.uniform(0, 3))
            kill_supernode(federation, killed)
            kill_service(wild.choice(crowd))
            killed.wait_until_connected()
            name, before = short_name(stored(killed)[0]), round_of(federation)
            wait_until(lambda: last_round_of(federation, name) > before, 400, "it takes part")
            time.sleep(wild.uniform(0, 3))
            last = kill_server(federation) + ROUNDS_AFTER
            wait_for_round(federation, last)
            wait_until(lambda: not federation.runs[-1].is_running, 300, "the run ends")
        finally:
            for user in crowd:
                user.finish()
        summary = json.loads((federation.results / "summary.json").read_text())
        assert (summary["rounds"], summary["complete"]) == (last, True)
        check_central(federation, last)
        for user in crowd:
            check_recorded(user)
        check_no_private_data(federation)


def begin_run(federation: LocalFederation, rounds: int) -> None:
    federation.run(
        algorithm="fldb-ons", first_round="step", dimension=D, devices_rounds=rounds,
        devices_round_seconds=0.0, quorum=0.3, reply_timeout=30.0, node_wait=60.0,
    )  # fmt: skip


def round_of(federation: LocalFederation) -> int:
    return (federation.model() or {"round": 0})["round"]


def wait_for_round(federation: LocalFederation, number: int) -> None:
    wait_until(lambda: round_of(federation) >= number, 400, f"round {number}")


def kill_supernode(federation: LocalFederation, device: Device) -> None:
    """Kill and restart a SuperNode; the SuperLink accepts it after a missed heartbeat.

    Instead of waiting for a minute, the test sets the time of this heartbeat in its database.
    """
    device.kill()
    assert not device.processes()
    set_online_until(federation, device, time.time() + 3600)  # however long the start takes
    device.start()
    device.wait_for(r"code: 2004", "refused")
    set_online_until(federation, device, 0)


def set_online_until(federation: LocalFederation, device: Device, when: float) -> None:
    database = sqlite3.connect(federation.folder / "superlink.db", timeout=60)
    with contextlib.closing(database), database:
        command = "UPDATE node SET online_until = ? WHERE name = ?"
        assert database.execute(command, [when, device.key.name]).rowcount == 1


def kill_service(user: Person | Script) -> None:
    before = len(user.confirmed)
    user.device.service.kill()
    time.sleep(1)
    user.device.service.start()
    user.device.wait_for_service()
    wait_until(lambda: len(user.confirmed) > before + 1, 200, "answers again")


def server_apps(federation: LocalFederation) -> list[int]:
    """Return the ids of the processes of the ServerApp, which the SuperLink starts."""
    found = []
    for pid in federation.superlink.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(word.endswith("flwr-serverapp") for word in psutil.Process(pid).cmdline()):
                found.append(pid)
    return found


def uploads_of(federation: LocalFederation) -> list[dict[str, str]]:
    """Return the rows of uploads.csv: the answers of each device that a round counted."""
    path = federation.results / "uploads.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def kill_server(federation: LocalFederation) -> int:
    """Kill and restart the server; return the number of rounds completed before."""
    (server,) = server_apps(federation)
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not server_apps(federation), 100, "the server is gone")
    federation.runs[-1].stop()
    assert not (federation.results / "summary.json").exists()
    completed = round_of(federation)
    begin_run(federation, ROUNDS_AFTER)
    return completed


def last_round_of(federation: LocalFederation, name: str) -> int:
    rounds = [int(row["round"]) for row in uploads_of(federation) if row["device"] == name]
    return max(rounds, default=0)


def stored(device: Device) -> tuple[str, dict[str, tuple[int, float]], np.ndarray]:
    """Read a store with SQL: its identifier, the answers by duel, and the evidence table."""
    with contextlib.closing(sqlite3.connect(device.store)) as rows:
        assert rows.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        ((device_id,),) = rows.execute("SELECT id FROM device")
        found = rows.execute("SELECT id, sequence, evidence FROM answers ORDER BY sequence")
        answers = [(duel, number, np.frombuffer(blob)) for duel, number, blob in found]
    assert [number for _, number, _ in answers] == list(range(1, len(answers) + 1))
    table = np.array([row for *_, row in answers])
    return device_id, {duel: (number, row[D]) for duel, number, row in answers}, table


def check_recorded(user: Person | Script) -> None:
    """Check that every answer confirmed by HTTP 200 is in the store, unchanged."""
    _, answers, _ = stored(user.device)
    assert len(user.confirmed) > MANY
    for duel, (number, preference) in user.confirmed.items():
        assert answers[duel][0] == number
        assert preference in {None, answers[duel][1]}


def check_central(federation: LocalFederation, last: int) -> None:
    """Check the model against FLDB-ONS on the three stores, with independent formulas."""
    tables = {}
    for device in federation.devices:
        device_id, _, table = stored(device)
        tables[short_name(device_id)] = table
    rounds: dict[int, list[np.ndarray]] = {}
    covered = dict.fromkeys(tables, 0)
    for row in uploads_of(federation):
        start, end = int(row["start"]), int(row["end"])
        assert start == covered[row["device"]] < end <= len(tables[row["device"]])
        assert end - start >= 2  # min-duels-per-upload
        covered[row["device"]] = end
        rounds.setdefault(int(row["round"]), []).append(tables[row["device"]][start:end])
    assert sorted(rounds) == list(range(1, last + 1))
    assert min(covered.values()) > 0
    duels = [np.concatenate(rounds[number]) for number in sorted(rounds)]
    theta = ons([(table[:, :D], table[:, D]) for table in duels], step=True)
    model = federation.model()
    assert model is not None
    np.testing.assert_allclose(model["theta_sync"], theta, rtol=1e-9)
    assert model["duels"] == sum(covered.values())
    rows = federation.rounds()
    assert [int(row["round"]) for row in rows] == list(range(1, last + 1))
    assert int(rows[-1]["total_duels"]) == sum(int(row["duels"]) for row in rows) == model["duels"]


def check_no_private_data(federation: LocalFederation) -> None:
    """Check that the files of the server contain no number, key or identifier of a duel."""
    private = [b"secret-"]
    for device in federation.devices:
        _, answers, table = stored(device)
        private += [duel.encode() for duel in answers]
        private += [number.tobytes() for number in table[:, :D].ravel()]
    server = [*federation.folder.glob("superlink.db*"), *federation.results.iterdir()]
    server += [federation.superlink.log, *(run.log for run in federation.runs)]
    text = b"".join(path.read_bytes() for path in server)
    assert not [word for word in private if word in text]
    # The search finds data that the server does store.
    assert federation.rounds()[-1]["time"].encode() in text


# ---- The documentation --------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_the_documented_commands_work(tmp_path):
    """All shell blocks of the tutorial run in one shell, but for the installation.

    Only the ports, the home folder and the name of the command `fldb` are replaced.
    """
    blocks = re.findall(r"```bash\n(.*?)```", TUTORIAL, re.DOTALL)
    install, *blocks = [re.sub(r"^( *)fldb ", rf"\1{FLDB} ", block, flags=re.M) for block in blocks]
    assert "pip install -e" in install
    text = "".join(with_free_ports(blocks))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    with logs_on_failure(tmp_path / "fldb", "*.log"):
        try:
            done = subprocess.run(
                ["bash"],  # reads commands from stdin, like a terminal
                input=text, cwd=ROOT, env=environ, text=True, capture_output=True,
                check=False, timeout=800,
            )  # fmt: skip
            print(done.stdout, done.stderr, sep="\n---\n")
            assert done.returncode == 0
            rest = done.stderr.splitlines()
            assert not [line for line in rest if "INFO" not in line]  # of `flwr run --stream`
            model = json.loads((tmp_path / "fldb" / "server" / "model.json").read_text())
            devices = model["devices"]  # one may be late on a busy machine
            assert (model["round"], model["duels"]) == (1, 10 * devices)
            assert devices >= 2  # the quorum
            assert f"round 1, exchange 2: 0 of {devices} devices have replied" in done.stdout
            assert model["theta_sync"][1] > 0.0  # sweet
            assert (tmp_path / "fldb" / "server" / "summary.json").exists()
            wait_until(lambda: not processes_of(tmp_path), 60, "the last block stops everything")
        finally:
            end_processes_of(tmp_path)


def with_free_ports(blocks: list[str]) -> Iterator[str]:
    """Replace the ports of the documented commands by free ones; `838$i` stands for three."""

    def three() -> int:
        found = [free_port() for _ in range(3)]
        while found[0] % 10 != 1 or found[2] != found[0] + 2:
            found = [*found[1:], free_port()]
        return found[0] // 10

    ports = {"9092": str(free_port()), "910$i": f"{three()}$i", "838$i": f"{three()}$i"}
    for block in blocks:
        yield re.sub("|".join(map(re.escape, ports)), lambda found: ports[found[0]], block)


def test_the_documented_packages_of_the_helper_are_those_of_the_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert re.findall(r"pip install '(.*?)'", DOC) == project["optional-dependencies"]["privacy"]


def test_every_documented_file_exists():
    folder = ROOT / "docs" / "deployment"
    named = set(re.findall(r"\(deployment/([\w.-]+)\)", DOC))
    files = {path.name for path in folder.iterdir()}
    assert {name for name in files if not name.endswith(".md")} <= named <= files
    for name in named:
        assert str(Path.home()) not in (folder / name).read_text()
