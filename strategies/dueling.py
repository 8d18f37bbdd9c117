"""The Central Server over Flower: a Strategy that is a federation over a Grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from logging import INFO, WARNING, getLogger
from typing import ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fldb_flower.algorithms import run_rounds
from fldb_flower.algorithms.robust import combine
from fldb_flower.algorithms.schedules import Round
from fldb_flower.environments import max_difference
from fldb_flower.errors import RoundAbandonedError, SettingsError
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.federation.history import Counts
from fldb_flower.linalg.arrays import Array
from fldb_flower.privacy.mechanism import noise_of
from fldb_flower.runs.plots import describe
from fldb_flower.settings import Settings
from fldb_flower.wire.codec import traffic
from fldb_flower.wire.records import content_bytes
from strategies.exchange import Exchange
from strategies.grid_federation import GridFederation
from strategies.nodes import Nodes
from strategies.reasons import grouped
from strategies.transport import Patience

_LOG = getLogger("flwr")


class DuelingStrategy(GridFederation, Strategy):
    """Runs the algorithm of the settings with exchanges that are Flower messages.

    :meth:`collect` makes an ``strategies.exchange.Exchange`` and repeats
    ``configure_train`` -> messages -> ``aggregate_train`` until enough nodes have contributed.
    Replies are checked, and summed in an order that does not depend on their arrival. Duels are
    acknowledged node by node, so a lost, late or repeated reply loses no duel and counts none
    twice.

    Parameters
    ----------
    settings : Settings
        ``fraction_train`` is the share of nodes to ask; ``quorum``, ``node_wait`` and
        ``reply_timeout`` bound the waiting.
    history : Counts
        Records exchanges, bytes, regret and participation.
    nodes : Nodes
        The kind of nodes: simulated agents or devices.

    Attributes
    ----------
    algorithm : Algorithm
        What the Central Server computes.
    watch : callable
        Called while an exchange waits for replies; see ``strategies.transport.Watch``.

    Examples
    --------
    Ten agents on two nodes in this process. In a ServerApp, the grid is that of its main function:

    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings, to_flat
    >>> from simulations.engines.grid import InProcessGrid
    >>> from strategies import DuelingStrategy
    >>> from strategies.simulated_nodes import SimulatedNodes
    >>> settings = Settings(algorithm="fldb_ons", num_agents=10, horizon=20, dimension=3, tau=5)
    >>> history = History(settings.horizon)
    >>> strategy = DuelingStrategy(settings, history, SimulatedNodes(settings, history))
    >>> theta = strategy.start(InProcessGrid(2, to_flat(settings)))
    >>> theta.shape, history.iteration, history.participation[-1].replied
    ((3,), 20, 2)
    """

    ALGORITHM: ClassVar[str] = ""
    """The only algorithm that it runs; empty: the algorithm of the settings."""

    def __init__(self, settings: Settings, history: Counts, nodes: Nodes) -> None:
        # Reports in secure sums contain the noise already.
        super().__init__(settings, history, noise_of(settings) if nodes.sees_uploads else None)
        if self.ALGORITHM not in {"", settings.algorithm}:
            raise SettingsError(
                f"algorithm={settings.algorithm}: {type(self).__name__} needs"
                f" algorithm={self.ALGORITHM}, in the run config that the nodes read too"
            )
        self.nodes = nodes
        self._exchange: Exchange | None = None
        self._max_difference = max_difference(settings)
        self._excluded: frozenset[int] = frozenset()  # lost in an earlier attempt at this round

    def start(self, grid: Grid) -> Array:  # type: ignore[override]
        """Wait for nodes, run the algorithm to the horizon, and return theta_sync.

        Unlike in Flower's own loop, the algorithm determines the number of exchanges.

        Raises
        ------
        FederationError
            No node connected, there are more nodes than agents, or a quorum was missed.
        """
        self.connect(grid)
        connected = self.wait_for_nodes()
        self.nodes.check_number(connected)
        self.summary()
        run_rounds(self, self.algorithm, attempt=self.try_round)
        if self.nodes.has_uncounted(self.connected()):
            self._collect_remaining_regret()
        return self.algorithm.theta_sync

    def _collect_remaining_regret(self) -> None:
        """Request the regret of nodes that were absent, or not asked, at the end.

        They play to the horizon with the estimate that they have. Nothing is learned from it.
        """
        last = self.settings.horizon
        request = self.algorithm.play(Round(0, last + 1, last, learns=False))
        self.exchange(Broadcast(request, None))
        self.acknowledge()

    def try_round(self, round_: Round) -> bool:
        """Play and learn from one round; return False if it must be run again.

        It is then run without the nodes that were lost, so the number of attempts is finite.

        Raises
        ------
        FederationError
            A quorum was missed.
        """
        try:
            self.algorithm.round(self, round_)
        except RoundAbandonedError as reason:
            exchange = self.last_exchange
            excluded = self._excluded.union(exchange.absent)
            left = len(exchange.connected - excluded)
            if left < self.settings.quorum * len(exchange.connected):
                raise
            self._excluded = excluded
            _LOG.log(WARNING, "round %d runs again: %s", round_.number, reason)
            return False
        self._excluded = frozenset()
        return True

    def summary(self) -> None:
        """Log one line about the run."""
        _LOG.log(INFO, "%s, on %d nodes", describe(self.settings), len(self.connected()))

    def collect(self, broadcast: Broadcast) -> Upload:
        """Carry out one exchange and return the sum of the uploads.

        The further exchanges of a round evaluate the same loss at other points. All nodes that
        contributed to the first one must answer them, or the round is run again.
        """
        exchange = self._begin(broadcast)
        least = self.settings.quorum * len(exchange.asked)
        if exchange.repeats:
            least = len(exchange.asked)
        play = broadcast.play
        is_final = play is not None and play.first > play.last  # wait for every node's regret
        enough = len(exchange.asked) if is_final else least
        patience = Patience(self.grid, self.settings.node_wait)
        while True:
            messages = list(
                self.configure_train(exchange.number, exchange.arrays, exchange.config, self.grid)
            )
            replies = exchange.send(self.grid, messages, self.watch)
            self.aggregate_train(exchange.number, replies)
            self._count_bytes(exchange, messages, replies)
            if exchange.newcomers:
                continue
            if len(exchange.contributions) >= enough or not exchange.missing:
                break
            if not patience.wait():
                break
        if self.nodes.sees_uploads:
            exchange.require(least)
        self._record(exchange)
        self.nodes.accept(exchange.contributions, broadcast)
        if broadcast.robust and self.settings.robust != "none":
            return combine(exchange.uploads, self.settings.robust)
        return self.nodes.total(exchange.accepted, broadcast)

    def _begin(self, broadcast: Broadcast) -> Exchange:
        """Return a new exchange with the nodes to ask.

        A broadcast that plays nothing asks the nodes of the exchange before again.
        """
        number = 1 if self._exchange is None else self._exchange.number + 1
        if broadcast.play is None:
            before = self.last_exchange
            connected = before.connected
            asked = sorted(before.contributions, key=self.nodes.sort_key)
        else:
            connected = self.wait_for_nodes()
            asked = self.sample(number, connected, everyone=not broadcast.learns)
        self.nodes.begin(broadcast)
        self._exchange = Exchange(
            number, broadcast, tuple(asked), connected, self.nodes, self.settings,
            self._max_difference,
        )  # fmt: skip
        return self._exchange

    def sample(
        self, number: int, connected: frozenset[int], *, everyone: bool = False
    ) -> list[int]:
        """Return the nodes to ask in exchange ``number``, in partition order where it is known.

        The share ``fraction_train`` is drawn by position in that order from a stream keyed by
        (seed, "participation", number). Once all partitions are known, it does not depend on
        node ids, which Flower draws again in each run.
        """
        nodes = sorted(connected - self._excluded or connected, key=self.nodes.sort_key)
        return nodes if everyone else self.drawn(nodes, number)

    @property
    def last_exchange(self) -> Exchange:
        """The exchange in progress, or the one that ended last."""
        if self._exchange is None:
            raise RuntimeError("no exchange has begun")
        return self._exchange

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message for each node of the exchange to ask now."""
        exchange = self.last_exchange
        nodes = exchange.newcomers or exchange.missing
        contents = self.nodes.contents(nodes, server_round, arrays, config)
        return [
            Message(content, node, "train", group_id=str(server_round))
            for node, content in zip(nodes, contents, strict=True)
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[None, MetricRecord]:
        """Check replies of the exchange; return how many nodes contributed and were refused.

        The statistics are summed by :meth:`collect` once enough nodes have contributed.
        """
        exchange = self.last_exchange
        exchange.add(replies)
        return None, MetricRecord(
            {"contributed": len(exchange.contributions), "refused": len(exchange.refused)}
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no message: agents are not evaluated separately."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None: see :meth:`configure_evaluate`."""
        return None

    def _count_bytes(
        self, exchange: Exchange, messages: list[Message], replies: list[Message]
    ) -> None:
        """Count what was sent and what arrived, whether or not it can be used."""
        replies = [reply for reply in replies if not reply.has_error()]
        sent = Counter(id(message.content) for message in messages)  # nodes share contents
        contents = {id(message.content): message.content for message in messages}
        self.history.count_node_bytes(
            sum(content_bytes(reply.content) for reply in replies),
            sum(count * content_bytes(contents[key]) for key, count in sent.items()),
        )
        if not exchange.broadcast.learns:
            return
        asked = {message.metadata.dst_node_id for message in messages}
        uploads = {node for node, _ in exchange.senders(replies)} - exchange.introduced
        up, down = traffic(exchange.broadcast, self.algorithm.form)
        self.history.count_bytes(
            up * self.nodes.count_agents(uploads, exchange.connected),
            down * self.nodes.count_agents(asked, exchange.connected),
        )

    def _record(self, exchange: Exchange) -> None:
        play = exchange.broadcast.play
        row = exchange.participation(self.history.iteration if play is None else play.last)
        for line in grouped(exchange.reasons(), "nodes"):
            _LOG.log(WARNING, "not counted in exchange %d: %s", exchange.number, line)
        self.history.participation.append(row)

    def mark_counted(self) -> None:
        """Store that the last exchange's duels are counted; the next broadcast acknowledges it."""
        self.nodes.acknowledge(self.last_exchange.contributions)
