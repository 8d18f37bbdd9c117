"""A whole federation on this machine, as separate processes: for a demonstration and for tests.

SuperLink, SuperNodes and services run as they do on machines of their own: with TLS, with a key
for each device, with homes and ports of their own. Each part can be killed and started again.
"""

from __future__ import annotations

import contextlib
import csv
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fldb_flower.deployment import credentials
from fldb_flower.deployment.processes import (
    HOST,
    free_port,
    is_open,
    own_environment,
    project_folder,
    toml,
    tool,
)
from fldb_flower.errors import FederationError

PROJECT = Path(__file__).parents[1]
_LINK = "local"  # what flwr's configuration calls the SuperLink
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_REGISTERED = r"registered successfully|already in use"
_CONNECTED = r"SuperNode ID: "
_REFUSED = "[code: 2004]"
_HEARTBEAT_SECONDS = 60.0
_AGAIN_SECONDS = 3.0
_STARTED = r"Successfully started run"
_ASK_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_LAST_LINES = 12


class UnreachableError(FederationError):
    """A service does not answer now; it may have done what it was asked."""


class Part:
    """A process with a home and a log of its own, and the processes that it starts.

    Parameters
    ----------
    name : str
        Names its home and its log.
    folder : Path
        Where both are.
    command : sequence of str
        What to run.
    """

    def __init__(self, name: str, folder: Path, command: Sequence[str]) -> None:
        self.name = name
        self.command = list(command)
        self.home = folder / "homes" / name
        self.log = folder / "logs" / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = 0  # of what this process says, in the log

    def start(self) -> None:
        """Start the process; the log goes on."""
        for folder in (self.home, self.log.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # a service's log has its token
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self._process = subprocess.Popen(
                self.command,
                cwd=self.home,
                env=environment(self.home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is meant for who started us
            )

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        """Return what the log holds since the last start."""
        if not self.log.exists():
            return ""
        return self.log.read_bytes()[self._begin :].decode(errors="replace")

    def last_lines(self) -> str:
        """Return the end of that, for an error."""
        lines = [line for line in self.said().splitlines() if line.strip()]
        return "\n".join(lines[-_LAST_LINES:]) or "(nothing)"

    def processes(self, program: str = "") -> list[int]:
        """Return the ids of the processes that work in this home.

        Parameters
        ----------
        program : str
            Only those of a program: ``"flwr-serverapp"``.
        """
        return [
            pid
            for pid in _processes(self.home)
            if any(word.endswith(program.encode()) for word in _words(Path(f"/proc/{pid}/cmdline")))
        ]

    def wait_until(self, is_so: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait until something is so.

        Raises
        ------
        FederationError
            The process ended without it, or time is over; the message quotes the log's end.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended = not self.is_running
            if is_so():
                return
            if ended or time.monotonic() > deadline:
                how = "it ended" if ended else f"not within {seconds:g} s"
                raise FederationError(
                    f"{self.name} should be {what}: {how}; {self.log} says:\n{self.last_lines()}"
                )
            time.sleep(_LOOK_SECONDS)

    def wait_for(self, pattern: str, what: str) -> None:
        """Wait until the process says something that matches; see :meth:`wait_until`."""
        self.wait_until(lambda: re.search(pattern, self.said()) is not None, what, _START_SECONDS)

    def terminate(self) -> None:
        """Ask the process to end itself."""
        if self._process is not None and self.is_running:
            self._process.terminate()

    def stop(self) -> None:
        """Let the process end itself; end what is left of it and of those that it started."""
        self.terminate()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process and those that it started at once (SIGKILL), as a power cut would."""
        if self._process is not None and self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        deadline = time.monotonic() + _STOP_SECONDS
        while (left := self.processes()) and time.monotonic() < deadline:  # in other sessions
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_SECONDS)


class Device(Part):
    """A device: its SuperNode is the part; its preference service is another, ``service``.

    Parameters
    ----------
    name : str
        Its key in ``keys/devices``, and its folder.
    folder : Path
        The federation's.
    superlink : str
        Address of the SuperLink.
    node_config : Mapping
        What its owner says beside ``store-path``: ``min-duels-per-upload``.
    arms : Path, optional
        Arms for the page of its service.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        superlink: str,
        node_config: Mapping[str, object],
        arms: Path | None,
    ) -> None:
        keys = folder / "keys"
        self.key = keys / credentials.DEVICES / name
        self.store = folder / name / "duels.db"
        self.store.parent.mkdir(parents=True, exist_ok=True)
        config = {"store-path": str(self.store), **node_config}
        super().__init__(
            f"{name}-supernode",
            folder,
            [
                tool("flower-supernode"),
                *("--superlink", superlink),
                *("--root-certificates", str(keys / credentials.CA)),
                *("--auth-supernode-private-key", str(self.key)),
                *("--host", HOST, "--port", str(free_port())),
                *("--node-config", toml(config)),
            ],
        )
        self.port = free_port()
        self.service = Part(
            f"{name}-service",
            folder,
            [
                sys.executable,
                *("-m", "clients.service", "--store", str(self.store), "--port", str(self.port)),
                *(() if arms is None else ("--arms", str(arms))),
            ],
        )

    @property
    def token(self) -> str:
        """What the service wants to see; there once it runs."""
        return self.store.with_name(f"{self.store.name}.token").read_text().strip()

    @property
    def url(self) -> str:
        """Address of the page, with the token."""
        return f"http://{HOST}:{self.port}/#token={self.token}"

    def ask(self, path: str, body: object = None) -> Any:
        """Return the service's reply to a GET, or to a POST of a body as JSON.

        Raises
        ------
        UnreachableError
            It does not answer.
        FederationError
            It answers with something else than 200.
        """
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_ASK_SECONDS)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            with contextlib.closing(connection):
                data = None if body is None else json.dumps(body)
                connection.request("GET" if data is None else "POST", path, data, headers)
                reply = connection.getresponse()
                text = reply.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"{self.service.name} does not answer: {error!r}") from None
        if reply.status != http.HTTPStatus.OK:
            raise FederationError(f"{self.service.name}: {path}: {reply.status} {text}")
        return json.loads(text)

    def wait_until_connected(self) -> None:
        """Wait until the SuperLink lets the SuperNode in; start it again while it does not.

        The SuperLink takes a SuperNode that was killed for alive until it misses its
        heartbeats, for up to a minute, and refuses another one with the same key until then.

        Raises
        ------
        FederationError
            The SuperNode ended for another reason, or time is over.
        """
        deadline = time.monotonic() + _START_SECONDS + _HEARTBEAT_SECONDS
        while True:
            try:
                self.wait_for(_CONNECTED, "connected")
            except FederationError:
                if _REFUSED not in self.said() or time.monotonic() > deadline:
                    raise
            else:
                return
            self.kill()
            time.sleep(_AGAIN_SECONDS)
            self.start()

    def wait_for_service(self) -> None:
        """Wait until the service answers."""
        what = f"listening on port {self.port}"
        self.service.wait_until(lambda: is_open(self.port), what, _START_SECONDS)


class LocalFederation:
    """A SuperLink and devices on this machine.

    Parameters
    ----------
    folder : Path
        Where everything is: keys, logs, stores, and in ``server`` the results. One that was
        used before goes on where it ended.
    devices : int
        How many.
    node_config : Mapping
        What the devices' owners say: ``min-duels-per-upload``.
    arms : Path, optional
        Arms for the pages of the devices.
    """

    def __init__(
        self,
        folder: Path,
        devices: int = 3,
        *,
        node_config: Mapping[str, object] | None = None,
        arms: Path | None = None,
    ) -> None:
        project_folder("a federation on this machine")
        self.folder = folder.absolute()
        self.results = self.folder / "server"
        self.port = free_port()
        self.address = f"{HOST}:{self.port}"
        keys = self.folder / "keys"
        self.superlink = Part(
            "superlink",
            self.folder,
            [
                tool("flower-superlink"),
                *("--host", HOST, "--port", str(self.port)),
                *("--ssl-ca-certfile", str(keys / credentials.CA)),
                *("--ssl-certfile", str(keys / credentials.SERVER)),
                *("--ssl-keyfile", str(keys / credentials.SERVER_KEY)),
                "--enable-supernode-auth",
                "--disable-runtime-dependency-installation",
                *("--database", str(self.folder / "superlink.db")),
            ],
        )
        self.devices = [
            Device(f"device{number}", self.folder, self.address, node_config or {}, arms)
            for number in range(1, devices + 1)
        ]
        self.runs: list[Part] = []
        if not keys.exists():
            credentials.create(keys, [HOST, "localhost"], devices)

    @property
    def parts(self) -> list[Part]:
        """Everything that runs for long, in the order in which it is best stopped."""
        services = [device.service for device in self.devices]
        return [*self.runs, *self.devices, *services, self.superlink]

    # --- starting ------------------------------------------------------------------------------

    def start(self, say: Callable[[str], None] = lambda _line: None) -> None:
        """Start the services and the SuperLink, register the devices, start the SuperNodes.

        When this returns, the services answer and the SuperNodes are connected.

        Parameters
        ----------
        say : callable
            Prints one line; called before each step.

        Raises
        ------
        FederationError
            Something did not start; the message quotes its log.
        """
        say("starting the SuperLink")
        for device in self.devices:
            device.service.start()
        self.start_superlink()
        count = len(self.devices)
        say(f"registering the keys of {count} devices")
        self.register(self.devices)
        for device in self.devices:
            device.start()
        for connected, device in enumerate(self.devices):
            say(f"waiting for devices: {connected} of {count} are connected")
            device.wait_for_service()
            device.wait_until_connected()

    def start_superlink(self) -> None:
        """Start the SuperLink, and wait until it answers."""
        self.superlink.start()
        what = f"listening on port {self.port}"
        self.superlink.wait_until(lambda: is_open(self.port), what, _START_SECONDS)

    def register(self, devices: Sequence[Device]) -> None:
        """Let devices in, by their public keys; one that is known may be told again."""
        commands = [
            self.flwr(
                f"register-{device.key.name}",
                *("supernode", "register", str(device.key.with_suffix(".pub")), _LINK),
                *("--name", device.key.name),
            )
            for device in devices
        ]
        try:
            for command in commands:
                command.start()
            for command in commands:
                command.wait_for(_REGISTERED, "registered")
        finally:
            for command in commands:
                command.stop()

    def flwr(self, name: str, *arguments: str) -> Part:
        """Return a part that calls ``flwr``, which then knows the SuperLink as ``local``."""
        part = Part(name, self.folder, [tool("flwr"), *arguments])
        part.home.mkdir(parents=True, exist_ok=True)
        (part.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_LINK}"\n\n[superlink.{_LINK}]\naddress = "{self.address}"\n'
            f'root-certificates = "{self.folder / "keys" / credentials.CA}"\n'
        )
        return part

    def run(self, **settings: object) -> Part:
        """Start a server of rounds, as ``flwr run`` does; its log is the part's.

        Parameters
        ----------
        **settings
            Settings of the run; ``devices_rounds=20`` is ``devices-rounds=20``.

        Returns
        -------
        Part
            ``flwr run --stream``: it ends when the run does. That is another process, in the
            SuperLink's home: see :meth:`server_apps`.
        """
        values: dict[str, object] = {"mode": "devices", "output-dir": str(self.results)}
        values |= {key.replace("_", "-"): value for key, value in settings.items()}
        part = self.flwr(
            f"run{len(self.runs) + 1}",
            *("run", str(PROJECT), _LINK, "--stream", "--run-config", toml(values)),
        )
        self.runs.append(part)
        part.start()
        part.wait_for(_STARTED, "submitted")
        return part

    # --- looking -------------------------------------------------------------------------------

    def server_apps(self) -> list[int]:
        """Return the ids of the processes that conduct rounds."""
        return self.superlink.processes("flwr-serverapp")

    def model(self) -> dict[str, Any] | None:
        """Return what model.json holds; None before the first round."""
        try:
            model: dict[str, Any] = json.loads((self.results / "model.json").read_text())
        except FileNotFoundError:
            return None
        return model

    def rounds(self) -> list[dict[str, str]]:
        """Return the rows of rounds.csv; the last one may not be in the model yet."""
        return _rows(self.results / "rounds.csv")

    def uploads(self) -> list[dict[str, str]]:
        """Return the rows of uploads.csv: which answers of which device a round counted."""
        return _rows(self.results / "uploads.csv")

    # --- stopping ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop everything, the SuperLink last: SuperNodes take their leave of it."""
        *others, superlink = self.parts
        for part in others:
            part.terminate()
        for part in (*others, superlink):
            part.stop()

    def __enter__(self) -> LocalFederation:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a part: Flower's commands are found, its home is its own."""
    path = os.environ.get("PATH", os.defpath)
    return {
        **own_environment(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}",
        "PYTHONPATH": str(PROJECT),
        "PYTHONUNBUFFERED": "1",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": os.environ.get("FLWR_TELEMETRY_ENABLED", "0"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; 1 by default
    }


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _processes(home: Path) -> Iterator[int]:
    """Yield the processes that were started with this FLWR_HOME, however they were since."""
    wanted = f"FLWR_HOME={home}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        if wanted in _words(entry / "environ"):
            yield int(entry.name)


def _words(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []  # it ended, or is not ours
