"""Section ``devices`` of the benchmark: what a device's store and its Flower client cost."""

from __future__ import annotations

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from clients.preference_agent import PreferenceAgent
from clients.store import DuelStore
from fldb_flower.bandit import preference

_ARMS, _DIMENSION = 100, 384
_ANSWERS = 2000
_MILLION, _FEW = 1_000_000, 5  # duels, and their dimension
_START = """
import time
import flwr.app, flwr.client, flwr.clientapp
begin = time.perf_counter()
import sys
from pathlib import Path
from fldb_flower import client_app
from clients import device
from clients.store import DuelStore
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.wire.codec import encode_broadcast
from fldb_flower.settings import from_flat
import numpy as np
d = 5
play = PlayRequest(2, 2, Estimate(np.zeros(d), np.eye(d)))
vector, ask = encode_broadcast(Broadcast(play, np.zeros(d), hessian=True))
with DuelStore(sys.argv[1]) as store:
    settings = from_flat({"dimension": d, "devices-max-duels": 10**6}, "the benchmark")
    agent = device.DeviceAgent(store, settings, device.Limits(min_duels=1))
    config = {"ask": list(ask), "device": store.device_id, "upto": -1, "duels": 0}
    agent.fit([vector], config)
print(time.perf_counter() - begin)
"""


def devices(repetitions: int) -> pd.DataFrame:
    """Time what a person, the application and the server wait for."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            ("fsync of 4 KiB, ms", 1e3 * _fsync(Path(folder) / "probe")),
            (f"propose, K={_ARMS}, d={_DIMENSION}, ms", 1e3 * _propose(Path(folder) / "a.db")),
            ("answers recorded a second, one by one", _record(Path(folder) / "b.db")),
            *_million(Path(folder) / "c.db"),
            ("process start to reply, without Flower's import, s", _start(folder, repetitions)),
        ]
    return pd.DataFrame(rows, columns=["what", "measured"]).round(4)


def _median(function: Callable[[], Any], times: int) -> float:
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        function()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def _fsync(path: Path) -> float:
    with path.open("wb") as file:

        def write() -> None:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())

        return _median(write, 200)


def _propose(path: Path) -> float:
    arms = np.random.default_rng(0).standard_normal((_ARMS, _DIMENSION))
    with PreferenceAgent(path) as agent:
        agent.propose(arms)  # factorises W once
        return _median(lambda: agent.propose(arms), 300)


def _record(path: Path) -> float:
    arms = np.random.default_rng(0).standard_normal((_ANSWERS, 5, _FEW))
    with PreferenceAgent(path) as agent:
        duels = [agent.propose(each).id for each in arms]
        begin = time.perf_counter()
        for duel in duels:
            agent.record(duel, "first")
        return _ANSWERS / (time.perf_counter() - begin)


def _million(path: Path) -> list[tuple[str, float]]:
    """Fill a store with a million answers, and take the statistics of all and of the last 100."""
    rng = np.random.default_rng(0)
    evidence = rng.standard_normal((_MILLION, _FEW + 2))
    evidence[:, _FEW] = rng.random(_MILLION) < 0.5
    with DuelStore(path) as store:
        store.propose(np.zeros(_FEW), 0.5, expire_after=1.0)  # fixes the dimension
        with sqlite3.connect(path) as rows:
            rows.executemany(
                "INSERT INTO answers (id, answered, evidence) VALUES (?, 0, ?)",
                ((str(number), row.tobytes()) for number, row in enumerate(evidence)),
            )
            rows.execute("INSERT INTO cuts VALUES (?)", (_MILLION - 100,))
        rows.close()

        def statistics_after(start: int) -> None:
            duels = store.evidence(start, store.cut(start, 1))
            preference.derivatives(np.ones(_FEW), duels.differences, duels.preferences)
            preference.gram(duels.differences)

        return [
            (
                "broadcast to 1,000,000 duels, none counted, s",
                _median(lambda: statistics_after(0), 3),
            ),
            (
                "broadcast to 1,000,000 duels, all but 100 counted, s",
                _median(lambda: statistics_after(_MILLION - 100), 20),
            ),
        ]


def _start(folder: str, repetitions: int) -> float:
    command = [sys.executable, "-c", _START, f"{folder}/d.db"]
    return statistics.median(
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(repetitions)
    )
