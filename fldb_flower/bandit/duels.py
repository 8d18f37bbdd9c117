"""Duels of a block of agents, and other records of each iteration."""

from __future__ import annotations

import numpy as np

from fldb_flower.linalg.arrays import Array, Arrays, FloatArray, copy, namespace, to_numpy

OUTCOMES = ("regret", "log_loss", "predicted", "decided", "correct")
"""The sums over agents that are recorded for each iteration.

``predicted`` duels have a predicted answer, and ``log_loss`` is the sum of their losses. Of these,
``decided`` duels are no ties, and ``correct`` of them were predicted correctly. A logit of 0 is
half correct.
"""


class DuelLog:
    """Duels in order of iteration. Those after iteration ``counted`` are fresh.

    Differences are stored as (d, duels), because passes over all duels are then three times
    faster. Methods take and return (duels, d). With ``keep``, duels are kept after the server has
    counted them (for a loss over all duels).
    """

    def __init__(
        self, agents: int, dimension: int, *, keep: bool, arrays: Arrays | None = None
    ) -> None:
        self._arrays = arrays or Arrays()
        self._agents = agents
        self._keep = keep
        self._start = 0  # number of iterations dropped
        self._kept = 0  # number of iterations stored
        self.counted = 0  # the last iteration that the server has counted
        self.settled = 0  # the last iteration that was counted at once (Broadcast.final)
        self._nothing = self._empty(dimension, 0)
        self._differences, self._preferences, self._outcomes = self._nothing

    @property
    def played(self) -> int:
        """Return the last iteration played."""
        return self._start + self._kept

    def _empty(self, dimension: int, iterations: int) -> tuple[Array, Array, FloatArray]:
        """Return arrays of differences, preferences and outcomes (summed over agents)."""
        size, empty = iterations * self._agents, self._arrays.empty
        return empty(dimension, size), empty(size), np.empty((iterations, len(OUTCOMES)))

    def reserve(self, iterations: int) -> None:
        """Reserve memory for this many more iterations, so that :meth:`append` need not copy."""
        room, needed = len(self._outcomes), self._kept + iterations
        if needed <= room:
            return
        grown = self._empty(len(self._differences), max(needed, 2 * room))
        if self._kept:
            differences, preferences, outcomes = grown
            span = self._span(0, self._kept)
            differences[:, span] = self._differences[:, span]
            preferences[span] = self._preferences[span]
            outcomes[: self._kept] = self._outcomes[: self._kept]
        self._differences, self._preferences, self._outcomes = grown

    def append(self, iterations: int) -> tuple[Array, Array, FloatArray]:
        """Add iterations and return views of their values, for the caller to set.

        These are differences (iterations * agents, d) and preferences (iterations * agents,), agent
        by agent in each iteration, and the sums :data:`OUTCOMES` of each iteration, 0 at first.
        """
        self.reserve(iterations)
        first, self._kept = self._kept, self._kept + iterations
        place, outcomes = self._span(first, self._kept), self._outcomes[first : self._kept]
        outcomes[:] = 0.0
        return self._differences[:, place].T, self._preferences[place], outcomes

    def acknowledge(self, counted: int) -> None:
        """Record that the server has counted all duels up to iteration ``counted``."""
        if counted <= self.counted:
            return
        self.counted = min(counted, self.played)
        if self._keep:
            return
        drop = self.counted - self._start
        left = self._kept - drop
        if left:
            old, new = self._span(drop, self._kept), self._span(0, left)
            self._differences[:, new] = copy(self._differences[:, old])
            self._preferences[new] = copy(self._preferences[old])
            self._outcomes[:left] = self._outcomes[drop : self._kept].copy()
        self._start, self._kept = self.counted, left

    def settle(self) -> None:
        """Record that the server has counted all duels, and free their memory."""
        self.acknowledge(self.played)
        self.settled = self.counted
        if not self._keep:
            self._differences, self._preferences, self._outcomes = self._nothing

    def fresh(self) -> tuple[Array, Array]:
        """Return differences (n, d) and preferences (n,) of the duels not yet counted."""
        return self._from(self.counted - self._start)

    def all(self) -> tuple[Array, Array]:
        """Return differences (n, d) and preferences (n,) of all stored duels."""
        return self._from(0)

    def fresh_outcomes(self) -> FloatArray:
        """Return the sums :data:`OUTCOMES` of each iteration not yet counted, (iterations, 5)."""
        return self._outcomes[self.counted - self._start : self._kept].copy()

    def _from(self, first: int) -> tuple[Array, Array]:
        span = self._span(first, self._kept)
        return self._differences[:, span].T, self._preferences[span]

    def _span(self, first: int, last: int) -> slice:
        return slice(first * self._agents, last * self._agents)

    def state(self) -> dict[str, Array]:
        """Return a copy of the state, for :meth:`restore`."""
        span = self._span(0, self._kept)
        return {
            "position": np.array([self._start, self.counted]),
            "differences": to_numpy(copy(self._differences[:, span])),
            "preferences": to_numpy(copy(self._preferences[span])),
            "outcomes": self._outcomes[: self._kept].copy(),
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned."""
        self._start, self.counted = (int(number) for number in state["position"])
        self.settled = 0
        self._kept = len(state["outcomes"])
        if self._kept:
            self._differences = self._arrays.make(np.array(state["differences"]))
            self._preferences = self._arrays.make(np.array(state["preferences"]))
            self._outcomes = np.array(state["outcomes"])


def clipped(differences: Array, longest: float) -> Array:
    """Return differences (n, d), those longer than ``longest`` shortened to this length."""
    xp = namespace(differences)
    lengths = xp.sqrt(xp.vecdot(differences, differences))
    return differences * (longest / xp.where(lengths > longest, lengths, longest))[:, None]


def prediction_sums(
    logits: Array, preferences: Array, differences: Array, iterations: int
) -> FloatArray:
    """Compare predictions with answers, and return sums over the agents.

    The log loss of an answer y is ``-y log p - (1 - y) log(1 - p)`` with ``p = mu(logit)``. Duels
    of equal arms (a difference of 0) are not predicted.

    ``logits`` and ``preferences`` are (iterations * agents,), in order of iteration, and
    ``differences`` (iterations * agents, d). The result has the columns of :data:`OUTCOMES` after
    the regret, (iterations, 4).
    """
    xp = namespace(logits)
    scores = xp.empty((4, *logits.shape), dtype=logits.dtype, device=logits.device)
    sides = preferences - 0.5
    margins, sizes = sides * logits, xp.abs(logits)
    scores[0] = xp.log1p(xp.exp(-sizes)) + (0.5 * sizes - margins)  # softplus(z) - y z
    scores[1] = 1.0
    scores[2] = sides != 0
    scores[3] = scores[2] * (0.5 + 0.5 * xp.sign(margins))
    scores *= differences.any(axis=1)
    sums: FloatArray = to_numpy(scores.reshape(4, iterations, -1).sum(axis=2)).T
    return sums
