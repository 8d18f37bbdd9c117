"""`python docs/measure/gpu.py`: runs on a GPU, compared with NumPy on the CPU.

First, 100 Flower clients have a tenth of the GPU each. Their theta and regret must be those of
``backend=numpy`` to 1e-9. Then runs without Flower are timed by N and d. With ``rng=torch``, the
random numbers are drawn on the GPU; otherwise they are copied to it. Without a GPU, the command
ends with one line and status 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

import fldb_flower as fldb
from common import median
from fldb_flower.errors import FldbError
from fldb_flower.linalg.arrays import arrays_on
from fldb_flower.system.commands import Parser, bounded, ending_in_one_line
from simulations.benchmark import seconds

TOLERANCE = 1e-9


def compare(algorithm: str, chosen: argparse.Namespace) -> str:
    """Compare a run of Flower clients on the device with NumPy; return the differences."""
    device, clients = chosen.device, chosen.clients
    plain: dict[str, Any] = {
        "algorithm": algorithm,
        "num_agents": clients,
        "horizon": chosen.horizon,
        "tau": 5,
    }
    engine: dict[str, Any] = {"engine": "flower", "engine_num_nodes": clients}
    engine |= {"engine_num_gpus": 0.1} if device == "cuda" else {}
    found, expected = fldb.run(plain | engine | {"backend": device}), fldb.run(plain)
    line = f"{algorithm}, {clients} Flower clients, backend={device}"
    pairs: dict[str, Any] = {
        "theta": (found.theta, expected.theta),
        "regret": [each.regret["cumulative_regret"].to_numpy() for each in (found, expected)],
    }
    for name, (one, other) in pairs.items():
        difference = float(np.abs(one - other).max() / np.abs(other).max())
        line += f", {name} differs from backend=numpy by {difference:.1e}"
        if not difference <= TOLERANCE:
            raise FldbError(f"{line} of its largest value; at most {TOLERANCE:g} is valid")
    return line


def pace(algorithm: str, chosen: argparse.Namespace) -> pd.DataFrame:
    """Return the seconds of runs by N and d: medians of three, after one that is not counted."""
    device, rows = chosen.device, []
    ways = {"NumPy": ("numpy", "numpy"), device: (device, "numpy")}
    ways[f"{device}, rng=torch"] = (device, "torch")
    for number, dimension in product(chosen.agents, chosen.dimensions):
        row: dict[str, float] = {"N": number, "d": dimension}
        size = {"num_agents": number, "dimension": dimension, "horizon": chosen.horizon, "tau": 1}
        for name, (backend, rng) in ways.items():
            values: dict[str, Any] = {"algorithm": algorithm, "backend": backend, "rng": rng}
            play = partial(fldb.run, size | values)
            play()
            row[f"{name}, s"] = median((seconds(play) for _ in range(3)), 3)
        rows.append(row)
    return pd.DataFrame(rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser, count = Parser(description=__doc__), bounded(int, 1)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="of PyTorch")
    parser.add_argument("--algorithm", default=["fldb_ons", "fldb_personal"], nargs="+")
    parser.add_argument("--clients", default=100, type=count, help="Flower clients")
    parser.add_argument("--agents", default=[100, 1000, 10000], nargs="+", type=count, help="N")
    parser.add_argument("--dimensions", default=[5, 64], nargs="+", type=count, help="d")
    parser.add_argument("--horizon", default=100, type=count)
    chosen = parser.parse_args(argv)
    with ending_in_one_line():
        arrays_on(chosen.device)  # raises an error without a GPU
        for algorithm in chosen.algorithm:
            print(compare(algorithm, chosen), flush=True)
            print(pace(algorithm, chosen).to_string(index=False), flush=True)


if __name__ == "__main__":
    main()
