"""Files that are there whole, or not at all; folders that one process uses at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file durably, in place of the one before; a crash leaves one of the two.

    Raises
    ------
    OSError
        The disk is full, or the folder is gone or read-only; the file before is untouched.
    """
    partial = partial_of(path)
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()  # a disk that is full can do with the room
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too
    finally:
        os.close(folder)


def partial_of(path: Path) -> Path:
    """Return where :func:`replace_file` writes first, which is what a crash leaves behind."""
    return path.with_name(path.name + ".part")


def lock_folder(path: Path) -> int:
    """Keep other processes out of a folder until the descriptor returned here is closed.

    A file system without locks keeps nobody out.

    Raises
    ------
    BlockingIOError
        Another process has it.
    OSError
        It cannot be opened.
    """
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise
    except OSError:
        pass
    return folder
