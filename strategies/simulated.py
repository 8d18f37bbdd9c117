"""Nodes of simulated agents: each hosts a contiguous block of the N agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict

from fldb_flower.federation.agents import agents_of_node
from fldb_flower.federation.history import Counts
from fldb_flower.settings import Settings
from fldb_flower.wire import (
    UploadError,
    UploadHeader,
    decode_outcomes,
    decode_upload,
    unpack_vector,
)
from strategies.channel import Channel, Contribution, rivals


class Claim(NamedTuple):
    """The identity that a node claims: the index of its block of agents, and how many there are."""

    partition: int
    partitions: int


class SimulatedChannel(Channel):
    """Identifies nodes by their partition, and counts their duels by iteration.

    A node that contributed to an exchange keeps its partition for the rest of the run. The history
    has the last iteration played.
    """

    def __init__(self, settings: Settings, history: Counts) -> None:
        super().__init__(settings)
        self._history = history
        self._counted: dict[int, int] = {}  # node -> last iteration whose duels are counted
        self._claims: dict[int, Claim] = {}  # node -> the last one
        self._settled: dict[int, Claim] = {}  # node -> its claim, once it has contributed
        self._undisputed: dict[int, Claim] = {}  # beside the settled ones

    def contents(self, nodes: Sequence[int]) -> list[RecordDict]:
        """Return the content for each node; nodes with the same last iteration share it."""
        counted = [self._counted.get(node, 0) for node in nodes]
        shared = {}
        for count in set(counted):
            own = ConfigRecord({**self.config, "counted": count, "exchange": self.number})
            shared[count] = RecordDict({"arrays": self.arrays, "config": own})
        return [shared[count] for count in counted]

    def check(self, node: int, reply: Message) -> Contribution:
        """Return the upload of a node's block of agents, if its counts fit its claim."""
        content: Any = reply.content
        try:
            config = content["config"]
            header = UploadHeader.from_counts(config["header"])
            numbers = [float(each) for each in config["outcomes"]]
            exchange = config["exchange"]
            vector = unpack_vector(content["arrays"], self.settings.max_message_mb)
        except (KeyError, TypeError, ValueError) as error:
            raise UploadError.malformed(error) from None
        claim, broadcast = Claim(header.partition_id, header.num_partitions), self.broadcast
        try:
            agents = self._agents_of(claim)
        except ValueError as error:
            raise UploadError(str(error)) from None
        self._claims[node] = claim
        if exchange != self.number:
            raise UploadError(f"an answer to exchange {exchange} instead of {self.number}")
        upload = decode_upload(vector, header.num_duels, broadcast, self.form)
        outcomes = decode_outcomes(header, numbers)
        counted = self._counted.get(node, 0)
        played = self._history.iteration if broadcast.play is None else broadcast.play.last
        before = 0 if broadcast.scope == "all" else counted
        duels = agents * (played - before) if broadcast.learns else 0
        if upload.num_duels != duels:
            raise UploadError(f"{upload.num_duels} duels instead of {duels}")
        rows = (outcomes.first, len(outcomes.sums), outcomes.agents)
        if rows != (counted + 1, played - counted, agents):
            raise UploadError(f"outcomes of other iterations or agents than asked for: {rows}")
        return Contribution(claim.partition, upload._replace(outcomes=(outcomes,)), claim)

    def answers(self, contribution: Contribution) -> int:
        """Return the number of agents times the last iteration that they have played."""
        (outcomes,) = contribution.upload.outcomes
        return int(outcomes.agents * (outcomes.first + len(outcomes.sums) - 1))

    def _agents_of(self, claim: Claim) -> int:
        return len(agents_of_node(*claim, self.settings.num_agents))

    def disputes(self, connected: Collection[int]) -> dict[int, str]:
        """Compare the claims of all connected nodes, of this exchange or an earlier one.

        ``num-partitions`` is decided by majority; with a tie, by the number of connected nodes.
        A partition belongs to the node that contributed as that partition before. If neither
        decides, all claimants are refused.
        """
        claims = {node: self._claims[node] for node in sorted(connected) if node in self._claims}
        reasons = _disputed_numbers(claims, len(connected))
        for node, claim in claims.items():
            before = self._settled.get(node, claim).partition
            if before != claim.partition and node not in reasons:
                reasons[node] = (
                    f"partition-id={claim.partition}, but it was partition {before} before"
                )
        partitions = {node: each.partition for node, each in claims.items() if node not in reasons}
        owners = {claim.partition: node for node, claim in self._settled.items()}
        reasons |= {
            node: f"partition-id={partitions[node]} is claimed by nodes {several}"
            for node, several in rivals(partitions, owners).items()
        }
        self._undisputed = {node: each for node, each in claims.items() if node not in reasons}
        return reasons

    def _identity(self, node: int) -> Claim | None:
        return self._settled.get(node) or self._undisputed.get(node)

    def accept(self) -> None:
        """Keep the partitions of the nodes that contributed."""
        self._settled |= {node: each.claim for node, each in self.contributions.items()}

    def acknowledge(self) -> None:
        """Count the nodes' duels up to the last iteration played."""
        self._counted |= dict.fromkeys(self.contributions, self._history.iteration)

    def count_agents(self, nodes: Collection[int], connected: Collection[int]) -> int:
        """Return how many agents some of the connected nodes host.

        Nodes whose partition is not known share the remaining agents equally.
        """
        known = {node: self._agents_of(c) for node in connected if (c := self._identity(node))}
        unknown = sum(node not in known for node in nodes)
        agents = sum(known.get(node, 0) for node in nodes)
        if not unknown:
            return agents
        remaining = self.settings.num_agents - sum(known.values())
        return agents + remaining * unknown // sum(node not in known for node in connected)

    def name(self, node: int) -> str:
        """Return the partition, which is the same in every run, once it is known."""
        claim = self._identity(node)
        return super().name(node) if claim is None else f"partition {claim.partition}"

    def sort_key(self, node: int) -> tuple[int, int]:
        """Sort by partition; nodes whose partition is not known come last."""
        claim = self._identity(node)
        return (1, node) if claim is None else (0, claim.partition)

    def has_uncounted(self, nodes: Collection[int]) -> bool:
        """Return whether some of the nodes' duels are not counted."""
        return any(self._counted.get(node, 0) < self._history.iteration for node in nodes)


def _disputed_numbers(claims: Mapping[int, Claim], connected: int) -> dict[int, str]:
    """Return the nodes whose ``num-partitions`` is refused, and the reasons."""
    reasons = {
        node: f"num-partitions={claim.partitions}, but {connected} nodes are connected"
        for node, claim in claims.items()
        if claim.partitions < connected
    }
    votes = Counter(claim.partitions for node, claim in claims.items() if node not in reasons)
    usual = {number for number, count in votes.items() if count == max(votes.values())}
    if connected in usual:
        usual = {connected}
    for node, (_, number) in claims.items():
        if node not in reasons and (others := usual - {number}):
            listed = ", ".join(map(str, sorted(others)))
            reasons[node] = f"num-partitions={number}, but other nodes have {listed}"
    return reasons
