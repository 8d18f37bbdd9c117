"""What happened in a run: exchanges, bytes and regret, counted as they happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Participation:
    """Who took part in one exchange over Flower.

    Attributes
    ----------
    iteration : int
        Last iteration played by then.
    asked, replied : int
        Nodes asked, and nodes whose upload was used.
    rejected : tuple of str
        One line for each node that failed or whose upload was refused.
    """

    iteration: int
    asked: int
    replied: int
    rejected: tuple[str, ...] = ()


@dataclass
class History:
    """Counts of one run of ``horizon`` iterations.

    Attributes
    ----------
    horizon : int
        T.
    on_progress : callable, optional
        Called with this history whenever an upload was counted.
    exchanges, rounds : int
        Trips that carried statistics, and acknowledged ones among them.
    uploaded_bytes, downloaded_bytes : int
        Payload of all agents' (or nodes') messages, without protocol overhead.
    """

    horizon: int
    on_progress: Callable[[History], None] | None = None
    exchanges: int = 0
    rounds: int = 0
    uploaded_bytes: int = 0
    downloaded_bytes: int = 0
    participation: list[Participation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.iteration = 0  # the last iteration played
        self._trips: list[tuple[int, int]] = []  # (last iteration played, exchanges by then)
        self._regrets: list[tuple[int, int, ArrayLike]] = []  # as add_regrets was told
        self._learned = False

    def count_exchange(self, play: tuple[int, int] | None, *, learns: bool) -> None:
        """Count one trip; ``play`` is the first and last iteration it played, if any."""
        if play is not None:
            self.iteration = play[1]
        self.exchanges += learns
        self._learned = learns
        self._trips.append((self.iteration, self.exchanges))

    def count_bytes(self, uploaded: int, downloaded: int) -> None:
        """Count the payload of one trip, over all its messages."""
        self.uploaded_bytes += uploaded
        self.downloaded_bytes += downloaded

    def add_regrets(self, first: int, agents: int, sums: ArrayLike) -> None:
        """Add the regret of iterations from ``first`` on, summed over ``agents`` agents."""
        self._regrets.append((first, agents, sums))

    def counts(self) -> dict[str, int]:
        """Return how much was exchanged so far."""
        return {
            "exchanges": self.exchanges,
            "uploaded_bytes": self.uploaded_bytes,
            "downloaded_bytes": self.downloaded_bytes,
        }

    def restore_counts(self, counts: dict[str, int]) -> None:
        """Take back what :meth:`counts` returned."""
        self.exchanges = counts["exchanges"]
        self.uploaded_bytes = counts["uploaded_bytes"]
        self.downloaded_bytes = counts["downloaded_bytes"]

    def report(self) -> None:
        """Count the round of the upload just counted, and tell whoever shows progress."""
        self.rounds += self._learned
        if self.on_progress is not None:
            self.on_progress(self)

    @property
    def exchanges_by_iteration(self) -> NDArray[np.int64]:
        """Exchanges completed by the end of each iteration, (horizon,)."""
        counts = np.zeros(self.horizon + 1, dtype=np.int64)
        for iteration, exchanges in self._trips:
            counts[iteration] = exchanges
        return np.maximum.accumulate(counts)[1:]

    @property
    def cumulative_regret(self) -> NDArray[np.float64]:
        """Cumulative regret after each iteration, averaged over the agents heard of."""
        regret = np.zeros(self.horizon)
        agents = np.zeros(self.horizon)
        for first, number, sums in self._regrets:
            rows = np.asarray(sums)
            regret[first - 1 : first - 1 + len(rows)] += rows
            agents[first - 1 : first - 1 + len(rows)] += number
        return np.cumsum(regret / np.maximum(agents, 1))

    @property
    def regret(self) -> float:
        """Average cumulative regret so far."""
        return float(self.cumulative_regret[-1])
