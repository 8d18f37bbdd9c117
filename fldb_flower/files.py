"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file durably, in place of the one before; a crash leaves one of the two.

    Raises
    ------
    OSError
        The disk is full, or the folder is gone or read-only; the file before is untouched.
    """
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too
    finally:
        os.close(folder)
