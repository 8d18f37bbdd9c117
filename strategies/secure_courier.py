"""Requests of secure sums to nodes, and their replies, as messages over a Flower Grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fldb_flower.errors import DataError, one_line
from fldb_flower.federation.history import Counts
from fldb_flower.settings import Settings
from fldb_flower.wire.records import content_bytes
from fldb_flower.wire.secure_messages import (
    KEY,
    Blamed,
    Collect,
    Declined,
    Deliver,
    Delivered,
    Hello,
    Introduced,
    Open,
    Opened,
    Pieces,
    Refused,
    Reply,
    Request,
    decode_reply,
    encode,
)
from strategies.transport import Watch, failure, send_and_receive

_MIB = 2**20
_MOST_REASON = 300  # characters
_REPLIES: dict[type[Request], tuple[type[Reply], ...]] = {
    Hello: (Introduced, Refused),
    Collect: (Pieces, Declined, Refused),
    Open: (Opened, Blamed, Refused),
    Deliver: (Delivered, Refused),
}


class Failure(NamedTuple):
    """No usable reply: the node may be asked again."""

    reason: str


Answer = Reply | Failure


class Courier:
    """Sends requests and receives replies, also late ones.

    Parameters
    ----------
    settings : Settings
        ``reply_timeout`` and ``max_message_mb``.
    history : Counts
        Records the bytes.
    """

    def __init__(self, settings: Settings, history: Counts) -> None:
        self._settings, self._history = settings, history
        self._trip: object = None
        self._sent: dict[str, tuple[int, Request]] = {}  # message -> node and request
        self._trips = 0

    def begin(self, trip: object) -> None:
        """Begin a trip, or continue it; replies to messages of other trips are ignored."""
        if trip != self._trip:
            self._trip, self._sent = trip, {}
            self._trips += 1

    def ask(
        self, grid: Grid, requests: Mapping[int, Request], watch: Watch
    ) -> list[tuple[int, Answer]]:
        """Send a request to each node; return the replies of nodes, in ascending order of nodes.

        Replies to earlier messages of the trip are among them. The wait ends when each node asked
        has replied, or after ``reply_timeout`` seconds.
        """
        messages = [
            Message(
                RecordDict({"config": ConfigRecord({KEY: encode(request)})}),
                node,
                "train",
                group_id=str(self._trips),
            )
            for node, request in requests.items()
        ]
        earlier = {key: node for key, (node, _) in self._sent.items() if node in requests}
        timeout = self._settings.reply_timeout
        replies = send_and_receive(grid, messages, timeout, earlier, watch)
        for message, request in zip(messages, requests.values(), strict=True):
            self._sent[message.metadata.message_id] = message.metadata.dst_node_id, request
        learns = any(isinstance(each, Collect | Open) for each in requests.values())
        self._count(messages, replies, learns)
        return sorted(self._answers(replies), key=lambda each: each[0])

    def _answers(self, replies: list[Message]) -> Iterator[tuple[int, Answer]]:
        """Yield the answers with their nodes. The message identifies the node, not the reply.

        A message is answered once: Flower replies with an error if it is pulled again.
        """
        for reply in replies:
            if found := self._sent.pop(reply.metadata.reply_to_message_id, None):
                node, request = found
                yield node, self._answer(reply, request)

    def _answer(self, reply: Message, request: Request) -> Answer:
        if reply.has_error():
            return Failure(short(failure(reply)))
        try:
            answer = self._decoded(reply.content)
        except KeyError:
            return Failure(f"the reply has no entry {KEY!r}")
        except DataError as reason:
            return Failure(short(str(reason)))
        if not isinstance(answer, _REPLIES[type(request)]):
            return Failure(f"replied {type(answer).__name__} to {type(request).__name__}")
        return answer

    def _decoded(self, content: Any) -> Reply:
        size, most = content_bytes(content) / _MIB, self._settings.max_message_mb
        if size > most:
            raise DataError(f"{size:.3g} MiB exceed max-message-mb={most:g}")
        record = content["config"][KEY]
        if not isinstance(record, bytes):
            raise DataError(f"the entry {KEY!r} of the reply is not bytes")
        return decode_reply(record)

    def _count(self, messages: list[Message], replies: list[Message], learns: bool) -> None:
        up = sum(content_bytes(each.content) for each in replies if not each.has_error())
        down = sum(content_bytes(each.content) for each in messages)
        self._history.count_node_bytes(up, down)
        if learns:
            self._history.count_bytes(up, down)  # each device is an agent


def short(text: str) -> str:
    """Limit text supplied by a node to one short printable line, so that it cannot forge a log."""
    return one_line(text[:_MOST_REASON])
