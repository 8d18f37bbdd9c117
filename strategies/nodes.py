"""The interface of a kind of nodes: their identity, and which of their duels are counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fldb_flower.federation.exchange import Broadcast, Upload, total


class Contribution(NamedTuple):
    """The checked upload of one node.

    Attributes
    ----------
    order : int or str
        Uploads are summed in this order, which does not depend on the order of arrival.
    upload : Upload
        The statistics.
    claim : Any
        Identity and duels of the node, in the form that the kind of nodes needs.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.federation.exchange import Upload
    >>> from strategies.nodes import Contribution
    >>> upload = Upload(1, np.array([-0.5]), np.eye(1), None, None, ())
    >>> Contribution(order=0, upload=upload, claim="the first node").order
    0
    """

    order: Any
    upload: Upload
    claim: Any


class Nodes(ABC):
    """The nodes of one federation: simulated agents or devices.

    A node states its identity in each reply. It is checked in two steps: :meth:`check` validates
    a reply by itself, and :meth:`disputes` compares the identities of all nodes.

    Examples
    --------
    Nodes of simulated agents, and of devices, are two kinds:

    >>> from strategies.device_nodes import DeviceNodes
    >>> from strategies.nodes import Nodes
    >>> from strategies.simulated_nodes import SimulatedNodes
    >>> issubclass(SimulatedNodes, Nodes), issubclass(DeviceNodes, Nodes)
    (True, True)
    """

    sees_uploads: ClassVar[bool] = True
    """Whether the server sees single uploads, which it then checks."""

    def begin(self, broadcast: Broadcast) -> None:  # noqa: B027 - only secure sums need it
        """Prepare a new exchange, before its first message."""

    @abstractmethod
    def contents(
        self, nodes: Sequence[int], number: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> list[RecordDict]:
        """Return the content of the message to each node, with what is acknowledged to it.

        ``arrays`` and ``config`` hold the vector and the ``header`` of broadcast ``number``.
        """

    @abstractmethod
    def check(
        self, node: int, reply: Message, number: int, broadcast: Broadcast
    ) -> Contribution | None:
        """Check one reply to exchange ``number``, and store which identity the node claims.

        Return None if the reply only introduces the node, which must then be asked again.

        Raises
        ------
        UploadError
            The reply must not be counted.
        """

    @abstractmethod
    def disputes(self, connected: Collection[int]) -> dict[int, str]:
        """Compare the identities that all connected nodes claim.

        Return the nodes whose claims are refused, and the reasons. The result does not depend on
        the order in which the claims were received.
        """

    @abstractmethod
    def accept(self, contributions: Mapping[int, Contribution], broadcast: Broadcast) -> None:
        """Accept the contributions of a complete exchange, by node.

        Raises
        ------
        RoundAbandonedError
            There are too few duels to learn from.
        """

    @abstractmethod
    def acknowledge(self, contributions: Mapping[int, Contribution]) -> None:
        """Store that the duels of these contributions are counted."""

    @abstractmethod
    def answers(self, contribution: Contribution) -> int:
        """Return the number of all answers so far of the agents of a node."""

    def total(self, contributions: Sequence[Contribution], broadcast: Broadcast) -> Upload:
        """Return the sum of the uploads of contributions, in this order."""
        return total([each.upload for each in contributions])

    def check_number(self, connected: Collection[int]) -> None:  # noqa: B027 - not all kinds check
        """Raise FederationError if more nodes are connected than there can be."""

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
