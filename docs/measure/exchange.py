"""Table `inprocess`: an exchange with one node in this process, and Flower's bare message."""

from __future__ import annotations

import time
from logging import WARNING, getLogger
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.simulated import LocalContext, SimulatedAgents
from common import median, processor_seconds
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.settings import Settings, from_flat, to_flat
from simulations.benchmark import settings
from simulations.engines.inprocess import InProcessGrid
from strategies import make_strategy


class BareGrid(InProcessGrid):
    """A grid whose nodes return an array and a few numbers, and compute nothing."""

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
        array = ArrayRecord([np.zeros(2 * d + triangle)])
        content = RecordDict({"arrays": array, "config": config})
        messages = [Message(content, node, "train") for node in grid.get_node_ids()]
        for reply in grid.send_and_receive(messages):
            received: Any = reply.content
            received["arrays"].to_numpy_ndarrays()


class TimedAgents:
    """The agents of a node, which measure the seconds in which they answer."""

    def __init__(self, group: AgentGroup) -> None:
        self._group = group
        self.seconds = 0.0

    def answer(self, broadcast: Broadcast, counted: int) -> Upload:
        """Answer as the agents do."""
        begin = time.process_time()
        upload: Upload = self._group.answer(broadcast, counted)
        self.seconds += time.process_time() - begin
        return upload


def _run(chosen: Settings, history: History, agents: list[TimedAgents]) -> None:
    """Run over nodes in this process, as the engine does; add their agents to a list."""
    grid = InProcessGrid(chosen.engine.num_nodes, to_flat(chosen), LocalContext)
    context: Any
    for partition, context in enumerate(grid.contexts.values()):
        node = from_flat(context.run_config, "a measurement")
        context.client = SimulatedAgents(node, partition, len(grid.contexts))
        context.client.group = TimedAgents(context.client.group)
        agents.append(context.client.group)
    make_strategy(chosen, history).start(grid)


def exchange_costs(repetitions: int, nodes: int = 100, horizon: int = 50) -> dict[str, list[float]]:
    """Return the seconds of an exchange with one node, and of its reference, alternately.

    The exchanges are those of FLDB-OGD with one agent per node and tau=1. They include what the
    server computes. ``agents`` is the part in which agents select arms and compute statistics, and
    ``bare`` is Flower's message.
    """
    getLogger("flwr").setLevel(WARNING)
    engine = {"name": "inprocess", "num_nodes": nodes}
    chosen = settings(num_agents=nodes, horizon=horizon, engine=engine)
    costs: dict[str, list[float]] = {"exchange": [], "agents": [], "bare": []}
    for _ in range(repetitions):
        history, agents = History(horizon), list[TimedAgents]()
        whole = processor_seconds(_run, chosen, history, agents)
        bare = processor_seconds(bare_exchanges, chosen, history.exchanges)
        own = sum(each.seconds for each in agents)
        for name, each in (("exchange", whole), ("agents", own), ("bare", bare)):
            costs[name].append(each / history.exchanges / nodes)
    return costs


def inprocess(repetitions: int = 9) -> pd.DataFrame:
    """Return the costs of an exchange with one node; see :func:`exchange_costs`."""
    costs = {name: np.array(each) for name, each in exchange_costs(repetitions).items()}
    row = {
        "exchange of one node, ms": median(1e3 * costs["exchange"], 3),
        "of its agents, ms": median(1e3 * costs["agents"], 3),
        "bare message, ms": median(1e3 * costs["bare"], 3),
        "x bare message": median((costs["exchange"] - costs["agents"]) / costs["bare"]),
    }
    return pd.DataFrame([row])


def limits(repetitions: int) -> list[dict[str, Any]]:
    """Return the ratio of an exchange, without its agents, to Flower's bare message."""
    ratio = inprocess(repetitions)["x bare message"][0]
    return [{"figure": "exchange of one node / Flower's bare message", "ratio": ratio, "goal": 1.3}]
