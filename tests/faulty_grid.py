"""A Grid that also delays, repeats, reorders or damages messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fldb_flower.bandit.duels import OUTCOMES
from fldb_flower.settings import Settings, to_flat
from fldb_flower.wire import BroadcastHeader, UploadHeader, unpack_vector
from simulations.engines.inprocess import LOST, UNHEARD, LossyGrid, failure

FAULTS = (
    "late",  # a reply arrives after the timeout, with the replies to a later message
    "duplicate",  # it arrives twice
    "crash",  # the client raises
    # The upload has a NaN; the number 1e300; a wrong shape; a wrong dtype; a W_new that is not
    # positive semi-definite; is ten times too large; has a gradient of the opposite sign.
    "nan", "huge", "shape", "dtype", "indefinite", "scaled", "flipped",
    "past",  # the node's last upload is sent again
    "future",  # the upload claims a later iteration
)  # fmt: skip
Fault = Callable[[int, BroadcastHeader], set[str]]


class FaultyGrid(LossyGrid):
    """A :class:`LossyGrid` whose messages are also late, repeated, reordered or wrong.

    The faults of a message, from :data:`FAULTS`, UNHEARD and LOST, are drawn with the given
    probabilities, besides ``dropout``, or are what ``fault`` returns for a partition and the header
    of its broadcast. Only the first ``nodes`` nodes have faults; 0: all.

    Attributes
    ----------
    late : list of Message
        Replies that have not arrived yet.
    """

    def __init__(
        self, settings: Settings, fault: Fault | None = None, *, nodes: int = 0,
        reorder: float = 0.0, **chances: float,
    ) -> None:  # fmt: skip
        super().__init__(settings, to_flat(settings))
        assert chances.keys() <= set(FAULTS)
        self.fault, self._dimension, self._reorder = fault, settings.dimension, reorder
        self._chances = {name: chances.get(name, 0.0) for name in FAULTS}
        faulty = range(nodes or len(self.contexts))
        self._faulty = dict(zip(self.contexts, faulty, strict=False))  # node -> partition
        self.late: list[Message] = []
        self._previous: dict[int, RecordDict] = {}  # node -> its last upload

    def draw(self, message: Message) -> set[str]:
        """Return the faults of a message."""
        partition = self._faulty.get(message.metadata.dst_node_id)
        if partition is None:
            return set()
        if self.fault is not None:
            header: Any = message.content["config"]["header"]
            return self.fault(partition, BroadcastHeader(*header))
        loss = self.loss(message)
        luck = self.stream(partition, message.metadata.group_id).random(len(FAULTS))
        chances = zip(luck, self._chances.items(), strict=True)
        faults = {name for number, (name, chance) in chances if number < chance}
        return {loss} if loss == UNHEARD else faults | ({loss} if loss else set())

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver the messages; return the replies that arrive, to these or earlier ones."""
        waiting, self.late = self.late, []
        messages = list(messages)
        exchange = messages[0].metadata.group_id if messages else ""
        replies, stream = list(super().send_and_receive(messages)), self.stream("order", exchange)
        for reply in waiting:
            arrives = stream.random() < 0.5
            (replies if arrives else self.late).append(reply)
        if stream.random() < self._reorder:
            replies = [replies[place] for place in stream.permutation(len(replies))]
        return replies

    def replies(self, message: Message) -> list[Message]:
        """Return the replies that arrive in time."""
        node, faults = message.metadata.dst_node_id, self.draw(message)
        if UNHEARD in faults:
            return []
        if "crash" in faults:
            replies = [self._crash(message)]
        else:
            previous = self._previous.get(node) if "past" in faults else None
            count = 2 if "duplicate" in faults else 1
            replies = [self._answer(message, faults, previous) for _ in range(count)]
        if LOST in faults:
            return []
        if "late" in faults:
            self.late += replies
            return []
        return replies

    def _crash(self, message: Message) -> Message:
        """Raise at the end: the node has played, and then Flower restores its state."""
        context = self.contexts[message.metadata.dst_node_id]
        before = dict(context.state)
        self.deliver(message)
        context.state = RecordDict(before)
        return failure(message, "a client that raises")

    def _answer(self, message: Message, faults: set[str], previous: RecordDict | None) -> Message:
        reply = self.deliver(message)
        if reply.has_error():
            return reply
        self._previous[message.metadata.dst_node_id] = reply.content
        content: Any = reply.content if previous is None else previous
        arrays, config = content["arrays"], content["config"]
        poisons = [poison for name, poison in _POISONS.items() if name in faults]
        if poisons:
            vector: NDArray[Any] = unpack_vector(arrays)
            with np.errstate(over="ignore"):
                for poison in poisons:
                    vector = poison(vector, self._dimension)
            arrays = ArrayRecord([vector])
        if "future" in faults:  # one iteration more than was played
            header = UploadHeader(*config["header"])
            header = header._replace(num_duels=header.num_duels + header.agents)
            outcomes = [*config["outcomes"], *[0.0] * len(OUTCOMES)]
            config = ConfigRecord({**config, "header": list(header), "outcomes": outcomes})
        return Message(RecordDict({"arrays": arrays, "config": config}), reply_to=message)


def _with(vector: NDArray[Any], place: int, number: float) -> NDArray[Any]:
    """Return the vector with one number replaced, if it is long enough."""
    changed = vector.copy()
    changed[place : place + 1] = number
    return changed


_POISONS: dict[str, Callable[[NDArray[Any], int], NDArray[Any]]] = {
    "nan": lambda vector, _d: _with(vector, 0, np.nan),
    "huge": lambda vector, _d: _with(vector, 0, 1e300),
    "indefinite": lambda vector, d: _with(vector, d, -1.0),  # a diagonal element of W_new
    "scaled": lambda vector, _d: 10.0 * vector,
    "flipped": lambda vector, d: np.concatenate([-vector[:d], vector[d:]]),
    "shape": lambda vector, _d: np.append(vector, 0.0),
    "dtype": lambda vector, _d: vector.astype(np.float16),
}
"""Fault -> change of an upload's vector: gradient (d), then packed matrices."""
