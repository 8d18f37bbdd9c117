"""An exchange with one node over Flower messages in one process, and Flower's bare message."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from logging import WARNING, getLogger
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fldb_flower.federation.history import History
from fldb_flower.settings import Settings, to_flat
from simulations.benchmark.algorithms import settings
from simulations.engines import inprocess
from simulations.engines.grid import InProcessGrid

_LONGEST = 1.3  # goal: an exchange in units of Flower's bare message


class BareGrid(InProcessGrid):
    """A grid whose nodes return an array and a few numbers, and compute nothing.

    Parameters
    ----------
    num_nodes : int
        Number of nodes.
    reply : ndarray
        The array.
    numbers : dict
        The numbers.
    """

    def __init__(self, num_nodes: int, reply: np.ndarray, numbers: dict[str, Any]) -> None:
        super().__init__(num_nodes, to_flat(Settings()))
        self._app = ClientApp()

        @self._app.train()
        def train(message: Message, context: Context) -> Message:
            content: Any = message.content
            content["arrays"].to_numpy_ndarrays()
            own = {"arrays": ArrayRecord([reply]), "config": ConfigRecord(numbers)}
            return Message(RecordDict(own), reply_to=message)

    def deliver(self, message: Message) -> Message:
        """Call the app of the addressed node."""
        return self._app(message, self.contexts[message.metadata.dst_node_id])


def bare_exchanges(chosen: Settings, exchanges: int) -> None:
    """Send an array to all nodes and read the arrays that they return, as any Flower app does.

    The arrays have the sizes of FLDB-OGD's messages, and the numbers those of their headers.
    """
    d, nodes = chosen.dimension, chosen.engine.num_nodes
    triangle = d * (d + 1) // 2
    numbers = {"header": [1] * 5, "outcomes": [0.5] * 5, "exchange": 1}
    grid = BareGrid(nodes, np.zeros(d + triangle), numbers)
    for number in range(exchanges):
        config = ConfigRecord({"header": [1] * 7, "counted": number, "exchange": number})
        content = RecordDict({"arrays": ArrayRecord([np.zeros(2 * d + triangle)]), "config": config})
        messages = [Message(content, node, "train") for node in grid.get_node_ids()]
        for reply in grid.send_and_receive(messages):
            received: Any = reply.content
            received["arrays"].to_numpy_ndarrays()


def exchange_costs(repetitions: int, nodes: int = 100, horizon: int = 50) -> dict[str, list[float]]:
    """Return the seconds of an exchange with one node, and of a bare message, alternately.

    The exchanges are those of FLDB-OGD with one agent per node and tau=1. They include what
    agents and server compute.
    """
    getLogger("flwr").setLevel(WARNING)
    chosen = settings(
        num_agents=nodes, horizon=horizon, engine={"name": "inprocess", "num_nodes": nodes}
    )
    costs: dict[str, list[float]] = {"exchange": [], "bare": []}
    for _ in range(repetitions):
        history = History(horizon)
        ours = _seconds(lambda history=history: inprocess.play(chosen, history))
        bare = _seconds(lambda: bare_exchanges(chosen, history.exchanges))
        for name, each in (("exchange", ours), ("bare", bare)):
            costs[name].append(each / history.exchanges / nodes)
    return costs


def _seconds(call: Callable[[], Any]) -> float:
    """Return the seconds of the processor, on which other processes have less effect."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def exchange_and_bare_message(repetitions: int) -> list[dict[str, Any]]:
    """Return the row of the ratio of an exchange to Flower's bare message."""
    costs = exchange_costs(repetitions)
    ratios = [ours / bare for ours, bare in zip(costs["exchange"], costs["bare"], strict=True)]
    return [
        {
            "figure": "exchange of one node / Flower's bare message",
            "ratio": round(statistics.median(ratios), 2),
            "goal": _LONGEST,
        }
    ]
