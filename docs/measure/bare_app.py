"""A Flower app that only sends and receives, to compare ours with, on the same SuperLink.

Its server waits for a file ``send`` in its folder, which holds a kind of record and a number of
bytes. It then sends one record of this size to every node, waits for the replies as our server
does, and writes the seconds to a file ``sent``. A reply has a record of the same kind and size, of
random bytes: Flower does not transfer what it has already. Of the kind ``none``, messages are
empty.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fldb_flower.wire import content_bytes, pack_vector
from simulations.local_federation import LocalFederation
from simulations.local_process import LocalProcess

_WAIT_SECONDS = 600.0
_HEADER_BYTES = 128  # of an array
_PROJECT = """
[project]
name = "bare"
version = "0.0.1"
license = "Apache-2.0"
dependencies = ["flwr[simulation]>=1.42,<1.43"]
[tool.flwr.app]
publisher = "bare"
[tool.flwr.app.components]
serverapp = "bare:server"
clientapp = "bare:client"
[tool.flwr.app.config]
"""
_CODE = """
import random
import time
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
server = ServerApp()
client = ClientApp()
@server.main()
def main(grid, context):
    folder = Path(context.run_config["folder"])
    (folder / "ready").touch()
    while True:
        time.sleep(0.2)
        try:
            kind, size = (folder / "send").read_text().split()
        except FileNotFoundError:
            continue
        (folder / "send").unlink()
        begin = time.perf_counter()
        content = RecordDict()
        if kind == "array":
            content["bare"] = ArrayRecord({"0": Array(np.random.random(int(size) // 8))})
        if kind == "bytes":
            content["bare"] = ConfigRecord({"0": random.randbytes(int(size))})
        messages = [Message(content, node, "train") for node in grid.get_node_ids()]
        waiting = set(grid.push_messages(messages))
        while waiting:
            time.sleep(0.2)
            replies = grid.pull_messages(waiting)
            waiting -= {reply.metadata.reply_to_message_id for reply in replies}
        (folder / "writing").write_text(str(time.perf_counter() - begin))
        (folder / "writing").rename(folder / "sent")
"""


def write_app(folder: Path, code: str, config: str) -> None:
    """Create a Flower app in a new folder: ``server`` and ``client`` in its code, and its config.

    The config is a line of TOML.
    """
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(f"{_PROJECT}{config}\n")
    (folder / "bare.py").write_text(code)


class BareApp:
    """A run of the app on a SuperLink; its process is a child of the SuperLink's."""

    def __init__(self, federation: LocalFederation) -> None:
        self._folder = federation.folder / "bare-app"
        write_app(self._folder, _CODE, 'folder = ""')
        config = f"folder='{self._folder}'"
        self._run: LocalProcess = federation.flwr(
            "bare", "run", str(self._folder), "local", "--stream", "--run-config", config
        )

    def start(self) -> None:
        """Start the run and wait until its server waits."""
        self._run.start()
        self._run.wait_until((self._folder / "ready").exists, "ready")

    def exchange(self, kind: str, size: int) -> float:
        """Exchange a message with every node; return the seconds.

        The kind of its record is ``array`` (ArrayRecord), ``bytes`` (ConfigRecord) or ``none``.
        """
        sent = self._folder / "sent"
        (self._folder / "writing").write_text(f"{kind} {size}")
        (self._folder / "writing").rename(self._folder / "send")
        self._run.wait_until(sent.exists, "done", _WAIT_SECONDS)
        seconds = float(sent.read_text())
        sent.unlink()
        return seconds

    def stop(self) -> None:
        """Stop the process of ``flwr run``; the SuperLink stops that of the server."""
        self._run.stop()


def reply(message: Message) -> RecordDict | None:
    """Return the content of the reply to a message of this app, None for that of another app."""
    content = message.content
    if not content:
        return RecordDict()
    record = content.get("bare")
    if isinstance(record, ArrayRecord):
        size = content_bytes(content) - _HEADER_BYTES
        return RecordDict({"bare": pack_vector(np.random.default_rng().random(size // 8))})
    if isinstance(record, ConfigRecord):
        return RecordDict({"bare": ConfigRecord({"0": random.randbytes(content_bytes(content))})})
    return None
