"""Secure sums of a deployed federation: real processes, a killed service, the server's files."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import random
import re
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from local_processes import logs_on_failure, processes_of, wait_until
from test_deployment import derivatives, first_step, stored

from clients.service.routes import guarded
from fldb_flower.deployment.processes import HOST
from fldb_flower.secure.header import Limits
from simulations.local_federation import Device, LocalFederation

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]
D = 3
LONGEST = 2 * math.sqrt(D)  # features are from -1 to 1
DEVICES = 5
LIMITS = Limits(min_duels=1, min_devices=3, min_committee=DEVICES)
PAGE = 4096  # bytes of SQLite's pages
LEAST = 2**40  # smaller integers are in the files by chance: a few bytes before seven zeros
SECRETS = ("duels.db", "vault.toml", "device.key")


class Watcher(threading.Thread):
    """Records what the SuperLink stores, and what the processes of the SuperNodes can use."""

    def __init__(self, federation: LocalFederation) -> None:
        super().__init__(daemon=True)
        self.federation = federation
        self.stored: set[bytes] = set()  # pages of the SuperLink's database, at any time
        self.words: set[str] = set()  # commands, environments and open files of the SuperNodes
        self.seen: dict[str, int] = {}  # when each file was changed
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.2):
            self.look()

    def look(self) -> None:
        for path in self.federation.folder.glob("superlink.db*"):
            with contextlib.suppress(FileNotFoundError):  # SQLite deletes its log at times
                self.look_at(path)
        homes = {str(device.home) for device in self.federation.devices}
        for process in psutil.process_iter():
            self.words |= words_of(process, homes)

    def look_at(self, path: Path) -> None:
        if self.seen.get(path.name) != (changed := path.stat().st_mtime_ns):
            content = path.read_bytes()
            self.seen[path.name] = changed
            start, step = (32, 24 + PAGE) if path.name.endswith("wal") else (0, PAGE)
            self.stored |= {content[at : at + step] for at in range(start, len(content), step)}

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stopping.set()
        self.join()
        self.look()


def words_of(process: psutil.Process, homes: set[str]) -> set[str]:
    """Return the command, the environment and the open files of a process with one of the homes."""
    with contextlib.suppress(psutil.Error, OSError):
        environment = process.environ()
        if environment.get("FLWR_HOME") in homes:
            files = [file.path for file in process.open_files()]
            return {*process.cmdline(), *environment.values(), *files}
    return set()


def answer(device: Device, number: int, rng: np.random.Generator) -> None:
    """Answer duels between arms with features from -1 to 1."""
    for _ in range(number):
        arms = rng.uniform(-1.0, 1.0, (4, D))
        duel = device.ask("/duels", {"features": arms.tolist()})
        preferred = {"preferred": "first" if rng.random() < 0.7 else "second"}
        device.ask(f"/duels/{duel['id']}/answer", preferred)


@pytest.mark.exhaustive  # test_private_deployment.py checks the same files and processes
def test_secure_sums_of_real_devices(tmp_path):
    """Each answer is counted once, in sums, and nothing else reaches the server."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed of the time of the kill: {seed}")
    wild, rng = random.Random(seed), np.random.default_rng(0)
    federation = LocalFederation(tmp_path, DEVICES, secure=LIMITS)
    with federation, logs_on_failure(tmp_path):
        federation.start()
        with Watcher(federation) as watcher:
            for number, device in enumerate(federation.devices):
                answer(device, 6 + number, rng)
            run = federation.run(
                algorithm="fldb-ons", first_round="step", dimension=D, max_difference=LONGEST,
                devices_rounds=2, devices_round_seconds=1000.0, devices_at_least=DEVICES,
            )  # fmt: skip
            wait_until(lambda: (federation.model() or {"round": 0})["round"] == 1, 300, "round 1")
            for number, device in enumerate(federation.devices):
                answer(device, 9 - number, rng)
            (federation.results / "round-now").touch()
            wait_until(lambda: "round 2, contributions" in run.output(), 200, "round 2 begins")
            check_tokens(federation.devices[0])
            time.sleep(wild.uniform(0.0, 3.0))
            federation.devices[0].service.kill()
            federation.devices[0].service.start()
            wait_until(lambda: not run.is_running, 300, "the run ends")
        first = check_sums(federation)
        check_server(federation, b"".join(watcher.stored), first)
        check_relays(federation, watcher.words)
    assert not processes_of(tmp_path)


def check_sums(federation: LocalFederation) -> np.ndarray:
    """Compare the model with the two steps of FLDB-ONS on all answers; return the first theta."""
    summary = json.loads((federation.results / "summary.json").read_text())
    assert (summary["rounds"], summary["duels"], summary["complete"]) == (2, 75, True)
    tables = [stored(device)[2] for device in federation.devices]
    first = np.concatenate([table[: 6 + number] for number, table in enumerate(tables)])
    second = np.concatenate([table[6 + number :] for number, table in enumerate(tables)])
    assert (len(first), len(second)) == (40, 35)
    start, curvature = first_step(first)
    gradient, hessian = derivatives(start, second)
    theta = start - np.linalg.solve(curvature + hessian, gradient)
    np.testing.assert_allclose(federation.model()["theta_sync"], theta, rtol=1e-9)
    for device, table in zip(federation.devices, tables, strict=True):
        status = device.ask("/status")
        assert (status["answered"], status["counted"]) == (len(table), len(table)) == (15, 15)
        assert (status["secure"], status["min_devices"]) == (True, LIMITS.min_devices)
    return start


def check_server(federation: LocalFederation, pages: bytes, first: np.ndarray) -> None:
    """Check that the server has no number of an answer, no sum of one device, and no count."""
    files = [path for path in federation.results.rglob("*") if path.is_file()]
    files += [federation.superlink.log, *(run.log for run in federation.runs)]
    found = pages + b"".join(path.read_bytes() for path in files)
    # The search finds what the server does have: requests, and the numbers in them.
    assert b"fldb-flower header 1\n" in pages
    theta = {np.float64(number).tobytes() for number in federation.model()["theta_sync"]}
    assert found_words(theta, pages) == sorted(theta)
    private = set[bytes]()
    for number, device in enumerate(federation.devices):
        _, answers, table = stored(device)
        assert not [duel for duel in answers if duel.encode() in found]
        private |= numbers_of(table[: 6 + number], np.zeros(D))
        private |= numbers_of(table[6 + number :], first)
    assert not found_words(private, found)
    assert not re.search(rb'"(cut|start|end|answers|num_duels|answered)": ?\[?\d', found)


def numbers_of(table: np.ndarray, theta: np.ndarray) -> set[bytes]:
    """Return the bytes of the differences and of the sums of one device.

    Sums are float64 and int64, for any scale of the fixed-point numbers with which they are large.
    """
    gradient, hessian = derivatives(theta, table)
    x, upper = table[:, :D], np.triu_indices(D)
    sums = np.concatenate([gradient, (x.T @ x)[upper], hessian[upper]])
    floats = np.concatenate([x.ravel(), sums])
    scaled = [np.rint(np.ldexp(sums, power)).astype(np.int64) for power in range(24, 58)]
    integers = np.concatenate(scaled)
    return {number.tobytes() for number in (*floats, *integers[abs(integers) >= LEAST])}


def found_words(words: set[bytes], content: bytes) -> list[bytes]:
    """Return which of these words of 8 bytes are anywhere in the content."""
    wanted = np.sort(np.frombuffer(b"".join(words), np.uint64))
    found = set[bytes]()
    for start in range(8):
        whole = content[start : start + (len(content) - start) // 8 * 8]
        here = np.frombuffer(whole, np.uint64)
        found |= {word.tobytes() for word in here[np.isin(here, wanted)]}
    return sorted(found)


def check_tokens(device: Device) -> None:
    """Check that the SuperNode's token opens one endpoint, and the person's token all others."""
    node = device.node_token.read_text().strip()
    endpoints = [(method, route.path) for route in guarded.routes for method in route.methods]
    assert ("POST", "/duels") in endpoints
    assert ("DELETE", "/answers") in endpoints
    for method, path in endpoints:
        assert status_of(device, method, path, node) == 401, path
    assert status_of(device, "GET", "/status", device.token) == 200
    assert status_of(device, "POST", "/node", device.token) == 401
    assert status_of(device, "POST", "/node", node) == 415  # open, but this is no message


def status_of(device: Device, method: str, path: str, token: str) -> int:
    connection = http.client.HTTPConnection(HOST, device.port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status


def check_relays(federation: LocalFederation, words: set[str]) -> None:
    """Check that no process of a SuperNode was given, or has opened, anything of the vault."""
    assert any(word.startswith('service-url="http') for word in words)
    assert not [word for word in words if any(secret in word for secret in SECRETS)]
    tokens = [device.token for device in federation.devices]
    assert not [word for word in words if any(token in word for token in tokens)]
    home = str(federation.devices[0].service.home)  # the search finds an open store
    opened = set().union(*(words_of(each, {home}) for each in psutil.process_iter()))
    assert str(federation.devices[0].store) in opened
