"""Atomic creation of files, and locks that can be waited for."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fldb_flower.system.files import create_file, lock_folder


def test_a_lock_can_be_waited_for(tmp_path):
    first = lock_folder(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(lock_folder, tmp_path, wait=True)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.2)
        first()
        second.result()()


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
