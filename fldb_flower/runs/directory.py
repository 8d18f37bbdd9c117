"""A directory of results: used by one process at a time, with a checkpoint.

The base of the directory of a simulation (:class:`fldb_flower.runs.results.RunDirectory`) and of a
federation of devices (:class:`strategies.device_rounds.DeviceDirectory`). Files are replaced
atomically and durably. A checkpoint consists of a word with its version, the SHA-256 of the rest,
and packed arrays; nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fldb_flower.errors import CheckpointError, OutputError
from fldb_flower.linalg.arrays import pack_arrays, unpack_arrays
from fldb_flower.settings import Settings, to_dotted, to_flat
from fldb_flower.system.files import lock_folder, replace_file, reported

CHECKPOINT, MODEL, SUMMARY = "checkpoint.bin", "model.json", "summary.json"
CHECKPOINT_VERSION = 1
_WORD, _HASH_BYTES = b"FLDBcp", 32
_META = "meta"
_AGAIN = "move the file to start from the beginning"


class Checkpoint(NamedTuple):
    """The state of a run after a round: JSON values, and arrays by name."""

    numbers: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def save_checkpoint(path: Path, identity: str, checkpoint: Checkpoint) -> None:
    """Replace a checkpoint; ``identity`` has the settings that determine results, one per line."""
    meta = json.dumps({"identity": identity, "numbers": checkpoint.numbers})
    text = np.frombuffer(meta.encode(), dtype=np.uint8)
    body = pack_arrays({_META: text, **checkpoint.arrays})
    word = _WORD + f"{CHECKPOINT_VERSION:02}".encode()
    with reported(OutputError, f"write the checkpoint {path}"):
        replace_file(path, word + hashlib.sha256(body).digest() + body)


def load_checkpoint(path: Path, identity: str) -> Checkpoint | None:
    """Return the checkpoint of a run with this identity; None if the file does not exist."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"cannot read the checkpoint {path}: {error.strerror}") from None
    place = len(_WORD) + 2
    word, version = data[: len(_WORD)], data[len(_WORD) : place]
    digest, body = data[place : place + _HASH_BYTES], data[place + _HASH_BYTES :]
    if word != _WORD or not version.isdigit():
        raise CheckpointError(f"{path} is not a checkpoint: {_AGAIN}")
    if int(version) != CHECKPOINT_VERSION:
        raise CheckpointError(
            f"{path} has version {int(version)} of checkpoints, and this program version"
            f" {CHECKPOINT_VERSION}: {_AGAIN}"
        )
    if hashlib.sha256(body).digest() != digest:
        raise CheckpointError(
            f"{path} is damaged (its SHA-256 differs): restore a backup, or {_AGAIN}"
        )
    arrays = unpack_arrays(body)
    meta = json.loads(arrays.pop(_META).tobytes())
    if different := _difference(meta["identity"], identity):
        raise CheckpointError(
            f"{path} belongs to another run ({different}): use another directory or the same"
            " settings"
        )
    return Checkpoint(meta["numbers"], arrays)


def _difference(theirs: str, ours: str) -> str:
    """Return the first line in which two identities differ, or an empty text.

    A setting that only one of them has was added or removed by another version. The other one has
    the default, or the only value in that version.
    """
    usual = {**to_dotted(Settings()), **to_flat(Settings())}
    if "algorithm='fldb_personal'" in theirs.splitlines():
        usual |= dict.fromkeys(("personal_structure", "personal-structure"), "isotropic")  # 0.3.0
    there, here = (
        {name: line for line in text.splitlines() for name in [line.partition("=")[0]]}
        for text in (theirs, ours)
    )
    for name in {**here, **there}:
        lines = [each.get(name, f"{name}={usual.get(name)!r}") for each in (there, here)]
        if lines[0] != lines[1]:
            return f"{lines[0]!r} there, {lines[1]!r} here"
    return ""


def json_bytes(values: Mapping[str, Any]) -> bytes:
    """Return the content of a JSON file."""
    return (json.dumps(values, indent=2, allow_nan=False) + "\n").encode()


class ResultsDirectory:
    """A locked directory; it is created if missing.

    A checkpoint with another ``identity`` is refused. ``user`` names what uses the directory in the
    error for a locked directory: ``"run"`` or ``"server"``.
    """

    def __init__(self, path: Path, identity: str, *, user: str) -> None:
        self.path = path.expanduser()
        self._identity = identity
        with self.writing():
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                unlock = lock_folder(self.path)
            except BlockingIOError:
                raise OutputError(
                    f"{self.path} is in use by another {user}: wait until it ends, or stop it"
                ) from None
            self._unlock = weakref.finalize(self, unlock)

    def close(self) -> None:
        """Release the lock."""
        self._unlock()

    def load(self) -> Checkpoint | None:
        """Return the checkpoint, or None if there is none."""
        return load_checkpoint(self.path / CHECKPOINT, self._identity)

    def save(self, numbers: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the checkpoint."""
        save_checkpoint(self.path / CHECKPOINT, self._identity, Checkpoint(numbers, arrays))

    def write(self, name: str, content: bytes) -> None:
        """Replace a file; if that fails, raise an OutputError and keep the old file."""
        with self.writing():
            replace_file(self.path / name, content)

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Replace a JSON file."""
        self.write(name, json_bytes(values))

    def writing(self) -> AbstractContextManager[None]:
        """Raise an OutputError for an OSError in this block."""
        return reported(OutputError, f"write to {self.path}")
