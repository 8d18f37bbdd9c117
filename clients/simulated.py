"""The client of a node of simulated agents; its state is in the Flower Context."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from numpy.typing import NDArray

from fldb_flower.errors import FldbError, SettingsError
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.blocks import agents_of_node, require_agents
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.linalg.arrays import FloatArray, pack_arrays, unpack_arrays
from fldb_flower.linalg.forms import Form, make_form
from fldb_flower.settings import Settings, from_flat
from fldb_flower.system.process import keep_freed_memory, one_blas_thread
from fldb_flower.wire.codec import BroadcastHeader, decode_broadcast, encode_upload
from fldb_flower.wire.records import pack_vector, unpack_vector

_STATE = "agents"
_COUNT_BYTES = 8  # before the arrays: the number of messages that the node has answered


class SimulatedAgents(NumPyClient):
    """Flower client of one node: a contiguous block of the N agents.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    partition_id, num_partitions : int
        Index of this node's block, and the number of blocks.
    """

    def __init__(self, settings: Settings, partition_id: int, num_partitions: int) -> None:
        self.partition_id = partition_id
        self.num_partitions = num_partitions
        self.max_message_mb = settings.max_message_mb
        self._form = make_form(settings)
        agents = agents_of_node(partition_id, num_partitions, settings.num_agents)
        require_agents(settings, len(agents))
        _prepare_process()
        self.group = AgentGroup(settings, agents)

    def fit(
        self, parameters: list[FloatArray], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Play the iterations of a broadcast and return statistics (Algorithm 1, lines 3 to 11).

        The vectors and the ``header`` are those of :mod:`fldb_flower.wire.codec`. In ``config``,
        ``counted`` is the last iteration whose duels the server has counted. The reply has the
        ``outcomes`` of each later iteration, five numbers each. ``exchange``, a number, is returned
        unchanged.
        """
        broadcast = _decode(parameters[0], BroadcastHeader.from_config(config), self._form)
        upload = self.group.answer(broadcast, config["counted"])
        vector, header = encode_upload(upload, broadcast, self.partition_id, self.num_partitions)
        (outcomes,) = upload.outcomes
        reply = {
            "header": list(header),
            "outcomes": outcomes.sums.ravel().tolist(),
            "exchange": config["exchange"],
        }
        return [vector], upload.num_duels, reply


@functools.cache  # finding the libraries of BLAS takes a millisecond, for each node
def _prepare_process() -> None:
    keep_freed_memory()
    one_blas_thread()  # until the end of the process


class LocalContext(Context):
    """Context of a node that stays in one process: it has the client instead of its state.

    After an exception, the client may be inconsistent. The exception is then raised again.
    """

    client: SimulatedAgents | None = None
    error: Exception | None = None


class _LastBroadcast:
    """The broadcast decoded last: nodes in one process share its array and the factor of W."""

    vector: FloatArray | None = None
    broadcast: Broadcast


def _decode(vector: FloatArray, header: BroadcastHeader, form: Form) -> Broadcast:
    if _LastBroadcast.vector is not vector:
        _LastBroadcast.broadcast = decode_broadcast(vector, header, form)
        _LastBroadcast.vector = vector
    return _LastBroadcast.broadcast


class _Clients:
    """A cache of the clients of one run in this process, and of the array parsed last.

    The state is in the Context, since any process may answer a node's next message. A cached
    client is used again only if no other process has answered a message since.
    """

    def __init__(self) -> None:
        self._run_id: int | None = None
        self._kept: dict[int, tuple[int, SimulatedAgents]] = {}  # node -> answers given, client
        self._parsed: tuple[ArrayRecord | None, FloatArray] = (None, np.empty(0))

    def take(self, context: Context) -> tuple[int, SimulatedAgents]:
        """Return the number of messages that the node has answered, and its client."""
        if context.run_id != self._run_id:
            self._run_id, self._kept = context.run_id, {}
        state: Any = context.state.get(_STATE)
        arrays = b"" if state is None else state["arrays"]
        answers = int.from_bytes(arrays[:_COUNT_BYTES], "little")
        kept = self._kept.pop(context.node_id, None)
        if kept is not None and kept[0] == answers:
            return kept
        client = _new_client(context)
        if state is not None:
            client.group.restore(unpack_arrays(arrays[_COUNT_BYTES:]))
        return answers, client

    def keep(self, context: Context, answers: int, client: SimulatedAgents) -> None:
        """Store the client's state in the Context, and the client in this cache."""
        arrays = answers.to_bytes(_COUNT_BYTES, "little") + pack_arrays(client.group.state())
        context.state[_STATE] = ConfigRecord({"arrays": arrays})  # one entry: Flower checks each
        self._kept[context.node_id] = (answers, client)

    def parse(self, record: ArrayRecord, max_mb: float) -> FloatArray:
        """Return the broadcast's array, parsed once if nodes share the record."""
        if self._parsed[0] is not record:
            self._parsed = (record, unpack_vector(record, max_mb))
        return self._parsed[1]


_CLIENTS = _Clients()


def train(message: Message, context: Context) -> Message:
    """Answer one broadcast: the body of the ClientApp's ``@app.train()`` function."""
    if isinstance(context, LocalContext):
        return _train_locally(message, context)
    answers, client = _CLIENTS.take(context)
    reply = _reply(message, client)
    _CLIENTS.keep(context, answers + 1, client)  # last: Flower restores the state if this raises
    return reply


def _train_locally(message: Message, context: LocalContext) -> Message:
    if context.error is not None:
        raise context.error
    try:
        context.client = context.client or _new_client(context)
        return _reply(message, context.client)
    except Exception as error:
        context.error = error
        raise


def _reply(message: Message, client: SimulatedAgents) -> Message:
    content: Any = message.content
    parameters = [_CLIENTS.parse(content["arrays"], client.max_message_mb)]
    arrays, _, config = client.fit(parameters, dict(content["config"]))
    content = RecordDict({"arrays": pack_vector(arrays[0]), "config": ConfigRecord(config)})
    return Message(content, reply_to=message)


def _new_client(context: Context) -> SimulatedAgents:
    partition_id, num_partitions = _partition(context)
    settings = from_flat(context.run_config, "Flower's run config")
    try:
        return SimulatedAgents(settings, partition_id, num_partitions)
    except ValueError as error:
        raise FldbError(f"node {context.node_id}: {error}") from None


def _partition(context: Context) -> tuple[int, int]:
    """Return the index of the node's block of agents, and the number of blocks."""
    try:
        node = context.node_config
        return int(node["partition-id"]), int(node["num-partitions"])
    except KeyError as missing:
        raise SettingsError(
            f"node {context.node_id} has no {missing.args[0]}: start its flower-supernode with"
            " --node-config 'partition-id=0 num-partitions=2' (the index of this node, from 0, and"
            " the number of nodes)"
        ) from None
