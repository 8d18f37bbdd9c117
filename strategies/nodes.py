"""Who the nodes of a federation are, what each is asked, and what of theirs is counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.linalg.forms import Vector
from fldb_flower.wire.codec import BroadcastHeader
from fldb_flower.wire.records import unpack_vector

_LARGEST = 2.0**53  # whole numbers are exact up to here, and fit in what Flower sends


class Contribution(NamedTuple):
    """A reply that can be counted.

    Attributes
    ----------
    order : int or str
        Uploads are summed in this order, which does not depend on when they arrived.
    upload : Upload
        What it says.
    mark : Any
        What :meth:`Nodes.confirm` needs to count it.
    """

    order: Any
    upload: Upload
    mark: Any


class Nodes(ABC):
    """The nodes of one federation, and how far each one's duels are counted."""

    @abstractmethod
    def content(
        self, node: int, arrays: ArrayRecord, ask: BroadcastHeader, *, again: bool
    ) -> RecordDict:
        """Return what to send to a node; ``again`` asks about the same duels as before."""

    @abstractmethod
    def check(self, node: int, reply: Message, broadcast: Broadcast) -> Contribution | None:
        """Check one reply by itself, and record what the node claims to be.

        Claims are compared with those of other nodes by :meth:`disputes`.

        Returns
        -------
        Contribution or None
            None if the reply only introduces the node, which must then be asked again.

        Raises
        ------
        UploadError
            The reply must not be counted.
        """

    @abstractmethod
    def disputes(self, connected: Collection[int]) -> dict[int, str]:
        """Compare what all connected nodes claim to be.

        The result does not depend on the order in which the claims were received.

        Returns
        -------
        dict
            The nodes whose claims are refused, and why.
        """

    def agents(self, nodes: Collection[int], connected: Collection[int]) -> int:
        """Return how many agents some of the connected nodes host."""
        return len(nodes)

    def settle(self, contributions: Mapping[int, Contribution]) -> None:  # noqa: B027
        """Accept the claims of the nodes that contributed to an exchange."""

    def name(self, node: int) -> str:
        """Return what a node is called in logs and results."""
        return f"node {node}"

    def place(self, node: int) -> tuple[int, int]:
        """Return what nodes are sorted by."""
        return (0, node)

    def behind(self, nodes: Collection[int]) -> bool:
        """Whether iterations were played, somewhere, of which a node has yet to tell."""
        return False

    def expect_enough(self, contributions: Mapping[int, Contribution]) -> None:  # noqa: B027
        """Raise RoundAbandonedError if there is not enough to learn a round from."""

    @abstractmethod
    def confirm(self, contributions: Mapping[int, Contribution]) -> None:
        """Count the contributions of one exchange, by node."""


def with_acknowledgement(arrays: ArrayRecord, ask: BroadcastHeader, **others: Any) -> RecordDict:
    """Return a broadcast's content for one node."""
    return RecordDict({"arrays": arrays, "config": ConfigRecord({"ask": list(ask), **others})})


def read_reply(reply: Message, max_mb: float, most: int) -> tuple[Vector, list[float], Any]:
    """Return a reply's vector, its numbers, and all of its content.

    Parameters
    ----------
    reply : Message
        From anyone.
    max_mb : float
        ``max_message_mb``.
    most : int
        Numbers that an answer has at most.

    Raises
    ------
    KeyError, TypeError, ValueError
        It does not hold them, or too many, or one that no count can be.
    """
    content: Any = reply.content
    answer = content["numbers"]["answer"]
    if len(answer) > most:
        raise ValueError(f"{len(answer)} numbers, more than {most}")
    numbers = [float(each) for each in answer]
    if any(abs(each) > _LARGEST for each in numbers):
        raise ValueError(f"a number beyond {_LARGEST:.0f}")
    return unpack_vector(content["arrays"], max_mb), numbers, content
