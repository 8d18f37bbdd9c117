"""An exchange with one node over Flower messages in one process, and Flower's bare message."""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import WARNING, getLogger
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.simulated import LocalContext, SimulatedAgents
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.settings import Settings, from_flat, to_flat
from simulations.benchmark import settings
from simulations.engines.grid import InProcessGrid
from strategies import make_strategy

_GOAL = 1.3  # an exchange without its agents, in units of Flower's bare message


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

    def __init__(self, num_nodes: int, reply: FloatArray, numbers: dict[str, Any]) -> None:
        super().__init__(num_nodes, to_flat(Settings()))
        self._app = ClientApp()

        @self._app.train()
        def train(message: Message, _context: Context) -> Message:
            content: Any = message.content
            content["arrays"].to_numpy_ndarrays()
            content = RecordDict({"arrays": ArrayRecord([reply]), "config": ConfigRecord(numbers)})
            return Message(content, reply_to=message)

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
        content = RecordDict(
            {"arrays": ArrayRecord([np.zeros(2 * d + triangle)]), "config": config}
        )
        messages = [Message(content, node, "train") for node in grid.get_node_ids()]
        for reply in grid.send_and_receive(messages):
            received: Any = reply.content
            received["arrays"].to_numpy_ndarrays()


def exchange_costs(repetitions: int, nodes: int = 100, horizon: int = 50) -> dict[str, list[float]]:
    """Return the seconds of an exchange with one node, and of its reference, alternately.

    The exchanges are those of FLDB-OGD with one agent per node and tau=1. They include what the
    server computes. ``agents`` is the part in which agents select arms and compute statistics, and
    ``bare`` is Flower's message.
    """
    getLogger("flwr").setLevel(WARNING)
    chosen = settings(
        num_agents=nodes, horizon=horizon, engine={"name": "inprocess", "num_nodes": nodes}
    )
    costs: dict[str, list[float]] = {"exchange": [], "agents": [], "bare": []}
    for _ in range(repetitions):
        history = History(horizon)
        whole, agents = _timed(timed_agents, chosen, history)
        bare, _ = _timed(bare_exchanges, chosen, history.exchanges)
        own = sum(each.seconds for each in agents)
        for name, each in (("exchange", whole), ("agents", own), ("bare", bare)):
            costs[name].append(each / history.exchanges / nodes)
    return costs


class TimedAgents:
    """The agents of a node, which measure the seconds in which they answer."""

    def __init__(self, group: AgentGroup) -> None:
        self._group = group
        self.seconds = 0.0

    def answer(self, broadcast: Broadcast, counted: int) -> Upload:
        """Answer as the agents do."""
        begin = time.process_time()
        upload = self._group.answer(broadcast, counted)
        self.seconds += time.process_time() - begin
        return upload


def timed_agents(chosen: Settings, history: History) -> list[TimedAgents]:
    """Run over nodes in this process, as :func:`inprocess.play` does; return their agents."""
    grid = InProcessGrid(chosen.engine.num_nodes, to_flat(chosen), LocalContext)
    agents = []
    context: Any
    for partition, context in enumerate(grid.contexts.values()):
        node = from_flat(context.run_config, "a benchmark")
        context.client = SimulatedAgents(node, partition, len(grid.contexts))
        context.client.group = TimedAgents(context.client.group)
        agents.append(context.client.group)
    make_strategy(chosen, history).start(grid)
    return agents


def _timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Return the seconds of the processor, which other processes affect less, and the result."""
    begin = time.process_time()
    result = function(*arguments)
    return time.process_time() - begin, result


def inprocess(repetitions: int = 9) -> pd.DataFrame:
    """Return the table of the costs of an exchange with one node; see :func:`exchange_costs`."""
    return pd.DataFrame([_row(repetitions)])


def exchange_over_bare_message(repetitions: int) -> list[dict[str, Any]]:
    """Return the row of the ratio of an exchange, without its agents, to Flower's bare message."""
    row = _row(repetitions)
    figure = "exchange of one node / Flower's bare message"
    return [{"figure": figure, "ratio": row.pop("x bare message"), "goal": _GOAL, **row}]


def _row(repetitions: int) -> dict[str, float]:
    costs = {name: np.array(each) for name, each in exchange_costs(repetitions).items()}
    ratio = np.median((costs["exchange"] - costs["agents"]) / costs["bare"])
    return {
        "exchange of one node, ms": _milliseconds(costs["exchange"]),
        "of its agents, ms": _milliseconds(costs["agents"]),
        "bare message, ms": _milliseconds(costs["bare"]),
        "x bare message": round(float(ratio), 2),
    }


def _milliseconds(times: FloatArray) -> float:
    return round(1e3 * float(np.median(times)), 3)
