"""The file of ``--vault``: who a device is in secure sums, and what its owner requires.

A TOML file. Only the user of the service and root may be able to write it and the file of
``signer``. Relative paths begin at the folder of the file::

    name = "device1"         # in the roster
    key = "device1.key"      # private key, from `fldb keys roster device-key`
    signer = "signer.pub"    # public key that signs rosters
    roster = "roster.json"
    # The owner's limits. All are optional.
    min_duels = 20           # distinct new duels in a sum; default: 3 x dimension / min_devices
    min_devices = 10         # devices in a sum that do not cooperate with the server
    min_committee = 50       # default: half of the roster, or 256
    max_duels = 10000        # answers in a sum
    max_difference = 10.0    # largest bound of the length of differences; default: any
    # The owner's budget of differential privacy. Without it, any noise is accepted, and none.
    max_epsilon = 4.0        # of all contributions, for a person; needs max_delta
    max_delta = 1e-6
    privacy_days = 365       # the budget is for each period of so many days; default: for ever
    colluding = 0.5          # share of the devices in a sum whose noise the server may know
"""

from __future__ import annotations

import math
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fldb_flower.deployment.rosters import load_device_key, load_signer
from fldb_flower.secure.header import Limits

from clients.vault.budget import Budget
from fldb_flower.deployment.key_files import check_writers
from fldb_flower.errors import DataError, shown
from fldb_flower.secure.canonical import check_name

_FILES = ("key", "signer", "roster")
_LIMITS = ("min_duels", "min_devices", "min_committee", "max_duels")
_CAP = ("max_epsilon", "max_delta")
_BUDGET = {**{name: name for name in _CAP}, "privacy_days": "days", "colluding": "colluding"}
_OPTIONAL = (*_LIMITS, "max_difference", *_BUDGET)
_OTHERS = 0o077


@dataclass(frozen=True)
class VaultConfig:
    """Who a device is in secure sums, and what its owner requires.

    Attributes
    ----------
    name : str
        Identifier in the roster.
    private : X25519PrivateKey
        The private key.
    key : Path
        The file of the private key.
    signer : Ed25519PublicKey
        The pinned key that signs rosters.
    roster : Path
        File of a signed roster. Newer ones that the server sends are kept in the store.
    limits : Limits
        The owner's limits.
    max_difference : float
        The largest accepted bound of the length of differences.
    budget : Budget
        The owner's budget of privacy.
    sets_min_duels : bool
        Whether ``limits.min_duels`` is the owner's. Otherwise a sum covers at least 3 d duels.
    """

    name: str
    private: X25519PrivateKey = field(repr=False)
    key: Path
    signer: Ed25519PublicKey = field(repr=False)
    roster: Path
    limits: Limits
    max_difference: float = math.inf
    budget: Budget = field(default_factory=Budget)
    sets_min_duels: bool = True

    def least_duels(self, dimension: int, min_devices: int) -> int:
        """Return the smallest number of new duels in an exchange.

        Sums over up to d duels reveal them.

        Parameters
        ----------
        dimension : int
            d.
        min_devices : int
            That of the exchange.
        """
        if self.sets_min_duels:
            return self.limits.min_duels
        return -(-3 * dimension // min_devices)


def read_config(path: Path) -> VaultConfig:
    """Return the configuration in a file.

    Raises
    ------
    DataError
        The file or a key cannot be read, an entry is unknown, missing or invalid, or other users
        can read the private key, or write the file or the pinned key.
    """
    check_writers(path)
    try:
        with path.open("rb") as file:
            entries = tomllib.load(file)
    except OSError as reason:
        raise DataError(f"cannot read {path}: {reason.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
        raise DataError(f"{path} is not valid TOML: {reason}") from None
    try:
        return _config(path.parent, entries)
    except DataError as reason:
        raise DataError(f"{path}: {reason}") from None


def _config(folder: Path, entries: dict[str, Any]) -> VaultConfig:
    required = ("name", *_FILES)
    if unknown := sorted(set(entries) - {*required, *_OPTIONAL}):
        known = ", ".join((*required, *_OPTIONAL))
        raise DataError(f"{shown(unknown[0])} is unknown: must be one of {known}")
    if missing := [name for name in required if name not in entries]:
        raise DataError(f"{missing[0]} is missing")
    check_name("name", entries["name"])
    files = {name: folder / _path(name, entries[name]) for name in _FILES}
    check_writers(files["signer"])
    limits = {name: entries[name] for name in _LIMITS if name in entries}
    most = entries.get("max_difference", math.inf)
    try:
        longest = float(most) if type(most) in {int, float} else 0.0
    except OverflowError:
        longest = math.inf
    if not longest > 0.0:
        raise DataError(f"max_difference={shown(most)}: must be a positive number")
    return VaultConfig(
        name=entries["name"],
        private=_private_key(files["key"]),
        key=files["key"],
        signer=load_signer(files["signer"]),
        roster=files["roster"],
        limits=Limits(**{"min_duels": 1, **limits}),
        max_difference=longest,
        budget=_budget(entries),
        sets_min_duels="min_duels" in entries,
    )


def _budget(entries: dict[str, Any]) -> Budget:
    given = [name for name in _CAP if name in entries]
    if len(given) == 1:
        other = _CAP[1 - _CAP.index(given[0])]
        raise DataError(f"{given[0]} needs {other}: they are one limit")
    if entries.get("max_epsilon") == math.inf:
        raise DataError("max_epsilon=inf: must be a number, 0.001 to 1000; leave it out for none")
    if "privacy_days" in entries and not given:
        raise DataError("privacy_days needs max_epsilon and max_delta")
    return Budget(**{own: entries[name] for name, own in _BUDGET.items() if name in entries})


def _path(name: str, value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise DataError(f"{name}={shown(value)}: must be the name of a file")
    return value


def _private_key(path: Path) -> X25519PrivateKey:
    key = load_device_key(path)
    if stat.S_IMODE(path.stat().st_mode) & _OTHERS:
        raise DataError(f"other users can read the private key {path}: chmod 600 {path}")
    return key
