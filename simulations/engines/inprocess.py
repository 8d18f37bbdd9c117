"""Real Flower messages without Ray: the strategy and the ClientApps in one process.

Flower has no public API for three things that a Grid needs. They are used here only: ``Run`` in
the signatures of the abstract Grid, the sender of a message (``TaskIdentity``), and the private
attribute of the metadata that holds a message's id, which Flower's own grids set too.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.logger import update_console_handler
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from clients.simulated import LocalContext
from fldb_flower import client_app, server_app
from fldb_flower.bandit.streams import keyed_generator
from fldb_flower.errors import FldbError
from fldb_flower.federation.agents import require_agents
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array
from fldb_flower.settings import Settings, to_flat

SERVER_NODE = 1
_FIRST_NODE = 1001
_APP_RAISED = 2  # Flower's code for a ClientApp that raised
_RUN_IDS = itertools.count(1)
UNHEARD, LOST = "unheard", "lost"
"""The two ways to lose a message: the broadcast is lost, or the reply to it."""


def run(settings: Settings, output_dir: str) -> None:
    """Run one experiment over nodes in this process and write its results."""
    grid = _grid(settings)
    logging.getLogger("flwr").propagate = False  # Flower's logger has its own handler
    update_console_handler(colored=sys.stderr.isatty())
    server_app.run_experiment(settings, grid, Path(output_dir))


def play(settings: Settings, history: History) -> Array:
    """Run one experiment into a history, without files; return theta_sync."""
    return server_app.play(settings, history, _grid(settings))


def _grid(settings: Settings) -> InProcessGrid:
    require_agents(settings, settings.num_agents)  # all in this process
    run_config = to_flat(settings)
    if settings.dropout:
        return LossyGrid(settings, run_config, LocalContext)
    return InProcessGrid(settings.engine.num_nodes, run_config, LocalContext)


class InProcessGrid(Grid):
    """A Grid whose nodes are called one after the other when messages are pushed.

    Node ids are 1001, 1002, ... in partition order. ``contexts`` has the Context of each node, and
    ``pending`` the replies to messages that have not been pulled.
    """

    poll_seconds = 0.0  # replies are there once messages are sent

    def __init__(
        self, num_nodes: int, run_config: dict[str, Any], context_type: type[Context] = Context
    ) -> None:
        self.set_run(Run.create_empty(next(_RUN_IDS)))
        TaskIdentity.run_id, TaskIdentity.task_id = self.run.run_id, 0
        TaskIdentity.node_id = SERVER_NODE
        self.contexts = {
            _FIRST_NODE + partition: context_type(
                run_id=self.run.run_id,
                node_id=_FIRST_NODE + partition,
                node_config={"partition-id": partition, "num-partitions": num_nodes},
                state=RecordDict(),
                run_config=run_config,
            )
            for partition in range(num_nodes)
        }
        self._message_ids = itertools.count(1)
        self.pending: dict[str, list[Message]] = {}

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message_id = str(next(self._message_ids))
            message.metadata.__dict__["_message_id"] = message_id
            self.pending[message_id] = self.replies(message)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for key in message_ids for reply in self.pending.pop(key, ())]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def replies(self, message: Message) -> list[Message]:
        """Return the replies to one message: exactly one, unless a subclass changes that."""
        return [self.deliver(message)]

    def deliver(self, message: Message) -> Message:
        """Call the ClientApp of the addressed node, as a SuperNode does."""
        context = self.contexts[message.metadata.dst_node_id]
        before = dict(context.state)
        try:
            return client_app.app(message, context)
        except FldbError:
            raise
        except Exception as error:  # Flower replies with the error
            context.state = RecordDict(before)
            return failure(message, f"{type(error).__name__}: {error}")


class LossyGrid(InProcessGrid):
    """An :class:`InProcessGrid` that loses messages, or replies, with probability ``dropout``.

    The grid does not wait for lost replies. Losses are drawn from streams keyed by (seed, "faults",
    partition, exchange), on which the agents' draws do not depend.
    """

    def __init__(
        self, settings: Settings, run_config: dict[str, Any], context_type: type[Context] = Context
    ) -> None:
        super().__init__(settings.engine.num_nodes, run_config, context_type)
        self._seed, self._dropout = settings.seed, settings.dropout
        self._exchange = ""
        self._streams: dict[int | str, np.random.Generator] = {}  # of this exchange

    def stream(self, name: int | str, exchange: str) -> np.random.Generator:
        """Return the stream of a partition in an exchange."""
        if exchange != self._exchange:
            self._exchange, self._streams = exchange, {}
        if name not in self._streams:
            self._streams[name] = keyed_generator(self._seed, "faults", name, exchange)
        return self._streams[name]

    def loss(self, message: Message) -> str:
        """Draw whether a message is lost: UNHEARD, LOST or an empty string."""
        partition = message.metadata.dst_node_id - _FIRST_NODE
        luck = self.stream(partition, message.metadata.group_id).random()
        return UNHEARD if luck < self._dropout / 2 else LOST if luck < self._dropout else ""

    def replies(self, message: Message) -> list[Message]:
        """Return the replies that arrive."""
        loss = self.loss(message)
        replies = [] if loss == UNHEARD else super().replies(message)
        return [] if loss == LOST else replies


def failure(message: Message, reason: str) -> Message:
    """Return Flower's reply for a ClientApp that raised."""
    return Message(Error(_APP_RAISED, reason), reply_to=message)
