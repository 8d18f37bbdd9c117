"""A node of simulated agents: answers each broadcast and keeps its state in the Context."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient

from fldb_flower.errors import FldbError, SettingsError
from fldb_flower.federation.agents import (
    AgentGroup,
    agents_of_node,
)
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.linalg.forms import Form, Vector, make_form
from fldb_flower.linalg.named_arrays import pack_arrays, unpack_arrays
from fldb_flower.settings import Settings, from_flat
from fldb_flower.system.process import keep_freed_memory, one_blas_thread
from fldb_flower.wire.codec import (
    BroadcastHeader,
    decode_broadcast,
    encode_upload,
)
from fldb_flower.wire.records import pack_vector, unpack_vector

_STATE = "agents"
_COUNT_BYTES = 8  # before the arrays: how many messages the node has answered


class SimulatedAgents(NumPyClient):
    """Flower client of one node: a contiguous block of the N agents.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    partition_id, num_partitions : int
        Which of how many blocks this node hosts.
    """

    def __init__(self, settings: Settings, partition_id: int, num_partitions: int) -> None:
        self.partition_id = partition_id
        self.num_partitions = num_partitions
        self.max_message_mb = settings.max_message_mb
        self._form = make_form(settings)
        agents = agents_of_node(partition_id, num_partitions, settings.num_agents)
        keep_freed_memory()
        one_blas_thread(settings.dimension)  # for good: the process is Flower's
        self.group = AgentGroup(settings, agents)

    def fit(
        self, parameters: list[Vector], config: dict[str, Any]
    ) -> tuple[list[Vector], int, dict[str, Any]]:
        """Play what the broadcast asks for and return statistics (Algorithm 1, lines 3 to 11).

        Parameters
        ----------
        parameters : list of one ndarray
            The broadcast's vector; see :mod:`fldb_flower.wire.codec`.
        config : dict
            ``ask``: the numbers of a :class:`~fldb_flower.wire.codec.BroadcastHeader`;
            ``exchange``: the number of the exchange, which is sent back.

        Returns
        -------
        tuple
            The upload's vector in a list, the number of duels, and the numbers of the
            :class:`~fldb_flower.wire.codec.UploadHeader` with the number of the exchange.
        """
        ask = BroadcastHeader(*config["ask"])
        broadcast = _decode(parameters[0], ask, self._form)
        upload = self.group.answer(broadcast, ask.counted)
        vector, answer = encode_upload(
            upload, broadcast, self.partition_id, self.num_partitions, parameters[0].dtype.name
        )
        numbers = {"answer": answer.to_numbers(), "exchange": config["exchange"]}
        return [vector], upload.num_duels, numbers


class _LastBroadcast:
    """The broadcast decoded last: nodes in one process share its array, and W's factor."""

    vector: Vector | None = None
    broadcast: Broadcast


def _decode(vector: Vector, ask: BroadcastHeader, form: Form) -> Broadcast:
    if _LastBroadcast.vector is not vector:
        _LastBroadcast.broadcast = decode_broadcast(vector, ask, form)
        _LastBroadcast.vector = vector
    return _LastBroadcast.broadcast


class _Clients:
    """The clients of one run in this process, and the last array it parsed.

    The Context is what lasts: any process may answer a node's next message. A client kept
    here is used again only if the Context says that nobody answered since.
    """

    def __init__(self) -> None:
        self._run_id: int | None = None
        self._kept: dict[int, tuple[int, SimulatedAgents]] = {}  # node -> answers given, client
        self._parsed: tuple[ArrayRecord | None, Vector] = (None, np.empty(0))

    def take(self, context: Context) -> tuple[int, SimulatedAgents]:
        """Return the node's client, and how many messages it has answered."""
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
        """Save the client's state in the Context, and the client in this process."""
        arrays = answers.to_bytes(_COUNT_BYTES, "little") + pack_arrays(client.group.state())
        context.state[_STATE] = ConfigRecord({"arrays": arrays})  # one entry: checks are slow
        self._kept[context.node_id] = (answers, client)

    def parse(self, record: ArrayRecord, max_mb: float) -> Vector:
        """Return the broadcast's array, parsed once where nodes share the record."""
        if self._parsed[0] is not record:
            self._parsed = (record, unpack_vector(record, max_mb))
        return self._parsed[1]


_CLIENTS = _Clients()


def train(message: Message, context: Context) -> Message:
    """Answer one broadcast: the body of the ClientApp's ``@app.train()`` function."""
    content: Any = message.content  # a record of one of three types under each name
    if _STATE in content:
        return Message(_exchange_state(content[_STATE], context), reply_to=message)
    answers, client = _CLIENTS.take(context)
    parameters = [_CLIENTS.parse(content["arrays"], client.max_message_mb)]
    arrays, _, numbers = client.fit(parameters, dict(content["config"]))
    content = RecordDict({"arrays": pack_vector(arrays[0]), "numbers": MetricRecord(numbers)})
    reply = Message(content, reply_to=message)
    _CLIENTS.keep(context, answers + 1, client)  # last: Flower takes the state back if this raises
    return reply


def _exchange_state(given: Any, context: Context) -> RecordDict:
    """Hand out what the node's agents know, or put it back, as the server's checkpoints want it."""
    partition_id, num_partitions = _partition(context)
    if given["arrays"]:
        context.state[_STATE] = ConfigRecord({"arrays": given["arrays"]})
        arrays = b""
    else:
        kept: Any = context.state.get(_STATE, {"arrays": b""})
        arrays = kept["arrays"]
    told = ConfigRecord({"arrays": arrays, "partition": partition_id, "partitions": num_partitions})
    return RecordDict({_STATE: told})


def _new_client(context: Context) -> SimulatedAgents:
    partition_id, num_partitions = _partition(context)
    settings = from_flat(context.run_config, "Flower's run config")
    try:
        return SimulatedAgents(settings, partition_id, num_partitions)
    except ValueError as error:
        raise FldbError(f"node {context.node_id}: {error}") from None


def _partition(context: Context) -> tuple[int, int]:
    """Return which of how many blocks of agents the node hosts."""
    try:
        return (
            int(context.node_config["partition-id"]),
            int(context.node_config["num-partitions"]),
        )
    except KeyError as missing:
        raise SettingsError(
            f"node {context.node_id} has no {missing.args[0]}: start its flower-supernode with"
            " --node-config 'partition-id=0 num-partitions=2' (its own number, from 0, and how"
            " many nodes there are)"
        ) from None
