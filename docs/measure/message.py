"""Table `message`: the process of a device for one message, beside a bare app's."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import ConfigRecord, Context, RecordDict

from clients.check import FLOWERS_IMPORTS
from clients.preference_agent import PreferenceAgent
from common import median
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.wire import encode_broadcast, pack_vector

DIMENSION, ANSWERS = 5, 20
"""Features, and answers in the store."""
APPS = {
    "ours": "from fldb_flower.client_app import app\n",
    "bare": """
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
app = ClientApp()
@app.train()
def train(message, context):
    vector = message.content["arrays"].to_numpy_ndarrays()[0]
    return Message(RecordDict({"arrays": ArrayRecord([vector])}), reply_to=message)
""",
}
"""Code that imports a ClientApp, ``app``."""
_BEGIN = """
import pickle, sys
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 0, 1
with open(sys.argv[1], "rb") as file:
    content, context = pickle.load(file)
message = Message(content, 2, "train")
message.metadata.__dict__["_message_id"] = "1"
"""
_REPLY = """
import time
from pathlib import Path
assert app(message, context).content["arrays"]
print(time.process_time(), Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def message(repetitions: int = 5) -> pd.DataFrame:
    """Return the processor time and the memory of the process that replies to one message.

    The message is a broadcast of FLDB-ONS with d = 5 to a device with 20 answers. The bare app
    sends the vector back. The process imports what Flower's process imports. It does not include
    the requests to the SuperNode, which are the same for both.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in APPS}
    with tempfile.TemporaryDirectory(prefix="fldb-message-") as folder:
        request = Path(folder) / "request"
        for repetition in range(repetitions):
            for name, code in APPS.items():
                store = Path(folder) / f"{name}{repetition}.db"
                request.write_bytes(pickle.dumps(_request(store)))
                found[name].append(_measure(f"{FLOWERS_IMPORTS}{_BEGIN}{code}{_REPLY}", request))
    return pd.DataFrame(
        {"app": name, "CPU, s": median(t for t, _ in each), "MB": median((m for _, m in each), 1)}
        for name, each in found.items()
    )


def _request(path: Path) -> tuple[RecordDict, Context]:
    """Return the content of a broadcast, and the context of a device; create its store."""
    rng = np.random.default_rng(0)
    with PreferenceAgent(path) as agent:
        for _ in range(ANSWERS):
            agent.record(agent.propose(rng.standard_normal((2, DIMENSION))).id, "first")
        device = agent.store.device_id
    estimate = Estimate(np.zeros(DIMENSION), np.eye(DIMENSION))
    broadcast = Broadcast(PlayRequest(2, 2, estimate), np.zeros(DIMENSION), hessian=True)
    vector, header = encode_broadcast(broadcast)
    config: dict[str, Any] = {"counted": 0, "device": device, "upto": -1, "duels": ANSWERS}
    config["header"] = list(header)
    content = RecordDict({"arrays": pack_vector(vector), "config": ConfigRecord(config)})
    run: Any = {"mode": "devices", "algorithm": "fldb_ons", "dimension": DIMENSION}
    return content, Context(1, 2, {"store-path": str(path)}, RecordDict(), run)


def _measure(code: str, request: Path) -> tuple[float, float]:
    """Return seconds of processors and megabytes of a process that runs this code."""
    command = [sys.executable, "-c", code, str(request)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds, kilobytes = done.stdout.split()
    return float(seconds), float(kilobytes) / 1024
