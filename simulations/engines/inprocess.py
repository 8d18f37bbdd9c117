"""Real Flower messages without processes: ServerApp and ClientApps in one process, no Ray."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fldb_flower import client_app, server_app
from fldb_flower.errors import FldbError
from fldb_flower.settings import Settings, to_flat

_RUN_IDS = itertools.count(1)
_SERVER_NODE = 1
_APP_RAISED = 2  # Flower's code for a ClientApp that raised


class InProcessGrid(Grid):
    """A Grid whose nodes are called one after the other when messages are pushed.

    Parameters
    ----------
    num_nodes : int
        Number of nodes; node ids are 1001, 1002, ... in partition order.
    run_config : dict
        Flower's run config, as every node gets it.
    """

    def __init__(self, num_nodes: int, run_config: dict[str, Any]) -> None:
        self._run = Run.create_empty(next(_RUN_IDS))
        # Private to Flower: outside its engine nothing else names the sender of a message.
        TaskIdentity.run_id = self._run.run_id
        TaskIdentity.task_id = 0
        TaskIdentity.node_id = _SERVER_NODE
        self.contexts = {
            1001 + partition: Context(
                run_id=self._run.run_id,
                node_id=1001 + partition,
                node_config={"partition-id": partition, "num-partitions": num_nodes},
                state=RecordDict(),
                run_config=run_config,
            )
            for partition in range(num_nodes)
        }
        self._message_ids = itertools.count(1)
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes' ids."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver the messages and keep the replies."""
        ids = []
        for message in messages:
            message_id = str(next(self._message_ids))
            message.metadata.__dict__["_message_id"] = message_id  # private, as in Flower's grids
            self._replies[message_id] = self.deliver(message)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages."""
        return [self._replies.pop(key) for key in list(message_ids) if key in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver the messages and return the replies."""
        return self.pull_messages(self.push_messages(messages))

    def deliver(self, message: Message) -> Message:
        """Let the ClientApp of the addressed node answer, as a SuperNode does."""
        context = self.contexts[message.metadata.dst_node_id]
        try:
            return client_app.app(message, context)
        except FldbError:
            raise
        except Exception as error:  # as in Flower, any failure is the node's reply
            return Message(Error(_APP_RAISED, f"{type(error).__name__}: {error}"), reply_to=message)


def run(settings: Settings, output_dir: str) -> None:
    """Run the real ServerApp over nodes in this process; it writes the results."""
    run_config = {**to_flat(settings), "output-dir": output_dir}
    grid = InProcessGrid(settings.engine.num_nodes, run_config)
    context = Context(
        run_id=grid.run.run_id,
        node_id=_SERVER_NODE,
        node_config={"engine": "inprocess"},
        state=RecordDict(),
        run_config=run_config,
    )
    logging.getLogger("flwr").propagate = False  # Flower prints its lines itself
    server_app.app(grid, context)
