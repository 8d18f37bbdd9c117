"""Flower's processes on this machine: their commands, their ports, how settings are spelled."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from fldb_flower.errors import FederationError

HOST = "127.0.0.1"
_PORTS = range(20_000, 32_000)


def tool(name: str) -> str:
    """Return the command of this Python's environment, activated or not.

    Raises
    ------
    FederationError
        It is not installed.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FederationError(f"{name} is not installed beside {sys.executable}")
    return found


def free_port() -> int:
    """Return a port of this machine that nobody listens on.

    It is below those that the system gives to connections: one of them could take it before we
    do, and who asks for a port in vain until somebody listens there could meet himself.

    Raises
    ------
    FederationError
        There is none.
    """
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as server, contextlib.suppress(OSError):
            server.bind((HOST, port))
            return port
    raise FederationError(f"no port of {_PORTS.start} to {_PORTS.stop} is free")


def is_open(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex((HOST, port)) == 0


def toml(values: Mapping[str, object]) -> str:
    """Spell settings as ``--run-config`` and ``--node-config`` take them."""
    return " ".join(f"{key}={_toml(value)}" for key, value in values.items())


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else json.dumps(str(value))
