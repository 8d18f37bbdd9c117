"""The Central Server over Flower: a Strategy that is a federation over a Grid."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable
from logging import INFO, WARNING, getLogger
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fldb_flower.agents import agents_of_node
from fldb_flower.arrays import Array
from fldb_flower.errors import FederationError
from fldb_flower.federation import Broadcast, Federation, Upload, total
from fldb_flower.history import History, Participation
from fldb_flower.messages import (
    Answer,
    Ask,
    UploadError,
    decode_upload,
    encode_broadcast,
    indefinite,
    traffic,
)
from fldb_flower.records import pack_vector, unpack_vector
from fldb_flower.settings import Settings

_LOG = getLogger("flwr")
_POLL_SECONDS = 0.01  # in place of the 0.1 s that Flower's in-memory grid sleeps


class DuelingStrategy(Federation, Strategy):
    """Runs an algorithm whose exchanges are Flower messages.

    One exchange is ``configure_train`` -> messages -> ``aggregate_train``. Replies are checked,
    and summed in partition order whatever order they arrive in. Duels are acknowledged node by
    node, so a lost, late or repeated reply loses nothing and counts nothing twice.

    Parameters
    ----------
    settings : Settings
        ``quorum``, ``node_wait`` and ``reply_timeout`` bound the waiting.
    history : History
        Where exchanges, bytes, regret and participation are recorded.
    """

    def __init__(self, settings: Settings, history: History) -> None:
        Federation.__init__(self, history)
        self.settings = settings
        self._grid: Grid | None = None
        self._broadcast = Broadcast(None, None)
        self._trips = 0
        self._nodes: list[int] = []  # nodes to ask in this trip
        self._counted: dict[int, int] = {}  # node -> last iteration whose duels are counted
        self._answered: dict[int, tuple[int, Upload]] = {}  # node -> partition, upload
        self._rejected: dict[int, str] = {}  # node -> why its reply was not used
        self._partitions: dict[int, int] = {}  # partition -> node

    @abstractmethod
    def run(self) -> Array:
        """Run the algorithm over this federation; return its final estimate, (d,)."""

    def start(self, grid: Grid) -> Array:  # type: ignore[override]
        """Wait for nodes, then run the algorithm to the horizon.

        Unlike Flower's own loop, the number of exchanges is the algorithm's to choose.

        Raises
        ------
        FederationError
            No node came, there are more nodes than agents, or a quorum was missed.
        """
        self._grid = grid
        if hasattr(grid, "pull_interval"):
            grid.pull_interval = _POLL_SECONDS
        self._wait_for_nodes(grid)
        self.summary()
        return self.run()

    def summary(self) -> None:
        """Log one line about what is about to run."""
        settings = self.settings
        _LOG.log(
            INFO,
            "%s: N=%d agents on %d nodes, T=%d, K=%d, d=%d, tau=%d, seed=%d, %s",
            settings.algorithm, settings.num_agents, len(self._nodes), settings.horizon,
            settings.num_arms, settings.dimension, settings.tau, settings.seed,
            settings.environment.name,
        )  # fmt: skip

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message for each node to ask; they share the content."""
        contents: dict[int, RecordDict] = {}  # acknowledgement -> what to send
        numbers: Any = config["ask"]
        messages = []
        for node in self._nodes:
            counted = self._counted.get(node, 0)
            if counted not in contents:
                ask = Ask(*numbers)._replace(counted=counted)
                numbers_record = ConfigRecord({"ask": list(ask)})
                contents[counted] = RecordDict({"arrays": arrays, "config": numbers_record})
            messages.append(Message(contents[counted], node, "train", group_id=str(server_round)))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies and keep the usable uploads for :meth:`exchange` to sum."""
        fresh: dict[int, tuple[int, Upload]] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                self._rejected[node] = _last_line(reply.error.reason or "")
                continue
            try:
                fresh[node] = self._check(node, reply)
            except UploadError as error:
                self._rejected[node] = str(error)
        if fresh and self._broadcast.theta_hat is not None:
            for node, bad in zip(
                list(fresh), indefinite([u for _, u in fresh.values()]), strict=True
            ):
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
        assert self._grid is not None, "call start(grid) first"
        grid = self._grid
        self._broadcast = broadcast
        self._trips += 1
        self._answered, self._rejected = {}, {}
        everyone = sorted(grid.get_node_ids())
        vector, ask = encode_broadcast(broadcast)
        arrays, config = pack_vector(vector), ConfigRecord({"ask": list(ask)})
        deadline = time.monotonic() + self.settings.node_wait
        while True:
            self._nodes = [node for node in everyone if node not in self._answered]
            messages = self.configure_train(self._trips, arrays, config, grid)
            replies = grid.send_and_receive(messages, timeout=self.settings.reply_timeout)
            self.aggregate_train(self._trips, replies)
            if len(self._answered) >= self.settings.quorum * len(everyone):
                break
            if time.monotonic() > deadline:
                raise self._no_quorum(everyone)
            time.sleep(_POLL_SECONDS)
        self._record(broadcast, everyone)
        return total([upload for _, upload in sorted(self._answered.values(), key=_partition)])

    def _confirm(self) -> None:
        for node in self._answered:
            self._counted[node] = self.history.iteration

    def _check(self, node: int, reply: Message) -> tuple[int, Upload]:
        """Return the partition and the upload of one reply, or raise UploadError."""
        content: Any = reply.content
        try:
            vector = unpack_vector(content["arrays"])
            answer = Answer.from_numbers(content["numbers"]["answer"])
        except (KeyError, TypeError, ValueError) as error:
            raise UploadError(f"not an upload: {error!r}") from None
        settings = self.settings
        upload = decode_upload(vector, answer, self._broadcast, settings.dimension)
        partition = answer.partition_id
        if self._partitions.setdefault(partition, node) != node:
            raise UploadError(f"partition-id={partition} is another node's")
        try:
            agents = len(agents_of_node(partition, answer.num_partitions, settings.num_agents))
        except ValueError as error:
            raise UploadError(str(error)) from None
        self._check_counts(node, upload, agents)
        return partition, upload

    def _check_counts(self, node: int, upload: Upload, agents: int) -> None:
        play, counted = self._broadcast.play, self._counted.get(node, 0)
        played = play.last if play is not None else self.history.iteration
        before = 0 if self._broadcast.scope == "all" else counted
        duels = agents * (played - before) if self._broadcast.theta_hat is not None else 0
        if upload.num_duels != duels:
            raise UploadError(f"{upload.num_duels} duels instead of {duels}")
        (regrets,) = upload.regrets
        rows = (regrets.first, len(regrets.sums), regrets.agents)
        if rows != (counted + 1, played - counted, agents):
            raise UploadError(f"regret of other iterations or agents than asked for: {rows}")

    def _record(self, broadcast: Broadcast, everyone: list[int]) -> None:
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
            Participation(iteration, len(everyone), len(self._answered), rejected)
        )

    def _wait_for_nodes(self, grid: Grid) -> None:
        deadline = time.monotonic() + self.settings.node_wait
        while not (nodes := sorted(grid.get_node_ids())):
            if time.monotonic() > deadline:
                raise FederationError(
                    f"0 nodes connected within node-wait={self.settings.node_wait:g} s;"
                    " one is enough"
                )
            time.sleep(0.1)
        if len(nodes) > self.settings.num_agents:
            raise FederationError(
                f"{len(nodes)} nodes for num-agents={self.settings.num_agents}: each node hosts at"
                f" least one agent; run with --federation-config"
                f' "num-supernodes={self.settings.num_agents}" or fewer'
            )
        self._nodes = nodes

    def _no_quorum(self, everyone: list[int]) -> FederationError:
        reasons = "; ".join(f"node {node}: {why}" for node, why in sorted(self._rejected.items()))
        return FederationError(
            f"{len(self._answered)} of {len(everyone)} nodes answered usably in exchange"
            f" {self._trips}, quorum={self.settings.quorum:g}:"
            f" {reasons or 'the others did not reply'}"
        )


def _partition(answer: tuple[int, Upload]) -> int:
    return answer[0]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "failed without a reason"
