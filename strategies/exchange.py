"""One exchange over Flower: its broadcast, the nodes asked, and what each of them replied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fldb_flower.errors import FederationError, RoundAbandonedError
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.federation.history import Participation
from fldb_flower.federation.plausibility import implausible
from fldb_flower.federation.share_bounds import implausible_shares
from fldb_flower.settings import Settings
from fldb_flower.wire.codec import UploadError, encode_broadcast
from fldb_flower.wire.records import pack_vector
from strategies.nodes import Contribution, Nodes
from strategies.reasons import Reason, grouped, listed
from strategies.transport import Watch, failure, send_and_receive

_MAX_REASON = 300  # characters


@dataclass(eq=False)
class Exchange:
    """One exchange: the nodes that it asks, and which of them answered, were refused or are absent.

    Its number counts from 1 in each run. ``arrays`` and ``config`` are the packed broadcast, the
    same for all nodes.
    """

    number: int
    broadcast: Broadcast
    asked: tuple[int, ...]
    connected: frozenset[int]  # all nodes that are connected
    nodes: Nodes
    settings: Settings
    max_difference: float  # of two arms, in norm

    def __post_init__(self) -> None:
        vector, header = encode_broadcast(self.broadcast)
        self.arrays = pack_vector(vector)
        self.config = ConfigRecord({"header": list(header)})
        self.contributions: dict[int, Contribution] = {}
        self.refused: dict[int, str] = {}  # node -> why its reply is not counted
        self.introduced: set[int] = set()  # nodes that did so in the replies added last
        self._valid: dict[int, Contribution] = {}  # also of nodes whose identity is disputed
        self._final: set[int] = set()  # nodes that refused for good
        self._asked_again: set[int] = set()  # after an introduction
        self._sent: dict[str, int] = {}  # message -> node
        self._replied: set[str] = set()  # messages with a reply

    @property
    def repeats(self) -> bool:
        """Whether it asks again about the duels of the exchange before."""
        return self.broadcast.play is None

    @property
    def absent(self) -> list[int]:
        """The nodes asked that have not contributed."""
        return [node for node in self.asked if node not in self.contributions]

    @property
    def missing(self) -> list[int]:
        """The nodes asked that have not contributed and have not refused for good."""
        return [node for node in self.absent if node not in self._final]

    @property
    def accepted(self) -> list[Contribution]:
        """The contributions in the order of summation."""
        return sorted(self.contributions.values(), key=lambda each: each.order)

    @property
    def uploads(self) -> list[Upload]:
        """The uploads in the order of summation."""
        return [each.upload for each in self.accepted]

    @property
    def newcomers(self) -> list[int]:
        """The nodes to ask again because they just introduced themselves; each once."""
        return sorted(self.introduced - self.refused.keys() - self._asked_again)

    def send(self, grid: Grid, messages: Sequence[Message], watch: Watch) -> list[Message]:
        """Send messages; return the replies to them and to earlier messages of the exchange.

        A reply can be pulled once: Flower answers a second pull with an error.
        """
        self._asked_again.update(self.newcomers)
        waiting = {
            key: node
            for key, node in self._sent.items()
            if node not in self.contributions and key not in self._replied
        }
        timeout = self.settings.reply_timeout
        replies = send_and_receive(grid, messages, timeout, waiting, watch)
        self._replied |= {reply.metadata.reply_to_message_id for reply in replies}
        self._sent |= {each.metadata.message_id: each.metadata.dst_node_id for each in messages}
        return replies

    def senders(self, replies: Iterable[Message]) -> Iterator[tuple[int, Message]]:
        """Yield the replies to messages of this exchange with their nodes.

        The message identifies the node: Flower itself replies for a node that is unavailable.
        """
        for reply in replies:
            node = self._sent.get(reply.metadata.reply_to_message_id)
            if node is not None:
                yield node, reply

    def add(self, replies: Iterable[Message]) -> None:
        """Check replies, and the identities that nodes claim over all replies of the exchange.

        The result does not depend on the order of the replies.
        """
        self.introduced = set()
        fresh: dict[int, Contribution] = {}
        for node, reply in self._in_order(replies):
            if node not in fresh:
                self._check(node, reply, fresh)
        self._valid |= self._plausible(fresh)
        disputes = self.nodes.disputes(self.connected)
        self.contributions = {
            node: each for node, each in self._valid.items() if node not in disputes
        }
        for node, reason in disputes.items():
            if node in self._valid or node in self.introduced:
                self.refused[node] = reason
        for node in self.contributions:
            self.refused.pop(node, None)

    def _in_order(self, replies: Iterable[Message]) -> Iterator[tuple[int, Message]]:
        """Yield the replies of nodes that have not contributed, sorted by node and content."""
        by_node: dict[int, list[Message]] = {}
        for node, reply in self.senders(replies):
            if node not in self.contributions:
                by_node.setdefault(node, []).append(reply)
        for node, several in sorted(by_node.items()):
            if len(several) > 1:
                several.sort(key=_content_key)
            yield from ((node, reply) for reply in several)

    def _check(self, node: int, reply: Message, fresh: dict[int, Contribution]) -> None:
        """Check one reply by itself; it contributes, introduces its node or is refused."""
        if reply.has_error():
            self.refused[node] = failure(reply)
            return
        try:
            contribution = self.nodes.check(node, reply, self.number, self.broadcast)
        except UploadError as error:
            self.refused[node] = str(error)
            if error.is_final:
                self._final.add(node)
            return
        if contribution is None:
            self.introduced.add(node)
            self.refused.pop(node, None)
        else:
            fresh[node] = contribution

    def _plausible(self, fresh: Mapping[int, Contribution]) -> dict[int, Contribution]:
        """Return the contributions that an honest node may have sent; refuse the others."""
        uploads = [each.upload for each in fresh.values()]
        if not uploads or not self.broadcast.learns or not self.nodes.sees_uploads:
            return dict(fresh)
        longest, settings = self.max_difference, self.settings
        if self.broadcast.shares:
            answers = [self.nodes.answers(each) for each in fresh.values()]
            reasons = implausible_shares(
                uploads,
                answers,
                self.broadcast,
                ridge=settings.personal_ridge,
                longest=longest,
            )
        else:
            limited = settings.is_private and settings.privacy.unit == "person"
            reasons = implausible(uploads, self.broadcast, longest, weighted=limited)
        refused = {node: reason for node, reason in zip(fresh, reasons, strict=True) if reason}
        self.refused |= refused
        return {node: each for node, each in fresh.items() if node not in refused}

    def require(self, least: float) -> None:
        """Check that at least ``least`` nodes contributed.

        Raises
        ------
        RoundAbandonedError
            Too few did, and the exchange asks again about the same duels.
        FederationError
            Too few did in another exchange.
        """
        if len(self.contributions) >= least:
            return
        reasons = "; ".join(grouped(self.reasons(), "nodes")) or "the others did not reply"
        text = (
            f"{len(self.contributions)} of {len(self.asked)} nodes answered usably in exchange"
            f" {self.number}, quorum={self.settings.quorum:g}: {reasons}"
        )
        raise RoundAbandonedError(text) if self.repeats else FederationError(text)

    def reasons(self) -> Iterator[Reason]:
        """Yield each node whose reply is not counted, and why."""
        for node in sorted(self.refused, key=self.nodes.sort_key):
            yield self.nodes.name(node), _one_line(self.refused[node])

    def participation(self, iteration: int) -> Participation:
        """Return who took part, for the history."""
        absent = tuple(self.nodes.name(node) for node in self.absent)
        rejected = listed(self.reasons())
        return Participation(iteration, len(self.asked), len(self.contributions), rejected, absent)


def _one_line(text: str) -> str:
    """Limit text supplied by a node to a short printable line, so that it cannot forge a log."""
    return "".join(c if c.isprintable() else " " for c in text[:_MAX_REASON])


def _content_key(reply: Message) -> tuple[bool, str]:
    """Return a sort key for the replies of one node that depends on their content only."""
    return (True, str(reply.error)) if reply.has_error() else (False, reply.content.object_id)
