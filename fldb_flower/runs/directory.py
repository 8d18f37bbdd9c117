"""A directory of results: used by one process at a time, with files that are replaced atomically.

The base of :class:`fldb_flower.runs.results.RunDirectory` (a simulation) and of
:class:`strategies.device_directory.DeviceDirectory` (a federation of devices).
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fldb_flower.errors import OutputError
from fldb_flower.linalg.arrays import Array
from fldb_flower.runs.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from fldb_flower.system.files import lock_folder, reason_of, replace_file

CHECKPOINT, MODEL, SUMMARY = "checkpoint.bin", "model.json", "summary.json"


def json_bytes(values: Mapping[str, Any]) -> bytes:
    """Return the content of a JSON file."""
    return (json.dumps(values, indent=2, allow_nan=False) + "\n").encode()


class ResultsDirectory:
    """A locked directory with a checkpoint and JSON files.

    It is created if missing. A checkpoint with another ``identity``, the settings that determine
    the results, is refused. ``user`` is what uses the directory, for the error if it is locked:
    ``"run"`` or ``"server"``.

    Raises
    ------
    OutputError
        The directory cannot be created, or another process uses it.
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
        """Return the checkpoint, or None if there is none; see :func:`load_checkpoint`."""
        return load_checkpoint(self.path / CHECKPOINT, self._identity)

    def save(self, numbers: dict[str, Any], arrays: Mapping[str, Array]) -> None:
        """Replace the checkpoint; see :func:`save_checkpoint`."""
        save_checkpoint(self.path / CHECKPOINT, Checkpoint(self._identity, numbers, arrays))

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically; if that fails, raise an OutputError and keep the old file."""
        with self.writing():
            replace_file(self.path / name, content)

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Replace a JSON file atomically; see :meth:`write`."""
        self.write(name, json_bytes(values))

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Raise an OutputError for an OSError in this block."""
        try:
            yield
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {reason_of(error)}") from None
