"""`python -m simulations.benchmark [SECTION ...]`: times, exchanges, bytes and regret.

Sections: ``algorithms`` (vectorized, relative to lower bounds), ``inprocess`` (one exchange of one
node, and Flower's bare message), ``scale`` (time and memory against N, d, K and T), ``robust``
(regret with dishonest nodes), ``flower`` (`flwr run` relative to an app that does nothing),
``deployment`` (a SuperLink under load, by number of nodes), ``message`` (a device's process for one
message), ``install`` (size and time of `pip install` by dependency); of FLDB-Personal,
``newcomers`` (agents that join late), ``variances`` (rules for v) and ``pace`` (times relative to
LDB); of agents that keep their own duels, ``refits`` and ``refit_times`` (regret and times with
fits at geometric times); of secure sums, ``secure`` (times and bytes of one sum) and ``liars``
(regret with a dishonest device); ``privacy`` (regret with noise); ``limits`` (each goal of speed
and memory, as a ratio). By default, ``algorithms``, ``inprocess`` and ``scale`` run. Times depend
on the load of the machine. The tables have medians over the repetitions, and ratios of times
measured alternately.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from simulations import start

    start.begin()

import argparse
import datetime
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fldb_flower.errors import FldbError, one_line
from fldb_flower.runs.plots import FORMATS
from fldb_flower.settings import suggestion
from fldb_flower.system.commands import Parser, bounded
from fldb_flower.system.progress import progress
from fldb_flower.system.signals import interruptible
from simulations import measured
from simulations.benchmark.algorithms import algorithms
from simulations.benchmark.deployment import deployment
from simulations.benchmark.exchange import inprocess_exchange
from simulations.benchmark.flower import flower
from simulations.benchmark.install import install
from simulations.benchmark.liars import liars
from simulations.benchmark.limits import limits
from simulations.benchmark.message import message
from simulations.benchmark.personal import newcomers, pace, variances
from simulations.benchmark.privacy import privacy
from simulations.benchmark.refits import refit_times, refits
from simulations.benchmark.robust import robust
from simulations.benchmark.scale import scale
from simulations.benchmark.secure import secure

SECTIONS: dict[str, Callable[[argparse.Namespace], pd.DataFrame]] = {
    "algorithms": lambda asked: algorithms(asked.repetitions),
    "inprocess": lambda asked: inprocess_exchange(asked.repetitions),
    "scale": lambda asked: scale(asked.picture),
    "robust": lambda _asked: robust(),
    "flower": lambda asked: flower(max(1, asked.repetitions // 3)),
    "deployment": lambda _asked: deployment(),
    "message": lambda asked: message(asked.repetitions),
    "install": lambda _asked: install(),
    "newcomers": lambda _asked: newcomers(),
    "variances": lambda asked: variances({"duels": asked.duels}),
    "pace": lambda asked: pace(asked.repetitions),
    "refits": lambda _asked: refits(),
    "refit_times": lambda asked: refit_times(max(1, asked.repetitions // 3)),
    "secure": lambda asked: secure(asked.repetitions),
    "liars": lambda _asked: liars(),
    "privacy": lambda _asked: privacy(),
    "limits": lambda asked: limits(asked.repetitions),
}
_DEFAULT = ("algorithms", "inprocess", "scale")


def record(table: pd.DataFrame, path: Path) -> None:
    """Write the table of a section as a result file, with command, date and machine."""
    arguments = shlex.join(sys.argv[1:])
    content = {
        "command": f"python -m simulations.benchmark {arguments}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "rows": table.to_dict("records"),
    }
    measured.write(path, content)


def machine() -> str:
    """Return processor, cores and versions."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    found = re.search(r"^model name\s*:\s*(.*?)\s*$", text, re.MULTILINE)
    processor = found[1] if found else platform.processor() or platform.machine()
    python = platform.python_version()
    return f"{processor}, {os.cpu_count()} cores, Python {python}, NumPy {np.__version__}"


def _section(name: str) -> str:
    if name not in SECTIONS:
        hint = suggestion(name, SECTIONS) or f"; there are {', '.join(SECTIONS)}"
        raise argparse.ArgumentTypeError(f"there is no section {name!r}{hint}")
    return name


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = Parser(description=__doc__)
    sections = f"one of {', '.join(SECTIONS)} (default: {' '.join(_DEFAULT)})"
    section: Any = parser.add_argument(
        "section", nargs="*", type=_section, metavar="SECTION", help=sections
    )
    section.completer = lambda **_: list(SECTIONS)  # argcomplete reads this attribute
    parser.add_argument(
        "--repetitions", type=bounded(int, 1, 1000), default=9, metavar="N",
        help="number of timings (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--picture", type=Path, metavar="FILE",
        help="file for the plot of the section scale: .png, .svg or .pdf (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--duels",
        default=os.environ.get("FLDB_DUELS", ""),
        metavar="DIR",
        help="studies of real people, for variances (default: the environment variable FLDB_DUELS)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="JSON file for the table of one section (default: none)",
    )
    asked = parser.parse_args()
    if asked.picture is not None and asked.picture.suffix[1:] not in FORMATS:
        parser.error(f"--picture {asked.picture} must end in .png, .svg or .pdf")
    if asked.output is not None and len(asked.section) != 1:
        parser.error("--output holds one section: name it")
    return asked


def main() -> None:
    """Run the command."""
    asked = _arguments()
    with interruptible():
        print(machine())
        try:
            for section in asked.section or _DEFAULT:
                with progress(section):
                    table = SECTIONS[section](asked)
                print(f"\n{section}\n{table.to_string(index=False)}", flush=True)
                if asked.output is not None:
                    record(table, asked.output)
        except FldbError as error:
            sys.exit(f"error: {one_line(error)}")


if __name__ == "__main__":
    main()
