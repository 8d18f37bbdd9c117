"""Nodes of simulated agents: each hosts a contiguous block of the N agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fldb_flower.errors import FederationError
from fldb_flower.federation.agents import agents_of_node
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.federation.history import History
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.forms import make_form
from fldb_flower.settings import Settings
from fldb_flower.wire.codec import BroadcastHeader, UploadError, UploadHeader, decode_upload
from strategies.nodes import Contribution, Nodes, read_reply, with_acknowledgement
from strategies.transport import poll_for_replies

_MIB = 2**20


class NodeState(NamedTuple):
    """What a node tells of itself for a checkpoint.

    Attributes
    ----------
    node : int
        Its id, which is another one in another run.
    partition, partitions : int
        Which of how many blocks of agents it hosts.
    agents : bytes
        What its agents know.
    """

    node: int
    partition: int
    partitions: int
    agents: bytes

    @classmethod
    def from_reply(cls, reply: Message, max_mb: float) -> NodeState:
        """Read a node's reply.

        Raises
        ------
        FederationError
            It is something else, or too large.
        """
        content, node = reply.content, reply.metadata.src_node_id
        try:
            record: Any = content["agents"]
            state = cls(node, record["partition"], record["partitions"], record["arrays"])
        except (KeyError, TypeError) as error:
            raise FederationError(f"node {node} told no state: {error!r}") from None
        if len(state.agents) > max_mb * _MIB:
            raise FederationError(
                f"node {node}: a state of {len(state.agents) / _MIB:.3g} MiB is more than"
                f" max-message-mb={max_mb:g}"
            )
        return state


class Claim(NamedTuple):
    """What a node says it is: one of how many blocks of agents."""

    partition: int
    partitions: int


class SimulatedNodes(Nodes):
    """Knows nodes by their partition-id, and counts their duels by iteration.

    A node that contributed to an exchange keeps its partition for the rest of the run.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    history : History
        Knows the last iteration played.
    """

    def __init__(self, settings: Settings, history: History) -> None:
        self._settings = settings
        self._form = make_form(settings)
        self._history = history
        self._counted: dict[int, int] = {}  # node -> last iteration whose duels are counted
        self._claims: dict[int, Claim] = {}  # node -> the last one
        self._settled: dict[int, Claim] = {}  # node -> its claim, once it has contributed
        self._partitions: dict[int, int] = {}  # node -> partition, where nobody disputes it
        self._sizes: dict[int, int] = {}  # node -> agents, of the same nodes
        self._exchange = 0  # number of the exchange, which an upload must be an answer to
        self._contents: tuple[ArrayRecord | None, dict[int, RecordDict]] = (None, {})

    def content(
        self, node: int, arrays: ArrayRecord, ask: BroadcastHeader, *, again: bool
    ) -> RecordDict:
        """Return what to send; nodes that are counted equally far share it."""
        counted = self._counted.get(node, 0)
        if self._contents[0] is not arrays:
            self._contents = (arrays, {})
            self._exchange += 1
        contents = self._contents[1]
        if counted not in contents:
            ask = ask._replace(counted=counted)
            contents[counted] = with_acknowledgement(arrays, ask, exchange=self._exchange)
        return contents[counted]

    def check(self, node: int, reply: Message, broadcast: Broadcast) -> Contribution:
        """Return the upload of a node's block of agents, if its numbers fit its claim."""
        most = len(UploadHeader._fields) + self._settings.horizon
        try:
            vector, numbers, content = read_reply(reply, self._settings.max_message_mb, most)
            answer, exchange = UploadHeader.from_numbers(numbers), content["numbers"]["exchange"]
        except (KeyError, TypeError, ValueError) as error:
            raise UploadError(f"not an upload: {error!r}") from None
        claim = Claim(answer.partition_id, answer.num_partitions)
        try:
            agents = len(agents_of_node(*claim, self._settings.num_agents))
        except ValueError as error:
            raise UploadError(str(error)) from None
        self._claims[node] = claim
        if exchange != self._exchange:
            raise UploadError(f"an answer to exchange {exchange} instead of {self._exchange}")
        upload = decode_upload(vector, answer, broadcast, self._form, self._settings.wire)
        self._check_counts(node, upload, agents, broadcast)
        return Contribution(answer.partition_id, upload, claim)

    def disputes(self, connected: Collection[int]) -> dict[int, str]:
        """Compare the claims of all connected nodes, of this exchange or an earlier one.

        ``num-partitions`` is what most nodes say; of equally many, the number of connected nodes.
        A partition belongs to the node that contributed as that partition before. Where neither
        decides, all claimants are refused.
        """
        claims = {node: self._claims[node] for node in sorted(connected) if node in self._claims}
        reasons = _disputed_numbers(claims, len(connected))
        claimants: dict[int, list[int]] = {}
        for node, claim in claims.items():
            partition, before = claim.partition, self._settled.get(node, claim).partition
            if node in reasons:
                continue
            if before == partition:
                claimants.setdefault(partition, []).append(node)
            else:
                reasons[node] = f"partition-id={partition}, but it was partition {before} before"
        owners = {claim.partition: node for node, claim in self._settled.items()}
        for partition, nodes in claimants.items():
            if partition in owners:
                owner = owners[partition]
                reason = f"partition-id={partition} is another node's, node {owner}"
                reasons |= dict.fromkeys((node for node in nodes if node != owner), reason)
            elif len(nodes) > 1:
                reason = f"partition-id={partition} is claimed by nodes {_listed(nodes)}"
                reasons |= dict.fromkeys(nodes, reason)
        self._know({node: claim for node, claim in claims.items() if node not in reasons})
        return reasons

    def _know(self, undisputed: Mapping[int, Claim]) -> None:
        """Record the partitions of nodes, beside those that are settled."""
        known, agents = {**undisputed, **self._settled}, self._settings.num_agents
        self._partitions = {node: claim.partition for node, claim in known.items()}
        self._sizes = {node: len(agents_of_node(*claim, agents)) for node, claim in known.items()}

    def settle(self, contributions: Mapping[int, Contribution]) -> None:
        """Keep the partitions of the nodes that contributed."""
        self._settled |= {node: each.mark for node, each in contributions.items()}

    def agents(self, nodes: Collection[int], connected: Collection[int]) -> int:
        """Return how many agents some of the connected nodes host.

        Nodes whose partition is not known share the other agents equally.
        """
        unknown = sum(node not in self._sizes for node in nodes)
        known = sum(self._sizes.get(node, 0) for node in nodes)
        if not unknown:
            return known
        others = self._settings.num_agents - sum(self._sizes.get(each, 0) for each in connected)
        return known + others * unknown // sum(node not in self._sizes for node in connected)

    def _check_counts(self, node: int, upload: Upload, agents: int, broadcast: Broadcast) -> None:
        play, counted = broadcast.play, self._counted.get(node, 0)
        played = play.last if play is not None else self._history.iteration
        before = 0 if broadcast.scope == "all" else counted
        duels = agents * (played - before) if broadcast.theta_hat is not None else 0
        if upload.num_duels != duels:
            raise UploadError(f"{upload.num_duels} duels instead of {duels}")
        (regrets,) = upload.regrets
        rows = (regrets.first, len(regrets.sums), regrets.agents)
        if rows != (counted + 1, played - counted, agents):
            raise UploadError(f"regret of other iterations or agents than asked for: {rows}")

    def name(self, node: int) -> str:
        """Return the partition, the same in every run, once it is known."""
        partition = self._partitions.get(node)
        return super().name(node) if partition is None else f"partition {partition}"

    def place(self, node: int) -> tuple[int, int]:
        """Sort by partition, and nodes whose partition is not known after the others."""
        partition = self._partitions.get(node)
        return (1, node) if partition is None else (0, partition)

    def behind(self, nodes: Collection[int]) -> bool:
        """Whether a node's duels are not all counted."""
        return any(self._counted.get(node, 0) < self._history.iteration for node in nodes)

    def state(self, grid: Grid, nodes: Collection[int]) -> dict[str, Array]:
        """Return what every node knows, and how far it is counted, by partition.

        Raises
        ------
        FederationError
            A node did not answer: nothing less than all of them is a state.
        """
        told = self._states(grid, dict.fromkeys(nodes, b""))
        known = [
            (
                each.node in self._partitions,
                each.node in self._settled,
                self._counted.get(each.node, 0),
            )
            for each in told
        ]
        agents = {
            f"agents.{place}": np.frombuffer(each.agents, np.uint8)
            for place, each in enumerate(told)
        }
        return {"exchange": np.array(self._exchange), "known": np.array(known), **agents}

    def restore(self, grid: Grid, nodes: Collection[int], state: Mapping[str, Array]) -> None:
        """Give the nodes back what those of their partitions knew.

        Raises
        ------
        FederationError
            There are not as many nodes as there were, or one did not answer.
        """
        told, known = self._states(grid, dict.fromkeys(nodes, b"")), state["known"].tolist()
        if len(told) != len(known):
            raise FederationError(
                f"the run was saved with {len(known)} nodes and goes on with as many only:"
                f" {len(told)} are here"
            )
        self._states(
            grid, {each.node: state[f"agents.{each.partition}"].tobytes() for each in told}
        )
        self._exchange = int(state["exchange"])
        for each, (is_known, is_settled, counted) in zip(told, known, strict=True):
            if is_known:
                self._claims[each.node] = Claim(each.partition, each.partitions)
            if is_settled:
                self._settled[each.node] = self._claims[each.node]
                self._counted[each.node] = counted
        self._know(self._claims)

    def _states(self, grid: Grid, states: Mapping[int, bytes]) -> list[NodeState]:
        """Give every node a state, or ask for its own (b""); return theirs by partition."""
        messages = [
            Message(
                RecordDict({"agents": ConfigRecord({"arrays": state})}), node, "train",
                group_id="state",
            )
            for node, state in states.items()
        ]  # fmt: skip
        told = []
        for reply in poll_for_replies(grid, messages, self._settings.reply_timeout):
            if reply.has_error():
                raise FederationError(f"node {reply.metadata.src_node_id}: {reply.error.reason}")
            told.append(NodeState.from_reply(reply, self._settings.max_message_mb))
        partitions = max((each.partitions for each in told), default=len(states))
        if sorted(each.partition for each in told) != list(range(partitions)):
            raise FederationError(f"{len(told)} of {partitions} nodes told what they know")
        return sorted(told, key=lambda each: each.partition)

    def confirm(self, contributions: Mapping[int, Contribution]) -> None:
        """Count the nodes' duels up to the last iteration played."""
        for node in contributions:
            self._counted[node] = self._history.iteration


def _disputed_numbers(claims: Mapping[int, Claim], connected: int) -> dict[int, str]:
    """Return the nodes whose ``num-partitions`` is refused, and why."""
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
        others = usual - {number}
        if node not in reasons and others:
            reasons[node] = f"num-partitions={number}, but other nodes say {_listed(others)}"
    return reasons


def _listed(numbers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
