"""Commands that end in one line, and with the shell's status, when a signal comes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from fldb_flower.system.startup import (
    INTERRUPTED,
    SIGNALLED,
    SIGNALS,
    is_forked,
    leave,
    say_interrupted,
)


class Interrupted(KeyboardInterrupt):
    """A signal came.

    Of KeyboardInterrupt itself, Python notes at times that it was not handled, although it was,
    and then ends by the signal and not with our status.
    """


@contextmanager
def leaving_if_dropped(came: list[int], line: Callable[[], str]) -> Iterator[None]:
    """End the process where Python drops what a signal's handler raised, as in a destructor.

    Parameters
    ----------
    came : list of int
        The signals that came.
    line : callable
        Returns the line to print.
    """

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, Interrupted):
            leave(came[0], line())
        before(unraisable)

    before, sys.unraisablehook = sys.unraisablehook, hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def interruptible(
    line: Callable[[], str] = lambda: INTERRUPTED, *, insist: bool = True
) -> Iterator[None]:
    """End the command with one line and status 128 + number if a signal comes in this block.

    The signal raises KeyboardInterrupt, so that files and processes are closed. The status
    does not depend on what becomes of that exception: code in between may replace it.

    Parameters
    ----------
    line : callable
        Returns the line.
    insist : bool
        Whether a second signal ends the process at once; otherwise it is ignored.

    Raises
    ------
    SystemExit
        A signal came.
    """
    came: list[int] = []
    over = False

    def handle(number: int, _frame: FrameType | None) -> None:
        if is_forked() or over or (came and insist):
            leave(number, line())
        came.append(number)
        if len(came) == 1:
            raise Interrupted

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        with leaving_if_dropped(came, line):
            yield
    except BaseException as error:
        said = isinstance(error, SystemExit) and came and error.code == SIGNALLED + came[0]
        if not came or said:
            raise
    finally:
        over = True
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        say_interrupted(line())
        sys.exit(SIGNALLED + came[0])
