"""Flower's processes on this machine: commands, environment, ports, settings and output."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import re
import shutil
import socket
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from fldb_flower.errors import FederationError

HOST = "127.0.0.1"
_PORTS = range(20_000, 32_000)
_BLOCK = 100  # ports of a process
_BORDER = re.compile(r"[\u2500-\u259f]+")  # box-drawing and block characters
_BOX = re.compile(r"^\s*[╭┌┏╔][^\n]*\n(.*?)^\s*[╰└┗╚]", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"\w")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_OURS = re.compile(r"the run failed: (.*)")
_FIRST_ERROR = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception): .+)$", re.MULTILINE)


def tool(name: str) -> str:
    """Return the path of a command in the environment of this Python, activated or not."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FederationError(f"{name} is not installed beside {sys.executable}")
    return found


def project_folder(what: str) -> Path:
    """Return the checkout of this project, which ``flwr run`` takes and a feature needs."""
    folder = Path(__file__).parents[2]
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        project = {}
    if project.get("project", {}).get("name") != "fldb-flower":
        raise FederationError(
            f"{what} needs a checkout of fldb-flower, but {folder} is not one: clone the repository"
            " and install it with pip install -e DIRECTORY"
        )
    return folder


def reason_in(output: str) -> str:
    """Return the line of a program's output that explains its failure."""
    output = _STYLE.sub("", output)
    found = _OURS.findall(output) or _FIRST_ERROR.findall(output)
    if found:
        return str(found[0]).strip()
    boxes = _BOX.findall(output)
    boxed = " ".join(_BORDER.sub(" ", boxes[-1]).split()) if boxes else ""
    lines = (_BORDER.sub(" ", line).strip() for line in reversed(output.splitlines()))
    return boxed or next((line for line in lines if _WORD.search(line)), "it printed nothing")


def free_port() -> int:
    """Return a free port of this machine, below the range of ephemeral ports.

    An outgoing connection may take an ephemeral port before it is used, and a client that retries
    an ephemeral port can even connect to itself. Other calls, in this process and in others, return
    other ports, so a port need not be used at once.
    """
    _, ports = _block(os.getpid())
    for port in itertools.islice(ports, _BLOCK - 1):
        with socket.socket() as server, contextlib.suppress(OSError):
            server.bind((HOST, port))
            return port
    raise FederationError(f"no port of a block of {_BLOCK} is free")


@functools.cache
def _block(_process: int) -> tuple[socket.socket, Iterator[int]]:
    """Return ports for one process: the process holds the first port of their block."""
    starts = range(_PORTS.start, _PORTS.stop, _BLOCK)
    for start in random.SystemRandom().sample(starts, len(starts)):
        claim = socket.socket()
        with contextlib.suppress(OSError):
            claim.bind((HOST, start))
            return claim, itertools.cycle(range(start + 1, start + _BLOCK))
        claim.close()
    raise FederationError(f"no port of {_PORTS.start} to {_PORTS.stop} is free")


def is_open(port: int) -> bool:
    """Whether a process listens on a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex((HOST, port)) == 0


def toml(values: Mapping[str, object]) -> str:
    """Return settings in the format of ``--run-config`` and ``--node-config``."""
    return " ".join(f"{key}={_toml(value)}" for key, value in values.items())


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else json.dumps(str(value))
