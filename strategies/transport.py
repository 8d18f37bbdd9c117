"""Sending messages over a Flower Grid and waiting for the replies."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

IN_MEMORY_POLL_SECONDS = 0.01  # Flower's in-memory grid sleeps 0.1 s
NETWORK_POLL_SECONDS = 0.2  # Flower's network grid sleeps 3 s
MAX_TRIES = 100  # where nothing is waited for

_RAISED = re.compile(r"<class '([\w.]*\.)?(\w+)'>:<'(.*)'>")  # Flower's form of an exception
_OWN_ERRORS = "fldb_flower.errors."

Watch = Callable[[int, float], None]
"""Called while replies are awaited, with the number of missing replies and the seconds left."""


def ignore(_waiting: int, _seconds: float) -> None:
    """Do nothing: the default :data:`Watch`."""


def failure(reply: Message) -> str:
    """Return why a node failed, from its error reply: the last line, without Flower's wrapping."""
    lines = [line.strip() for line in (reply.error.reason or "").splitlines()]
    last = next(filter(None, reversed(lines)), "failed without a reason")
    if found := _RAISED.fullmatch(last):
        module, name, text = found.groups()
        return text if module == _OWN_ERRORS else f"{name}: {text}"
    return last


def poll_seconds(grid: Grid) -> float:
    """Return the pause between two looks for replies.

    A grid may define ``poll_seconds``; with 0, replies are there once messages are sent. Flower's
    in-memory grid is recognised by its ``pull_interval``. Any other grid is a network.
    """
    if (chosen := getattr(grid, "poll_seconds", None)) is not None:
        return float(chosen)
    return IN_MEMORY_POLL_SECONDS if hasattr(grid, "pull_interval") else NETWORK_POLL_SECONDS


class Patience:
    """Limits how long nodes without a usable reply are asked again.

    If the grid does not wait for replies, the number of tries is limited as well.
    """

    def __init__(self, grid: Grid, seconds: float) -> None:
        self._pause = poll_seconds(grid)
        self._tries = MAX_TRIES if self._pause == 0 else sys.maxsize
        self._deadline = time.monotonic() + seconds

    def wait(self) -> bool:
        """Pause before another try; return False at once if the limit is reached."""
        self._tries -= 1
        if self._tries <= 0 or time.monotonic() > self._deadline:
            return False
        time.sleep(self._pause)
        return True


def send_and_receive(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    earlier: Mapping[str, int],
    watch: Watch,
) -> list[Message]:
    """Send messages and return the replies that arrive within ``timeout`` seconds.

    Over a network, replies to ``earlier`` messages of the same exchange (message -> node) are
    pulled too. Otherwise a node slower than the timeout would be asked again and again, and its
    replies would never be seen.
    """
    if poll_seconds(grid) >= NETWORK_POLL_SECONDS:
        return _poll(grid, messages, timeout, earlier, watch)
    watch(len(messages), timeout)
    if hasattr(grid, "pull_interval"):
        grid.pull_interval = IN_MEMORY_POLL_SECONDS
    return list(grid.send_and_receive(messages, timeout=timeout))


def _poll(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    earlier: Mapping[str, int],
    watch: Watch,
) -> list[Message]:
    """Send messages and pull replies several times a second, until each node has replied."""
    sent = zip(grid.push_messages(messages), messages, strict=False)
    waiting = {key: message.metadata.dst_node_id for key, message in sent if key}  # None: refused
    nodes = set(waiting.values())
    waiting |= earlier
    deadline = time.monotonic() + timeout
    replies: list[Message] = []
    while nodes:
        watch(len(nodes), max(0.0, deadline - time.monotonic()))
        arrived = list(grid.pull_messages(set(waiting)))
        replies += arrived
        # The message identifies the node: Flower itself replies for a node that is unavailable.
        nodes -= {waiting.pop(reply.metadata.reply_to_message_id, None) for reply in arrived}
        if not nodes or time.monotonic() > deadline:
            break
        time.sleep(NETWORK_POLL_SECONDS)
    return replies
