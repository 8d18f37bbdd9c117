"""A federation of devices on this machine, as separate processes, for the demo and for tests.

SuperLink, SuperNodes and services run as on separate machines: with TLS, a key for each device,
and their own homes and ports. Each process can be killed and started again.
"""

from __future__ import annotations

import contextlib
import csv
import http.client
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fldb_flower.deployment.keys import CA, DEVICES, SERVER, SERVER_KEY, create, create_helper_key
from fldb_flower.deployment.processes import HOST, free_port, is_open, project_folder, toml, tool
from fldb_flower.errors import FederationError, OutputError
from fldb_flower.system.files import read_part, reported
from simulations.local_process import PROJECT, START_SECONDS, LocalProcess, configure_flwr

FEDERATION, PUBLIC, VAULT, NODE_TOKEN = "local", "helper.pub", "vault.toml", "node.token"
_LINK = "local"  # name of the SuperLink in Flower's configuration
_REGISTERED = r"registered successfully|already in use"
_CONNECTED = r"SuperNode ID: "
_REFUSED = "[code: 2004]"
_HEARTBEAT_SECONDS = 60.0
_RETRY_SECONDS = 3.0
_STARTED = r"Successfully started run"
_REQUEST_SECONDS = 60.0
_PRIVATE = 0o077  # umask: nobody else can read keys, answers, messages and tokens


class Secure(NamedTuple):
    """Secure sums: d, which devices pin, epsilon of the run, and the limit of each owner."""

    dimension: int
    epsilon: float
    max_epsilon: float = 1000.0


def _options(**values: object) -> list[str]:
    """Return the options of a command."""
    return [
        word
        for name, value in values.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


class UnreachableError(FederationError):
    """A service did not answer; it may have handled the request."""


class Device(LocalProcess):
    """A device: the process of its SuperNode, and its preference service as ``service``."""

    def __init__(
        self,
        name: str,
        folder: Path,
        superlink: str,
        node_config: Mapping[str, object],
        arms: Path | None,
        *,
        secure: Secure | None = None,
    ) -> None:
        keys = folder / "keys"
        self.key = keys / DEVICES / name
        self.store = folder / name / "duels.db"
        self.store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.port = free_port()
        self.node_token = self.store.with_name(NODE_TOKEN)
        config: dict[str, object] = {"store-path": str(self.store)}
        options = _options(store=self.store, port=self.port)
        if secure:
            url = f"http://{HOST}:{self.port}"
            config = {"service-url": url, "node-token-file": str(self.node_token)}
            vault = self.store.with_name(VAULT)
            options += _options(vault=vault, node_token_file=self.node_token)
        if arms is not None:
            options += _options(arms=arms)
        supernode = _options(
            superlink=superlink,
            root_certificates=keys / CA,
            auth_supernode_private_key=self.key,
            host=HOST,
            port=free_port(),
            node_config=toml({**config, **node_config}),
        )
        command = [tool("flower-supernode"), *supernode]
        super().__init__(f"{name}-supernode", folder, command, umask=_PRIVATE)
        command = [sys.executable, "-m", "clients.service", *options]
        self.service = LocalProcess(f"{name}-service", folder, command, umask=_PRIVATE)

    @property
    def token(self) -> str:
        """The token of the service, which writes it when it starts."""
        return self.store.with_name(f"{self.store.name}.token").read_text().strip()

    @property
    def url(self) -> str:
        """Address of the page, with the token."""
        return f"http://{HOST}:{self.port}/#token={self.token}"

    def ask(self, path: str, body: object = None) -> Any:
        """Return the reply of the service to a GET request, or to a POST request with a JSON body.

        UnreachableError: it does not answer; FederationError: the status of the reply is not 200.
        """
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_REQUEST_SECONDS)
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
        """Wait until the SuperNode is connected; start it again while the SuperLink refuses it.

        The SuperLink considers a killed SuperNode alive until it misses its heartbeats, for up to
        a minute. Until then, it refuses another SuperNode with the same key.
        """
        deadline = time.monotonic() + START_SECONDS + _HEARTBEAT_SECONDS
        while True:
            try:
                return self.wait_for(_CONNECTED, "connected")
            except FederationError:
                if _REFUSED not in self.output() or time.monotonic() > deadline:
                    raise
            self.kill()
            time.sleep(_RETRY_SECONDS)
            self.start()

    def wait_for_service(self) -> None:
        """Wait until the service listens; it then writes its address."""
        self.service.wait_for(rf":{self.port}/#token=", f"listening on port {self.port}")


class LocalFederation:
    """A SuperLink and devices on this machine.

    Keys, logs, stores and results are in a folder that only this user can read. An existing
    federation in it is resumed. ``node_config`` has the settings of the devices' owners, and
    ``options`` those of the SuperLink, which by default accepts only registered keys.
    """

    def __init__(
        self,
        folder: Path,
        devices: int = 3,
        *,
        node_config: Mapping[str, object] | None = None,
        arms: Path | None = None,
        secure: Secure | None = None,
        options: Sequence[str] | None = None,
    ) -> None:
        project_folder("a federation on this machine")
        read_part("clients", "page/index.html")  # Flower's copy of the project has no pages
        self.folder = folder.absolute()
        self.results = self.folder / "server"
        self.port = free_port()
        self.address = f"{HOST}:{self.port}"
        keys = self.folder / "keys"
        with reported(OutputError, f"use {folder}"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if options is None:
            database = str(self.folder / "superlink.db")
            options = ["--enable-supernode-auth", "--database", database]
        tls = {
            "ssl_ca_certfile": keys / CA, "ssl_certfile": keys / SERVER,
            "ssl_keyfile": keys / SERVER_KEY,
        }  # fmt: skip
        command = [tool("flower-superlink"), *_options(host=HOST, port=self.port, **tls), *options]
        self.superlink = LocalProcess("superlink", self.folder, command, umask=_PRIVATE)
        self.devices = [
            Device(name, self.folder, self.address, node_config or {}, arms, secure=secure)
            for name in (f"device{number}" for number in range(1, devices + 1))
        ]
        self.runs: list[LocalProcess] = []
        if not keys.exists():
            create(keys, [HOST, "localhost"], devices)
        self.secure = secure
        self.helper_port = free_port()
        self.helper_folder = self.folder / "helper"
        where = _options(key=keys / "helper", dir=self.helper_folder, port=self.helper_port)
        command = [sys.executable, "-m", "clients.helper", *where]
        self.helper = LocalProcess("helper", self.folder, command, umask=_PRIVATE)
        if secure:
            create_vaults(keys / "helper", [each.store.parent for each in self.devices], secure)

    def start(self, say: Callable[[str], None] = lambda _line: None) -> None:
        """Start the services and the SuperLink, register the devices, start the SuperNodes.

        Returns when the services answer and the SuperNodes are connected. ``say`` is called with
        one line before each step.
        """
        say("starting the SuperLink")
        for device in self.devices:
            device.service.start()
        if self.secure:
            self.start_helper()
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

    def start_helper(self) -> None:
        """Start the helper of secure sums and wait until it listens."""
        self.helper.start()
        self.helper.wait_for("public key", f"listening on port {self.helper_port}")

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens."""
        self.superlink.start()
        what = f"listening on port {self.port}"
        self.superlink.wait_until(lambda: is_open(self.port), what)

    def register(self, devices: Sequence[Device]) -> None:
        """Register the public keys of devices with the SuperLink; a key may be registered again."""
        commands = []
        for key in (device.key for device in devices):
            words = ("supernode", "register", str(key.with_suffix(".pub")), _LINK)
            commands.append(self.flwr(f"register-{key.name}", *words, "--name", key.name))
        try:
            for command in commands:
                command.start()
            for command in commands:
                command.wait_for(_REGISTERED, "registered")
        finally:
            for command in commands:
                command.stop()

    def flwr(self, name: str, *arguments: str) -> LocalProcess:
        """Return a process that runs ``flwr``, configured for the SuperLink."""
        part = LocalProcess(name, self.folder, [tool("flwr"), *arguments], umask=_PRIVATE)
        trust = f'root-certificates = "{self.folder / "keys" / CA}"'
        configure_flwr(part.home, _LINK, self.address, trust)
        return part

    def run(self, **settings: object) -> LocalProcess:
        """Start a run of the federation with ``flwr run --stream``, which ends when the run does.

        ``devices_rounds=20`` is the setting ``devices-rounds=20``. The run itself is another
        process, in the home of the SuperLink.
        """
        values: dict[str, object] = {"mode": "devices", "output-dir": str(self.results)}
        if self.secure:
            values |= {
                "secure": True,
                "privacy-epsilon": self.secure.epsilon,
                "devices-federation": FEDERATION,
                "devices-helper": f"http://{HOST}:{self.helper_port}",
                "devices-helper-key": f"{self.folder}/keys/helper.pub",
                "devices-helper-token": str(self.helper_folder / "token"),
            }
        values |= {key.replace("_", "-"): value for key, value in settings.items()}
        part = self.flwr(
            f"run{len(self.runs) + 1}",
            *("run", str(PROJECT), _LINK, "--stream", "--run-config", toml(values)),
        )
        self.runs.append(part)
        part.start()
        part.wait_for(_STARTED, "submitted")
        return part

    def check(self) -> None:
        """Raise FederationError if the SuperLink, a SuperNode, a service or the helper ended."""
        helpers = [self.helper] if self.secure else []
        services = [device.service for device in self.devices]
        for part in (self.superlink, *self.devices, *services, *helpers):
            if not part.is_running:
                raise FederationError(f"{part.name} is needed but is not running: {part.end()}")

    def model(self) -> dict[str, Any] | None:
        """Return the content of model.json; None before the first round."""
        path = self.results / "model.json"
        return json.loads(path.read_text()) if path.exists() else None

    def rounds(self) -> list[dict[str, str]]:
        """Return the rows of rounds.csv; the model may not include the last one yet."""
        try:
            with (self.results / "rounds.csv").open(newline="") as file:
                return list(csv.DictReader(file))
        except FileNotFoundError:
            return []

    def stop(self) -> None:
        """Stop all processes, the SuperLink last, since SuperNodes sign off from it."""
        others = [*self.runs, *self.devices, *(each.service for each in self.devices), self.helper]
        for part in others:
            part.terminate()
        for part in (*others, self.superlink):
            part.stop()

    def __enter__(self) -> LocalFederation:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()


def create_vaults(key: Path, folders: Iterable[Path], secure: Secure) -> None:
    """Create the helper's signing key, unless it exists, and a vault in the folder of each device.

    The vaults are written in any case, so that another limit takes effect.
    """
    if not key.exists():
        create_helper_key(key)
    public = key.with_name(f"{key.name}.pub").read_text("ascii")
    content = (
        f'federation="{FEDERATION}"\nhelper="{PUBLIC}"\n'
        f"dimension={secure.dimension}\nmax_epsilon={secure.max_epsilon}\n"
    )
    for folder in folders:
        (folder / PUBLIC).write_text(public, encoding="ascii")
        (folder / VAULT).write_text(content, encoding="ascii")
