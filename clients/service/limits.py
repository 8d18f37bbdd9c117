"""Limits of the service and their defaults; this module needs no web framework."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Limits that keep one client from blocking the others.

    If there are more connections, the one that has waited longest is closed: for a request, for its
    body, or for replies to be read. A connection is kept while the service works on a request with
    the token. If all connections are kept, the new one is refused with status 503.
    """

    connections: int = 100
    seconds: float = 20.0  # for a request's head, for its body, and to read 64 kB of replies


LIMITS = Limits()
