"""The start of a command, and its end by a signal.

Commands call :func:`begin` before all other imports, so this module imports almost nothing. This
module and its imports also run with older versions of Python.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
from importlib.util import find_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType
    from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SIGNALLED = 128
"""The exit status after a signal is this plus the number of the signal."""
INTERRUPTED = "interrupted"
SERVICE_EXTRA = ("service", "fastapi", "uvicorn", "fastapi_offline")
"""The extra of the preference service, and its modules."""
PACKAGES = ("clients", "conf", "fldb_flower", "simulations", "strategies")
PYTHON = (3, 11)
"""The oldest version of Python: ``requires-python`` in pyproject.toml."""
_PROCESS = os.getpid()  # differs in forked processes


def begin() -> None:
    """End with one line on a signal; check Python, and that no module shadows our packages.

    If the reader of the output, such as ``head``, has ended, the command ends with status 1 and
    without a message.
    """
    if sys.version_info < PYTHON:
        needed, found = (".".join(map(str, each[:3])) for each in (PYTHON, sys.version_info))
        sys.exit(
            f"error: fldb-flower needs Python {needed} or later; {sys.executable} is Python {found}"
        )
    for number in SIGNALS:
        signal.signal(number, lambda number, _frame: leave(number, INTERRUPTED))
    sys.excepthook = report_exception
    atexit.register(_flush)
    for name in PACKAGES:
        if (reason := shadowed(name)) is not None:
            sys.exit(f"error: {reason}")


def require(what: str, extra: str, *modules: str) -> None:
    """Exit with one line if modules of an extra are not installed."""
    from fldb_flower.errors import extra_missing  # noqa: PLC0415 - after the signal handlers

    if any(find_spec(module) is None for module in modules):
        sys.exit(f"error: {extra_missing(what, extra)}")


def shadowed(name: str) -> str | None:
    """Return an error if another module shadows a package of this project, else None."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))  # noqa: PTH120
    ours = os.path.join(root, name, "__init__.py")  # noqa: PTH118
    spec = find_spec(name)
    if spec is None:
        return f"{ours} is missing: install fldb-flower again"
    if spec.origin is not None and os.path.realpath(spec.origin) == ours:
        return None
    found = spec.origin or next(iter(spec.submodule_search_locations or []), name)
    return (
        f"{found} shadows fldb-flower's package {name!r} ({ours}):"
        " rename it, or remove its folder from the working directory and PYTHONPATH"
    )


# --- output without a reader -----------------------------------------------------------------


def report_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an exception that ends the process, unless the reader of the output has ended."""
    if issubclass(kind, BrokenPipeError) and _has_no_reader():
        discard_output()
    else:
        sys.__excepthook__(kind, error, trace)


def _has_no_reader() -> bool:
    """Whether the reader of the output has ended; a failed write leaves nothing to flush."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # stdout is no file
        return False


def _flush() -> None:
    """Write the output before Python does, which would print an error and change the status."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except (AttributeError, ValueError):  # there is no stdout, or it is closed
        pass


def discard_output() -> None:
    """Discard what is written to stdout from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- signals ---------------------------------------------------------------------------------


class Interrupted(KeyboardInterrupt):
    """A signal arrived. Python may end the process by the signal on KeyboardInterrupt itself."""


def is_forked() -> bool:
    """Return whether this process was forked from the one that the user started."""
    return os.getpid() != _PROCESS


def leave(number: int, line: str) -> NoReturn:
    """Print one line on stderr, and end this process at once with status 128 + number."""
    if not is_forked():  # otherwise, the parent prints the line
        try:
            sys.stdout.flush()
            os.write(sys.stderr.fileno(), f"{_after_echo()}{line}\n".encode())
        except Exception:
            pass
    os._exit(SIGNALLED + number)


def say_interrupted(line: str) -> None:
    """Print the line of a command that a signal ended."""
    print(f"{_after_echo()}{line}", file=sys.stderr, flush=True)


def _after_echo() -> str:
    return "\n" if sys.stderr.isatty() else ""  # a terminal shows ^C


@contextlib.contextmanager
def handling_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM in this block, if it runs in the main thread."""
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
    take minutes. Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def watch() -> None:
        while (number := os.read(reader, 1)) != end:
            if number[0] in SIGNALS:
                on_signal(number[0])

    end = bytes(1)  # closing the writer does not end the thread: forked processes have copies of it

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writer, end)
        thread.join()
        os.close(writer)
        os.close(reader)


@contextlib.contextmanager
def interruptible(
    line: Callable[[], str] = lambda: INTERRUPTED,
    *,
    stop: Callable[[int], bool] = lambda _count: False,
    insist: bool = True,
    end: Callable[[], str] | None = None,
) -> Iterator[None]:
    """End the command with a line and status 128 + number if a signal arrives in this block.

    A signal raises Interrupted, so that files and processes are closed, unless ``stop``, a function
    of the number of signals, returns True because the block will end by itself. The signal after
    that ends the process at once, or is ignored without ``insist``. The status is the same if other
    code catches or replaces the exception. ``end`` returns the line after the block, by default
    that of ``line``.
    """
    received: list[int] = []
    over = raised = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal raised
        if is_forked() or over or (raised and insist):
            leave(number, line())
        received.append(number)
        if not raised and not stop(len(received)):
            raised = True
            raise Interrupted

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, Interrupted):  # in a destructor
            leave(received[0], line())
        before(unraisable)

    before, sys.unraisablehook = sys.unraisablehook, dropped
    with handling_signals(handle):
        try:
            yield
        except BaseException as error:
            reported = isinstance(error, SystemExit) and error.code in {
                SIGNALLED + each for each in received
            }
            if not raised or reported:
                raise
        finally:
            over, sys.unraisablehook = True, before
    if received:
        if text := (end or line)():
            say_interrupted(text)
        sys.exit(SIGNALLED + received[0])
