"""What happened in a run: exchanges, bytes and regret, counted as they happen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fldb_flower.errors import DataError
from fldb_flower.settings import check_value
from fldb_flower.system.memory import require_memory

_BYTES = 3 * 8  # for each iteration
_AT_ONCE = 256  # regrets told that are added up together: one by one takes ten times as long


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
    absent : tuple of str
        Every node asked whose upload was not used, also those that did not reply.
    """

    iteration: int
    asked: int
    replied: int
    rejected: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


@dataclass
class History:
    """Counts of one run of ``horizon`` iterations, in memory that does not grow.

    Only ``participation`` has an entry for each exchange.

    Attributes
    ----------
    horizon : int
        T.
    on_progress : callable, optional
        Called with this history whenever an upload was counted.
    exchanges, rounds : int
        Trips that carried statistics, and acknowledged ones among them.
    uploaded_bytes, downloaded_bytes : int
        Vectors of the messages if every agent exchanges messages of its own, in exchanges that
        carry statistics. They do not depend on the engine or on the number of nodes.
    node_uploaded_bytes, node_downloaded_bytes : int
        Content of the messages that nodes did exchange with the server; 0 without nodes.

    Raises
    ------
    SettingsError
        The horizon is not a whole number, at least 1, or too long for the memory.
    """

    horizon: int
    on_progress: Callable[[History], None] | None = None
    exchanges: int = 0
    rounds: int = 0
    uploaded_bytes: int = 0
    downloaded_bytes: int = 0
    node_uploaded_bytes: int = 0
    node_downloaded_bytes: int = 0
    participation: list[Participation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.horizon = check_value("horizon", self.horizon)
        require_memory(_BYTES * self.horizon, f"horizon={self.horizon}: the regret of a run")
        self.iteration = 0  # the last iteration played
        self._exchanges = np.zeros(self.horizon + 1, dtype=np.int64)  # by the last trip at each
        self._regret = np.zeros(self.horizon)  # of each iteration, summed over the agents
        self._agents = np.zeros(self.horizon)  # how many those are
        self._told: list[tuple[int, int, NDArray[Any]]] = []  # by add_regrets, not in those yet
        self._learned = False

    def count_exchange(self, play: tuple[int, int] | None, *, learns: bool) -> None:
        """Count one trip; ``play`` is the first and last iteration it played, if any."""
        if play is not None:
            self.iteration = play[1]
        self.exchanges += learns
        self._learned = learns
        if self.iteration <= self.horizon:  # devices have no horizon
            self._exchanges[self.iteration] = self.exchanges

    def count_bytes(self, uploaded: int, downloaded: int) -> None:
        """Count the vectors of some messages, one for each agent."""
        self.uploaded_bytes += uploaded
        self.downloaded_bytes += downloaded

    def count_node_bytes(self, uploaded: int, downloaded: int) -> None:
        """Count the content of some messages of nodes."""
        self.node_uploaded_bytes += uploaded
        self.node_downloaded_bytes += downloaded

    def add_regrets(self, first: int, agents: int, sums: ArrayLike) -> None:
        """Add the regret of iterations from ``first`` on, summed over ``agents`` agents."""
        self._told.append((first, agents, np.asarray(sums)))
        if len(self._told) == _AT_ONCE:
            self._add_up()

    def _add_up(self) -> None:
        """Add up what was told, in the order in which it was."""
        if not self._told:
            return
        firsts, agents, sums = zip(*self._told, strict=True)
        lengths = [len(rows) for rows in sums]
        places = np.concatenate(
            [np.arange(first - 1, first - 1 + n) for first, n in zip(firsts, lengths, strict=True)]
        )
        np.add.at(self._regret, places, np.concatenate(sums))
        np.add.at(self._agents, places, np.repeat(agents, lengths))
        self._told.clear()

    def counts(self) -> dict[str, int]:
        """Return how much was exchanged so far."""
        return {
            "exchanges": self.exchanges,
            "uploaded_bytes": self.uploaded_bytes,
            "downloaded_bytes": self.downloaded_bytes,
            "node_uploaded_bytes": self.node_uploaded_bytes,
            "node_downloaded_bytes": self.node_downloaded_bytes,
        }

    def restore_counts(self, counts: dict[str, int]) -> None:
        """Take back what :meth:`counts` returned; counts of nodes' messages may be missing."""
        self.exchanges = counts["exchanges"]
        self.uploaded_bytes = counts["uploaded_bytes"]
        self.downloaded_bytes = counts["downloaded_bytes"]
        self.node_uploaded_bytes = counts.get("node_uploaded_bytes", 0)
        self.node_downloaded_bytes = counts.get("node_downloaded_bytes", 0)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything so far as arrays of their own, for :meth:`restore`."""
        self._add_up()
        rows = self.participation
        lines = {
            place: (row.rejected, row.absent)
            for place, row in enumerate(rows)
            if row.rejected or row.absent
        }
        counts = [self.iteration, self.rounds, *self.counts().values()]
        return {
            "counts": np.array(counts),
            "exchanges": self._exchanges[: self.iteration + 1].copy(),
            "regret": self._regret[: self.iteration].copy(),
            "agents": self._agents[: self.iteration].copy(),
            "participation": np.array(
                [(row.iteration, row.asked, row.replied) for row in rows], dtype=np.int64
            ).reshape(-1, 3),
            "lines": np.frombuffer(json.dumps(lines).encode(), dtype=np.uint8),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from where :meth:`state` was taken."""
        self._told.clear()
        self.iteration, self.rounds, *counts = (int(number) for number in state["counts"])
        self.restore_counts(dict(zip(self.counts(), counts, strict=True)))
        for array, saved in (
            (self._exchanges, state["exchanges"]),
            (self._regret, state["regret"]),
            (self._agents, state["agents"]),
        ):
            array[: len(saved)], array[len(saved) :] = saved, 0
        lines, self.participation = json.loads(state["lines"].tobytes()), []
        for place, (iteration, asked, replied) in enumerate(state["participation"].tolist()):
            rejected, absent = map(tuple, lines.get(str(place), ((), ())))
            self.participation.append(Participation(iteration, asked, replied, rejected, absent))

    def count_round(self) -> None:
        """Count the round of the upload just counted, and tell whoever shows progress."""
        self.rounds += self._learned
        if self.on_progress is not None:
            self.on_progress(self)

    @property
    def exchanges_by_iteration(self) -> NDArray[np.int64]:
        """Exchanges completed by the end of each iteration, (horizon,)."""
        by_then: NDArray[np.int64] = np.maximum.accumulate(self._exchanges)[1:]
        return by_then

    @property
    def cumulative_regret(self) -> NDArray[np.float64]:
        """Cumulative regret after each iteration, averaged over the agents heard of.

        Raises
        ------
        DataError
            It is not finite: no result is written with such numbers.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # no warnings besides the error
            self._add_up()
            cumulative = np.cumsum(self._regret / np.maximum(self._agents, 1))
        if not np.isfinite(cumulative[-1]):
            iteration = int(np.argmin(np.isfinite(cumulative))) + 1
            raise DataError(
                f"regret is not finite from iteration {iteration} on: the environment's rewards are"
                " too large, or not numbers"
            )
        return cumulative

    @property
    def regret(self) -> float:
        """Average cumulative regret so far."""
        return float(self.cumulative_regret[-1])
