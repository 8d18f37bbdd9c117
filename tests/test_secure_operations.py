"""What docs/deployment.md states about operations: too few devices, and lost keys."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import numpy as np
import pytest
from secure_grid import SecureFederation

from fldb_flower.deployment import rosters
from fldb_flower.errors import SecureError
from fldb_flower.wire.secure_messages import Open

DOC = (Path(__file__).parent.parent / "docs" / "deployment.md").read_text()
LOST = "d01"


def test_the_documented_lines_are_printed(tmp_path):
    federation = SecureFederation(tmp_path, devices=14, **{"devices-min-devices": 10})
    names = list(federation.phones)
    with federation.serving() as server:
        assert f"round 1: 9 of {server.strategy.least_nodes} devices are connected, waiting" in DOC
        federation.answer(*names[:9])
        assert not server.try_round()
        assert f"\n{federation.lines[-1]}\n" in DOC
        federation.answer()
        federation.grid.fault = lambda name, request: (
            "request lost" if isinstance(request, Open) and name in names[:3] else "none"
        )
        assert not server.try_round()
        assert f"\n{federation.lines[-1]}\n" in DOC


def test_after_the_roster_has_expired_a_renewed_one_reaches_the_devices(tmp_path):
    """The server does not know the devices yet; their own copies of the roster stay expired."""
    federation = SecureFederation(tmp_path)
    file, signer = federation.fleet.roster_file, tmp_path / "signer"
    yesterday = datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=1)
    rosters.renew_roster(file, signer, dates={"not_after": yesterday})
    for name, phone in federation.phones.items():
        shutil.copy(file, phone.folder / "roster.json")
        federation.fleet.configure(name, roster='"roster.json"')
        phone.restart()
    federation.answer()
    with federation.serving() as server:
        assert not server.try_round()
        assert f"is valid from any day to {yesterday}" in federation.lines[-1]
        rosters.renew_roster(file, signer, dates={"not_after": None})
        assert server.try_round(), federation.lines
        assert federation.check_counted(server) == 16


def restart(federation: SecureFederation) -> None:
    for phone in federation.phones.values():
        phone.restart()


@pytest.mark.parametrize("algorithm", ["fldb_ons", "fldb_personal"])
def test_with_a_new_signing_key_a_new_server_receives_all_answers_again(tmp_path, algorithm):
    first_round = "step" if algorithm == "fldb_ons" else "minimise"
    changes = {"algorithm": algorithm, "first-round": first_round}
    federation = SecureFederation(tmp_path, **changes)
    for _ in range(2):
        federation.answer()
        with federation.serving() as server:
            assert server.try_round()
    assert server.devices.duels == 32
    names, folder = federation.fleet.names, tmp_path
    for name in ("signer", "signer.pub", "roster.json"):
        (folder / name).unlink()
    rosters.create_signing_key(folder / "signer")
    certified = [f"{name}={folder / name / 'device.key.pub'}" for name in names]
    rosters.create_roster(folder / "roster.json", folder / "signer", certified)
    restart(federation)
    shutil.rmtree(folder / "server")
    federation.answer(count=1)
    with federation.serving() as server:
        assert server.try_round(), federation.lines
        assert server.devices.duels == 32 + 8
        if algorithm == "fldb_ons":
            federation.check_counted(server)


def certify(federation: SecureFederation) -> None:
    """Create and certify another key of a device, which has lost its own."""
    folder = federation.folder
    rosters.create_device_key(folder / LOST / "device.key")
    with pytest.raises(SecureError, match=f"the key of {LOST} is not certified"):
        federation.phones[LOST].restart()
    key = f"{LOST}={folder / LOST / 'device.key.pub'}"
    rosters.renew_roster(folder / "roster.json", folder / "signer", [key], [LOST])
    restart(federation)


def test_after_a_new_key_of_a_device_every_answer_counts_once(tmp_path):
    federation = SecureFederation(tmp_path)
    federation.answer()
    with federation.serving() as server:
        assert server.try_round()
        federation.answer()
        for name in ("device.key", "device.key.pub"):
            (tmp_path / LOST / name).unlink()
        certify(federation)
        assert server.try_round(), federation.lines
        assert len(server.devices.tally().uploads) == 8
        assert federation.check_counted(server) == 32


def test_a_device_that_lost_its_folder_of_keys_sends_its_later_answers(tmp_path):
    federation = SecureFederation(tmp_path)
    phone = federation.phones[LOST]
    federation.answer()
    with federation.serving() as server:
        assert server.try_round()
        information = server.strategy.algorithm.information
        federation.answer()
        for name in ("device.key", "device.key.pub", "device.key.epoch"):
            (tmp_path / LOST / name).unlink()
        certify(federation)
        federation.answer(count=1)
        assert server.try_round(), federation.lines
        assert len(server.devices.tally().uploads) == 8
        assert server.devices.duels == 8 * 5 - 2
        rows = {name: each.given[2:] for name, each in federation.phones.items()}
        rows[LOST] = phone.given[4:]  # without the two answers before the loss
        x = np.array([difference for each in rows.values() for difference, _ in each])
        got = server.strategy.algorithm.information - information
        np.testing.assert_allclose(got, x.T @ x, rtol=1e-9)
