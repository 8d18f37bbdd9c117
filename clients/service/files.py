"""The files of the service: the page, the arms of ``--arms``, and the token."""

from __future__ import annotations

import contextlib
import re
import secrets
import stat
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from clients.service.models import Features
from clients.validation import MAX_KEY, Image, Model, Text, first_error
from fldb_flower.errors import DataError, OutputError, one_line
from fldb_flower.system.files import create_file
from fldb_flower.system.pages import digest

# Values of Content-Security-Policy: for replies that are not pages, and for /docs.
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
DOCS = (  # Swagger UI starts with an inline script; the page contains no data but /openapi.json
    f"{NOTHING}; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'"
)


def load_page() -> tuple[str, str]:
    """Return the page with its style and script inline, and the policy that allows only those."""
    folder = files("clients") / "page"
    text = (folder / "index.html").read_text("utf-8")
    digests = []
    for name in ("js", "css"):
        part = (folder / f"page.{name}").read_text("utf-8")
        text = text.replace(f"{{{{{name}}}}}", part)
        digests.append(digest(part))
    script, style = digests
    return text, (
        f"{NOTHING}; script-src '{script}'; style-src '{style}'; connect-src 'self';"
        " img-src data: https:"  # the images that applications may send
    )


class Arm(Model):
    """One entry of the ``--arms`` file."""

    key: Annotated[str, Field(min_length=1, max_length=MAX_KEY)]
    features: Features
    text: Text = None
    image: Image = None

    @property
    def content(self) -> dict[str, str | None]:
        """What the page shows: the key if there is neither a text nor an image."""
        return {"text": self.text or (None if self.image else self.key), "image": self.image}


def read_arms(path: Path) -> list[Arm]:
    """Return the arms in a JSON file: a list of ``{key, features, text?, image?}``."""
    try:
        arms = TypeAdapter(list[Arm]).validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise DataError(f"{path}: {first_error(error.errors(), 'the file')}") from None
    if len(arms) < 2:
        raise DataError(f"{path}: {len(arms)} arms: a duel needs at least two")
    seen: set[str] = set()
    for number, arm in enumerate(arms):
        if len(arm.features) != len(arms[0].features):
            raise DataError(
                f"{path}: {number}.features: {len(arm.features)} numbers, but the first arm has"
                f" {len(arms[0].features)}"
            )
        if arm.key in seen:
            raise DataError(f"{path}: {number}.key: {arm.key!r} is also the key of another arm")
        seen.add(arm.key)
    return arms


def read_token(path: Path) -> str:
    """Return the token in a file; create the file if it does not exist."""
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
