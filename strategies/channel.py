"""The nodes of a federation over a Flower Grid, and the exchange with them."""

from __future__ import annotations

import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from logging import WARNING, getLogger
from typing import Any, ClassVar, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fldb_flower.algorithms.robust import combine
from fldb_flower.bandit.streams import keyed_generator
from fldb_flower.environments import max_difference
from fldb_flower.errors import FederationError, RoundAbandonedError, one_line
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.federation.history import Counts, Participation
from fldb_flower.federation.plausibility import implausible, implausible_shares
from fldb_flower.linalg.linear import make_form
from fldb_flower.settings import Settings
from fldb_flower.wire import UploadError, encode_broadcast, pack_vector

IN_MEMORY_POLL_SECONDS = 0.01  # Flower's in-memory grid sleeps 0.1 s
NETWORK_POLL_SECONDS = 0.2  # Flower's network grid sleeps 3 s
MAX_TRIES = 100  # for grids that do not wait
_CONNECT_POLL_SECONDS = 0.1
_MAX_REASON = 300  # characters
_MOST_SHOWN = 3  # names in a line of the log
_RAISED = re.compile(r"<class '([\w.]*\.)?(\w+)'>:<'(.*)'>")  # Flower's form of an exception
_OWN_ERRORS = "fldb_flower.errors."
_LOG = getLogger("flwr")

Watch = Callable[[int, float], None]
"""Called while waiting for replies, with the number of missing replies and the seconds left."""


class Contribution(NamedTuple):
    """The checked upload of one node, and other claims of its reply, by kind of channel."""

    order: Any  # partition or device: identifies the sender, and is the order of summation
    upload: Any
    claim: Any


class Channel(ABC):
    """Nodes of one kind (simulated agents, devices, devices in secure sums) and one exchange.

    For each exchange, ``DuelingStrategy`` calls :meth:`open`, then :meth:`send` and
    :meth:`receive` until :meth:`tries_again` returns False, and then :meth:`close`. A reply counts
    if it is valid (:meth:`check`), plausible (``federation/plausibility.py``), and no other node
    claims the identity of its node (:meth:`disputes`). The result does not depend on the order of
    the replies.
    """

    sees_uploads: ClassVar[bool] = True
    """Whether the server sees single uploads, which it then checks."""

    number = 0  # of the exchange, from 1 in each run
    broadcast: Broadcast
    arrays: ArrayRecord  # the broadcast's vector
    config: ConfigRecord  # and its header

    def __init__(self, settings: Settings) -> None:
        self.settings, self.form = settings, make_form(settings)
        self.watch: Watch = lambda _waiting, _seconds: None
        self.grid: Any = None  # a Grid
        self.excluded: frozenset[int] = frozenset()  # lost in an earlier attempt at this round
        self.present: frozenset[int] = frozenset()  # connected when the round began
        self.asked: list[int] = []
        self.contributions: dict[int, Contribution] = {}
        self.refused: dict[int, str] = {}  # node -> why its reply is not counted
        self.introduced: set[int] = set()  # nodes whose last reply only had their identity
        self._longest = max_difference(settings)

    # Which nodes are connected, and which of them are asked.

    def connect(self, grid: Grid, timeout: float | None = None) -> None:
        """Use a grid, and wait up to ``timeout`` seconds for replies, in all following exchanges.

        A grid may define ``poll_seconds``, the pause between two polls for replies; 0 means that
        replies are available once messages are sent. Flower's in-memory grid is recognised by its
        ``pull_interval``. Any other grid is treated as a network.
        """
        self.timeout = self.settings.reply_timeout if timeout is None else timeout
        self.grid, in_memory = grid, hasattr(grid, "pull_interval")
        if in_memory:
            self.grid.pull_interval = IN_MEMORY_POLL_SECONDS
        chosen = getattr(grid, "poll_seconds", IN_MEMORY_POLL_SECONDS if in_memory else None)
        self._is_network = chosen is None
        self._pause = NETWORK_POLL_SECONDS if chosen is None else float(chosen)

    def connected(self) -> frozenset[int]:
        """Return the nodes that are connected now."""
        return frozenset(self.grid.get_node_ids())

    def wait_for_nodes(self) -> frozenset[int]:
        """Return all connected nodes; wait for the first one for at most ``node_wait`` seconds."""
        deadline = time.monotonic() + self.settings.node_wait
        while not (connected := self.connected()):
            if time.monotonic() > deadline:
                raise FederationError(
                    f"0 nodes connected within node-wait={self.settings.node_wait:g} s"
                )
            time.sleep(_CONNECT_POLL_SECONDS)
        return connected

    def sample(
        self, number: int, connected: frozenset[int], *, everyone: bool = False
    ) -> list[int]:
        """Return the nodes to ask in exchange ``number``, in partition order where it is known.

        The share ``fraction_train`` is drawn by position in that order from a stream keyed by
        (seed, "participation", number). Once all partitions are known, it does not depend on
        node ids, which Flower draws again in each run.
        """
        nodes = sorted(connected - self.excluded or connected, key=self.sort_key)
        count = max(1, round(self.settings.fraction_train * len(nodes)))
        if everyone or count == len(nodes):
            return nodes
        generator = keyed_generator(self.settings.seed, "participation", number)
        return [nodes[place] for place in sorted(generator.permutation(len(nodes))[:count])]

    # One exchange.

    def open(self, broadcast: Broadcast) -> None:
        """Begin an exchange: choose the nodes to ask, and encode the broadcast for all of them.

        A broadcast that plays nothing asks the nodes of the exchange before about the same duels,
        and all of them must answer.
        """
        number, play = self.number + 1, broadcast.play
        if play is None:
            asked = sorted(self.contributions, key=self.sort_key)
        else:
            self.present = self.wait_for_nodes()
            asked = self.sample(number, self.present, everyone=not broadcast.learns)
        self.begin(broadcast)
        self.number, self.asked, self.broadcast = number, asked, broadcast
        vector, header = encode_broadcast(broadcast)
        self.arrays, self.config = pack_vector(vector), ConfigRecord({"header": list(header)})
        self.contributions, self.refused, self.introduced = {}, {}, set()
        self._valid: dict[int, Contribution] = {}  # also of nodes whose identity is disputed
        self._final: set[int] = set()  # nodes that refused for good
        self._asked_again: set[int] = set()  # after an introduction
        self._sent: dict[str, int] = {}  # message -> node
        self._replied: set[str] = set()  # messages with a reply
        self._least = len(asked) if play is None else self.settings.reply_share * len(asked)
        waits_for_all = play is not None and play.first > play.last  # for every node's regret
        self._enough = len(asked) if waits_for_all else self._least
        self._tries = MAX_TRIES if self._pause == 0 else sys.maxsize
        self._deadline = time.monotonic() + self.settings.node_wait

    def messages(self) -> list[Message]:
        """Return one message for each node to ask now."""
        nodes = self.newcomers or self._missing
        return [
            Message(content, node, "train", group_id=str(self.number))
            for node, content in zip(nodes, self.contents(nodes), strict=True)
        ]

    @property
    def newcomers(self) -> list[int]:
        """The nodes to ask again because they just introduced themselves; each once."""
        return sorted(self.introduced - self.refused.keys() - self._asked_again)

    @property
    def absent(self) -> list[int]:
        """The nodes asked that have not contributed."""
        return [node for node in self.asked if node not in self.contributions]

    @property
    def _missing(self) -> list[int]:
        return [node for node in self.absent if node not in self._final]

    def send(self, messages: Sequence[Message]) -> list[Message]:
        """Send messages; return the replies that arrive within ``timeout`` seconds.

        Over a network, replies to earlier messages of the exchange are pulled too. Otherwise a node
        slower than the timeout would be asked again and again, and its replies never seen. A reply
        can be pulled once: Flower answers a second pull with an error.
        """
        self._asked_again.update(self.newcomers)
        if self._is_network:
            replies = self._poll(messages)
        else:
            self.watch(len(messages), self.timeout)
            replies = list(self.grid.send_and_receive(messages, timeout=self.timeout))
        self._replied |= {reply.metadata.reply_to_message_id for reply in replies}
        self._sent |= {each.metadata.message_id: each.metadata.dst_node_id for each in messages}
        return replies

    def _poll(self, messages: Sequence[Message]) -> list[Message]:
        """Send messages and pull replies several times a second, until each node has replied."""
        sent = zip(self.grid.push_messages(messages), messages, strict=False)
        waiting = {key: each.metadata.dst_node_id for key, each in sent if key}  # None: refused
        nodes = set(waiting.values())
        waiting |= {
            key: node for key, node in self._sent.items()
            if node not in self.contributions and key not in self._replied
        }  # fmt: skip
        deadline = time.monotonic() + self.timeout
        replies: list[Message] = []
        while nodes:
            self.watch(len(nodes), max(0.0, deadline - time.monotonic()))
            arrived = list(self.grid.pull_messages(set(waiting)))
            replies += arrived
            nodes -= {waiting.pop(reply.metadata.reply_to_message_id, None) for reply in arrived}
            if not nodes or time.monotonic() > deadline:
                break
            time.sleep(self._pause)
        return replies

    def senders(self, replies: Iterable[Message]) -> Iterator[tuple[int, Message]]:
        """Yield the replies to messages of this exchange with their nodes.

        The message identifies the node: Flower itself replies for a node that is unavailable.
        """
        for reply in replies:
            node = self._sent.get(reply.metadata.reply_to_message_id)
            if node is not None:
                yield node, reply

    def receive(self, replies: Iterable[Message]) -> None:
        """Check replies, and the identities that nodes claim over all replies of the exchange."""
        self.introduced = set()
        by_node: dict[int, list[Message]] = {}
        for node, reply in self.senders(replies):
            if node not in self.contributions:
                by_node.setdefault(node, []).append(reply)
        fresh: dict[int, Contribution] = {}
        for node, several in sorted(by_node.items()):
            for reply in sorted(several, key=_content_key) if several[1:] else several:
                if node not in fresh and (contribution := self._checked(node, reply)):
                    fresh[node] = contribution
        self._valid |= fresh
        if fresh and self.broadcast.learns and self.sees_uploads:
            for node, reason in zip(fresh, self._implausible(fresh.values()), strict=True):
                if reason:
                    self.refused[node] = reason
                    del self._valid[node]
        disputes = self.disputes(self.present)
        self.contributions = {
            node: each for node, each in self._valid.items() if node not in disputes
        }
        seen = self._valid.keys() | self.introduced
        self.refused |= {node: reason for node, reason in disputes.items() if node in seen}
        for node in self.contributions:
            self.refused.pop(node, None)

    def _checked(self, node: int, reply: Message) -> Contribution | None:
        """Check one reply by itself: its node contributes, introduces itself or is refused."""
        try:
            if reply.has_error():
                raise UploadError(failure(reply))
            contribution = self.check(node, reply)
        except UploadError as error:
            self.refused[node] = str(error)
            if error.is_final:
                self._final.add(node)
            return None
        if contribution is None:
            self.introduced.add(node)
            self.refused.pop(node, None)
        return contribution

    def _implausible(self, fresh: Collection[Contribution]) -> list[str]:
        """Return for each contribution why no honest node can have sent it, or an empty text."""
        uploads, settings, longest = [each.upload for each in fresh], self.settings, self._longest
        if self.broadcast.shares:
            answers, ridge = [self.answers(each) for each in fresh], settings.personal_ridge
            return implausible_shares(
                uploads, answers, self.broadcast, ridge=ridge, longest=longest
            )
        weighted = settings.is_private and settings.privacy.unit == "person"
        return implausible(uploads, self.broadcast, longest, weighted=weighted)

    def tries_again(self) -> bool:
        """Return whether nodes are asked again, after a pause.

        They are asked for up to ``node_wait`` seconds. If the grid does not wait for replies, the
        number of tries is limited as well. Newcomers are asked without a pause.
        """
        if self.newcomers:
            return True
        if len(self.contributions) >= self._enough or not self._missing:
            return False
        self._tries -= 1
        if self._tries <= 0 or time.monotonic() > self._deadline:
            return False
        time.sleep(self._pause)
        return True

    def close(self, history: Counts) -> None:
        """Record who took part; raise a FederationError if too few nodes contributed.

        It is a RoundAbandonedError if the exchange asks again about the same duels.
        """
        # Short printable lines, so that a node cannot forge a log.
        refused = [
            (self.name(node), one_line(self.refused[node])[:_MAX_REASON])
            for node in sorted(self.refused, key=self.sort_key)
        ]
        lines, play = grouped(refused), self.broadcast.play
        count, asked = len(self.contributions), len(self.asked)
        if count < self._least and self.sees_uploads:
            why = "; ".join(lines) or "the others did not reply"
            raise (RoundAbandonedError if play is None else FederationError)(
                f"{count} of {asked} nodes sent usable replies in exchange {self.number},"
                f" quorum={self.settings.reply_share:g}: {why}"
            )
        for line in lines:
            _LOG.log(WARNING, "not counted in exchange %d: %s", self.number, line)
        iteration = history.iteration if play is None else play.last
        rejected = tuple(f"{name}: {reason}" for name, reason in refused)
        absent = tuple(self.name(node) for node in self.absent)
        history.participation.append(Participation(iteration, asked, count, rejected, absent))
        self.accept()

    @property
    def accepted(self) -> list[Contribution]:
        """The contributions in the order of summation."""
        return sorted(self.contributions.values(), key=lambda each: each.order)

    def total(self) -> Any:
        """Return the sum of the uploads."""
        robust = self.settings.robust if self.broadcast.robust else "none"
        return combine([each.upload for each in self.accepted], robust)

    # What the kinds of nodes define.

    def begin(self, broadcast: Broadcast) -> None:  # noqa: B027 - only secure sums need it
        """Prepare a new exchange, before its first message."""

    @abstractmethod
    def contents(self, nodes: Sequence[int]) -> list[RecordDict]:
        """Return the content of the message to each node, with what is acknowledged to it."""

    @abstractmethod
    def check(self, node: int, reply: Message) -> Contribution | None:
        """Check one reply to the exchange, and store which identity the node claims.

        Return None if the reply only introduces the node, which must then be asked again. Raise
        UploadError if it must not be counted.
        """

    @abstractmethod
    def disputes(self, connected: Collection[int]) -> dict[int, str]:
        """Compare the claims of all connected nodes; return the nodes refused, and why."""

    @abstractmethod
    def accept(self) -> None:
        """Accept all contributions; raise RoundAbandonedError if there are too few duels."""

    @abstractmethod
    def acknowledge(self) -> None:
        """Store that the duels of the contributions are counted."""

    @abstractmethod
    def answers(self, contribution: Contribution) -> int:
        """Return the number of all answers so far of the agents of a node."""

    def count_agents(self, nodes: Collection[int], connected: Collection[int]) -> int:
        """Return how many agents some of the connected nodes host."""
        return len(nodes)

    def name(self, node: int) -> str:
        """Return the name of a node in logs and results."""
        return f"node {node}"

    def sort_key(self, node: int) -> tuple[int, int]:
        """Return the key by which nodes are sorted."""
        return (0, node)

    def has_uncounted(self, nodes: Collection[int]) -> bool:
        """Return whether one of the nodes has played iterations that are not counted."""
        return False


def failure(reply: Message) -> str:
    """Return why a node failed, from its error reply: the last line, without Flower's wrapping."""
    lines = [line.strip() for line in (reply.error.reason or "").splitlines()]
    last = next(filter(None, reversed(lines)), "failed without a reason")
    if found := _RAISED.fullmatch(last):
        module, name, text = found.groups()
        return text if module == _OWN_ERRORS else f"{name}: {text}"
    return last


def rivals(claims: Mapping[int, Hashable], owners: Mapping[Any, int]) -> dict[int, str]:
    """Return the nodes that claim what another node owns or claims too, and all these nodes.

    Owners keep what they claim. The nodes are listed as text.
    """
    claimants: dict[Hashable, set[int]] = {}
    for node, claim in claims.items():
        known = [owners[claim]] if claim in owners else []
        claimants.setdefault(claim, set(known)).add(node)
    return {
        node: ", ".join(map(str, sorted(claimants[claim])))
        for node, claim in claims.items()
        if len(claimants[claim]) > 1 and owners.get(claim) != node
    }


def grouped(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """Return one line for each different reason of named nodes, for the log."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason, []).append(name)
    return [f"{_shown(each)}: {reason}" for reason, each in names.items()]


def _shown(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    more = ["..."] if len(names) > _MOST_SHOWN else []
    return f"{len(names)} nodes ({', '.join([*names[:_MOST_SHOWN], *more])})"


def _content_key(reply: Message) -> tuple[bool, str]:
    """Return a sort key for the replies of one node that depends on their content only."""
    return (True, str(reply.error)) if reply.has_error() else (False, reply.content.object_id)
