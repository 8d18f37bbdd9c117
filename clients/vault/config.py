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

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fldb_flower.deployment.keys import check_writers, load_helper_public_key
from fldb_flower.errors import DataError, shown
from fldb_flower.privacy.accounting import largest_mu
from fldb_flower.secure.report import task_of
from fldb_flower.settings import MAX_DIMENSION


@dataclass(frozen=True)
class VaultConfig:
    """The federation of a device, its helper, and the owner's limits."""

    path: Path
    federation: str
    helper: Ed25519PublicKey
    dimension: int
    ledger: Path
    max_epsilon: float = 3.0
    max_delta: float = 1e-6
    privacy_days: int | None = None  # None: the limit is for the ledger's life

    @property
    def task(self) -> bytes:
        """Hash of what the device pins."""
        return task_of(self.federation, self.helper.public_bytes_raw(), self.dimension)

    @property
    def most(self) -> float:
        """Largest sum of ``1 / z^2`` within the limit."""
        return largest_mu(self.max_epsilon, self.max_delta) ** 2


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value))


def _whole(most: int) -> tuple[str, Callable[[Any], bool]]:
    valid = range(1, most + 1)
    return f"a whole number, 1 to {most}", lambda value: type(value) is int and value in valid


def _number(low: float, high: float) -> tuple[str, Callable[[Any], bool]]:
    text = f"a number, {low:g} to {high:g}"
    return text, lambda value: type(value) in {int, float} and low <= value <= high


_VALID = {
    "federation": ("1 to 64 letters, digits, '.', '_' or '-'", _is_name),
    "helper": ("the name of a file", _is_text),
    "dimension": _whole(MAX_DIMENSION),
    "max_epsilon": _number(1e-3, 1e3),  # as privacy.epsilon
    "max_delta": _number(1e-15, 0.1),
    "privacy_days": _whole(100_000),
    "ledger": ("the name of a file", _is_text),
}


def read_config(path: Path) -> VaultConfig:
    """Return the configuration in a file; raise DataError if others can write it or the key."""
    check_writers(path)
    try:
        entries = tomllib.loads(path.read_text("utf-8"))
    except OSError as reason:
        raise DataError(f"cannot read {path}: {reason.strerror}") from None
    except ValueError as reason:
        raise DataError(f"{path} is not valid TOML: {reason}") from None
    if unknown := sorted(set(entries) - set(_VALID)):
        known = ", ".join(_VALID)
        raise DataError(f"{path}: {shown(unknown[0])} is unknown: must be one of {known}")
    if missing := [name for name in ("federation", "helper", "dimension") if name not in entries]:
        raise DataError(f"{path}: {missing[0]} is missing")
    for name, (text, is_valid) in _VALID.items():
        if name in entries and not is_valid(entries[name]):
            raise DataError(f"{path}: {name}={shown(entries[name])}: must be {text}")
    helper = path.parent / entries["helper"]
    ledger = path.parent / entries.get("ledger", path.with_suffix(".ledger").name)
    try:
        check_writers(helper)
        key = load_helper_public_key(helper)
    except DataError as reason:
        raise DataError(f"{path}: {reason}") from None
    return VaultConfig(path, **{**entries, "helper": key, "ledger": ledger})
