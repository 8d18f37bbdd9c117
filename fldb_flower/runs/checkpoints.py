"""Checkpoints: what must outlive a process, in one file that is there whole or not at all.

Nothing is unpickled: a file is a magic word, a SHA-256 of the rest, and named arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fldb_flower.errors import CheckpointError, OutputError
from fldb_flower.linalg.named_arrays import pack_arrays, unpack_arrays
from fldb_flower.settings import current_identity
from fldb_flower.system.files import replace_file

_MAGIC = b"FLDBcp01"
_HASH_BYTES = 32
_META = "meta"


class Checkpoint(NamedTuple):
    """What a run knows after a round.

    Attributes
    ----------
    identity : str
        What the run is: settings that another run of the same kind would not share.
    numbers : dict
        Counts and texts, as JSON holds them.
    arrays : dict of ndarray
        By name.
    """

    identity: str
    numbers: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint durably, in place of the one before.

    Raises
    ------
    OutputError
        It cannot be written; the one before is as it was.
    """
    meta = json.dumps({"identity": checkpoint.identity, "numbers": checkpoint.numbers})
    text = np.frombuffer(meta.encode(), dtype=np.uint8)
    body = pack_arrays({_META: text, **checkpoint.arrays})
    try:
        replace_file(path, _MAGIC + hashlib.sha256(body).digest() + body)
    except OSError as error:
        raise OutputError(f"cannot write the checkpoint {path}: {error.strerror}") from None


def load_checkpoint(path: Path, identity: str) -> Checkpoint | None:
    """Read a checkpoint; None if there is none.

    Raises
    ------
    CheckpointError
        It is damaged, no checkpoint at all, or of another run. The file stays as it is.
    OutputError
        It cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"cannot read the checkpoint {path}: {error.strerror}") from None
    start = len(_MAGIC) + _HASH_BYTES
    if data[: len(_MAGIC)] != _MAGIC:
        raise CheckpointError(
            f"{path} is not a checkpoint of this version: move it away to begin anew"
        )
    body = data[start:]
    if hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        raise CheckpointError(
            f"{path} is damaged (its SHA-256 differs): restore a backup of it, or move it away to"
            " begin anew"
        )
    try:
        arrays = unpack_arrays(body)
        meta = json.loads(arrays.pop(_META).tobytes())
        theirs, numbers = current_identity(meta["identity"]), meta["numbers"]
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(
            f"{path} is not a checkpoint of this version: move it away to begin anew"
        ) from None
    if theirs != identity:
        raise CheckpointError(
            f"{path} is of another run ({_difference(theirs, identity)}): name another"
            " directory, or use the same settings"
        )
    return Checkpoint(identity, numbers, arrays)


def _difference(theirs: str, ours: str) -> str:
    """Name the first line in which two settings differ."""
    pairs = zip(theirs.splitlines(), ours.splitlines(), strict=False)
    return next((f"{a!r} there, {b!r} here" for a, b in pairs if a != b), "other settings")
