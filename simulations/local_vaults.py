"""Vaults of a federation on this machine, and the helper's key that they pin."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fldb_flower.deployment.keys import create_helper_key
from fldb_flower.deployment.processes import toml
from fldb_flower.errors import OutputError

FEDERATION, PUBLIC, VAULT, NODE_TOKEN = "local", "helper.pub", "vault.toml", "node.token"


class Secure(NamedTuple):
    """Secure sums of a federation on this machine.

    Attributes
    ----------
    dimension : int
        d, which the devices pin.
    epsilon : float
        That of the run.
    max_epsilon : float
        The limit of each owner.
    """

    dimension: int
    epsilon: float
    max_epsilon: float = 1000.0


def create_vaults(key: Path, folders: Iterable[Path], secure: Secure) -> Path:
    """Create the helper's signing key and a vault in the folder of each device.

    An existing key is kept. The vaults are written in any case, so that another limit takes effect.

    Returns
    -------
    Path
        The helper's public key.

    Raises
    ------
    OutputError
        A file cannot be written.
    """
    public = key.with_name(f"{key.name}.pub")
    if not key.exists():
        create_helper_key(key)
    values = {
        "federation": FEDERATION,
        "helper": PUBLIC,
        "dimension": secure.dimension,
        "max_epsilon": secure.max_epsilon,
    }
    content = "".join(f"{toml({name: value})}\n" for name, value in values.items())
    try:
        for folder in folders:
            for name, text in ((PUBLIC, public.read_text("ascii")), (VAULT, content)):
                (folder / name).write_text(text, encoding="ascii")
                (folder / name).chmod(0o600)
    except OSError as error:
        raise OutputError(f"cannot write {error.filename}: {error.strerror}") from None
    return public
