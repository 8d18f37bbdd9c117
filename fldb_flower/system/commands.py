"""Command-line parsers whose errors are one line."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

_N = TypeVar("_N", int, float)


class Parser(argparse.ArgumentParser):
    """A parser that prints errors in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 1."""
        sys.exit(f"error: {message}")


def bounded(kind: type[_N], least: float, most: float = math.inf) -> Callable[[str], _N]:
    """Return the type of an argument: a finite number within limits, both included."""

    def convert(text: str) -> _N:
        value = kind(text)
        if not (least <= value <= most and value < math.inf):
            raise ValueError
        return value

    limits = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
    convert.__name__ = f"number {limits}"  # in argparse's error message
    return convert
