"""Bounded reads and atomic writes of files, locks on folders, and parts of HTML pages."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path

from fldb_flower.errors import DataError, FldbError, OutputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCK = "lock"

_CHUNK = 2**20
# Windows has none of the first three flags, and only it has the last one.
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_UNBLOCKED = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # pipes do not block
_TEMPORARY = r"\.[0-9a-f]{16}\.part"  # after the name of the file


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; otherwise raise an OSError.

    A folder, a pipe or a device may block or have no end.
    """
    descriptor = os.open(path, os.O_RDONLY | _UNBLOCKED)
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


def reason_of(error: OSError) -> str:
    """Return the system's reason why a file or a folder cannot be used.

    When a folder is to be created, Python reports a loop of symbolic links, or a dangling link, as
    an existing file.
    """
    if isinstance(error, FileExistsError) and error.filename is not None:
        try:
            Path(error.filename).stat()
        except OSError as actual:
            error = actual
    return error.strerror or str(error)


@contextlib.contextmanager
def reported(error: type[FldbError], action: str) -> Iterator[None]:
    """Turn an OSError into one line: ``cannot read ca.key: No such file or directory``."""
    try:
        yield
    except OSError as reason:
        raise error(f"cannot {action}: {reason_of(reason)}") from None


def make_folder(folder: Path) -> None:
    """Create a folder with mode 0700 if it does not exist, or raise OutputError."""
    with reported(OutputError, f"create the folder {folder}"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def check_writers(path: Path) -> None:
    """Raise DataError if users other than that of this process and root can write a file."""
    if not hasattr(os, "geteuid"):
        raise DataError(f"cannot check who can write {path}: this needs Linux or macOS")
    with reported(DataError, f"read {path}"):
        status = path.stat()
    if status.st_uid not in {os.geteuid(), 0}:
        raise DataError(
            f"{path} belongs to user {status.st_uid}: must belong to user {os.geteuid()}, which"
            " runs this process, or to root"
        )
    if status.st_mode & 0o022:
        raise DataError(f"other users can write {path}: chmod go-w {path}")


def replace_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file atomically and durably, replacing an existing one; links are followed.

    After a crash, the file has either the old content or the new content. Files that a killed
    process left behind are removed. ``mode`` are the permissions, by default those of the existing
    file or of a new one. An OSError is raised, and nothing is changed, if the file cannot be
    written, or if its name belongs to something else, such as a device.
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
    with _temporary(target, content, mode) as part:
        part.replace(target)
    _sync_folder(target.parent)


def create_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a new file atomically and durably; FileExistsError if there is one of this name."""
    with _temporary(path, content, mode) as part:
        try:
            path.hardlink_to(part)
        except FileExistsError:
            raise
        except OSError:  # the file system has no hard links (FAT, Android)
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            part.replace(path)
    _sync_folder(path.parent)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files of a file that killed processes left behind.

    A process locks its temporary file, so that others do not remove it.
    """
    if fcntl is None:
        return
    leftover = re.compile(re.escape(path.name) + _TEMPORARY)
    with contextlib.suppress(OSError):
        for each in path.parent.iterdir():
            if leftover.fullmatch(each.name):
                _remove_unlocked(each)


def _remove_unlocked(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | _NOFOLLOW | _UNBLOCKED)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _temporary(path: Path, content: bytes, mode: int | None) -> Iterator[Path]:
    """Write a new file with an unpredictable name beside another; remove it at the end.

    ``mode`` is set whatever the umask; by default, the mode is that of a new file. The file stays
    open and locked meanwhile, so that no other process removes it. Windows, which renames no open
    file, has neither lock nor removal.
    """
    remove_leftovers(path)
    with contextlib.ExitStack() as stack:
        while True:
            part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
            descriptor = os.open(part, flags, 0o666 if mode is None else 0o600)
            file = stack.enter_context(os.fdopen(descriptor, "wb"))
            if fcntl is not None:
                with contextlib.suppress(OSError):  # the file system has no locks
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink == 0:  # removed before it was locked
                    continue
            break
        try:
            if mode is not None:
                _change_mode(descriptor, part, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
            if fcntl is None:
                file.close()
            yield part
        finally:  # also frees space if the disk is full
            part.unlink(missing_ok=True)


def _change_mode(descriptor: int, path: Path, mode: int) -> None:
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, mode)
    else:  # Windows
        path.chmod(mode)


def _expect_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))


def lock_folder(path: Path, *, wait: bool = False) -> Callable[[], None]:
    """Lock a folder against other processes; return the function that releases it.

    The system releases it when the process ends. BlockingIOError is raised if another process holds
    it, unless ``wait``. On a file system without locks, the folder is not locked. Windows cannot
    lock a folder: there, a file ``lock`` in it is locked.
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
    """Return whether a process holds the lock of a folder."""
    try:
        lock_folder(path)()
    except BlockingIOError:
        return True
    return False


def _sync_folder(path: Path) -> None:
    """Make a new name in a folder durable; Windows cannot open a folder."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_part(package: str, name: str) -> str:
    """Return the text of a page, script or style of a package; a DataError if it is missing."""
    path = resources.files(package).joinpath(*name.split("/"))
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: a published Flower app has no pages, scripts or styles; use"
            " fldb-flower from a clone of its repository, or a wheel built there"
        ) from None


def digest(text: str) -> str:
    """Return the hash of an inline script or style for a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
