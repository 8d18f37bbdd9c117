"""The file of ``--vault``: the federation of a device, its helper, and the owner's limits.

A TOML file. Only the user of the service and root may be able to write it and the file of
``helper``. Relative paths begin at the folder of the file::

    federation = "tea"        # its name
    helper = "helper.pub"     # public key of the helper, from `fldb keys helper`
    dimension = 5             # number of features
    # All others are optional.
    max_epsilon = 3.0         # of all reports, for a person
    max_delta = 1e-6
    privacy_days = 365        # the limit is for each period of so many days; default: for ever
    ledger = "vault.ledger"   # what was spent; no backup may contain it. Default: that of this name
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fldb_flower.deployment.keys import check_writers, load_helper_public_key
from fldb_flower.errors import DataError, shown
from fldb_flower.privacy.accounting import largest_mu
from fldb_flower.secure.canonical import check_name
from fldb_flower.secure.report import task_of
from fldb_flower.settings import MAX_DIMENSION

_REQUIRED = ("federation", "helper", "dimension")
_RANGES = {"max_epsilon": (1e-3, 1e3), "max_delta": (1e-15, 0.1)}  # as of privacy.epsilon, .delta
_OPTIONAL = (*_RANGES, "privacy_days", "ledger")
_MOST_DAYS = 100_000


@dataclass(frozen=True)
class VaultConfig:
    """The federation of a device, its helper, and the owner's limits.

    Attributes
    ----------
    path : Path
        The file.
    federation : str
        Name of the federation.
    helper : Ed25519PublicKey
        The pinned public key of the helper.
    dimension : int
        d, pinned: requests with another number of features are refused.
    ledger : Path
        File with what was spent.
    max_epsilon, max_delta : float
        What all reports may cost.
    privacy_days : int or None
        Length of the period that the limit is for; None: for the ledger's life.
    """

    path: Path
    federation: str
    helper: Ed25519PublicKey = field(repr=False)
    dimension: int
    ledger: Path
    max_epsilon: float = 3.0
    max_delta: float = 1e-6
    privacy_days: int | None = None

    @property
    def task(self) -> bytes:
        """Hash of what the device pins."""
        return task_of(self.federation, self.helper.public_bytes_raw(), self.dimension)

    @property
    def most(self) -> float:
        """Largest sum of ``1 / z^2`` within the limit."""
        return largest_mu(self.max_epsilon, self.max_delta) ** 2


def read_config(path: Path) -> VaultConfig:
    """Return the configuration in a file.

    Raises
    ------
    DataError
        The file or the helper's key cannot be read, an entry is unknown, missing or invalid, or
        other users can write one of the files.
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
        return _config(path, entries)
    except DataError as reason:
        raise DataError(f"{path}: {reason}") from None


def _config(path: Path, entries: dict[str, Any]) -> VaultConfig:
    known = (*_REQUIRED, *_OPTIONAL)
    if unknown := sorted(set(entries) - set(known)):
        raise DataError(f"{shown(unknown[0])} is unknown: must be one of {', '.join(known)}")
    if missing := [name for name in _REQUIRED if name not in entries]:
        raise DataError(f"{missing[0]} is missing")
    check_name("federation", entries["federation"])
    _check_count("dimension", entries["dimension"], MAX_DIMENSION)
    if "privacy_days" in entries:
        _check_count("privacy_days", entries["privacy_days"], _MOST_DAYS)
    for name in _RANGES.keys() & entries.keys():
        value, (low, high) = entries[name], _RANGES[name]
        if type(value) not in {int, float} or not low <= value <= high:
            raise DataError(f"{name}={shown(value)}: must be a number, {low:g} to {high:g}")
    default = path.with_suffix(".ledger").name
    files = {"helper": entries["helper"], "ledger": entries.get("ledger", default)}
    for name, value in files.items():
        if not isinstance(value, str) or not value or "\0" in value:
            raise DataError(f"{name}={shown(value)}: must be the name of a file")
    helper = path.parent / files["helper"]
    check_writers(helper)
    paths = {"helper": load_helper_public_key(helper), "ledger": path.parent / files["ledger"]}
    return VaultConfig(path, **{**entries, **paths})


def _check_count(name: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise DataError(f"{name}={shown(value)}: must be a whole number, 1 to {most}")
