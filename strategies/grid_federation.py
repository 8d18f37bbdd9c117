"""A federation whose nodes are reached over a Flower Grid."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

from flwr.serverapp import Grid

from fldb_flower.algorithms import make_algorithm
from fldb_flower.bandit.streams import keyed_generator
from fldb_flower.errors import FederationError
from fldb_flower.federation.exchange import Federation, NoiseSource
from fldb_flower.federation.history import Counts
from fldb_flower.settings import Settings
from strategies.transport import Watch, ignore

_CONNECT_POLL_SECONDS = 0.1

Item = TypeVar("Item")


class GridFederation(Federation):
    """The base of the strategies: the algorithm, and the nodes that are connected to a grid.

    Parameters
    ----------
    settings : Settings
        ``fraction_train`` is the share of nodes to ask; ``node_wait`` bounds the waiting.
    history : Counts
        Records exchanges, bytes, regret and participation.
    privacy : NoiseSource, optional
        Adds noise to the sum of the uploads of each exchange.

    Attributes
    ----------
    algorithm : Algorithm
        What the Central Server computes.
    watch : callable
        Called while an exchange waits for replies; see ``strategies.transport.Watch``.

    Examples
    --------
    >>> from strategies import DuelingStrategy
    >>> from strategies.grid_federation import GridFederation
    >>> issubclass(DuelingStrategy, GridFederation)
    True
    """

    def __init__(
        self, settings: Settings, history: Counts, privacy: NoiseSource | None = None
    ) -> None:
        super().__init__(history, privacy)
        self.settings = settings
        self.algorithm = make_algorithm(settings)
        self.watch: Watch = ignore
        self._grid: Grid | None = None

    def connect(self, grid: Grid) -> None:
        """Use a grid for all following exchanges."""
        self._grid = grid

    @property
    def grid(self) -> Grid:
        """The grid that carries the messages."""
        if self._grid is None:
            raise RuntimeError("connect(grid) first")
        return self._grid

    @property
    def stage(self) -> str:
        """What the federation waits for, for a report of the wait."""
        return f"exchange {len(self.history.participation) + 1}"

    def connected(self) -> frozenset[int]:
        """Return the nodes that are connected now."""
        return frozenset(self.grid.get_node_ids())

    def wait_for_nodes(self) -> frozenset[int]:
        """Wait until a node is connected, at most ``node_wait`` seconds; return all connected.

        Raises
        ------
        FederationError
            None connected.
        """
        deadline = time.monotonic() + self.settings.node_wait
        while not (connected := self.connected()):
            if time.monotonic() > deadline:
                raise FederationError(
                    f"0 nodes connected within node-wait={self.settings.node_wait:g} s"
                )
            time.sleep(_CONNECT_POLL_SECONDS)
        return connected

    def drawn(self, items: Sequence[Item], number: int) -> list[Item]:
        """Return the share ``fraction_train`` of some nodes to ask in exchange ``number``.

        It is drawn by position, from a stream keyed by (seed, "participation", number).
        """
        count = max(1, round(self.settings.fraction_train * len(items)))
        if count == len(items):
            return list(items)
        generator = keyed_generator(self.settings.seed, "participation", number)
        return [items[place] for place in sorted(generator.permutation(len(items))[:count])]
