"""What the process of one job of a sweep does: it runs quietly, and records why it failed.

Jobs run in any process, on any machine. What the sweep has to know about them is in their folders.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from fldb_flower.errors import FldbError, one_line
from fldb_flower.runs.directory import SUMMARY
from fldb_flower.runs.experiment import StoppedError
from fldb_flower.runs.results import STOP
from fldb_flower.system.files import replace_file

SOURCE = "the command line or conf/"  # of settings, in messages
ERROR = "error.txt"
"""Why a job failed: one line, and below it the trace of an unexpected exception."""


def attempt(work: Callable[[], None], directory: Path, sweep: Path) -> float | None:
    """Run one job of a sweep without output; a failure is left in ``error.txt``.

    Parameters
    ----------
    work : callable
        Runs the job and leaves its results in the directory.
    directory : Path
        The job's folder.
    sweep : Path
        The sweep's folder. If it holds a file ``stop``, the job does not begin.

    Returns
    -------
    float or None
        The final regret, which a sweeper that optimises settings minimises; None without a result.
    """
    if (sweep / STOP).exists():
        return None
    logging.disable(logging.INFO)
    try:
        (directory / ERROR).unlink(missing_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            work()
        return float(json.loads((directory / SUMMARY).read_text())["final_regret"])
    except StoppedError:
        return None  # the sweep reports it
    except Exception as error:
        _record(directory, error)
        return None
    finally:
        logging.disable(logging.NOTSET)


def failure(directory: Path) -> str | None:
    """Return why the job in a folder failed, in one line; None if it did not fail."""
    path = directory / ERROR
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"
    return f"{lines[0]} (trace: {path})" if len(lines) > 1 else "".join(lines)


def describe_exception(error: BaseException) -> str:
    """Return an exception as one line: the message of our own, else with its type."""
    if isinstance(error, FldbError):
        return str(error)
    return one_line(f"{type(error).__name__}: {error}".removesuffix(": "))


def _record(directory: Path, error: Exception) -> None:
    text = describe_exception(error) + "\n"
    if not isinstance(error, FldbError):
        text += "\n" + "".join(traceback.format_exception(error))
    try:
        replace_file(directory / ERROR, text.encode())
    except OSError as reason:
        print(f"error: cannot write {directory / ERROR}: {reason.strerror}", file=sys.stderr)
        print(text, file=sys.stderr)
