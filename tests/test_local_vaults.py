"""Tests of the keys, the roster and the vaults of a federation on this machine."""

from __future__ import annotations

import stat
import tomllib

import pytest
from fldb_flower.secure.header import Limits
from fldb_flower.secure.roster import read_signed

from clients.vault import read_config
from fldb_flower.deployment import rosters
from fldb_flower.errors import OutputError
from simulations.local_federation import LocalFederation
from simulations.local_vaults import create_vaults

LIMITS = Limits(min_duels=1, min_devices=3, min_committee=5)
NAMES = ["device1", "device2"]


@pytest.fixture
def folders(tmp_path):
    folders = {name: tmp_path / name for name in NAMES}
    for folder in folders.values():
        folder.mkdir()
    return folders


def test_a_vault_has_the_key_of_the_roster_and_the_limits(tmp_path, folders):
    roster = create_vaults(tmp_path / "signed", folders, LIMITS)
    for name, folder in folders.items():
        vault = tomllib.loads((folder / "vault.toml").read_text())
        assert (vault["min_duels"], vault["min_devices"], vault["min_committee"]) == (1, 3, 5)
        config = read_config(folder / "vault.toml")
        assert (config.name, config.limits) == (name, LIMITS)
        files = {key: folder / vault[key] for key in ("key", "signer", "roster")}
        assert files["roster"].read_bytes() == roster.read_bytes()
        signed = read_signed(files["roster"].read_bytes(), rosters.load_signer(files["signer"]))
        assert list(signed.keys) == NAMES
        public = rosters.load_device_key(files["key"]).public_key().public_bytes_raw()
        assert signed.keys[name] == public
        assert stat.S_IMODE(files["key"].stat().st_mode) == 0o600


def test_keys_are_kept_and_limits_are_changed(tmp_path, folders):
    create_vaults(tmp_path / "signed", folders, LIMITS)
    key = (folders["device1"] / "device.key").read_bytes()
    roster = (tmp_path / "signed" / "roster.json").read_bytes()
    create_vaults(tmp_path / "signed", folders, Limits(min_duels=7, min_devices=4))
    assert (folders["device1"] / "device.key").read_bytes() == key
    assert (tmp_path / "signed" / "roster.json").read_bytes() == roster
    limits = read_config(folders["device1"] / "vault.toml").limits
    assert limits == Limits(min_duels=7, min_devices=4)  # the committee is half of the roster


def test_a_vault_that_cannot_be_written_is_one_line(tmp_path, folders):
    (folders["device2"] / "vault.toml").mkdir()
    with pytest.raises(OutputError, match=r"cannot write .*device2/vault\.toml: Is a directory$"):
        create_vaults(tmp_path / "signed", folders, LIMITS)


def test_the_supernode_of_a_vault_is_given_neither_store_nor_key(tmp_path):
    federation = LocalFederation(tmp_path, 2, secure=LIMITS)
    for device in federation.devices:
        (config,) = (word for word in device.command if "service-url" in word)
        assert set(tomllib.loads(config.replace(" ", "\n"))) == {"service-url", "node-token-file"}
        words = " ".join(device.command)
        assert not [name for name in ("duels.db", "vault.toml", "device.key") if name in words]
        assert device.service.command[-4:] == [
            "--vault", str(tmp_path / device.key.name / "vault.toml"),
            "--node-token-file", str(tmp_path / device.key.name / "node.token"),
        ]  # fmt: skip
