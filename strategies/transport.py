"""Sending messages over a Flower Grid and waiting for the replies."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

_IN_MEMORY_SECONDS = 0.01  # Flower's in-memory grid sleeps 0.1 s
_NETWORK_SECONDS = 0.2  # and its network grid 3 s
_TRIES = 100  # in process, where a node that failed so often always will

Watch = Callable[[int, float], None]
"""Called while replies are awaited: how many nodes have not replied, and the seconds left."""


def ignore(_waiting: int, _seconds: float) -> None:
    """Watch nothing."""


def poll_seconds(grid: Grid | None) -> float:
    """Return how long to wait between two looks for replies; a grid may say it itself."""
    if isinstance(grid, HttpGrid):
        return _NETWORK_SECONDS
    return float(getattr(grid, "poll_seconds", _IN_MEMORY_SECONDS))


class Patience:
    """How long to go on asking nodes that do not answer.

    Parameters
    ----------
    grid : Grid
        What carries the messages. Where it has nothing to wait for, tries are counted as well.
    seconds : float
        At most.
    """

    def __init__(self, grid: Grid | None, seconds: float) -> None:
        self._pause = poll_seconds(grid)
        self._tries = _TRIES if self._pause == 0 else sys.maxsize
        self._deadline = time.monotonic() + seconds

    def wait(self) -> bool:
        """Wait a moment before another try; return False, at once, if there is to be none."""
        self._tries -= 1
        if self._tries <= 0 or time.monotonic() > self._deadline:
            return False
        time.sleep(self._pause)
        return True


def send_and_receive(
    grid: Grid,
    messages: list[Message],
    timeout: float,
    earlier: Mapping[str, int] | None = None,
    watch: Watch = ignore,
) -> Iterable[Message]:
    """Send messages and return the replies that arrive within ``timeout`` seconds.

    Over a network, replies to ``earlier`` messages of the same exchange (and the nodes they went
    to) are looked for as well: a node slower than the timeout would else be asked again and again,
    and never heard.
    """
    if isinstance(grid, HttpGrid):
        return poll_for_replies(grid, messages, timeout, earlier, watch)
    watch(len(messages), timeout)
    if hasattr(grid, "pull_interval"):
        grid.pull_interval = _IN_MEMORY_SECONDS
    return grid.send_and_receive(messages, timeout=timeout)


def poll_for_replies(
    grid: Grid,
    messages: list[Message],
    timeout: float,
    earlier: Mapping[str, int] | None = None,
    watch: Watch = ignore,
) -> list[Message]:
    """Send messages and look for replies several times a second, until each node has replied."""
    sent = zip(grid.push_messages(messages), messages, strict=False)
    waiting = {key: message.metadata.dst_node_id for key, message in sent if key}  # None: refused
    nodes = set(waiting.values())
    waiting |= earlier or {}
    deadline = time.monotonic() + timeout
    replies: list[Message] = []
    while nodes:
        watch(len(nodes), max(0.0, deadline - time.monotonic()))
        arrived = list(grid.pull_messages(set(waiting)))
        replies += arrived
        # By the message: where a node is unavailable, Flower itself replies in its place.
        nodes -= {waiting.pop(reply.metadata.reply_to_message_id, None) for reply in arrived}
        if not nodes or time.monotonic() > deadline:
            break
        time.sleep(_NETWORK_SECONDS)
    return replies
