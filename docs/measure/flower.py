"""Table `flower`: `flwr run`, compared with an app that does nothing."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import pandas as pd

from bare_app import write_app
from common import median
from fldb_flower.deployment.processes import tool
from simulations.benchmark import seconds

_CODE = """
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
server = ServerApp()
client = ClientApp()
@server.main()
def main(grid, context):
    for _ in range(context.run_config["rounds"]):
        nodes = list(grid.get_node_ids())
        grid.send_and_receive([Message(RecordDict(), node, "train") for node in nodes])
@client.train()
def train(message, context):
    return Message(RecordDict(), reply_to=message)
"""


def _flwr(project: Path, nodes: int, config: str) -> float:
    """Return the seconds that `flwr run` takes."""
    command = [tool("flwr"), "run", str(project), "--stream", "--federation-config"]
    command += [f"num-supernodes={nodes} client-resources-num-cpus=1", "--run-config", config]
    return seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def flower(repetitions: int = 3, nodes: int = 2) -> pd.DataFrame:
    """Time `flwr run` of FLDB-OGD (tau=5) and of an app that does nothing, including the start."""
    ours, nothing = [], []
    with tempfile.TemporaryDirectory() as folder:
        noop = Path(folder) / "noop"
        write_app(noop, _CODE, "rounds = 1")
        for number in range(repetitions + 1):  # the first is not counted
            out = Path(folder) / f"run{number}"
            ours.append(_flwr(Path(__file__).parents[2], nodes, f"tau=5 output-dir='{out}'"))
            rounds = json.loads((out / "summary.json").read_text())["exchanges"]
            nothing.append(_flwr(noop, nodes, f"rounds={rounds}"))
    ratios = [a / b for a, b in zip(ours[1:], nothing[1:], strict=True)]
    row = {
        "nodes": nodes,
        "rounds": rounds,
        "seconds": median(ours[1:], 1),
        "seconds, no-op": median(nothing[1:], 1),
        "ratio": median(ratios, 3),
    }
    return pd.DataFrame([row])
