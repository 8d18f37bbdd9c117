"""Atomic writes of files, and locks on folders."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCK = "lock"


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
    part = partial_of(path)
    try:
        with part.open("wb") as file:
            if mode is not None:
                part.chmod(mode)
            _write_durably(file, content)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()  # frees space if the disk is full
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
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            part.chmod(mode)
            _write_durably(file, content)
        try:
            path.hardlink_to(part)
        except FileExistsError:
            raise
        except OSError:  # the file system has no hard links (FAT, Android)
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(path.parent)


def lock_folder(path: Path, *, wait: bool = False) -> Callable[[], None]:
    """Lock a folder against other processes; return the function that releases it.

    The system releases it when the process ends. On a file system without locks, the folder is not
    locked. Windows cannot lock a folder: there, a file ``lock`` in it is locked.

    Raises
    ------
    BlockingIOError
        Another process holds the lock, and ``wait`` is false.
    OSError
        The folder cannot be opened.
    """
    if fcntl is None:
        return _lock_file(path / _LOCK, wait=wait)
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise
    except OSError:
        pass
    return partial(os.close, folder)


def _lock_file(path: Path, *, wait: bool) -> Callable[[], None]:
    from filelock import FileLock, Timeout  # noqa: PLC0415 - needed on Windows only

    lock = FileLock(path, timeout=-1 if wait else 0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path) from None
    return lock.release


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a folder.

    Raises
    ------
    OSError
        The folder cannot be opened.
    """
    try:
        lock_folder(path)()
    except BlockingIOError:
        return True
    return False


def _write_durably(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Make a new name in a folder durable; Windows cannot open a folder."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
