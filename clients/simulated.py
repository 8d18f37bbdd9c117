"""The client of a node of simulated agents; its state is in the Flower Context."""

from __future__ import annotations

import functools
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from numpy.typing import NDArray

from fldb_flower.errors import FldbError, SettingsError
from fldb_flower.federation.agents import AgentGroup, agents_of_node, require_agents
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.linalg.arrays import FloatArray, pack_arrays, unpack_arrays
from fldb_flower.linalg.linear import Form, make_form
from fldb_flower.settings import Settings, from_flat
from fldb_flower.system.process import keep_freed_memory, one_blas_thread
from fldb_flower.wire import (
    BroadcastHeader,
    UploadHeader,
    decode_broadcast,
    encode_upload,
    pack_vector,
    unpack_vector,
)

_STATE = "agents"
_COUNT_BYTES = 8  # before the arrays: the number of messages that the node has answered


class SimulatedAgents(NumPyClient):
    """Flower client of one node: the contiguous block ``partition_id`` of the N agents."""

    def __init__(self, settings: Settings, partition_id: int, num_partitions: int) -> None:
        self._partition = partition_id, num_partitions
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

        The vectors and the ``header`` are those of :mod:`fldb_flower.wire`. In ``config``,
        ``counted`` is the last iteration whose duels the server has counted. The reply has the
        ``outcomes`` of each later iteration, five numbers each. ``exchange``, a number, is returned
        unchanged.
        """
        broadcast = _decode(parameters[0], BroadcastHeader.from_config(config), self._form)
        upload = self.group.answer(broadcast, config["counted"])
        (outcomes,) = upload.outcomes
        header = UploadHeader(upload.num_duels, *self._partition, outcomes.agents, outcomes.first)
        reply = {
            "header": list(header),
            "outcomes": outcomes.sums.ravel().tolist(),
            "exchange": config["exchange"],
        }
        return [encode_upload(upload, broadcast)], upload.num_duels, reply


@functools.cache  # finding the libraries of BLAS takes a millisecond, for each node
def _prepare_process() -> None:
    keep_freed_memory()
    one_blas_thread()  # until the end of the process


_last: list[Any] = [None, None, None]  # the broadcast decoded last, after its bytes and header


def _decode(vector: FloatArray, header: BroadcastHeader, form: Form) -> Broadcast:
    """Return the broadcast; nodes in one process share its bytes, and then the factor of W."""
    if vector.base is None or vector.base is not _last[0] or header != _last[1]:
        _last[:] = vector.base, header, decode_broadcast(vector, header, form)
    broadcast: Broadcast = _last[2]
    return broadcast


class LocalContext(Context):
    """Context of a node that stays in one process: it has the client instead of its state.

    After an exception, the client may be inconsistent. The exception is then raised again.
    """

    client: SimulatedAgents | None = None
    error: Exception | None = None


_clients: dict[tuple[int, int], tuple[int, SimulatedAgents]] = {}
"""(run, node) -> the number of messages that the node had answered, and its client."""


def train(message: Message, context: Context) -> Message:
    """Answer one broadcast: the body of the ClientApp's ``@app.train()`` function.

    Any process may answer a node's next message with the state in the Context. A client that is
    still in this process is reused if no other process has answered since.
    """
    if isinstance(context, LocalContext):
        if context.error is not None:
            raise context.error
        try:
            context.client = context.client or _new_client(context)
            return _reply(message, context.client)
        except Exception as error:
            context.error = error
            raise
    key = context.run_id, context.node_id
    if any(run != context.run_id for run, _ in _clients):
        _clients.clear()
    record: Any = context.state.get(_STATE)
    state = b"" if record is None else record["arrays"]
    answers = int.from_bytes(state[:_COUNT_BYTES], "little")
    known, client = _clients.pop(key, (None, None))
    if client is None or known != answers:
        client = _new_client(context)
        if state:
            client.group.restore(unpack_arrays(state[_COUNT_BYTES:]))
    reply = _reply(message, client)
    # Last: Flower restores the state if this function raises. One entry, as Flower checks each.
    count = (answers + 1).to_bytes(_COUNT_BYTES, "little")
    context.state[_STATE] = ConfigRecord({"arrays": count + pack_arrays(client.group.state())})
    _clients[key] = answers + 1, client
    return reply


def _reply(message: Message, client: SimulatedAgents) -> Message:
    content: Any = message.content
    vector = unpack_vector(content["arrays"], client.max_message_mb)
    (upload,), _, config = client.fit([vector], dict(content["config"]))
    reply = RecordDict({"arrays": pack_vector(upload), "config": ConfigRecord(config)})
    return Message(reply, reply_to=message)


def _new_client(context: Context) -> SimulatedAgents:
    try:
        node = context.node_config
        partition = int(node["partition-id"]), int(node["num-partitions"])
    except KeyError as missing:
        raise SettingsError(
            f"node {context.node_id} has no {missing.args[0]}: start its flower-supernode with"
            " --node-config 'partition-id=0 num-partitions=2' (the index of this node, from 0, and"
            " the number of nodes)"
        ) from None
    settings = from_flat(context.run_config, "Flower's run config")
    try:
        return SimulatedAgents(settings, *partition)
    except ValueError as error:
        raise FldbError(f"node {context.node_id}: {error}") from None
