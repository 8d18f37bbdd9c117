"""Secure sums of a deployed federation: real processes that are killed, and the server's files."""

from __future__ import annotations

import contextlib
import json
import stat
import threading
import time

import numpy as np
import psutil
import pytest
from local_processes import logs_on_failure, processes_of, wait_until
from reference_ons import derivatives
from test_deployment import stored

from clients.store import DuelStore
from clients.vault.ledger import Journal, LedgerFile
from fldb_flower.secure.protocol import (
    COST,
    SCALE,
    unframed,
)
from simulations.local_federation import Device, LocalFederation, Secure

pytest.importorskip("opendp", reason="needs the privacy extra")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]
D = 3
DEVICES = 3
ROUNDS = 6  # of one exchange each, unless the helper fails
EPSILON = 8.0
PAGE = 4096  # bytes of SQLite's pages
LEAST = 2**24  # smaller integers are in the files by chance
SECRETS = ("duels.db", "vault.toml", "vault.ledger", "helper.pub")


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
                if self.seen.get(path.name) != (changed := path.stat().st_mtime_ns):
                    content = path.read_bytes()
                    self.seen[path.name] = changed
                    start, step = (32, 24 + PAGE) if path.name.endswith("wal") else (0, PAGE)
                    places = range(start, len(content), step)
                    self.stored |= {content[at : at + step] for at in places}
        homes = {str(device.home) for device in self.federation.devices}
        for process in psutil.process_iter():
            self.words |= words_of(process, homes)

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


def test_secure_sums_of_real_devices(tmp_path):
    """Each answer is counted once and charged for, and nothing else reaches the server.

    A service and the helper are killed, and started again.
    """
    rng = np.random.default_rng(0)
    federation = LocalFederation(tmp_path, DEVICES, secure=Secure(D, EPSILON))
    with federation, logs_on_failure(tmp_path):
        federation.start()
        with Watcher(federation) as watcher:
            for number, device in enumerate(federation.devices):
                answer(device, 6 + number, rng)
            run = federation.run(
                algorithm="fldb-ons", dimension=D, privacy_clip=3.0, devices_rounds=ROUNDS,
                devices_round_seconds=2.0, devices_at_least=DEVICES, node_wait=20.0,
            )  # fmt: skip
            wait_until(lambda: len(federation.rounds()) >= 2, 300, "round 2")
            for device in federation.devices:
                answer(device, 2, rng)
            federation.devices[0].service.kill()
            federation.devices[0].service.start()
            federation.devices[0].wait_for_service()
            federation.helper.kill()
            time.sleep(3.0)
            federation.start_helper()
            rounds = len(federation.rounds())
            wait_until(lambda: len(federation.rounds()) > rounds, 300, "a round with new keys")
            wait_until(lambda: not run.is_running, 300, "the run ends")
        check_counts(federation)
        check_helper(federation)
        check_server(federation, b"".join(watcher.stored))
        check_relays(federation, watcher.words)
    assert not processes_of(tmp_path)


def check_counts(federation: LocalFederation) -> None:
    """Check that all answers are counted, and what was spent."""
    summary = json.loads((federation.results / "summary.json").read_text())
    openings, multiplier = (summary["privacy"][n] for n in ("openings", "noise_multiplier"))
    assert summary["complete"]
    assert openings == ROUNDS
    assert 3 <= summary["rounds"] <= ROUNDS
    for number, device in enumerate(federation.devices):
        status = device.ask("/status")
        assert (status["answered"], status["counted"]) == (8 + number, 8 + number)
        ledger = LedgerFile(device.store.with_name("vault.ledger")).read()
        assert ledger is not None
        each = COST / multiplier**2
        exchanges = ledger.spent() / each
        assert exchanges == pytest.approx(round(exchanges), rel=1e-6)
        assert summary["rounds"] <= round(exchanges) <= ROUNDS  # while it was killed: not asked
        assert journal(device).counted == 8 + number


def journal(device: Device) -> Journal:
    with contextlib.closing(DuelStore(device.store)) as store:
        content = store.secure_part("journal")
    assert content is not None
    return Journal.from_bytes(content, "the journal")


def check_helper(federation: LocalFederation) -> None:
    """Check that the helper's files are private, and have the last answers and no others."""
    folder = federation.helper_folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    kinds = []
    for path in folder.glob("*.answer"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        fields, _ = unframed(path.read_bytes(), "it", ("header", "kind", "number", "request",
                                                       "task"))  # fmt: skip
        kinds.append(fields["kind"])
    assert sorted(kinds) == ["sum", "trial"]


def check_server(federation: LocalFederation, pages: bytes) -> None:
    """Check that the server has no number of an answer, and no sum of one device."""
    files = [path for path in federation.results.rglob("*") if path.is_file()]
    files += [federation.superlink.log, *(run.log for run in federation.runs)]
    found = pages + b"".join(path.read_bytes() for path in files)
    # The search finds what the server does have: requests, and the numbers in them.
    assert b'"kind":"report"' in pages
    theta = {np.float64(number).tobytes() for number in federation.model()["theta_sync"]}
    assert found_words(theta, pages) == sorted(theta)
    private = set[bytes]()
    for number, device in enumerate(federation.devices):
        _, answers, table = stored(device)
        assert not [duel for duel in answers if duel.encode() in found]
        private |= numbers_of(table[: 6 + number])
        private |= {value.tobytes() for value in table[:, :D].ravel()}
    assert not found_words(private, found)


def numbers_of(table: np.ndarray) -> set[bytes]:
    """Return the bytes of the sums of one device in the first round, as numbers and integers."""
    gradient, hessian = derivatives(np.zeros(D), table[:, :D], table[:, D])
    x, upper = table[:, :D], np.triu_indices(D)
    sums = np.concatenate([gradient, (x.T @ x)[upper], hessian[upper]])
    integers = np.trunc(sums * SCALE).astype(np.int64)
    return {number.tobytes() for number in (*sums, *integers[abs(integers) >= LEAST])}


def found_words(words: set[bytes], content: bytes) -> list[bytes]:
    """Return which of these words of 8 bytes are anywhere in the content."""
    wanted = np.sort(np.frombuffer(b"".join(words), np.uint64))
    found = set[bytes]()
    for start in range(8):
        whole = content[start : start + (len(content) - start) // 8 * 8]
        here = np.frombuffer(whole, np.uint64)
        found |= {word.tobytes() for word in here[np.isin(here, wanted)]}
    return sorted(found)


def check_relays(federation: LocalFederation, words: set[str]) -> None:
    """Check that no process of a SuperNode was given, or has opened, anything of the vault."""
    assert any(word.startswith('service-url="http') for word in words)
    assert not [word for word in words if any(secret in word for secret in SECRETS)]
    tokens = [device.token for device in federation.devices]
    assert not [word for word in words if any(token in word for token in tokens)]
    home = str(federation.devices[0].service.home)  # the search finds an open store
    opened = set().union(*(words_of(each, {home}) for each in psutil.process_iter()))
    assert str(federation.devices[0].store) in opened
