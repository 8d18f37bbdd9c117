"""Atomic writes of files, and locks on folders."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import BinaryIO


def reason_of(error: OSError) -> str:
    """Return why a file or a folder cannot be used, in words of the system.

    Python reports a loop of symbolic links, or one to nothing, as an existing file, if it is to be
    created as a folder.
    """
    if isinstance(error, FileExistsError) and error.filename is not None:
        try:
            Path(error.filename).stat()
        except OSError as actual:
            error = actual
    return error.strerror or str(error)


def replace_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file atomically and durably, replacing an existing one.

    After a crash, the file has either the old content or the new content.

    Parameters
    ----------
    path : Path
        The file.
    content : bytes
        Its new content.
    mode : int, optional
        Its permissions; by default those of a new file.

    Raises
    ------
    OSError
        The file cannot be written; an existing one is unchanged.
    """
    partial = partial_of(path)
    try:
        with partial.open("wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            _write_durably(file, content)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()  # frees space if the disk is full
        raise
    _sync_folder(path.parent)


def partial_of(path: Path) -> Path:
    """Return the temporary file of :func:`replace_file`, which a crash can leave behind."""
    return path.with_name(path.name + ".part")


def create_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a new file atomically and durably; an existing file is never replaced.

    Raises
    ------
    FileExistsError
        There is a file of this name.
    OSError
        The file cannot be written.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            _write_durably(file, content)
        try:
            path.hardlink_to(partial)
        except FileExistsError:
            raise
        except OSError:  # the file system has no hard links (FAT, Android)
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    _sync_folder(path.parent)


def lock_folder(path: Path, *, wait: bool = False) -> int:
    """Lock a folder against other processes until the returned descriptor is closed.

    On a file system without locks, the folder is opened without a lock.

    Raises
    ------
    BlockingIOError
        Another process holds the lock, and ``wait`` is false.
    OSError
        The folder cannot be opened.
    """
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise
    except OSError:
        pass
    return folder


def _write_durably(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Make a new name in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
