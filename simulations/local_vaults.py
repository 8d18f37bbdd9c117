"""Vaults of a federation on this machine: devices' keys, their signed roster, owners' limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from fldb_flower.secure.header import Limits

from fldb_flower.deployment import rosters
from fldb_flower.deployment.processes import toml
from fldb_flower.errors import OutputError

SIGNING_KEY, SIGNER, ROSTER = "signer", "signer.pub", "roster.json"
VAULT, DEVICE_KEY, NODE_TOKEN = "vault.toml", "device.key", "node.token"


def create_vaults(folder: Path, devices: Mapping[str, Path], limits: Limits) -> Path:
    """Create the signing key, the devices' keys, the roster, and a vault for each device.

    Existing keys and an existing roster are kept. The vaults are written in any case, so that
    other limits take effect.

    Parameters
    ----------
    folder : Path
        Folder of the signing key and of the roster for the server.
    devices : mapping of str to Path
        Folder of each device, by its name in the roster. It gets the device's key, and copies of
        the roster and of the public key that signed it.
    limits : Limits
        The limits of all owners.

    Returns
    -------
    Path
        The roster for the server.

    Raises
    ------
    OutputError
        A file cannot be written.
    """
    roster = folder / ROSTER
    if not roster.exists():
        rosters.create_signing_key(folder / SIGNING_KEY)
        keys = [rosters.create_device_key(path / DEVICE_KEY)[1] for path in devices.values()]
        members = [f"{name}={key}" for name, key in zip(devices, keys, strict=True)]
        rosters.create_roster(roster, folder / SIGNING_KEY, members)
    try:
        for name, path in devices.items():
            for shared in (SIGNER, ROSTER):
                if not (path / shared).exists():
                    (path / shared).write_bytes((folder / shared).read_bytes())
                    (path / shared).chmod(0o644)
            (path / VAULT).write_text(_vault(name, limits), encoding="utf-8")
            (path / VAULT).chmod(0o600)
    except OSError as error:
        raise OutputError(f"cannot write {error.filename}: {error.strerror}") from None
    return roster


def _vault(name: str, limits: Limits) -> str:
    """Return the content of a vault file; its paths are relative to it."""
    files = {"key": DEVICE_KEY, "signer": SIGNER, "roster": ROSTER}
    values = {"name": name, **files, **asdict(limits)}
    lines = (toml({key: value}) for key, value in values.items() if value is not None)
    return "".join(f"{line}\n" for line in lines)
