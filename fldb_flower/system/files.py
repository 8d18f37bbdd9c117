"""Bounded reads and atomic writes of files, and locks on folders."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

_CHUNK = 2**20
_TEMPORARY = r"\.[0-9a-f]{16}\.part"  # after the name of the file


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes.

    Raises
    ------
    OSError
        It cannot be read, has more bytes, or is a folder, a pipe or a device, which may block or
        have no end.

    Examples
    --------
    >>> from pathlib import Path
    >>> from fldb_flower.system.files import read_file
    >>> _ = Path("arms.csv").write_text("arm,sweet")
    >>> read_file(Path("arms.csv"), 100)
    b'arm,sweet'
    >>> read_file(Path("arms.csv"), 5)
    Traceback (most recent call last):
        ...
    OSError: [Errno 27] it has more than 5 bytes: 'arms.csv'
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # pipes do not block
    try:
        status, content = os.fstat(descriptor), bytearray()
        _expect_regular(status, path)
        while status.st_size <= most >= len(content) and (part := os.read(descriptor, _CHUNK)):
            content += part
    finally:
        os.close(descriptor)
    if max(status.st_size, len(content)) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return bytes(content)


def replace_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file atomically and durably, replacing an existing one.

    After a crash, the file has either the old content or the new content. Links are followed. What
    a killed process left behind is removed.

    Parameters
    ----------
    path : Path
        The file.
    content : bytes
        Its new content.
    mode : int, optional
        Its permissions; by default those of the existing file, or else of a new file.

    Raises
    ------
    OSError
        The file cannot be written, or there is something else of this name, such as a device; it is
        unchanged.

    Examples
    --------
    >>> from pathlib import Path
    >>> from fldb_flower.system.files import replace_file
    >>> replace_file(Path("page.html"), b"first")
    >>> replace_file(Path("page.html"), b"second")
    >>> Path("page.html").read_bytes()
    b'second'
    """
    target = Path(os.path.realpath(path))
    try:
        existing = target.stat()
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISDIR(existing.st_mode):  # reported below, by the system
            _expect_regular(existing, path)
        mode = stat.S_IMODE(existing.st_mode) if mode is None else mode
    with _temporary(target, content, mode) as partial:
        partial.replace(target)
    _sync_folder(target.parent)


def create_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a new file atomically and durably; an existing file is never replaced.

    Raises
    ------
    FileExistsError
        There is a file of this name.
    OSError
        The file cannot be written.
    """
    with _temporary(path, content, mode) as partial:
        try:
            path.hardlink_to(partial)
        except FileExistsError:
            raise
        except OSError:  # the file system has no hard links (FAT, Android)
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            partial.replace(path)
    _sync_folder(path.parent)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files of a file that killed processes left behind.

    A process locks its temporary file, so that others do not remove it.
    """
    leftover = re.compile(re.escape(path.name) + _TEMPORARY)
    with contextlib.suppress(OSError):
        for each in path.parent.iterdir():
            if leftover.fullmatch(each.name):
                _remove_unlocked(each)


def _remove_unlocked(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _temporary(path: Path, content: bytes, mode: int | None) -> Iterator[Path]:
    """Write a new file with an unpredictable name beside another; remove it at the end.

    ``mode`` is set whatever the umask; by default, the mode is that of a new file.
    """
    remove_leftovers(path)
    while True:
        partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(partial, flags, 0o666 if mode is None else 0o600)
        with os.fdopen(descriptor, "wb") as file:
            with contextlib.suppress(OSError):  # the file system has no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink == 0:  # removed before it was locked
                continue
            try:
                if mode is not None:
                    os.fchmod(descriptor, mode)
                file.write(content)
                file.flush()
                os.fsync(descriptor)
                yield partial
            finally:  # also frees space if the disk is full
                partial.unlink(missing_ok=True)
            return


def _expect_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))


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


def _sync_folder(path: Path) -> None:
    """Make a new name in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
