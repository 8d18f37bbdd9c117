"""The Central Server over Flower: a Strategy that is a federation over a Grid."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from logging import INFO, WARNING, getLogger
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fldb_flower.algorithms import Algorithm, run_rounds
from fldb_flower.algorithms.robust import combine
from fldb_flower.algorithms.schedules import Round
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.bandit.streams import keyed_generator
from fldb_flower.environments import max_difference
from fldb_flower.errors import FederationError, RoundAbandonedError
from fldb_flower.federation.exchange import Broadcast, Federation, PlayRequest, Upload, total
from fldb_flower.federation.history import History, Participation
from fldb_flower.federation.plausibility import implausible
from fldb_flower.linalg.arrays import Array
from fldb_flower.settings import Settings
from fldb_flower.wire.codec import BroadcastHeader, UploadError, encode_broadcast, traffic
from fldb_flower.wire.records import content_bytes, pack_vector
from strategies.nodes import Contribution, Nodes
from strategies.simulated_nodes import SimulatedNodes
from strategies.transport import Patience, Watch, ignore, send_and_receive

if TYPE_CHECKING:
    from fldb_flower.runs.experiment import Checkpointer

_LOG = getLogger("flwr")
_LONGEST_REASON = 300


class DuelingStrategy(Federation, Strategy):
    """Runs an algorithm whose exchanges are Flower messages.

    One exchange is ``configure_train`` -> messages -> ``aggregate_train``. Replies are checked,
    and summed in an order of their own whatever order they arrive in. Duels are acknowledged
    node by node, so a lost, late or repeated reply loses nothing and counts nothing twice.

    Parameters
    ----------
    settings : Settings
        ``fraction_train`` says how many nodes are asked; ``quorum``, ``node_wait`` and
        ``reply_timeout`` bound the waiting.
    history : History
        Where exchanges, bytes, regret and participation are recorded.
    members : Nodes
        What the nodes are: simulated agents or devices.

    Attributes
    ----------
    watch : callable
        Called while an exchange waits for replies; see :data:`strategies.transport.Watch`.
    """

    ALGORITHM: type[Algorithm]
    """What the Central Server computes."""

    def __init__(self, settings: Settings, history: History, members: Nodes) -> None:
        Federation.__init__(self, history)
        self.settings = settings
        self.members = members
        self.algorithm = self.ALGORITHM(settings)
        self.watch: Watch = ignore
        self._grid: Grid | None = None
        self._max_difference = max_difference(settings)
        self._broadcast = Broadcast(None, None)
        self._trips = 0
        self._nodes: list[int] = []  # nodes to ask in this trip
        self._sent: dict[str, int] = {}  # message of this trip -> node
        self._replied: set[str] = set()  # messages of this trip that have a reply
        self._connected: frozenset[int] = frozenset()
        self._usable: dict[int, Contribution] = {}  # replies that are valid by themselves
        self._answered: dict[int, Contribution] = {}  # those of nodes whose claims hold
        self._rejected: dict[int, str] = {}  # node -> why its reply was not used
        self._greeted: set[int] = set()  # nodes that said who they are, and must be asked again
        self._absent: list[int] = []  # nodes of the last trip without a usable reply
        self._gone: set[int] = set()  # nodes that a round, begun anew, does without
        self._closing = False  # whether every node must be heard of, as far as patience goes

    def start(  # type: ignore[override]
        self, grid: Grid, checkpointer: Checkpointer | None = None
    ) -> Array:
        """Wait for nodes, then run the algorithm to the horizon.

        Unlike Flower's own loop, the number of exchanges is the algorithm's to choose.

        Parameters
        ----------
        grid : Grid
            Carries the messages.
        checkpointer : Checkpointer, optional
            Saves the run on the way, and knows where it was saved last.

        Raises
        ------
        FederationError
            No node came, there are more nodes than agents, or a quorum was missed.
        """
        self.wait_for_nodes(grid, at_least=1)
        nodes, agents = len(self._connected), self.settings.num_agents
        if nodes > agents:
            raise FederationError(
                f"{nodes} nodes for num-agents={agents}: each node hosts at least one agent; run"
                f' with --federation-config "num-supernodes={agents}" or fewer'
            )
        self.summary()
        after_round = None if checkpointer is None else checkpointer.follow(self, self.algorithm)
        run_rounds(self, self.algorithm, after_round, self.try_round)
        if self.members.behind(self.look()):
            self._hear_of_all()
        return self.algorithm.theta_sync

    def _hear_of_all(self) -> None:
        """Ask for the regret of nodes that were absent, or not asked, at the end.

        They play to the horizon with the estimate that they have, and tell of it if ``node_wait``
        allows. Nothing is learned from that.
        """
        last, algorithm = self.settings.horizon, self.algorithm
        self._closing = True
        play = PlayRequest(last + 1, last, Estimate(algorithm.theta_sync, algorithm.information))
        self.exchange(Broadcast(play, None))
        self.acknowledge()

    def state(self) -> dict[str, Array]:
        """Return what the nodes know, and what is known of them.

        Raises
        ------
        FederationError
            A node did not answer.
        """
        known = self._simulated_nodes().state(self._grid_now(), self.look())
        return {"trips": np.array(self._trips), **known}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state` returned, at whatever nodes have those partitions now.

        Raises
        ------
        FederationError
            There are not as many nodes as there were.
        """
        self._trips = int(state["trips"])
        nodes, grid = self._simulated_nodes(), self._grid_now()
        self.wait_for_nodes(grid, at_least=len(state["known"]))
        nodes.restore(grid, self._connected, state)

    def _simulated_nodes(self) -> SimulatedNodes:
        assert isinstance(self.members, SimulatedNodes), "devices keep their own state"
        return self.members

    def _grid_now(self) -> Grid:
        assert self._grid is not None, "call connect(grid) first"
        return self._grid

    def try_round(self, turn: Round) -> bool:
        """Play and learn from one round; return False if it has to be begun anew.

        Then it does without the nodes that were lost on the way, so no round begins for ever.

        Raises
        ------
        FederationError
            A quorum was missed.
        """
        try:
            self.algorithm.round(self, turn)
        except RoundAbandonedError as reason:
            self._gone.update(self._absent)
            if len(self._connected - self._gone) < self.settings.quorum * len(self._connected):
                raise
            _LOG.log(WARNING, "round %d begins anew: %s", turn.number, reason)
            return False
        self._gone.clear()
        return True

    def connect(self, grid: Grid) -> None:
        """Use this grid from now on."""
        self._grid = grid

    def wait_for_nodes(self, grid: Grid, *, at_least: int) -> None:
        """Wait until enough nodes are connected, at most ``node_wait`` seconds.

        Raises
        ------
        FederationError
            Too few came.
        """
        self.connect(grid)
        deadline = time.monotonic() + self.settings.node_wait
        while len(self.look()) < at_least:
            if time.monotonic() > deadline:
                raise FederationError(
                    f"{len(self._connected)} nodes connected within"
                    f" node-wait={self.settings.node_wait:g} s;"
                    f" {'one is' if at_least == 1 else f'{at_least} are'} enough"
                )
            time.sleep(0.1)

    def look(self) -> frozenset[int]:
        """Return the nodes that are connected now."""
        self._connected = frozenset(self._grid_now().get_node_ids())
        return self._connected

    def summary(self) -> None:
        """Log one line about what is about to run."""
        settings = self.settings
        _LOG.log(
            INFO,
            "%s: N=%d agents on %d nodes, T=%d, K=%d, d=%d, tau=%d, seed=%d, %s",
            settings.algorithm, settings.num_agents, len(self._connected), settings.horizon,
            settings.num_arms, settings.dimension, settings.tau, settings.seed,
            settings.environment.name,
        )  # fmt: skip

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message for each node to ask."""
        numbers: Any = config["ask"]
        ask, again = BroadcastHeader(*numbers), self._broadcast.play is None
        return [
            Message(
                self.members.content(node, arrays, ask, again=again),
                node,
                "train",
                group_id=str(server_round),
            )
            for node in self._nodes
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies and keep the usable uploads for :meth:`exchange` to sum.

        Each reply is checked by itself. What the nodes claim to be is then judged over all
        replies of the exchange, so that no claim is preferred because it arrived first.
        """
        fresh: dict[int, Contribution] = {}
        for node, reply in self._in_order(replies):
            if node in fresh:
                continue
            if reply.has_error():
                self._rejected[node] = _last_line(reply.error.reason or "")
                continue
            try:
                contribution = self.members.check(node, reply, self._broadcast)
            except UploadError as error:
                self._rejected[node] = str(error)
                continue
            if contribution is None:
                self._greeted.add(node)
                self._rejected.pop(node, None)
            else:
                fresh[node] = contribution
        self._usable |= self._plausible(fresh)
        disputes = self.members.disputes(self._connected)
        self._answered = {node: c for node, c in self._usable.items() if node not in disputes}
        for node, reason in disputes.items():
            if node in self._usable or node in self._greeted:
                self._rejected[node] = reason
        for node in self._answered:
            self._rejected.pop(node, None)
        return None, MetricRecord({"uploads": len(self._answered)})

    def _in_order(self, replies: Iterable[Message]) -> Iterator[tuple[int, Message]]:
        """Yield the replies that still matter, with their nodes, in an order of their own."""
        by_node: dict[int, list[Message]] = {}
        for reply in replies:
            # By the message it answers: where a node is unavailable, Flower itself replies.
            node = self._sent.get(reply.metadata.reply_to_message_id)
            if node is not None and node not in self._answered:  # else an earlier exchange's
                by_node.setdefault(node, []).append(reply)
        for node, several in sorted(by_node.items()):
            if len(several) > 1:
                several.sort(key=_content_key)
            yield from ((node, reply) for reply in several)

    def _plausible(self, fresh: dict[int, Contribution]) -> dict[int, Contribution]:
        """Return the contributions that an honest node may have sent; reject the others."""
        if not fresh or self._broadcast.theta_hat is None:
            return fresh
        uploads = [each.upload for each in fresh.values()]
        reasons = implausible(uploads, self._broadcast, self._max_difference, self.settings.wire)
        refused = {node: reason for node, reason in zip(fresh, reasons, strict=True) if reason}
        self._rejected |= refused
        return {node: each for node, each in fresh.items() if node not in refused}

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return nothing: agents are never evaluated apart from playing."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing: see :meth:`configure_evaluate`."""
        return None

    def _trip(self, broadcast: Broadcast) -> Upload:
        """Ask a share of the nodes; or, about the same duels again, those that told of them.

        The point of a round's further exchanges is to see one loss at several points: all
        nodes must answer, or the round begins anew without those that are gone.
        """
        again = broadcast.play is None
        self._trips += 1
        asked = self._whom(broadcast)
        self._broadcast = broadcast
        self._usable, self._answered, self._rejected = {}, {}, {}
        self._sent, self._replied = {}, set()
        vector, ask = encode_broadcast(broadcast, self.settings.wire)
        arrays, config = pack_vector(vector), ConfigRecord({"ask": list(ask)})
        least = len(asked) if again else self.settings.quorum * len(asked)
        enough = len(asked) if self._closing else least
        patience = Patience(self._grid, self.settings.node_wait)
        while True:
            self._ask([node for node in asked if node not in self._answered], arrays, config)
            if met := sorted(self._greeted - self._rejected.keys()):
                self._ask(met, arrays, config)
            if len(self._answered) >= enough or not patience.wait():
                break
        self._absent = [node for node in asked if node not in self._answered]
        if len(self._answered) < least:
            raise self._too_few(asked, again=again)
        self.members.settle(self._answered)
        self._record(broadcast, asked)
        if broadcast.theta_hat is not None:
            self.members.expect_enough(self._answered)
        uploads = [each.upload for each in self.contributions()]
        return combine(uploads, self.settings.robust) if broadcast.robust else total(uploads)

    def _whom(self, broadcast: Broadcast) -> list[int]:
        """Return the nodes to ask, in partition order as far as partitions are known.

        A round's share of them (``fraction_train``) is drawn by their places in that order from
        a stream keyed by (seed, "participation", trip): once every node has told its partition,
        the share does not depend on node ids, which Flower draws anew in each run. Where only
        the regret is asked for, all nodes are.
        """
        if broadcast.play is None:
            return sorted(self._answered, key=self.members.place)
        self.wait_for_nodes(self._grid_now(), at_least=1)
        nodes = sorted(self._connected - self._gone or self._connected, key=self.members.place)
        count = max(1, round(self.settings.fraction_train * len(nodes)))
        if broadcast.theta_hat is None or count == len(nodes):
            return nodes
        generator = keyed_generator(self.settings.seed, "participation", self._trips)
        return [nodes[place] for place in sorted(generator.permutation(len(nodes))[:count])]

    def _ask(self, nodes: list[int], arrays: ArrayRecord, config: ConfigRecord) -> None:
        assert self._grid is not None
        self._nodes, self._greeted = nodes, set()
        messages = list(self.configure_train(self._trips, arrays, config, self._grid))
        timeout = self.settings.reply_timeout
        earlier = self._unanswered()
        replies = list(send_and_receive(self._grid, messages, timeout, earlier, self.watch))
        self._replied |= {reply.metadata.reply_to_message_id for reply in replies}
        self._sent |= {each.metadata.message_id: each.metadata.dst_node_id for each in messages}
        self.aggregate_train(self._trips, replies)
        self._count_bytes(messages, replies)

    def _count_bytes(self, messages: list[Message], replies: list[Message]) -> None:
        """Count what was sent, and what arrived, whether or not it can be used."""
        replies = [reply for reply in replies if not reply.has_error()]
        self.history.count_node_bytes(
            sum(content_bytes(reply.content) for reply in replies),
            sum(content_bytes(message.content) for message in messages),
        )
        if self._broadcast.theta_hat is None:
            return
        asked = {message.metadata.dst_node_id for message in messages}
        answered = {self._sent.get(reply.metadata.reply_to_message_id) for reply in replies}
        uploads = {node for node in answered if node is not None} - self._greeted
        up, down = traffic(self._broadcast, self.algorithm.form, wire=self.settings.wire)
        self.history.count_bytes(
            up * self.members.agents(uploads, self._connected),
            down * self.members.agents(asked, self._connected),
        )

    def _unanswered(self) -> dict[str, int]:
        """Return the messages of this exchange whose reply is awaited, and their nodes.

        A reply can be pulled once: where it was, Flower replies at once that there is none.
        """
        return {
            key: node
            for key, node in self._sent.items()
            if node not in self._answered and key not in self._replied
        }

    def _confirm(self) -> None:
        self.members.confirm(self._answered)

    def contributions(self) -> list[Contribution]:
        """Return what the last exchange counted, in the order of summation."""
        return sorted(self._answered.values(), key=lambda each: each.order)

    def _record(self, broadcast: Broadcast, asked: list[int]) -> None:
        rejected = tuple(self._reasons())
        for line in rejected:
            _LOG.log(WARNING, "not counted in this round: %s", line)
        play = broadcast.play
        iteration = self.history.iteration if play is None else play.last
        self.history.participation.append(
            Participation(
                iteration,
                len(asked),
                len(self._answered),
                rejected,
                tuple(self.members.name(node) for node in self._absent),
            )
        )

    def _reasons(self) -> Iterator[str]:
        for node in sorted(self._rejected, key=self.members.place):
            yield f"{self.members.name(node)}: {_one_line(self._rejected[node])}"

    def _too_few(self, asked: list[int], *, again: bool) -> FederationError:
        reasons = "; ".join(self._reasons())
        text = (
            f"{len(self._answered)} of {len(asked)} nodes answered usably in exchange"
            f" {self._trips}, quorum={self.settings.quorum:g}:"
            f" {reasons or 'the others did not reply'}"
        )
        return RoundAbandonedError(text) if again else FederationError(text)


def _one_line(text: str) -> str:
    """Keep what a node had a say in from filling a log, or looking like more lines of it."""
    return "".join(c if c.isprintable() else " " for c in text[:_LONGEST_REASON])


def _content_key(reply: Message) -> tuple[bool, str]:
    """Return a sort key for the replies of one node that depends on their content alone."""
    return (True, str(reply.error)) if reply.has_error() else (False, reply.content.object_id)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "failed without a reason"
