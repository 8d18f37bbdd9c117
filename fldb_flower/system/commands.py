"""Command lines whose errors, and other words, are one line each."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

_N = TypeVar("_N", int, float)


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line, as everything else here does."""

    def error(self, message: str) -> NoReturn:
        """End with status 1."""
        sys.exit(f"error: {message}")


def bounded(kind: type[_N], least: float, most: float = math.inf) -> Callable[[str], _N]:
    """Return an argument's type: a finite number within limits, both included."""

    def convert(text: str) -> _N:
        value = kind(text)
        if not (least <= value <= most and value < math.inf):
            raise ValueError
        return value

    limits = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
    convert.__name__ = f"number {limits}"  # argparse says so in its error
    return convert
