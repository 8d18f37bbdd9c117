"""Bounded reads and atomic writes of files, and locks that can be waited for."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fldb_flower.system import files
from fldb_flower.system.files import create_file, lock_folder, read_file, replace_file


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_lock_can_be_waited_for_and_that_of_a_killed_process_is_released(
    kind, tmp_path, monkeypatch
):
    """A file is locked where a folder cannot be."""
    code = (
        "import sys; from pathlib import Path; from fldb_flower.system import files\n"
        "if sys.argv[2] == 'file': files.fcntl = None\n"
        "unlock = files.lock_folder(Path(sys.argv[1])); print('locked', flush=True); input()"
    )
    if kind == "file":
        monkeypatch.setattr(files, "fcntl", None)
    first = lock_folder(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(lock_folder, tmp_path, wait=True)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.2)
        first()
        second.result()()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, tmp_path, kind], **pipes) as process:
        assert process.stdout.readline() == b"locked\n"
        assert files.is_locked(tmp_path)
        with pytest.raises(BlockingIOError):
            lock_folder(tmp_path)
        process.kill()
        process.wait()
    assert not files.is_locked(tmp_path)


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_never_replaces_another(tmp_path, monkeypatch, links):
    if not links:  # FAT, Android

        def unsupported(*_arguments):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(Path, "hardlink_to", unsupported)
    path = tmp_path / "key"
    create_file(path, b"first", 0o640)
    with pytest.raises(FileExistsError):
        create_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


NOT_FILES = {
    "a pipe": os.mkfifo,
    "a device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3)),
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "a folder": os.mkdir,
}


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("what", NOT_FILES)
def test_what_is_not_a_file_is_neither_replaced_nor_read(what, linked, tmp_path):
    path = written = tmp_path / "o.html"
    try:
        NOT_FILES[what](path)
    except PermissionError:
        pytest.skip("only root can create devices")
    if linked:
        written = tmp_path / "link"
        written.symlink_to(path)
    before, names = path.lstat(), sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match=r"it is not a file|Is a directory"):
        replace_file(written, b"new")
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert sorted(tmp_path.iterdir()) == names
    if what != "a socket":  # cannot be opened at all
        with pytest.raises(OSError, match="it is not a file"):
            read_file(written, 10)


def test_a_link_is_followed(tmp_path):
    for folder in ("links", "files"):
        (tmp_path / folder).mkdir()
    link, file = tmp_path / "links" / "o.html", tmp_path / "files" / "page.html"
    link.symlink_to(Path("..") / "files" / "page.html")
    for content in (b"created", b"replaced"):
        replace_file(link, content)
        assert (link.is_symlink(), file.read_bytes()) == (True, content)
    assert list(link.parent.iterdir()) == [link]
    assert list(file.parent.iterdir()) == [file]
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(OSError, match="symbolic links"):
        replace_file(link, b"")


@pytest.mark.parametrize("name", ["o.html.part", f"o.html.{'0a' * 8}.part"])
def test_a_link_in_place_of_a_temporary_file_is_not_followed(name, tmp_path):
    victim, planted = tmp_path / "victim", tmp_path / name
    victim.write_bytes(b"precious")
    planted.symlink_to(victim)
    replace_file(tmp_path / "o.html", b"new")
    assert (victim.read_bytes(), planted.is_symlink()) == (b"precious", True)
    assert (tmp_path / "o.html").read_bytes() == b"new"


def test_permissions_are_those_of_the_existing_file(tmp_path):
    file = tmp_path / "o.html"
    before = os.umask(0o027)
    try:
        replace_file(file, b"new")
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        file.chmod(0o604)
        replace_file(file, b"again")
        assert stat.S_IMODE(file.stat().st_mode) == 0o604
        replace_file(file, b"private", 0o600)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    finally:
        os.umask(before)


KILLED = """
import os, signal, sys
from pathlib import Path
from fldb_flower.system import files
from fldb_flower.system.files import create_file, replace_file
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
{"replace": replace_file, "create": create_file}[sys.argv[1]](Path(sys.argv[2]), b"partial")
"""


@pytest.mark.parametrize("how", ["replace", "create"])
def test_temporary_files_of_killed_processes_do_not_accumulate(how, tmp_path):
    """The next write removes them, but not that of a process which is still writing."""
    path, others = tmp_path / "file", tmp_path / "file.txt.part"
    others.write_bytes(b"a download")
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", KILLED, how, path], check=False)
        assert killed.returncode == -signal.SIGKILL
        (leftover,) = set(tmp_path.iterdir()) - {others}
    unlock = lock_folder(leftover)  # as its writer does
    replace_file(path, b"first")
    assert set(tmp_path.iterdir()) == {others, path, leftover}
    unlock()
    replace_file(path, b"second")
    assert set(tmp_path.iterdir()) == {others, path}
    assert path.read_bytes() == b"second"


def test_concurrent_writers_leave_one_complete_content(tmp_path):
    contents = [bytes([number]) * 10_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(replace_file, [tmp_path / "file"] * 80, contents * 10))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() in contents


def test_a_read_is_bounded(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_file(file, 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_file(file, 4)
    with pytest.raises(OSError, match="it has more than 9 bytes"):
        read_file(Path("/proc/self/status"), 9)  # its size is reported as 0
