"""The files of the service: the page and the token."""

from __future__ import annotations

import contextlib
import re
import secrets
import stat
import sys
from pathlib import Path

from fldb_flower.errors import DataError, OutputError, one_line
from fldb_flower.system.files import create_file, digest, read_file, read_part

# Values of Content-Security-Policy: for replies that are not pages, and for /docs.
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
DOCS = (  # Swagger UI starts with an inline script; the page contains no data but /openapi.json
    f"{NOTHING}; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'"
)

_MOST_BYTES = 2**12  # of a token

_PARTS = {"js": ("basics", "service", "learned", "page"), "css": ("page",)}


def load_page() -> tuple[str, str]:
    """Return the page with its style and script inline, and the policy that allows only those."""
    text = read_part("clients", "page/index.html")
    digests = []
    for name, parts in _PARTS.items():
        part = "".join(read_part("clients", f"page/{each}.{name}") for each in parts)
        text = text.replace(f"{{{{{name}}}}}", part)
        digests.append(digest(part))
    script, style = digests
    return text, (
        f"{NOTHING}; script-src '{script}'; style-src '{style}'; connect-src 'self';"
        " img-src data: https:"  # the images that applications may send
    )


def read_token(path: Path, mode: int = 0o600) -> str:
    """Return the token in a file; create the file if it does not exist.

    If other users can read it than ``mode`` allows, a line on stderr warns of it.
    """
    try:
        if not path.exists():
            with contextlib.suppress(FileExistsError):  # another process has just created it
                create_file(path, f"{secrets.token_urlsafe()}\n".encode())
        token = read_file(path, _MOST_BYTES).decode().strip()
        if stat.S_IMODE(path.stat().st_mode) & 0o077 & ~mode:
            print(
                one_line(f"warning: other users can read {path}: chmod {mode:o}"), file=sys.stderr
            )
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
