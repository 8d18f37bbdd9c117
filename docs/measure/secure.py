"""Table `secure`: times and bytes of one exchange of secure sums."""

from __future__ import annotations

import hashlib
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from clients.device import DeviceAgent
from clients.device import Limits as PlainLimits
from clients.helper.sums import Helper
from clients.store import DuelStore
from clients.vault import Vault, read_config
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.deployment.keys import load_helper_key
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.linalg.linear import make_form
from fldb_flower.privacy.discrete import discrete_gaussian
from fldb_flower.secure.protocol import (
    REPORT,
    SCALE,
    Header,
    Request,
    SumAnswer,
    SumRequest,
    integers_of,
    make_report,
)
from fldb_flower.secure.statistics import Shared, parts_of, size_of
from fldb_flower.settings import Settings, from_flat
from fldb_flower.wire import encode_broadcast
from simulations.benchmark import seconds
from simulations.local_federation import VAULT, Secure, create_vaults

SIZES = ((5, 100), (5, 1_000), (5, 10_000), (64, 1_000))
"""Number of features, and of devices."""


def secure(repetitions: int = 9) -> pd.DataFrame:
    """Return milliseconds and bytes of a device, and seconds of helper and server, by size.

    A device has a store and a vault on a disk, and each of its reports is of new answers. Helper
    and server have the reports of all devices. The plain upload is that of the same answers with
    ``secure=false``, also from a store.
    """
    rows = [_row(d, devices, repetitions) for d, devices in SIZES]
    return pd.DataFrame(rows)


def _row(dimension: int, devices: int, repetitions: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        case = _Case(Path(folder), dimension)
        plain, vault = case.device(repetitions)
        helper, server, size = case.sums(devices)
    return {
        "d": dimension,
        "N": devices,
        "values": case.header().numbers,
        "plain, ms": plain,
        "report, ms": vault,
        "plain up, bytes": case.plain_bytes,
        "up, bytes": case.report_bytes,
        "to the helper, bytes": size / devices,
        "helper, s": helper,
        "server, s": server,
    }


class _Case:
    """One device, one helper, and the server of a federation."""

    def __init__(self, folder: Path, dimension: int) -> None:
        self._folder, self._dimension = folder, dimension
        create_vaults(folder / "helper", [folder], Secure(dimension, 3.0))
        values = {
            "mode": "devices", "algorithm": "fldb_ons", "dimension": dimension,
            "privacy-epsilon": 3.0, "privacy-clip": 3.0, "devices-rounds": 16, "secure": True,
            "devices-helper": "http://127.0.0.1:1", "devices-helper-key": "/k",
            "devices-helper-token": "/t",
        }  # fmt: skip
        self._settings: Settings = from_flat(values, "a measurement")
        theta = np.zeros(dimension)
        estimate = Estimate(theta, np.eye(dimension))
        self._broadcast = Broadcast(PlayRequest(1, 1, estimate), theta, hessian=True)
        form = make_form(self._settings)
        units = dict.fromkeys(parts_of(self._broadcast), 100.0)
        self._content = Shared(self._broadcast, self._settings, 0, units).to_bytes()
        self.plain_bytes = 8 * self._broadcast.sizes(form)[0]
        self.report_bytes = 0
        self._helper = Helper(folder / "answers", load_helper_key(folder / "helper"))
        self._config = read_config(folder / VAULT)
        self._number = 0

    def header(self) -> Header:
        """Return the header of a new exchange."""
        self._number = max(self._number + 1, int(1000 * time.time()))
        return Header(
            task=self._config.task,
            number=self._number,
            numbers=size_of(self._broadcast, make_form(self._settings)),
            sigma=20 * SCALE,
            key=self._helper.keys().key,
            broadcast=hashlib.sha256(self._content).digest(),
        )

    def device(self, repetitions: int) -> tuple[float, float]:
        """Return milliseconds of a plain upload and of a report, medians."""
        draw = np.random.default_rng(0)
        plain, vault = [], []
        with (
            DuelStore(self._folder / "plain.db") as store,
            DuelStore(self._folder / "vault.db") as private,
        ):
            keeper = Vault(private, self._config)
            agent = DeviceAgent(store, self._settings, PlainLimits(min_duels=1))
            vector, counts = encode_broadcast(self._broadcast)
            own = {"header": list(counts), "counted": 0, "device": store.device_id, "upto": -1}
            time.sleep(0.002)  # exchanges are later than the ledger
            for _ in range(repetitions):
                for each in (store, private):
                    _answer(each, draw.normal(size=(20, self._dimension)))
                plain.append(seconds(lambda: agent.fit([vector], {**own, "duels": 0})))
                request = Request(REPORT, self.header(), self._helper.keys(), 0, self._content)
                vault.append(seconds(self._reply, keeper, request.to_bytes()))
        return 1000 * median(plain), 1000 * median(vault)

    def _reply(self, vault: Vault, content: bytes) -> None:
        self.report_bytes = len(vault.answer(content))

    def sums(self, devices: int) -> tuple[float, float, int]:
        """Return seconds of helper and server for one sum, and the bytes of the request."""
        header, key = self.header(), self._helper.keys()
        public = key.verified(self._config.helper, time.time())
        integers = integers_of(np.random.default_rng(0).normal(size=header.numbers))
        reports = [make_report(header, integers, public) for _ in range(devices)]
        request = SumRequest(header, "sum", (devices,), tuple(each.sealed for each in reports))
        content = request.to_bytes()
        answers: list[bytes] = []
        helper = seconds(lambda: answers.append(self._helper.answer(content)))

        def add() -> None:
            own = discrete_gaussian(np.full((1, header.numbers), float(header.sigma)))
            total = SumAnswer.from_bytes(answers[0], request).sums + own.astype(np.uint64)
            for report in reports:
                total[0] += report.masked

        server = seconds(add)
        self._helper.close()
        return helper, server, len(content)


def _answer(store: DuelStore, differences: Any) -> None:
    for difference in differences:
        proposal = store.propose(difference, np.nan, expire_after=1e9)
        store.record([(proposal.id, 1.0)])
