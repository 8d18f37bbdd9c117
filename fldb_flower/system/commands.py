"""Command-line parsers whose errors are one line."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fldb_flower.errors import FldbError, one_line
from fldb_flower.system.startup import INTERRUPTED, discard_output, interruptible

_N = TypeVar("_N", int, float)


class Parser(argparse.ArgumentParser):
    """A parser that prints errors in one line, without the usage.

    The name of the program defaults to that of :func:`program`. A description may be the docstring
    of a module, which is shown without the name of the command and without markup.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("prog", program())
        if text := options.get("description"):
            text = re.sub(
                r"\A`(?:fldb|python -m) [^`]*`: (.)", lambda match: match[1].upper(), text
            )
            options["description"] = text.replace("``", "")
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """Exit with status 1."""
        sys.exit(f"error: {message}")


def program() -> str:
    """Return how this command was started: ``fldb figures``, ``python -m simulations.figures``."""
    name = Path(sys.argv[0]).name
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if name.startswith("fldb ") or spec is None:
        return name
    return f"python -m {spec.name.removesuffix('.__main__')}"


def installed_version() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow

    try:
        return version("fldb-flower")
    except PackageNotFoundError:
        return "(not installed)"


@contextlib.contextmanager
def ending_in_one_line(line: str = INTERRUPTED, *, insist: bool = True) -> Iterator[None]:
    """End with one line on an error of the user, and with ``line`` on a signal."""
    with interruptible(lambda: line, insist=insist):
        try:
            yield
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")


class OutputHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes log lines to stdout; if their reader has ended, a run continues without them."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Discard further output after a broken pipe; report other errors."""
        if isinstance(sys.exception(), BrokenPipeError):
            discard_output()
        else:
            super().handleError(record)


def bounded(kind: type[_N], least: float, most: float = math.inf) -> Callable[[str], _N]:
    """Return an argument type: a finite number within limits, both inclusive."""
    limits = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
    what = "a whole number" if kind is int else "a number"

    def convert(text: str) -> _N:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not (least <= value <= most and value < math.inf):
            raise argparse.ArgumentTypeError(f"{text!r} must be {what}, {limits}")
        return value

    return convert
