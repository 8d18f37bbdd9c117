"""Secure and private sums of a deployed federation: noise, ledgers, a spent budget, and files."""

from __future__ import annotations

import json
import math
import random
import time
from contextlib import closing

import numpy as np
import pytest
from fldb_flower.wire.secure_upload import upload_of
from fldb_flower.wire.shared_broadcast import SharedBroadcast, SharedNoise
from local_processes import logs_on_failure, processes_of, wait_until
from scipy import stats
from test_deployment import derivatives, stored
from test_secure_deployment import (
    DEVICES,
    LIMITS,
    LONGEST,
    D,
    Watcher,
    answer,
    check_relays,
    check_server,
    check_tokens,
)

from clients.store import DuelStore
from clients.vault.ledger import Ledger
from fldb_flower.algorithms import make_algorithm
from fldb_flower.federation.exchange import Broadcast, Federation, Upload
from fldb_flower.federation.history import Counts
from fldb_flower.linalg.forms import make_form
from fldb_flower.privacy.accounting import epsilon_of, noise_multiplier
from fldb_flower.privacy.discrete import noise_of_sum
from fldb_flower.secure import field
from fldb_flower.settings import Settings, from_flat
from simulations.local_federation import Device, LocalFederation
from strategies.device_rounds import device_round

pytest.importorskip("dp_accounting", reason="needs the privacy extra")
pytest.importorskip("opendp", reason="needs the privacy extra")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]
ROUNDS, EPSILON, DELTA = 2, 3.0, 1e-6
MULTIPLIER = noise_multiplier(EPSILON, DELTA, ROUNDS)
MAX_DUELS = 1000
CAP = 2.5  # one contribution costs about 2.0, and two cost 3
TYPICAL = -(-3 * D // LIMITS.min_devices)  # answers of a device in a round, by default


def test_private_sums_of_real_devices(tmp_path):
    """Each device adds its noise, and is charged once; one owner's cap is spent after a round."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed of the time of the kill: {seed}")
    wild, rng = random.Random(seed), np.random.default_rng(0)
    federation = LocalFederation(tmp_path, DEVICES, secure=LIMITS)
    devices, careful = federation.devices, federation.devices[-1]
    with careful.store.with_name("vault.toml").open("a") as file:
        file.write(f"max_epsilon = {CAP}\nmax_delta = {DELTA}\n")
    with federation, logs_on_failure(tmp_path):
        federation.start()
        with Watcher(federation) as watcher:
            for number, device in enumerate(devices):
                answer(device, 6 + number, rng)
            run = federation.run(
                algorithm="fldb-ons", first_round="step", dimension=D, max_difference=LONGEST,
                privacy_epsilon=EPSILON, devices_rounds=ROUNDS, devices_round_seconds=1000.0,
                devices_at_least=DEVICES, devices_max_duels=MAX_DUELS,
            )  # fmt: skip
            wait_until(lambda: (federation.model() or {"round": 0})["round"] == 1, 300, "round 1")
            first = federation.model()["theta_sync"], sent_numbers(devices)
            for number, device in enumerate(devices):
                answer(device, 9 - number, rng)
            (federation.results / "round-now").touch()
            wait_until(lambda: "round 2, contributions" in run.output(), 200, "round 2 begins")
            check_tokens(devices[0])
            time.sleep(wild.uniform(0.0, 3.0))
            devices[0].service.kill()
            devices[0].service.start()
            wait_until(lambda: not run.is_running, 300, "the run ends")
        second = federation.model()["theta_sync"], sent_numbers(devices[:-1])
        check_sums(federation, first, second)
        check_ledgers(devices)
        check_refusal(careful, run.output())
        check_server(federation, b"".join(watcher.stored), np.array(first[0]))
        check_relays(federation, watcher.words)
    assert not processes_of(tmp_path)


def sent_numbers(devices: list[Device]) -> list[field.Elements]:
    """Return the numbers of the last contribution of each device, as its vault stores them."""
    return [field.from_bytes(secure_part(device, "numbers")) for device in devices]


def secure_part(device: Device, part: str) -> bytes:
    with closing(DuelStore(device.store)) as store:
        content = store.secure_part(part)
    assert content is not None
    return content


class Replayed(Federation):
    """The opened sum of numbers that vaults have stored, for the algorithm of the server."""

    def __init__(self, settings: Settings, sent: list[field.Elements]) -> None:
        super().__init__(Counts())
        self.settings, self.sent = settings, sent
        self.shared: SharedBroadcast | None = None

    def collect(self, broadcast: Broadcast) -> Upload:
        needed = noise_of_sum(broadcast, self.settings, MULTIPLIER)
        self.shared = SharedBroadcast(broadcast, self.settings, 0, SharedNoise(MULTIPLIER, needed))
        total = field.total(np.array(self.sent))
        factor = math.sqrt(len(self.sent) / LIMITS.min_devices)
        return self.upload(total, len(self.sent))._replace(noise=needed.scaled(factor))

    def upload(self, elements: field.Elements, devices: int) -> Upload:
        assert self.shared is not None
        numbers = self.shared.encoding(DEVICES, MAX_DUELS).decode(elements, devices)
        return upload_of(numbers, self.shared.broadcast, make_form(self.settings))

    def mark_counted(self) -> None:
        pass


def check_sums(federation: LocalFederation, *rounds: tuple[list[float], list]) -> None:
    """Check that the models follow from what the services sent, and that each added its noise."""
    summary = json.loads((federation.results / "summary.json").read_text())
    assert (summary["rounds"], summary["complete"]) == (ROUNDS, True)
    assert summary["duels"] == sum(range(6, 11)) + sum(range(6, 10))
    assert summary["privacy"].pop("spent") == pytest.approx(EPSILON, rel=2e-3)
    assert summary["privacy"] == {
        "epsilon": EPSILON, "delta": DELTA, "unit": "person", "clip": LONGEST, "openings": ROUNDS,
        "noise_multiplier": MULTIPLIER,
    }  # fmt: skip
    settings = from_flat(json.loads((federation.results / "config.json").read_text()), "config")
    algorithm, theta, errors = make_algorithm(settings), np.zeros(D), []
    tables = [stored(device)[2] for device in federation.devices]
    for number, (model, sent) in enumerate(rounds, start=1):
        replayed = Replayed(settings, sent)
        algorithm.round(replayed, device_round(number))
        np.testing.assert_allclose(algorithm.theta_sync, model, rtol=1e-9, atol=1e-12)
        for index, (table, numbers) in enumerate(zip(tables, sent, strict=False)):
            new = table[: 6 + index] if number == 1 else table[6 + index :]
            found = replayed.upload(numbers, 1)
            assert found.num_duels == len(new) == (6 + index if number == 1 else 9 - index)
            errors.append(noise_of(found, theta, new))
        theta = np.array(model)
    # The noise of each device, in its standard deviations: three devices have that of a sum.
    errors = np.concatenate(errors) / (MULTIPLIER * math.sqrt(1 / LIMITS.min_devices))
    assert len(errors) == 5 * (3 + 6) + 4 * (3 + 6 + 6)
    low, high = stats.chi2.ppf([1e-9, 1 - 1e-9], df=len(errors))
    assert low < float((errors**2).sum()) < high
    assert len(set(errors)) == len(errors)


def noise_of(found: Upload, theta: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return what was added to the contribution of a person, by hand, in units of its size."""
    gradient, hessian = derivatives(theta, table)
    exact = {"gradient": gradient, "information": table[:, :D].T @ table[:, :D]}
    matrix = LONGEST**2 * math.sqrt(TYPICAL + TYPICAL * (TYPICAL - 1) / D)
    sizes = {"gradient": LONGEST * math.sqrt(TYPICAL / 8), "information": matrix}
    weights = {"gradient": 2 / 3, "information": 1 / 3}
    if found.hessian is not None:
        exact["hessian"], sizes["hessian"] = hessian, matrix / 8
        weights = {"gradient": 0.99 * 2 / 3, "information": 0.01, "hessian": 0.99 / 3}
    units = {name: sizes[name] / math.sqrt(weights[name]) for name in exact}
    length = math.sqrt(sum((exact[name] ** 2).sum() / units[name] ** 2 for name in exact))
    rows, columns = np.triu_indices(D)
    off = np.where(rows == columns, 1.0, math.sqrt(0.5))
    added = []
    for name, part in exact.items():
        error = (getattr(found, name) - part / max(1.0, length)) / units[name]
        added.append(error if error.ndim == 1 else error[rows, columns] / off)
    return np.concatenate(added)


def check_ledgers(devices: list[Device]) -> None:
    """Check that each vault was charged once for each sum with its numbers, and shows the cost."""
    for device in devices:
        count = 1 if device is devices[-1] else ROUNDS
        ledger = Ledger.from_bytes(secure_part(device, "ledger"))
        assert ledger.spent() == pytest.approx(count / MULTIPLIER**2, rel=1e-12)
        assert not ledger.exact
        shown = device.ask("/status")["privacy"]
        cost = epsilon_of(MULTIPLIER, DELTA, count)
        assert shown["epsilon"] == pytest.approx(cost, rel=1e-4)


def check_refusal(careful: Device, log: str) -> None:
    """Check that the device whose budget is spent names it, keeps its answers, and learns."""
    assert log.count("not counted: device5: its privacy budget is spent") == 1
    (line,) = [each for each in careful.service.output().splitlines() if "budget is spent" in each]
    assert f"(max_epsilon={CAP} of the vault's file)" in line
    status, model = careful.ask("/status"), stored(careful)[2]
    assert (status["answered"], status["counted"], len(model)) == (15, 10, 15)
    assert (status["privacy"]["max_epsilon"], status["privacy"]["refused"]) == (CAP, True)
    assert status["round"] == ROUNDS  # of the last estimate
    (end,) = [each for each in log.splitlines() if "the run ends after round" in each]
    assert f"the run ends after round {ROUNDS}: privacy.epsilon={EPSILON:g} is spent" in end
