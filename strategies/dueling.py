"""The Central Server over Flower: a Strategy that is a federation over a Grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from logging import INFO, WARNING, getLogger
from typing import Any, ClassVar

from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fldb_flower.algorithms import make_algorithm, run_rounds
from fldb_flower.algorithms.schedules import Round
from fldb_flower.errors import FederationError, RoundAbandonedError, SettingsError
from fldb_flower.federation.exchange import AnyUpload, Broadcast, Federation
from fldb_flower.federation.history import Counts
from fldb_flower.privacy.mechanism import noise_of
from fldb_flower.runs.plots import describe
from fldb_flower.settings import Settings
from fldb_flower.wire import content_bytes, encode_upload, pack_vector
from strategies.channel import Channel
from strategies.simulated import SimulatedChannel

THETA = "theta_sync"
"""Key of the estimate in the records of a run."""

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]

_LOG = getLogger("flwr")


class DuelingStrategy(Federation, Strategy):
    """Runs the algorithm of the settings with exchanges that are Flower messages.

    An exchange repeats :meth:`configure_train`, messages and :meth:`aggregate_train` until enough
    nodes have contributed. Replies are checked, and summed in an order that does not depend on
    their arrival. Duels are acknowledged node by node. No duel is lost or counted twice if a reply
    is lost, late or repeated.

    Parameters
    ----------
    settings : Settings
        ``fraction_train`` is the share of nodes to ask; ``quorum``, ``node_wait`` and
        ``reply_timeout`` bound the waiting.
    history : Counts
        Records exchanges, bytes, regret and participation.
    channel : Channel, optional
        The kind of nodes: simulated agents, which is the default, or devices.

    Attributes
    ----------
    algorithm : Algorithm
        What the Central Server computes.
    channel : Channel
        The nodes, and their replies to the last exchange.

    Examples
    --------
    Ten agents on two nodes in this process. In a ServerApp, the grid is that of its main function:

    >>> from fldb_flower.federation.history import History
    >>> from fldb_flower.settings import Settings, to_flat
    >>> from simulations.engines.inprocess import InProcessGrid
    >>> from strategies import FLDBONSStrategy
    >>> settings = Settings(algorithm="fldb_ons", num_agents=10, horizon=20, dimension=3, tau=5)
    >>> history = History(settings.horizon)
    >>> strategy = FLDBONSStrategy(settings, history)
    >>> result = strategy.start(InProcessGrid(2, to_flat(settings)))
    >>> result.arrays["theta_sync"].numpy().shape
    (3,)
    >>> history.iteration, history.participation[-1].replied
    (20, 2)
    """

    ALGORITHM: ClassVar[str] = ""
    """The only algorithm that it runs; empty: the algorithm of the settings."""

    def __init__(self, settings: Settings, history: Counts, channel: Channel | None = None) -> None:
        self.channel = channel or SimulatedChannel(settings, history)
        # Reports in secure sums contain the noise already.
        super().__init__(history, noise_of(settings) if self.channel.sees_uploads else None)
        if self.ALGORITHM not in {"", settings.algorithm}:
            raise SettingsError(
                f"algorithm={settings.algorithm}: {type(self).__name__} needs"
                f" algorithm={self.ALGORITHM}, in the run config that the nodes read too"
            )
        self.settings, self.algorithm = settings, make_algorithm(settings)
        self._sent: Sequence[Message] = ()
        self._sum: Any = None
        self._metrics = MetricRecord()

    def start(  # noqa: PLR0917 - as in Flower
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Wait for nodes, run the algorithm to the horizon, and return theta_sync and the metrics.

        The algorithm and its schedule determine the rounds and what is sent, so the other arguments
        of Flower's ``Strategy.start`` must be left out.

        Parameters
        ----------
        grid : Grid
            Carries the messages.
        timeout : float, optional
            Seconds to wait for replies; by default ``reply_timeout`` of the settings.
        evaluate_fn : callable, optional
            Called with the number of each round, and a record with ``theta_sync``, (d,), after it.

        Raises
        ------
        FederationError
            No node connected, there are more nodes than agents, or a quorum was missed.
        """
        for name, value, instead in (
            ("initial_arrays", initial_arrays, "the first round determines theta"),
            ("num_rounds", num_rounds, "horizon, tau and schedule determine the rounds"),
            ("train_config", train_config, "nodes read the run config"),
            ("evaluate_config", evaluate_config, "agents are not evaluated separately"),
        ):
            if value:
                raise SettingsError(f"{type(self).__name__}.start: {name} must be empty: {instead}")
        self.channel.connect(grid, timeout)
        self._require_agents(len(self.channel.wait_for_nodes()))
        self.summary()
        self._result, self._evaluate = Result(), evaluate_fn
        run_rounds(self, self.algorithm, attempt=self.try_round)
        if self.channel.has_uncounted(self.channel.connected()):
            # Nodes that were absent or not asked play to the end. Nothing is learned from it.
            last = self.settings.horizon
            play = self.algorithm.play(Round(0, last + 1, last, learns=False))
            self.exchange(Broadcast(play, None))
            self.acknowledge()
        self._result.arrays = self._estimate()
        return self._result

    def _require_agents(self, nodes: int) -> None:
        agents = self.settings.num_agents
        if nodes > agents:
            raise FederationError(
                f"{nodes} nodes for num-agents={agents}: each node hosts at least one agent; run"
                f' with --federation-config "num-supernodes={agents}" or fewer'
            )

    def _estimate(self) -> ArrayRecord:
        return ArrayRecord({THETA: FlowerArray(self.algorithm.theta_sync)})

    def try_round(self, round_: Round) -> bool:
        """Play and learn from one round; return False if it must be run again.

        It is then run without the nodes that were lost, so the number of attempts is finite. A
        missed quorum raises a FederationError.
        """
        channel = self.channel
        try:
            self.algorithm.round(self, round_)
        except RoundAbandonedError as reason:
            excluded = channel.excluded.union(channel.absent)
            if len(channel.present - excluded) < self.settings.reply_share * len(channel.present):
                raise
            channel.excluded = excluded
            _LOG.log(WARNING, "round %d runs again: %s", round_.number, reason)
            return False
        channel.excluded, number = frozenset(), round_.number
        self._result.train_metrics_clientapp[number] = self._metrics
        if self._evaluate and (metrics := self._evaluate(number, self._estimate())):
            self._result.evaluate_metrics_serverapp[number] = metrics
        return True

    def summary(self) -> None:
        """Log one line about the run."""
        _LOG.log(INFO, "%s, on %d nodes", describe(self.settings), len(self.channel.connected()))

    def collect(self, broadcast: Broadcast) -> AnyUpload:
        """Carry out one exchange and return the sum of the uploads."""
        channel, self._sum = self.channel, None
        channel.open(broadcast)
        exchange = channel.number, channel.arrays, channel.config, channel.grid
        while self._sum is None:
            self._sent = self.configure_train(*exchange)
            self.aggregate_train(channel.number, channel.send(self._sent))
        return self._sum  # type: ignore[no-any-return]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return one message for each node of the exchange to ask now."""
        return self.channel.messages()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """Check replies of the exchange; once enough nodes have contributed, return the sum.

        The sum is one vector in the form of uploads (``fldb_flower.wire``): for example, the
        gradient and the upper triangles of W_new and of the Hessian. The record is None if nodes
        are to be asked again. The metrics are the numbers of nodes that contributed and that were
        refused and, with the sum, the number of duels.
        """
        channel, replies = self.channel, list(replies)
        channel.receive(replies)
        self._count_bytes([reply for reply in replies if not reply.has_error()])
        counts = {"contributed": len(channel.contributions), "refused": len(channel.refused)}
        if channel.tries_again():
            return None, MetricRecord({**counts})
        channel.close(self.history)
        self._sum = channel.total()
        self._metrics = MetricRecord({**counts, "duels": self._sum.num_duels})
        return pack_vector(encode_upload(self._sum, channel.broadcast)), self._metrics

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

    def _count_bytes(self, replies: Sequence[Message]) -> None:
        """Count what was sent and what arrived, whether or not it can be used."""
        channel, broadcast = self.channel, self.channel.broadcast
        contents = {id(message.content): message.content for message in self._sent}  # often shared
        sizes = {key: content_bytes(content) for key, content in contents.items()}
        history = self.history
        history.node_uploaded_bytes += sum(content_bytes(reply.content) for reply in replies)
        history.node_downloaded_bytes += sum(sizes[id(message.content)] for message in self._sent)
        if broadcast.learns:
            asked = {message.metadata.dst_node_id for message in self._sent}
            uploads = {node for node, _ in channel.senders(replies)} - channel.introduced
            up, down = broadcast.sizes(self.algorithm.form)
            history.uploaded_bytes += 8 * up * channel.count_agents(uploads, channel.present)
            history.downloaded_bytes += 8 * down * channel.count_agents(asked, channel.present)

    def mark_counted(self) -> None:
        """Store that the last exchange's duels are counted; the next broadcast acknowledges it."""
        self.channel.acknowledge()
