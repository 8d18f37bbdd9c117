"""Tests of the vaults and the helper of a federation on this machine."""

from __future__ import annotations

import tomllib

import pytest

from clients.vault import read_config
from fldb_flower.deployment.keys import load_helper_key
from fldb_flower.errors import FederationError
from simulations.local_federation import FEDERATION, LocalFederation, Secure, create_vaults
from simulations.local_process import LocalProcess

SECURE = Secure(dimension=3, epsilon=8.0, max_epsilon=90.0)


@pytest.fixture
def folders(tmp_path):
    folders = [tmp_path / "device1", tmp_path / "device2"]
    for folder in folders:
        folder.mkdir()
    return folders


def test_a_vault_pins_the_helper_and_has_the_limit(tmp_path, folders):
    create_vaults(tmp_path / "helper", folders, SECURE)
    public = tmp_path / "helper.pub"
    signer = load_helper_key(tmp_path / "helper").public_key().public_bytes_raw()
    for folder in folders:
        config = read_config(folder / "vault.toml")
        assert (config.federation, config.dimension) == (FEDERATION, 3)
        assert config.max_epsilon == 90.0
        assert config.helper.public_bytes_raw() == signer
        assert (folder / "helper.pub").read_bytes() == public.read_bytes()


def test_the_key_is_kept_and_the_vaults_are_written_again(tmp_path, folders):
    create_vaults(tmp_path / "helper", folders, SECURE)
    key = (tmp_path / "helper").read_bytes()
    create_vaults(tmp_path / "helper", folders, Secure(3, 8.0, 70.0))
    assert (tmp_path / "helper").read_bytes() == key
    assert read_config(folders[1] / "vault.toml").max_epsilon == 70.0


def test_the_supernode_of_a_vault_is_given_neither_store_nor_vault(tmp_path):
    federation = LocalFederation(tmp_path, 2, secure=SECURE)
    for device in federation.devices:
        (config,) = (word for word in device.command if "service-url" in word)
        assert set(tomllib.loads(config.replace(" ", "\n"))) == {"service-url", "node-token-file"}
        words = " ".join(device.command)
        assert not [name for name in ("duels.db", "vault.toml", "helper") if name in words]
        assert device.service.command[-4:] == [
            "--vault", str(tmp_path / device.key.name / "vault.toml"),
            "--node-token-file", str(tmp_path / device.key.name / "node.token"),
        ]  # fmt: skip


@pytest.mark.parametrize("secure", [None, SECURE])
def test_the_helper_is_checked_and_stopped(tmp_path, monkeypatch, secure):
    federation, stopped, running = LocalFederation(tmp_path, 1, secure=secure), [], set()
    monkeypatch.setattr(LocalProcess, "stop", lambda part: stopped.append(part.name))
    monkeypatch.setattr(LocalProcess, "is_running", property(lambda part: part.name in running))
    federation.stop()
    names = ["device1-supernode", "device1-service", "helper", "superlink"]  # this one last
    assert stopped == names
    running |= {*names}
    federation.check()
    running.discard("helper")
    if secure:
        with pytest.raises(FederationError, match="helper is needed and does not run"):
            federation.check()
    else:
        federation.check()
