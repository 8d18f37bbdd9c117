"""Flower apps without algorithm, to compare ours with; one that sends and receives on request.

The server of :data:`SERVER` waits for a file ``send`` in its folder, which holds a kind of record
and a number of bytes. It then sends one record of this size to every node, waits for the replies as
our server does, and writes the seconds to a file ``sent``. A reply has a record of the same kind
and size, of random bytes: Flower does not transfer what it has already. Of the kind ``none``,
messages are empty.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fldb_flower.wire import content_bytes, pack_vector

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
SERVER = """
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
    """Create an app in a new folder: ``server`` and ``client`` in its code, and a line of TOML."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(f"{_PROJECT}{config}\n")
    (folder / "bare.py").write_text(code)


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
