"""The Central Server over Flower: a Strategy that is a federation over a Grid."""

from __future__ import annotations

import time
from collections.abc import Iterable
from logging import INFO, WARNING, getLogger
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fldb_flower.algorithms import Algorithm
from fldb_flower.arrays import Array
from fldb_flower.errors import FederationError, RoundAbandonedError
from fldb_flower.federation import Broadcast, Federation, Upload, total
from fldb_flower.history import History, Participation
from fldb_flower.messages import Ask, UploadError, encode_broadcast, indefinite, traffic
from fldb_flower.records import pack_vector
from fldb_flower.schedules import Round
from fldb_flower.settings import Settings
from strategies.members import Contribution, Members
from strategies.transport import poll_seconds, send_and_receive

_LOG = getLogger("flwr")


class DuelingStrategy(Federation, Strategy):
    """Runs an algorithm whose exchanges are Flower messages.

    One exchange is ``configure_train`` -> messages -> ``aggregate_train``. Replies are checked,
    and summed in an order of their own whatever order they arrive in. Duels are acknowledged
    node by node, so a lost, late or repeated reply loses nothing and counts nothing twice.

    Parameters
    ----------
    settings : Settings
        ``quorum``, ``node_wait`` and ``reply_timeout`` bound the waiting.
    history : History
        Where exchanges, bytes, regret and participation are recorded.
    members : Members
        What the nodes are: simulated agents or devices.
    """

    ALGORITHM: type[Algorithm]
    """What the Central Server computes."""

    def __init__(self, settings: Settings, history: History, members: Members) -> None:
        Federation.__init__(self, history)
        self.settings = settings
        self.members = members
        self.algorithm = self.ALGORITHM(settings)
        self._grid: Grid | None = None
        self._broadcast = Broadcast(None, None)
        self._trips = 0
        self._nodes: list[int] = []  # nodes to ask in this trip
        self._connected: frozenset[int] = frozenset()
        self._answered: dict[int, Contribution] = {}  # by node
        self._rejected: dict[int, str] = {}  # node -> why its reply was not used
        self._greeted: set[int] = set()  # nodes that said who they are, and must be asked again

    def start(self, grid: Grid) -> Array:  # type: ignore[override]
        """Wait for nodes, then run the algorithm to the horizon.

        Unlike Flower's own loop, the number of exchanges is the algorithm's to choose.

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
        for turn in self.algorithm.rounds():
            while not self.try_round(turn):
                pass
        return self.algorithm.theta_sync

    def try_round(self, turn: Round) -> bool:
        """Play and learn from one round; return False if it has to be begun anew.

        Raises
        ------
        FederationError
            A quorum was missed.
        """
        try:
            self.algorithm.round(self, turn)
        except RoundAbandonedError as reason:
            _LOG.log(WARNING, "round %d begins anew: %s", turn.number, reason)
            return False
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
        assert self._grid is not None, "call connect(grid) first"
        self._connected = frozenset(self._grid.get_node_ids())
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
        ask, again = Ask(*numbers), self._broadcast.play is None
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
        """Check the replies and keep the usable uploads for :meth:`exchange` to sum."""
        fresh: dict[int, Contribution] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                self._rejected[node] = _last_line(reply.error.reason or "")
                continue
            try:
                contribution = self.members.check(node, reply, self._broadcast, self._connected)
            except UploadError as error:
                self._rejected[node] = str(error)
                continue
            if contribution is None:
                self._greeted.add(node)
            else:
                fresh.setdefault(node, contribution)
        if fresh and self._broadcast.theta_hat is not None:
            reasons = indefinite([each.upload for each in fresh.values()])
            for node, bad in zip(list(fresh), reasons, strict=True):
                if bad:
                    self._rejected[node] = f"{bad} is not positive semi-definite"
                    del fresh[node]
        for node in fresh:
            self._rejected.pop(node, None)
        self._answered.update(fresh)
        return None, MetricRecord({"uploads": len(self._answered)})

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
        """Ask every node; or, about the same duels again, those that told of them.

        The point of a round's further exchanges is to see one loss at several points: all
        nodes must answer, or the round begins anew without those that are gone.
        """
        again = broadcast.play is None
        asked = sorted(self._answered) if again else sorted(self.look())
        self._broadcast = broadcast
        self._trips += 1
        self._answered, self._rejected = {}, {}
        vector, ask = encode_broadcast(broadcast)
        arrays, config = pack_vector(vector), ConfigRecord({"ask": list(ask)})
        enough = len(asked) if again else self.settings.quorum * len(asked)
        deadline = time.monotonic() + self.settings.node_wait
        while True:
            self._ask([node for node in asked if node not in self._answered], arrays, config)
            if self._greeted:
                self._ask(sorted(self._greeted), arrays, config)
            if len(self._answered) >= enough:
                break
            if time.monotonic() > deadline:
                raise self._too_few(asked, again=again)
            time.sleep(poll_seconds(self._grid))
        self._record(broadcast, asked)
        if broadcast.theta_hat is not None:
            self.members.expect_enough(self._answered)
        return total([each.upload for each in self.contributions()])

    def _ask(self, nodes: list[int], arrays: ArrayRecord, config: ConfigRecord) -> None:
        assert self._grid is not None
        self._nodes, self._greeted = nodes, set()
        messages = self.configure_train(self._trips, arrays, config, self._grid)
        replies = send_and_receive(self._grid, list(messages), self.settings.reply_timeout)
        self.aggregate_train(self._trips, replies)

    def _confirm(self) -> None:
        self.members.confirm(self._answered)

    def contributions(self) -> list[Contribution]:
        """Return what the last exchange counted, in the order of summation."""
        return sorted(self._answered.values(), key=lambda each: each.order)

    def _record(self, broadcast: Broadcast, asked: list[int]) -> None:
        if broadcast.theta_hat is not None:
            self.history.count_bytes(
                *traffic(broadcast, self.settings.dimension, len(self._answered))
            )
        rejected = tuple(f"node {node}: {why}" for node, why in sorted(self._rejected.items()))
        for line in rejected:
            _LOG.log(WARNING, "not counted in this round: %s", line)
        play = broadcast.play
        iteration = self.history.iteration if play is None else play.last
        self.history.participation.append(
            Participation(iteration, len(asked), len(self._answered), rejected)
        )

    def _too_few(self, asked: list[int], *, again: bool) -> FederationError:
        reasons = "; ".join(f"node {node}: {why}" for node, why in sorted(self._rejected.items()))
        text = (
            f"{len(self._answered)} of {len(asked)} nodes answered usably in exchange"
            f" {self._trips}, quorum={self.settings.quorum:g}:"
            f" {reasons or 'the others did not reply'}"
        )
        return RoundAbandonedError(text) if again else FederationError(text)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "failed without a reason"
