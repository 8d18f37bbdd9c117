"""Nodes of simulated agents: each hosts a contiguous block of the N agents."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flwr.app import ArrayRecord, Message, RecordDict

from fldb_flower.agents import agents_of_node
from fldb_flower.federation import Broadcast, Upload
from fldb_flower.history import History
from fldb_flower.messages import Answer, Ask, UploadError, decode_upload
from fldb_flower.settings import Settings
from strategies.members import Contribution, Members, read_reply, with_acknowledgement


class SimulatedNodes(Members):
    """Knows nodes by their partition-id, and counts their duels by iteration.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    history : History
        Knows the last iteration played.
    """

    def __init__(self, settings: Settings, history: History) -> None:
        self._settings = settings
        self._history = history
        self._counted: dict[int, int] = {}  # node -> last iteration whose duels are counted
        self._partitions: dict[int, int] = {}  # partition -> node
        self._contents: tuple[ArrayRecord | None, dict[int, RecordDict]] = (None, {})

    def content(self, node: int, arrays: ArrayRecord, ask: Ask, *, again: bool) -> RecordDict:
        """Return what to send; nodes that are counted equally far share it."""
        counted = self._counted.get(node, 0)
        if self._contents[0] is not arrays:
            self._contents = (arrays, {})
        contents = self._contents[1]
        if counted not in contents:
            contents[counted] = with_acknowledgement(arrays, ask._replace(counted=counted))
        return contents[counted]

    def check(
        self, node: int, reply: Message, broadcast: Broadcast, connected: Collection[int]
    ) -> Contribution:
        """Return the upload of a node's block of agents."""
        try:
            vector, numbers, _ = read_reply(reply)
            answer = Answer.from_numbers(numbers)
        except (KeyError, TypeError, ValueError) as error:
            raise UploadError(f"not an upload: {error!r}") from None
        settings = self._settings
        upload = decode_upload(vector, answer, broadcast, settings.dimension)
        partition = answer.partition_id
        if self._partitions.get(partition, node) != node:
            raise UploadError(f"partition-id={partition} is another node's")
        try:
            agents = len(agents_of_node(partition, answer.num_partitions, settings.num_agents))
        except ValueError as error:
            raise UploadError(str(error)) from None
        self._check_counts(node, upload, agents, broadcast)
        self._partitions[partition] = node
        return Contribution(partition, upload, None)

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

    def confirm(self, contributions: Mapping[int, Contribution]) -> None:
        """Count the nodes' duels up to the last iteration played."""
        for node in contributions:
            self._counted[node] = self._history.iteration
