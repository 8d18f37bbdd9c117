"""Text files of the user, read with one-line errors."""

from __future__ import annotations

import math
import re
from pathlib import Path

from fldb_flower.errors import DataError, one_line
from fldb_flower.system.files import read_file

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def finite_number(text: str) -> float | None:
    """Return a decimal number; None for other texts, such as those that only Python reads."""
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None


def read_text(path: Path, required: str, max_bytes: int = 2**30) -> str:
    """Return the text of a UTF-8 file, without a byte order mark.

    Parameters
    ----------
    path : Path
        The file; ``~`` is expanded.
    required : str
        End of the error message: what the file must be.
    max_bytes : int
        Largest size of the file.
    """
    file = path
    try:
        file = path.expanduser().absolute()
        content = read_file(file, max_bytes)
        if b"\0" in content:
            raise ValueError("it contains null bytes: it is not text, or is in UTF-16")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        reason = f"line {number} is not in UTF-8"
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~ of an unknown user
        reason = getattr(error, "strerror", None) or str(error)
    raise DataError(f"{one_line(file)}: cannot be read ({reason}); {required}")
