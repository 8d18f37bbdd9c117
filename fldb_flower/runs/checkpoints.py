"""Checkpoints: named arrays and JSON values in one file that is replaced atomically.

A file consists of a magic word, the SHA-256 of the rest, and the packed arrays. Nothing is
unpickled.
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
from fldb_flower.system.files import replace_file

_MAGIC = b"FLDBcp01"
_HASH_BYTES = 32
_META = "meta"
_UNKNOWN = "not a checkpoint of this version; move the file away to start again"


class Checkpoint(NamedTuple):
    """The state of a run after a round: JSON values in ``numbers``, and arrays by name.

    ``identity`` has the settings that determine the results, one line each.
    """

    identity: str
    numbers: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace a checkpoint atomically and durably.

    Raises
    ------
    OutputError
        It cannot be written; the previous checkpoint is unchanged.
    """
    meta = json.dumps({"identity": checkpoint.identity, "numbers": checkpoint.numbers})
    text = np.frombuffer(meta.encode(), dtype=np.uint8)
    body = pack_arrays({_META: text, **checkpoint.arrays})
    try:
        replace_file(path, _MAGIC + hashlib.sha256(body).digest() + body)
    except OSError as error:
        raise OutputError(f"cannot write the checkpoint {path}: {error.strerror}") from None


def load_checkpoint(path: Path, identity: str) -> Checkpoint | None:
    """Read a checkpoint; return None if the file does not exist.

    Raises
    ------
    CheckpointError
        The file is damaged, is not a checkpoint, or belongs to another run. It is not changed.
    OutputError
        The file cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"cannot read the checkpoint {path}: {error.strerror}") from None
    start = len(_MAGIC) + _HASH_BYTES
    if data[: len(_MAGIC)] != _MAGIC:
        raise CheckpointError(f"{path}: {_UNKNOWN}")
    body = data[start:]
    if hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        raise CheckpointError(
            f"{path} is damaged (its SHA-256 differs): restore a backup, or move the file away to"
            " start again"
        )
    try:
        arrays = unpack_arrays(body)
        meta = json.loads(arrays.pop(_META).tobytes())
        theirs, numbers = meta["identity"], meta["numbers"]
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: {_UNKNOWN}") from None
    if theirs != identity:
        raise CheckpointError(
            f"{path} belongs to another run ({_difference(theirs, identity)}): use another"
            " directory or the same settings"
        )
    return Checkpoint(identity, numbers, arrays)


def _difference(theirs: str, ours: str) -> str:
    """Return the first line in which two identities differ."""
    pairs = zip(theirs.splitlines(), ours.splitlines(), strict=False)
    return next((f"{a!r} there, {b!r} here" for a, b in pairs if a != b), "other settings")
