"""The first thing that a command does: it ends in one line on a signal, and checks its packages.

Commands call :func:`begin` before all other imports, so this module imports next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SIGNALLED = 128
"""The exit status of a command that a signal ended is this plus the signal's number."""
INTERRUPTED = "interrupted"
SERVICE_EXTRA = ("service", "fastapi", "uvicorn", "fastapi_offline")
"""An extra, and the modules that it installs."""
_PACKAGES = ("clients", "conf", "fldb_flower", "simulations", "strategies")
_PROCESS = os.getpid()  # differs in a process that was forked from this one


def begin() -> None:
    """End on a signal, with one line, and check that this project's packages are its own.

    Raises
    ------
    SystemExit
        Another module has the name of one of them; the message names its file.
    """
    for number in SIGNALS:
        signal.signal(number, lambda number, _frame: leave(number, INTERRUPTED))
    for name in _PACKAGES:
        if (reason := shadowed(name)) is not None:
            sys.exit(f"error: {reason}")


def require(what: str, extra: str, *modules: str) -> None:
    """End the command with one line unless the modules of an extra are installed."""
    from importlib.util import find_spec  # noqa: PLC0415 - after the signal handlers

    from fldb_flower.errors import extra_missing  # noqa: PLC0415

    if any(find_spec(module) is None for module in modules):
        sys.exit(f"error: {extra_missing(what, extra)}")


def shadowed(name: str) -> str | None:
    """Return why importing a package of this project would find another module, or None."""
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
    """Whether this process was forked from the one that the user started."""
    return os.getpid() != _PROCESS


def leave(number: int, line: str) -> NoReturn:
    """End this process at once with 128 + the signal's number, after one line on stderr."""
    if not is_forked():  # otherwise the line is the parent's to print
        try:
            sys.stdout.flush()
            os.write(sys.stderr.fileno(), f"{_after_echo()}{line}\n".encode())
        except Exception:
            pass
    os._exit(SIGNALLED + number)


def say_interrupted(line: str) -> None:
    """Print the one line of a command that a signal ended."""
    print(f"{_after_echo()}{line}", file=sys.stderr, flush=True)


def _after_echo() -> str:
    """Return what ends the line on which a terminal shows ``^C``."""
    return "\n" if sys.stderr.isatty() else ""
