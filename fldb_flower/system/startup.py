"""The start of a command: signal handlers, and checks of Python and of this project's packages.

Commands call :func:`begin` before all other imports, so this module imports almost nothing. It and
what it imports run with older versions of Python, too.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
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

    Warnings of names that will be removed are one line, too. If the reader of the output has ended,
    such as ``head``, the command ends with status 1 and without a message.

    Raises
    ------
    SystemExit
        Python is too old, or a module shadows a package; the message names its file.
    """
    if sys.version_info < PYTHON:
        needed, found = (".".join(map(str, each[:3])) for each in (PYTHON, sys.version_info))
        sys.exit(
            f"error: fldb-flower needs Python {needed} or later; {sys.executable} is Python {found}"
        )
    for number in SIGNALS:
        signal.signal(number, lambda number, _frame: leave(number, INTERRUPTED))
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, category, *place: (
        f"warning: {message}\n" if category is FutureWarning else before(message, category, *place)
    )
    sys.excepthook = report_exception
    atexit.register(_flush)
    for name in PACKAGES:
        if (reason := shadowed(name)) is not None:
            sys.exit(f"error: {reason}")


def output_is_closed() -> bool:
    """Return whether the reader of stdout, a pipe, has ended."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # stdout is no file
        return False


def discard_output() -> None:
    """Discard what is written to stdout from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an exception that ends the process, unless the output has no reader."""
    if issubclass(kind, BrokenPipeError) and output_is_closed():
        discard_output()
    else:
        sys.__excepthook__(kind, error, trace)


def _flush() -> None:
    """Write the output before Python does, which would print an error and change the status."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except (AttributeError, ValueError):  # there is no stdout, or it is closed
        pass


def require(what: str, extra: str, *modules: str) -> None:
    """Exit with one line if modules of an extra are not installed."""
    from importlib.util import find_spec  # noqa: PLC0415 - after the signal handlers

    from fldb_flower.errors import extra_missing  # noqa: PLC0415

    if any(find_spec(module) is None for module in modules):
        sys.exit(f"error: {extra_missing(what, extra)}")


def shadowed(name: str) -> str | None:
    """Return an error if another module shadows a package of this project, else None."""
    from importlib.util import find_spec  # noqa: PLC0415 - after the signal handlers

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
    """Return a line break in a terminal, which shows ``^C``."""
    return "\n" if sys.stderr.isatty() else ""
