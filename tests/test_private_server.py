"""The server of secure sums with noise, and of single uploads: planned sums, resumes, records."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats
from secure_grid import SecureFederation
from starlette.testclient import TestClient
from strategies.secure_noise import OPENINGS
from test_devices import BASE
from test_devices import Federation as DeviceFederation
from vaults import D

from clients.service.app import create_app
from clients.service.node import Node
from clients.store import DuelStore
from clients.uploads import UploadMaker
from clients.vault import read_config
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.errors import CheckpointError, SettingsError
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.privacy.accounting import epsilon_of
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.privacy.sensitivities import release_of
from fldb_flower.settings import from_flat
from fldb_flower.wire import secure_messages as messages

pytest.importorskip("dp_accounting", reason="needs the privacy extra")
pytest.importorskip("opendp", reason="needs the privacy extra")

PRIVATE = {"privacy-epsilon": 3.0, "devices-rounds": 2}
SPENT = "privacy.epsilon=3 is spent: the noise covers 2 sums (devices-rounds), and as many were"


def is_open(request):
    return isinstance(request, messages.Open)


def test_the_upload_states_the_noise_of_all_devices(tmp_path):
    """8 devices: T = 1, so 4 of the 5 in the smallest sum suffice; the sum has 8."""
    federation = SecureFederation(tmp_path, **PRIVATE)
    settings = from_flat(federation.config, "a test")
    with federation.serving() as server:
        federation.answer()
        assert server.try_round(), federation.lines
    _, upload = federation.uploads[0]
    multiplier = ReleasePlan(settings).multiplier
    unit = 8 * math.sqrt(1 / 8) / math.sqrt(2 / 3)  # one typical answer; no Hessian at 0
    assert upload.noise.gradient == pytest.approx(multiplier * unit * math.sqrt(2), rel=1e-4)
    assert upload.noise.num_duels == 0.0
    assert upload.num_duels == 16


def test_a_federation_ends_with_one_line_when_its_sums_are_made(tmp_path):
    federation = SecureFederation(tmp_path, **PRIVATE)
    with federation.serving() as server:
        for _ in range(2):
            federation.answer()
            assert server.try_round(), federation.lines
    with federation.serving() as server:
        federation.answer()
        asked = len(federation.grid.asked)
        server.serve(federation.grid)
        assert not any(
            isinstance(request, messages.Collect) for _, request in federation.grid.asked[asked:]
        )
    ends = [line for line in federation.lines if line.startswith("the run ends")]
    assert [line.partition(SPENT)[0] for line in ends] == ["the run ends after round 2: "]
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert summary["rounds"] == 2
    assert summary["privacy"]["openings"] == 2
    assert summary["privacy"]["spent"] == pytest.approx(3.0, rel=2e-3)
    assert summary["privacy"]["unit"] == "person"


def test_another_output_directory_is_another_period(tmp_path):
    """All answers are sent again, with new ones; the ledgers of the devices contain both periods.

    4 sums, each with the noise for 2, together cost 4.42 instead of 3 (docs/privacy.md).
    """
    federation = SecureFederation(tmp_path, **PRIVATE)
    for name in ("january", "february"):
        with federation.serving(name) as server:
            for _ in range(2):
                assert not server.try_round()  # no new answers
                federation.answer()
                assert server.try_round(), federation.lines
            assert server.devices.duels == sum(len(p.given) for p in federation.phones.values())
    assert [upload.num_duels for _, upload in federation.uploads] == [16, 16, 48, 16]
    for phone in federation.phones.values():
        assert phone.vault.spent().epsilon == pytest.approx(4.42, abs=0.01)


def test_sums_that_were_opened_for_nothing_count_also_after_a_kill(tmp_path):
    """Members are asked, and the server is killed; it gives the exchange up after three tries."""
    federation = SecureFederation(tmp_path, **PRIVATE)
    for _ in range(2):
        federation.answer()
        federation.grid.fault = lambda _name, request: (
            "request lost" if is_open(request) else "none"
        )
        with federation.serving() as server:  # killed after the members were asked
            assert not server.try_round()
        with federation.serving() as server:
            for _ in range(3):
                assert not server.try_round()
            assert "given up" in federation.lines[-1]
    federation.grid.fault = lambda _name, _request: "none"
    federation.answer()
    with federation.serving() as server:
        server.serve(federation.grid)
    assert any(line.startswith(f"the run ends after round 0: {SPENT}") for line in federation.lines)
    assert json.loads((tmp_path / "server" / OPENINGS).read_text())["openings"] == 2


def test_a_delta_of_one_person_is_reported(tmp_path):
    federation = SecureFederation(tmp_path, **PRIVATE, **{"privacy-delta": 0.1})
    with federation.serving():
        assert not [line for line in federation.lines if "privacy.delta" in line]  # 8 devices
    federation = SecureFederation(tmp_path / "more", 10, **PRIVATE, **{"privacy-delta": 0.1})
    with federation.serving():
        (line,) = [line for line in federation.lines if "privacy.delta" in line]
    assert line.startswith("privacy.delta=0.1 with 10 people")


@pytest.mark.parametrize(("epsilon", "rounds", "warns"), [(3.0, 64, 1), (3.0, 16, 1), (1e3, 16, 0)])
def test_too_much_noise_is_reported(tmp_path, epsilon, rounds, warns):
    """8 devices, each with enough noise for 4, are like 5 agents of a simulation."""
    changes = {"privacy-epsilon": epsilon, "devices-rounds": rounds}
    federation = SecureFederation(tmp_path, **changes)
    with federation.serving():
        lines = [line for line in federation.lines if "devices.min_devices=4" in line]
    assert len(lines) == warns
    assert all(("fewer devices.rounds" in line) == (rounds > 16) for line in lines)
    assert all(line.startswith("privacy.epsilon=3 with 8 devices") for line in lines)


def test_a_damaged_count_is_one_line(tmp_path):
    federation = SecureFederation(tmp_path, **PRIVATE)
    with federation.serving():
        pass
    bad = '{"openings": 1, "noise_multiplier": "x"}'
    for content in ("", "{}", '{"openings": -1}', "[]", bad):
        (tmp_path / "server" / OPENINGS).write_text(content)
        with pytest.raises(CheckpointError, match=r"openings\.json") as raised:
            federation.server()
        assert "\n" not in str(raised.value)


def test_another_number_of_rounds_is_another_federation(tmp_path):
    federation = SecureFederation(tmp_path, **PRIVATE)
    with federation.serving() as server:
        federation.answer()
        assert server.try_round()
    with pytest.raises(CheckpointError, match="devices-rounds"):
        federation.server(**{"devices-rounds": 9})


@pytest.mark.parametrize("changes", [{"privacy-epsilon": 1.0}, {"devices-rounds": 9}])
def test_sums_with_other_noise_are_not_counted_as_planned(tmp_path, changes):
    """A sum at epsilon 3 may be open before a checkpoint: epsilon 1 would then be exceeded."""
    federation = SecureFederation(tmp_path, **PRIVATE)
    federation.answer()
    federation.grid.fault = lambda _name, request: "request lost" if is_open(request) else "none"
    with federation.serving() as server:
        assert not server.try_round()
    path = tmp_path / "server" / OPENINGS
    stored = path.read_text()
    for content in ('{"openings": 1}', stored):  # an older version wrote the first
        path.write_text(content)
        with federation.serving() as server:
            assert server.strategy.history.openings == 1
    with pytest.raises(CheckpointError, match="opened with the noise multiplier") as raised:
        federation.server(**changes)
    assert "\n" not in str(raised.value)


def test_fldb_personal_learns_with_noise(tmp_path):
    changes = {"algorithm": "fldb_personal", "first-round": "minimise", **PRIVATE}
    federation = SecureFederation(tmp_path, **changes)
    with federation.serving() as server:
        for _ in range(2):
            federation.answer(count=3)
            assert server.try_round(), federation.lines
        offered = server.strategy.algorithm.arrays["offered"]
    assert offered.tolist() == [8 * 6 * 64.0, 8 * 6, 8]
    for _, upload in federation.uploads:
        assert min(upload.noise.precision, upload.noise.shift, upload.noise.losses) > 0.0


def test_the_noise_of_the_sums_of_a_federation_is_independent(tmp_path):
    """First sums of the same answers: their noise has the stated size (chi-squared)."""
    scaled = []
    for number in range(2):
        federation = SecureFederation(tmp_path / str(number), **PRIVATE)
        for phone in federation.phones.values():
            phone.answer(([0.0, 0.0], 1.0))  # equal arms: all numbers are 0
            phone.answer(([1e-9, 0.0], 1.0), ([0.0, 1e-9], 1.0))
        with federation.serving() as server:
            assert server.try_round(), federation.lines
        _, upload = federation.uploads[0]
        rows, columns = np.triu_indices(D)
        off = np.where(rows == columns, 1.0, math.sqrt(0.5))
        scaled += [upload.gradient / upload.noise.gradient]
        scaled += [upload.information[rows, columns] / (upload.noise.information * off)]
    values = np.concatenate(scaled)
    low, high = stats.chi2.ppf([1e-8, 1 - 1e-8], df=10)
    assert low < float((values**2).sum()) < high
    assert len(set(values.tolist())) == 10


# --- without secure sums: the server adds the noise ----------------------------------------------

PLAIN = {**PRIVATE, "first-round": "step", "max-difference": 8.0, "devices-first-duels": 1}


def test_without_secure_sums_the_server_adds_noise_from_no_seed(tmp_path):
    """The same answers and the same seed: other noise, and the planned rounds only."""
    estimates, answers = [], []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        # With less noise than answers, so that the estimate is not 0.
        federation = DeviceFederation(folder, **{**PLAIN, "privacy-epsilon": 1000.0})
        for device in range(3):
            federation.answer(device, 4)
        server = federation.serve(**{"devices-rounds": 1})
        estimates.append(server.strategy.algorithm.theta_sync)
        answers.append(sorted(map(tuple, np.concatenate([*federation.differences()]).tolist())))
    assert answers[0] == answers[1]
    assert np.abs(estimates[0] - estimates[1]).max() > 1e-9


def test_the_rounds_of_a_private_federation_are_those_of_all_its_runs(tmp_path):
    federation = DeviceFederation(tmp_path, **PLAIN)
    for device in range(3):
        federation.answer(device, 4)
    server = federation.server()
    server.strategy.connect(federation.grid)
    assert server.try_round(), federation.lines
    server.directory.close()
    for device in range(3):
        federation.answer(device, 4)
    federation.serve()
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert (summary["rounds"], summary["privacy"]["openings"]) == (2, 2)
    assert summary["privacy"]["spent"] == pytest.approx(3.0, rel=2e-3)
    federation.answer(0, 4)
    sent = federation.grid.sent
    federation.serve()
    assert federation.grid.sent == sent + 3  # only the last estimate
    assert json.loads((tmp_path / "server" / "summary.json").read_text())["rounds"] == 2


def test_a_device_limits_its_upload(tmp_path):
    """The scaled length of (g, W, H) is at most 1, whatever the answers."""
    settings = from_flat({**from_devices(PLAIN)}, "a test")
    with DuelStore(tmp_path / "duels.db") as store:
        for difference in np.random.default_rng(3).uniform(-9.0, 9.0, (20, 3)):
            proposal = store.propose(difference, np.nan, expire_after=60.0)
            store.record([(proposal.id, 1.0)])
        end = store.cut(0, 1)
        estimate = Estimate(np.zeros(3), np.eye(3))
        request = Broadcast(PlayRequest(2, 2, estimate), np.array([1.0, 0.0, -1.0]), hessian=True)
        upload, _ = UploadMaker(store, settings).upload(request, 0, end)
    unit = release_of(request, settings).noise()
    parts = {name: getattr(upload, name) for name in ("gradient", "information", "hessian")}
    square = sum(float((part**2).sum()) / getattr(unit, name) ** 2 for name, part in parts.items())
    assert square == pytest.approx(1.0, rel=1e-6)
    assert upload.num_duels == 20


def from_devices(changes):
    return {**BASE, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices-rounds": 0}, r"devices\.rounds=0"),
        ({"max-difference": "auto"}, "privacy.clip"),
        ({"privacy-unit": "answer"}, "privacy.unit"),
    ],
)
def test_what_devices_need_is_one_line(changes, words):
    with pytest.raises(SettingsError, match=words) as raised:
        from_flat(from_devices({**PLAIN, **changes}), "a test")
    assert "\n" not in str(raised.value)


# --- the service of a device ----------------------------------------------------------------------


def test_the_status_shows_what_was_spent_and_the_limit(tmp_path):
    budget = {"max_epsilon": 4.0, "max_delta": 1e-6, "privacy_days": 30}
    federation = SecureFederation(tmp_path, budget=budget, **PRIVATE)
    with federation.serving() as server:
        federation.answer()
        assert server.try_round(), federation.lines
    node = Node(read_config(tmp_path / "d00" / "vault.toml"), "token-of-the-node")
    app = create_app(federation.phones["d00"].path, "token-of-the-page", node=node)
    with TestClient(app, base_url="http://127.0.0.1:8377") as client:
        reply = client.get("/status", headers={"Authorization": "Bearer token-of-the-page"})
    privacy = reply.json()["privacy"]
    spent = privacy.pop("epsilon")
    assert privacy == {
        "delta": 1e-6, "noise": True, "exact": False, "max_epsilon": 4.0, "days": 30,
        "refused": False,
    }  # fmt: skip
    multiplier = ReleasePlan(from_flat(federation.config, "a test")).multiplier
    assert spent == pytest.approx(epsilon_of(multiplier, 1e-6, 1), rel=1e-6)
    assert 1.5 < spent < 2.5  # one of two sums that cost 3 together
