"""A process with its own home and log, for the parts of a federation on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fldb_flower.deployment.processes import reason_in
from fldb_flower.errors import FederationError, one_line

PROJECT = Path(__file__).parents[1]
START_SECONDS = 180.0
"""Time for a process to start."""
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.05


class LocalProcess:
    """A process with its own home and log, and the processes that it starts."""

    def __init__(
        self,
        name: str,
        folder: Path,
        command: Sequence[str],
        cwd: Path | None = None,
        *,
        umask: int = -1,
    ) -> None:
        self.name, self.cwd, self.umask = name, cwd, umask
        self.command = list(command)
        self.home = folder / "homes" / name
        self.log = folder / "logs" / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = 0  # offset of the output of this process in the log

    def start(self) -> None:
        """Start the process; its output is appended to the log."""
        for folder in (self.home, self.log.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # a log may hold a token
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self._process = subprocess.Popen(
                self.command,
                cwd=self.cwd or self.home,
                env=environment(self.home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal reaches the parent only
                umask=self.umask,
            )

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def output(self) -> str:
        """Return the output since the last start."""
        if not self.log.exists():
            return ""
        return self.log.read_bytes()[self._begin :].decode(errors="replace")

    def end(self) -> str:
        """Return how the process ended, and why, in one line for an error."""
        status = None if self._process is None else self._process.poll()
        if status is not None and status < 0:
            return f"it was ended by {signal.Signals(-status).name}; its log is {self.log}"
        how = "it has not ended" if status is None else f"it ended with status {status}"
        return f"{how}; {self.reason()}"

    def reason(self) -> str:
        """Return the log and the reason of a failure in it, in one line for an error."""
        return f"{self.log}: {one_line(reason_in(self.output()))}"

    def processes(self) -> list[int]:
        """Return the ids of the processes with this home, this one and those that it started."""
        wanted = f"FLWR_HOME={self.home}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended, or belongs to another user
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def wait_until(
        self, condition: Callable[[], bool], what: str, seconds: float = START_SECONDS
    ) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while True:
            ended = not self.is_running
            if condition():
                return
            if ended or time.monotonic() > deadline:
                late = "" if ended else f"not within {seconds:g} s, "
                raise FederationError(f"{self.name} should be {what}: {late}{self.end()}")
            time.sleep(_POLL_SECONDS)

    def wait_for(self, pattern: str, what: str) -> None:
        """Wait until the output matches a pattern; see :meth:`wait_until`."""
        self.wait_until(lambda: re.search(pattern, self.output()) is not None, what)

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        if self._process is not None and self.is_running:
            self._process.terminate()

    def stop(self) -> None:
        """Terminate the process; kill it and the processes that it started if they do not end."""
        self.terminate()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the process and the processes that it started (SIGKILL)."""
        if self._process is not None and self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        deadline = time.monotonic() + _STOP_SECONDS
        while (left := self.processes()) and time.monotonic() < deadline:  # in other sessions
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a process with this home, in which Flower's commands are found.

    It has no Matplotlib backend: Jupyter sets one that these processes may be unable to import.
    """
    own = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    programs = [str(Path(sys.executable).parent), own.get("PATH", os.defpath)]
    modules = [str(PROJECT), *filter(None, [own.get("PYTHONPATH")])]
    return {
        **own,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": own.get("FLWR_TELEMETRY_ENABLED", "0"),
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": os.pathsep.join(modules),
        "PYTHONUNBUFFERED": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; 1 by default
        # With the file that a crashed cluster leaves, Ray would wait forever.
        "RAY_ADDRESS": own.get("RAY_ADDRESS", "local"),
        # By default, a node of Ray ends if its agent does not start in 30 seconds.
        "RAY_agent_register_timeout_ms": own.get("RAY_agent_register_timeout_ms", "120000"),
    }


def configure_flwr(home: Path, name: str, address: str, trust: str) -> None:
    """Write the configuration of ``flwr`` to a home: one SuperLink, and how to trust it."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\naddress = "{address}"\n{trust}\n'
    )
