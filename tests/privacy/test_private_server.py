"""A server that is trusted with single uploads, and adds noise to their sums."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_devices import BASE
from test_devices import Federation as DeviceFederation

from clients.store import DuelStore
from clients.uploads import UploadMaker
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.errors import SettingsError
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.privacy.mechanism import noise_per_unit
from fldb_flower.settings import from_flat

pytest.importorskip("opendp", reason="needs the privacy extra")

PLAIN = {
    "privacy-epsilon": 3.0, "devices-rounds": 2, "max-difference": 8.0, "devices-first-duels": 1,
}  # fmt: skip


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
        answers.append(sorted(np.concatenate([*federation.answers().values()]).tolist()))
    assert answers[0] == answers[1]
    assert np.abs(estimates[0] - estimates[1]).max() > 1e-9


def test_the_rounds_of_a_private_federation_are_those_of_all_its_runs(tmp_path):
    federation = DeviceFederation(tmp_path, **PLAIN)
    for device in range(3):
        federation.answer(device, 4)
    server = federation.server()
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
    settings = from_flat({**BASE, **PLAIN}, "a test")
    with DuelStore(tmp_path / "duels.db") as store:
        for difference in np.random.default_rng(3).uniform(-9.0, 9.0, (20, 3)):
            proposal = store.propose(difference, np.nan, expire_after=60.0)
            store.record([(proposal.id, 1.0)])
        end = store.cut(0, 1)
        estimate = Estimate(np.zeros(3), np.eye(3))
        request = Broadcast(PlayRequest(2, 2, estimate), np.array([1.0, 0.0, -1.0]), hessian=True)
        upload, _ = UploadMaker(store, settings).upload(request, 0, end)
    unit = noise_per_unit(request, settings)
    parts = {name: getattr(upload, name) for name in ("gradient", "information", "hessian")}
    square = sum(float((part**2).sum()) / getattr(unit, name) ** 2 for name, part in parts.items())
    assert square == pytest.approx(1.0, rel=1e-6)
    assert upload.num_duels == 20


def test_what_devices_need_is_one_line():
    for changes, words in (
        ({"devices-rounds": 0}, r"devices\.rounds=0"),
        ({"max-difference": "auto"}, "privacy.clip"),
        ({"privacy-unit": "answer"}, "privacy.unit"),
    ):
        with pytest.raises(SettingsError, match=words) as raised:
            from_flat({**BASE, **PLAIN, **changes}, "a test")
        assert "\n" not in str(raised.value)
