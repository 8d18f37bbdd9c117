"""Table `deployment`: a real SuperLink and ServerApp, with many light nodes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

import capacity
from load import Load, Use

SIZES: Mapping[str, Sequence[int]] = {"file": (10, 50), "memory": (10, 50, 200)}
"""Numbers of nodes, by where the SuperLink has its database."""
COMPARED = 50
"""Number of nodes at which our app is compared with the bare one, with the database in memory."""
REPETITIONS = 3  # of the comparison
IDLE_SECONDS = 9.0  # three polls of each node
GOAL = 1.3  # our app, in units of a bare exchange of the same size
OURS = "ours"
BARE = {"array": "array", "bytes": "bytes", "empty": "none"}
"""Name of a bare exchange -> its kind of record."""
_SETTINGS = {"first_round": "step"}  # one exchange in every round


def deployment() -> pd.DataFrame:
    """Measure rounds of FLDB-ONS with 3 new answers of each node, d = 5, over a real SuperLink.

    Columns:

    - *database*: of the SuperLink, in a file or in memory;
    - *app*: ours, or one that only sends and receives: messages of the same size, with one *array*
      or with *bytes* in a ConfigRecord, or *empty* ones;
    - *s*: seconds from the first message to the last reply. A node looks for messages every 3 s;
    - *a second*: messages with their replies;
    - *SuperLink, ms*, *ServerApp, ms*, *nodes, ms*: time of processors for one message and its
      reply, beyond that of nodes that wait;
    - *busy*: share of a processor that the SuperLink uses in a round;
    - *HTTP*: share of the SuperLink's processor time in the thread that serves HTTP, with TLS and
      middleware. Other threads check signatures and store messages;
    - *requests*, *up, bytes*, *down, bytes*: of a node to the SuperLink for one message and its
      reply, with HTTP's headers;
    - *failed*: requests that were sent again, after an error of the connection or of the SuperLink;
    - *idle, ms*: time of processors of the SuperLink in a second without a round;
    - *idle node, bytes*: what an idle node sends and receives in a second.
    """
    rows: list[dict[str, Any]] = []
    for database, sizes in SIZES.items():
        compared = COMPARED if database == "memory" else 0
        with tempfile.TemporaryDirectory(prefix="fldb-load-") as folder:
            rows += measurements(Path(folder), database, sizes, compared)
    return pd.DataFrame(rows)


def measurements(
    folder: Path, database: str, sizes: Sequence[int], compared: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows for one SuperLink, with more and more nodes.

    With ``compared`` nodes, our app and the bare one exchange messages alternately.
    """
    with Load(folder, database, _SETTINGS) as load:
        load.grow(sizes[0])
        load.start()
        for nodes in sizes:
            load.grow(nodes)
            load.round()  # in which new nodes introduce themselves
            idle = _idle(load)
            apps: dict[str, Callable[[], float]] = {OURS: load.round}
            if nodes == compared:
                apps |= {name: partial(load.bare, kind) for name, kind in BARE.items()}
            for _ in range(REPETITIONS if nodes == compared else 1):
                for name, exchange in apps.items():
                    yield {"database": database, "app": name, **_row(load, name, exchange, idle)}


def _idle(load: Load) -> Use:
    """Return what is used in some seconds without a round."""
    before = load.use()
    time.sleep(IDLE_SECONDS)
    return load.use().since(before)


def _row(load: Load, app: str, exchange: Callable[[], float], idle: Use) -> dict[str, Any]:
    before = load.use()
    seconds = exchange()
    used = load.use().since(before)
    nodes = len(load.people)
    server = "ours" if app == OURS else "bare"

    # Each node asks once for its message. What its other polls take was measured without a round.
    waits = (used.polls - nodes) / idle.polls

    def net(name: str) -> float:
        """Return what one message takes."""
        return float(getattr(used, name) - waits * getattr(idle, name)) / nodes

    return {
        "nodes": nodes,
        "s": round(seconds, 2),
        "a second": round(nodes / seconds, 2),
        "SuperLink, ms": round(1000 * net("superlink"), 2),
        "ServerApp, ms": round(1000 * net(server), 2),
        "nodes, ms": round(1000 * net("nodes"), 2),
        "busy": round(used.superlink / used.seconds, 3),
        "HTTP": round(used.loop / used.superlink, 3),
        "requests": round(net("requests"), 2),
        "failed": used.failed,
        "up, bytes": round(net("up")),
        "down, bytes": round(net("down")),
        "idle, ms": round(1000 * idle.superlink / idle.seconds, 2),
        "idle node, bytes": round((idle.up + idle.down) / idle.seconds / nodes, 1),
    }


def limits(nodes: int = 20) -> list[dict[str, Any]]:
    """Return the time of processors of our app for a message, in units of the bare app's.

    It is that of SuperLink and ServerApp together, measured alternately on one SuperLink.
    """
    with tempfile.TemporaryDirectory(prefix="fldb-load-") as folder:
        rows = list(measurements(Path(folder), "memory", [nodes], nodes))
    found = round(capacity.ratio(rows, "memory", OURS, "array"), 3)
    return [{"figure": "SuperLink and ServerApp, per message", "ratio": found, "goal": GOAL}]
