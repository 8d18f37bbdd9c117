"""Helpers for tests that start processes: wait for them, find them, stop them, show their logs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

Found = TypeVar("Found")
ROOT = Path(__file__).parents[1]


def python(
    *words: object, cwd: Path = ROOT, first: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with the checkout, and before it another folder, on its path; return its end."""
    places = os.pathsep.join(str(each) for each in (first, ROOT) if each is not None)
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd,
        env={**os.environ, "PYTHONPATH": places, **environment},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def wait_until(condition: Callable[[], Found], seconds: float, what: str) -> Found:
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
    return found


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the other processes whose environment or command contains a path in the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = [*process.environ().values(), *process.cmdline()]
            if process.pid != os.getpid() and any(f"{folder}/" in f"{word}/" for word in words):
                found.append(process)
    return found


def end_processes_of(folder: Path) -> None:
    """Stop them with SIGTERM, and with SIGKILL if they still run after some seconds."""
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in (left := processes_of(folder)):
            with contextlib.suppress(psutil.Error):
                end(process)
        psutil.wait_procs(left, timeout=20)


@contextlib.contextmanager
def logs_on_failure(folder: Path, pattern: str = "logs/*.log") -> Iterator[None]:
    """On a failure, print the last lines of every log below a folder."""
    try:
        yield
    except BaseException:
        for log in sorted(folder.glob(pattern)):
            lines = log.read_text(errors="replace").splitlines()[-40:]
            print(f"--- {log.name}", *lines, sep="\n")
        raise
