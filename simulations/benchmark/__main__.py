"""`python -m simulations.benchmark [SECTION ...]`: times, exchanges, bytes and regret.

Sections: ``algorithms`` (each against the floors, vectorized), ``inprocess`` (one exchange of
one node), ``scale`` (time and memory against N, d, K and T), ``devices`` (a device's store and
client), ``robust`` (regret with liars among the nodes), ``flower`` (`flwr run` against an app that
does nothing). All but ``robust`` and ``flower`` run by default. Timings depend on what else the
machine does: medians over the repetitions are printed, and ratios of times measured in turn.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from simulations import start

    start.begin()

import argparse
import datetime
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from logging import WARNING, getLogger
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fldb_flower.bandit.preference import derivatives
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.federation.history import History
from fldb_flower.settings import Settings, from_nested
from fldb_flower.system.commands import Parser
from fldb_flower.system.signals import interruptible
from simulations import measured
from simulations.benchmark.devices import devices
from simulations.benchmark.robust import robust
from simulations.benchmark.scale import scale
from simulations.engines import vectorized

ALGORITHMS: dict[str, dict[str, Any]] = {
    "random": {"algorithm": "random"},
    "FLDB-OGD": {"algorithm": "fldb_ogd"},
    "FLDB-ONS": {"algorithm": "fldb_ons"},
    "FLDB-ONS geometric 1.5": {"algorithm": "fldb_ons", "schedule": {"name": "geometric"}},
    "FLDB-GD newton": {"algorithm": "fldb_gd"},
    "LDB": {"algorithm": "ldb"},
}


def settings(**values: Any) -> Settings:
    """Return the benchmark's settings: N=100, T=500, K=10, d=5, tau=1, unless told otherwise."""
    return from_nested({"tau": 1, **values}, "the benchmark")


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Time one call."""
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


def draw_at_once(chosen: Settings) -> None:
    """Draw as many random numbers as a run uses, from one NumPy generator: the floor."""
    generator = np.random.default_rng(chosen.seed)
    shape = (chosen.num_agents, chosen.num_arms, chosen.dimension)
    for _ in range(chosen.horizon):
        generator.standard_normal(shape)
        generator.random(chosen.num_agents)


def draw_by_agent(chosen: Settings) -> None:
    """Draw the very numbers of a run: 2 streams an agent, seeded, as the engine draws them."""
    streams = AgentStreams(chosen.seed, range(chosen.num_agents))
    for _ in range(0, chosen.horizon, 64):
        streams.standard_normal("arms", 64, chosen.num_arms, chosen.dimension)
        streams.random("preferences", 64)


def pass_over_duels(chosen: Settings) -> None:
    """Evaluate gradient and Hessian of all duels so far, once an iteration: FLDB-GD's floor."""
    generator = np.random.default_rng(chosen.seed)
    count, d = chosen.num_agents, chosen.dimension
    duels = generator.standard_normal((count * chosen.horizon, d))
    wins = (generator.random(len(duels)) < 0.5) * 1.0
    theta = np.ones(d)
    for t in range(1, chosen.horizon + 1):
        derivatives(theta, duels[: t * count], wins[: t * count])


def algorithms(repetitions: int) -> pd.DataFrame:
    """Time every algorithm in turn with the floors."""
    base = settings()
    floors = {"draws": draw_at_once, "own draws": draw_by_agent, "pass": pass_over_duels}
    rows = []
    for name, values in ALGORITHMS.items():
        chosen, times, floor_times = settings(**values), [], []
        for _ in range(repetitions):
            history = History(chosen.horizon)
            floor_times.append([seconds(floor, base) for floor in floors.values()])
            times.append(seconds(vectorized.run, chosen, history))
        ratios = np.median(np.array(times)[:, None] / np.array(floor_times), axis=0)
        rows.append(
            {
                "algorithm": name,
                "seconds": round(statistics.median(times), 3),
                **{f"x {key}": round(float(r), 2) for key, r in zip(floors, ratios, strict=True)},
                "exchanges": history.exchanges,
                "MB up": round(history.uploaded_bytes / 1e6, 2),
                "MB down": round(history.downloaded_bytes / 1e6, 2),
                "regret": round(history.regret, 1),
            }
        )
    return pd.DataFrame(rows)


def inprocess_exchange(repetitions: int) -> pd.DataFrame:
    """Time FLDB-OGD with 100 nodes of one agent each over Flower messages in this process."""
    from simulations.engines import inprocess  # noqa: PLC0415 - imports Flower

    getLogger("flwr").setLevel(WARNING)
    chosen = settings(horizon=100, engine={"name": "inprocess", "num_nodes": 100})
    costs = []
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            inprocess.run(chosen, folder)
            summary = json.loads((Path(folder) / "summary.json").read_text())
            costs.append(1e3 * summary["runtime_seconds"] / summary["exchanges"] / 100)
    return pd.DataFrame([{"exchange of one node, ms": round(statistics.median(costs), 3)}])


_NOOP = {
    "pyproject.toml": """
[project]
name = "noop"
version = "0.0.1"
license = "Apache-2.0"
dependencies = ["flwr[simulation]>=1.42,<1.43"]
[tool.flwr.app]
publisher = "noop"
[tool.flwr.app.components]
serverapp = "noop.apps:server"
clientapp = "noop.apps:client"
[tool.flwr.app.config]
rounds = 1
""",
    "noop/__init__.py": "",
    "noop/apps.py": """
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
""",
}


def _quiet(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def flower(repetitions: int, nodes: int = 2) -> pd.DataFrame:
    """Time `flwr run` of FLDB-OGD (tau=5) and of an app that does nothing, start included."""
    root = Path(__file__).parents[2]
    command = shutil.which("flwr")
    assert command is not None, "flwr is not on the PATH: activate the environment first"
    ours, nothing = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in _NOOP.items():
            path = Path(folder) / "noop" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        options = ["--stream", "--federation-config"]
        options.append(f"num-supernodes={nodes} client-resources-num-cpus=1")
        for number in range(repetitions + 1):  # the first also starts the SuperLink: not counted
            out = Path(folder) / f"run{number}"
            config = f"tau=5 output-dir='{out}'"
            run = [command, "run", str(root), *options, "--run-config", config]
            ours.append(seconds(_quiet, run))
            rounds = json.loads((out / "summary.json").read_text())["exchanges"]
            run = [command, "run", f"{folder}/noop", *options, "--run-config", f"rounds={rounds}"]
            nothing.append(seconds(_quiet, run))
    ratios = [a / b for a, b in zip(ours[1:], nothing[1:], strict=True)]
    return pd.DataFrame(
        [
            {
                "nodes": nodes,
                "rounds": rounds,
                "seconds": round(statistics.median(ours[1:]), 1),
                "seconds, no-op": round(statistics.median(nothing[1:]), 1),
                "ratio": round(statistics.median(ratios), 3),
            }
        ]
    )


def record(table: pd.DataFrame, path: Path) -> None:
    """Write a section's table as a result file, with the command, the date and the machine."""
    arguments = shlex.join(sys.argv[1:])
    content = {
        "command": f"python -m simulations.benchmark {arguments}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "rows": table.to_dict("records"),
    }
    measured.write(path, content)


def machine() -> str:
    """Return what this is measured on: processor, cores, versions."""
    names = [
        line.partition(":")[2].strip()
        for line in _lines(Path("/proc/cpuinfo"))
        if line.startswith("model name")
    ]
    processor = names[0] if names else platform.processor() or platform.machine()
    python = platform.python_version()
    return f"{processor}, {os.cpu_count()} cores, Python {python}, NumPy {np.__version__}"


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = Parser(prog="python -m simulations.benchmark", description=__doc__.splitlines()[0])
    parser.add_argument("section", nargs="*", choices=[*SECTIONS, []], help=", ".join(SECTIONS))
    parser.add_argument("--repetitions", type=int, default=9, help="of each timing (default 9)")
    parser.add_argument("--picture", type=Path, help="PNG file that scale is drawn to")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="JSON file that the section is written to"
    )
    asked = parser.parse_args()
    if asked.output is not None and len(asked.section) != 1:
        parser.error("--output holds one section: name it")
    return asked


SECTIONS: dict[str, Callable[[argparse.Namespace], pd.DataFrame]] = {
    "algorithms": lambda asked: algorithms(asked.repetitions),
    "inprocess": lambda asked: inprocess_exchange(asked.repetitions),
    "scale": lambda asked: scale(asked.picture),
    "devices": lambda asked: devices(asked.repetitions),
    "robust": lambda _asked: robust(),
    "flower": lambda asked: flower(max(1, asked.repetitions // 3)),
}
_LONG = ("robust", "flower")


def _run(asked: argparse.Namespace) -> None:
    print(machine())
    for section in asked.section or [name for name in SECTIONS if name not in _LONG]:
        table = SECTIONS[section](asked)
        print(f"\n{section}\n{table.to_string(index=False)}", flush=True)
        if asked.output is not None:
            record(table, asked.output)


def main() -> None:
    """Print a table for each section asked for."""
    asked = _arguments()
    with interruptible():
        _run(asked)


if __name__ == "__main__":
    main()
