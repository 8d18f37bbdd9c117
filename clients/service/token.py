"""The token that requests to the service must have."""

from __future__ import annotations

import contextlib
import re
import secrets
import stat
import sys
from pathlib import Path

from fldb_flower.errors import DataError, OutputError, one_line
from fldb_flower.system.files import create_file


def read_token(path: Path) -> str:
    """Return the token in a file; create the file if it does not exist.

    Raises
    ------
    DataError
        The file does not contain a token.
    OutputError
        The file cannot be read or written.
    """
    try:
        if not path.exists():
            with contextlib.suppress(FileExistsError):  # another process has just created it
                create_file(path, f"{secrets.token_urlsafe()}\n".encode())
        token = path.read_text("utf-8").strip()
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            print(one_line(f"warning: other users can read {path}: chmod 600"), file=sys.stderr)
    except UnicodeDecodeError:
        token = ""
    except OSError as error:
        raise OutputError(f"cannot use the token file {path}: {error.strerror}") from None
    if not re.fullmatch(r"[\w.~+/=-]{16,}", token, re.ASCII):
        raise DataError(
            f"{path} does not contain a token (16 or more letters and digits): delete the file, and"
            " the next start creates one"
        )
    return token
