"""Commands that end with one line, and with the status of a shell, on a signal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from fldb_flower.system.startup import (
    INTERRUPTED,
    SIGNALLED,
    SIGNALS,
    is_forked,
    leave,
    say_interrupted,
)

Handler = Callable[[int, FrameType | None], None]


class Interrupted(KeyboardInterrupt):
    """A signal arrived.

    A subclass, because Python may end the process by the signal, and not with our exit status, if
    KeyboardInterrupt itself was raised.
    """


@contextlib.contextmanager
def handling_signals(handler: Handler) -> Iterator[None]:
    """Handle SIGINT and SIGTERM in this block.

    Does nothing in another thread than the main one, where Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block SIGINT in this thread and its children, except on Windows, which has no masks."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def watching_signals(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Call a function in another thread for each SIGINT or SIGTERM in this block.

    Python calls handlers in the main thread, after the operation of NumPy that runs there. That may
    take minutes. Does nothing in another thread than the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def watch() -> None:
        while number := os.read(reader, 1):
            if number[0] in SIGNALS:
                on_signal(number[0])

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)  # ends the thread
        thread.join()
        os.close(reader)


@contextlib.contextmanager
def leaving_if_dropped(received: list[int], line: Callable[[], str]) -> Iterator[None]:
    """End the process if Python drops the exception of a handler, as in a destructor."""

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, Interrupted):
            leave(received[0], line())
        before(unraisable)

    before, sys.unraisablehook = sys.unraisablehook, hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def interruptible(
    line: Callable[[], str] = lambda: INTERRUPTED, *, insist: bool = True
) -> Iterator[None]:
    """End the command with one line and status 128 + number if a signal arrives in this block.

    The signal raises KeyboardInterrupt, so that files and processes are closed. The exit status
    is the same if other code catches or replaces that exception.

    With ``insist``, a second signal ends the process at once. Otherwise, it is ignored.

    Raises
    ------
    SystemExit
        A signal arrived.
    """
    received: list[int] = []
    over = False

    def handle(number: int, _frame: FrameType | None) -> None:
        if is_forked() or over or (received and insist):
            leave(number, line())
        received.append(number)
        if len(received) == 1:
            raise Interrupted

    with handling_signals(handle):
        try:
            with leaving_if_dropped(received, line):
                yield
        except BaseException as error:
            reported = isinstance(error, SystemExit) and error.code == _status(received)
            if not received or reported:
                raise
        finally:
            over = True
    if received:
        say_interrupted(line())
        sys.exit(_status(received))


def _status(received: list[int]) -> int | None:
    return SIGNALLED + received[0] if received else None
