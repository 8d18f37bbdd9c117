"""Counts of a federation (exchanges, bytes, participation); regret and predictions of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fldb_flower.bandit.duels import OUTCOMES
from fldb_flower.errors import DataError
from fldb_flower.linalg.arrays import FloatArray, IntArray
from fldb_flower.settings import entry_of
from fldb_flower.system.process import require_memory

_BYTES = (2 + len(OUTCOMES)) * 8  # per iteration
_STORED = (
    "exchanges", "uploaded_bytes", "downloaded_bytes",
    "node_uploaded_bytes", "node_downloaded_bytes",
)  # fmt: skip
_BATCH = 256  # reported outcomes that are added at once, which is ten times as fast


@dataclass(frozen=True, slots=True)
class Participation:
    """Participation of nodes in one exchange over Flower.

    Attributes
    ----------
    iteration : int
        Last iteration played.
    asked, replied : int
        Nodes asked, and nodes whose upload was counted.
    rejected : tuple of str
        One line for each node that failed or whose upload was refused.
    absent : tuple of str
        Every node asked whose upload was not counted, including those without a reply.

    Examples
    --------
    >>> from fldb_flower.federation.history import Participation
    >>> Participation(iteration=5, asked=2, replied=1, absent=("node 7",))
    Participation(iteration=5, asked=2, replied=1, rejected=(), absent=('node 7',))
    """

    iteration: int
    asked: int
    replied: int
    rejected: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Counts:
    """Exchanges and bytes of a federation, which need not have a horizon.

    Attributes
    ----------
    iteration : int
        The last iteration played; with devices, the last round.
    exchanges, rounds : int
        Exchanges that carried statistics, and those of them that were acknowledged.
    uploaded_bytes, downloaded_bytes : int
        Bytes of the vectors of exchanges that carry statistics, as if each agent exchanged its
        own messages. They do not depend on the engine or the number of nodes. With secure sums on
        devices, bytes of all messages of both trips.
    node_uploaded_bytes, node_downloaded_bytes : int
        Bytes of the content of all messages exchanged with nodes; 0 without nodes.
    participation : list of Participation
        One entry per exchange over Flower.
    heterogeneity : float or None
        v of FLDB-Personal, in squared units of theta.
    directions : callable
        Returns the directions in which agents differ, given names of features.
    openings : int
        Exchanges whose upload was released with noise, for the cost in privacy. An exchange that
        is repeated with the same number releases the same upload and counts once.

    Examples
    --------
    >>> from fldb_flower.federation.history import Counts
    >>> counts = Counts()
    >>> counts.count_exchange((1, 5), learns=True)
    >>> counts.count_round()
    >>> counts.iteration, counts.exchanges, counts.rounds
    (5, 1, 1)
    """

    iteration: int = 0
    exchanges: int = 0
    rounds: int = 0
    uploaded_bytes: int = 0
    downloaded_bytes: int = 0
    node_uploaded_bytes: int = 0
    node_downloaded_bytes: int = 0
    participation: list[Participation] = field(default_factory=list)
    heterogeneity: float | None = None
    directions: Callable[[Sequence[str] | None], list[dict[str, Any]]] = field(
        default=lambda _: [], compare=False, repr=False
    )
    openings: int = 0

    _learned = False  # whether the last exchange carried statistics

    def count_exchange(self, play: tuple[int, int] | None, *, learns: bool) -> None:
        """Count one exchange; ``play`` is the first and last iteration it played, if any."""
        if play is not None:
            self.iteration = play[1]
        self.exchanges += learns
        self._learned = learns

    def add_outcomes(self, first: int, agents: int, sums: ArrayLike) -> None:
        """Ignore outcomes: devices do not report any."""

    def count_round(self) -> None:
        """Count the round of the last exchange, which was acknowledged."""
        self.rounds += self._learned

    def counts(self) -> dict[str, int]:
        """Return the exchanges and bytes so far."""
        return {name: getattr(self, name) for name in _STORED}

    def restore_counts(self, counts: Mapping[str, int]) -> None:
        """Restore what :meth:`counts` returned."""
        for name in _STORED:
            setattr(self, name, counts[name])


@dataclass
class History(Counts):
    """Counts, regret and predictions of one run of ``horizon`` iterations.

    The memory is allocated at once; only ``participation`` grows with the run.

    Attributes
    ----------
    horizon : int
        T.
    on_progress : callable, optional
        Called with this history after each acknowledged exchange.

    Examples
    --------
    Two agents have regrets of 4 and 2 in sum, in the two iterations of a run:

    >>> from fldb_flower.federation.history import History
    >>> history = History(horizon=2)
    >>> history.add_outcomes(first=1, agents=2, sums=[[4, 0, 0, 0, 0], [2, 0, 0, 0, 0]])
    >>> history.cumulative_regret
    array([2., 3.])
    """

    horizon: int
    on_progress: Callable[[History], None] | None = None

    def __post_init__(self) -> None:
        self.horizon = entry_of("horizon").check(self.horizon, "horizon", "Python")
        require_memory(_BYTES * self.horizon, f"horizon={self.horizon}: the regret of a run")
        self._exchanges = np.zeros(self.horizon + 1, dtype=np.int64)  # after each iteration
        self._outcomes = np.zeros((self.horizon, len(OUTCOMES)))  # sums over the agents
        self._agents = np.zeros(self.horizon)  # number of those agents
        self._pending: list[tuple[int, int, NDArray[Any]]] = []  # outcomes not in those yet

    def count_exchange(self, play: tuple[int, int] | None, *, learns: bool) -> None:
        """Count one exchange; see :class:`Counts`."""
        super().count_exchange(play, learns=learns)
        self._exchanges[self.iteration] = self.exchanges

    def add_outcomes(self, first: int, agents: int, sums: ArrayLike) -> None:
        """Add the outcomes of iterations from ``first`` on, summed over ``agents`` agents."""
        self._pending.append((first, agents, np.asarray(sums)))
        if len(self._pending) == _BATCH:
            self._add_pending()

    def _add_pending(self) -> None:
        """Add the pending outcomes in the order in which they were reported."""
        if not self._pending:
            return
        firsts, agents, sums = zip(*self._pending, strict=True)
        lengths = [len(rows) for rows in sums]
        ranges = [np.arange(n) + first - 1 for first, n in zip(firsts, lengths, strict=True)]
        places = np.concatenate(ranges)
        np.add.at(self._outcomes, places, np.concatenate(sums))
        np.add.at(self._agents, places, np.repeat(agents, lengths))
        self._pending.clear()

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything but the participation as arrays, for :meth:`restore`."""
        self._add_pending()
        counts = [self.iteration, self.rounds, self.openings, *self.counts().values()]
        return {
            "counts": np.array(counts),
            "exchanges": self._exchanges[: self.iteration + 1].copy(),
            "outcomes": self._outcomes[: self.iteration].copy(),
            "agents": self._agents[: self.iteration].copy(),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state` returned."""
        self._pending.clear()
        self.iteration, self.rounds, self.openings, *counts = map(int, state["counts"])
        self.restore_counts(dict(zip(_STORED, counts, strict=True)))
        for name in ("exchanges", "outcomes", "agents"):
            array, saved = getattr(self, f"_{name}"), state[name]
            array[: len(saved)] = saved
            array[len(saved) :] = 0

    def count_round(self) -> None:
        """Count the round of the last exchange, and report progress."""
        super().count_round()
        if self.on_progress is not None:
            self.on_progress(self)

    @property
    def exchanges_by_iteration(self) -> IntArray:
        """Exchanges completed by the end of each iteration, (horizon,)."""
        return np.maximum.accumulate(self._exchanges)[1:]

    @property
    def cumulative_regret(self) -> FloatArray:
        """Cumulative regret after each iteration, averaged over the agents that reported it."""
        with np.errstate(over="ignore", invalid="ignore"):  # raised below as an error
            self._add_pending()
            cumulative = np.cumsum(self._outcomes[:, 0] / np.maximum(self._agents, 1))
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

    @property
    def cumulative_predictions(self) -> tuple[FloatArray, FloatArray]:
        """Log loss and accuracy of the predictions up to each iteration, each (horizon,).

        They are means over the duels of all agents, and NaN before the first such duel. Each
        answer is predicted before it is learned from.
        """
        self._add_pending()
        loss, predicted, decided, correct = np.cumsum(self._outcomes[:, 1:], axis=0).T
        with np.errstate(invalid="ignore"):  # 0 / 0
            return loss / predicted, correct / decided

    @property
    def log_loss(self) -> float | None:
        """Mean log loss of the predictions so far; None without predictions, or if not finite."""
        return _number(self.cumulative_predictions[0][-1])

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions so far, without ties; None if there are none."""
        return _number(self.cumulative_predictions[1][-1])


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
