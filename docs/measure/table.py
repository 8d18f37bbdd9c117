"""`python docs/measure/table.py NAME ...`: measure tables of the documents again.

Each is written to ``docs/results/NAME.json``, with command, date and machine. Times depend on the
load of the machine; ratios are of times measured alternately.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import platform
import re
from pathlib import Path

import numpy as np
import pandas as pd

import measured
import pictures

MODULES = {  # of the function that measures each table, by its name
    "algorithms": "simulations.benchmark",  # the algorithms, relative to lower bounds
    "changing": "changing",  # half-lives, if theta changes its sign
    "changing_device": "changing",  # the same on a device
    "conditions": "directions",  # both forms of V with other schedules
    "deployment": "deployment",  # a SuperLink under load, by number of nodes
    "flower": "flower",  # `flwr run`, relative to an app that does nothing
    "groups": "groups",  # clusters and directions, with COLDB
    "inprocess": "exchange",  # one exchange of one node, and Flower's bare message
    "install": "install",  # size and time of `pip install` by dependency
    "liars": "robust",  # regret with a dishonest device in secure sums
    "limits": "limits",  # each goal of speed and memory, as a ratio
    "message": "message",  # a device's process for one message
    "newcomers": "personal",  # agents that join late
    "pace": "personal",  # times of FLDB-Personal relative to LDB
    "populations": "directions",  # a learned V, where agents differ along directions
    "privacy": "privacy",  # regret with noise
    "refit_times": "refits",  # times with fits at geometric times
    "refits": "refits",  # regret with fits at geometric times
    "robust": "robust",  # regret with dishonest nodes
    "scale": "memory",  # time and memory against N, d, K and T
    "secure": "secure",  # times and bytes of one secure sum
    "variances": "personal",  # rules for v
}


def machine() -> str:
    """Return processor, cores and versions."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    found = re.search(r"^model name\s*:\s*(.*?)\s*$", text, re.MULTILINE)
    processor = found[1] if found else platform.processor() or platform.machine()
    python = platform.python_version()
    return f"{processor}, {os.cpu_count()} cores, Python {python}, NumPy {np.__version__}"


def record(name: str) -> pd.DataFrame:
    """Measure a table, write its result file, and return it."""
    table: pd.DataFrame = getattr(importlib.import_module(MODULES[name]), name)()
    content = {
        "command": f"python docs/measure/table.py {name}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "rows": table.to_dict("records"),
    }
    measured.write(measured.FOLDER / f"{name}.json", content)
    pictures.draw(name, content)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="+", choices=MODULES)
    for name in parser.parse_args().name:
        print(f"{name}\n{record(name).to_string(index=False)}", flush=True)
