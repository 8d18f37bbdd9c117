"""The duels of a block of agents, kept until the server has counted them."""

from __future__ import annotations

import numpy as np

from fldb_flower.arrays import Array

_FIRST_CAPACITY = 1


class DuelLog:
    """Duels in order of iteration; those after ``counted`` are fresh.

    Parameters
    ----------
    agents, dimension : int
        Sizes of the arrays.
    keep : bool
        Whether counted duels stay (FLDB-GD's loss is over all of them) or are dropped.
    """

    def __init__(self, agents: int, dimension: int, *, keep: bool) -> None:
        self._keep = keep
        self._start = 0  # iteration before the first row kept
        self._rows = 0
        self.counted = 0  # the last iteration that the server has counted
        self._differences = np.empty((_FIRST_CAPACITY, agents, dimension))
        self._preferences = np.empty((_FIRST_CAPACITY, agents))
        self._regrets = np.empty(_FIRST_CAPACITY)

    @property
    def played(self) -> int:
        """The last iteration played."""
        return self._start + self._rows

    def append(self) -> tuple[Array, Array]:
        """Add an iteration; return its differences (agents, d) and preferences to fill in."""
        if self._rows == len(self._regrets):
            self._differences = _grown(self._differences)
            self._preferences = _grown(self._preferences)
            self._regrets = _grown(self._regrets)
        row = self._rows
        self._rows += 1
        self._regrets[row] = 0.0
        return self._differences[row], self._preferences[row]

    def add_regret(self, regret: float) -> None:
        """Add to the regret of the last iteration, summed over agents."""
        self._regrets[self._rows - 1] += regret

    def acknowledge(self, counted: int) -> None:
        """Take note that the server has counted every duel up to iteration ``counted``."""
        if counted <= self.counted:
            return
        self.counted = min(counted, self.played)
        if self._keep:
            return
        drop = self.counted - self._start
        left = self._rows - drop
        if left:
            for array in (self._differences, self._preferences, self._regrets):
                array[:left] = array[drop : drop + left].copy()
        self._start, self._rows = self.counted, left

    def fresh(self) -> tuple[Array, Array]:
        """Differences (n, d) and preferences (n,) of the duels not yet counted."""
        return self._slice(self.counted - self._start)

    def all(self) -> tuple[Array, Array]:
        """Differences (n, d) and preferences (n,) of all duels kept."""
        return self._slice(0)

    def fresh_regrets(self) -> Array:
        """Regret of each iteration not yet counted, summed over agents."""
        return self._regrets[self.counted - self._start : self._rows].copy()

    def _slice(self, first: int) -> tuple[Array, Array]:
        differences = self._differences[first : self._rows]
        return differences.reshape(-1, differences.shape[-1]), self._preferences[
            first : self._rows
        ].reshape(-1)

    def state(self) -> dict[str, Array]:
        """Return everything as arrays, for :meth:`restore`."""
        return {
            "position": np.array([self._start, self.counted]),
            "differences": self._differences[: self._rows],
            "preferences": self._preferences[: self._rows],
            "regrets": self._regrets[: self._rows],
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Take back what :meth:`state` returned."""
        self._start, self.counted = (int(number) for number in state["position"])
        self._rows = len(state["regrets"])
        self._differences = np.array(state["differences"])
        self._preferences = np.array(state["preferences"])
        self._regrets = np.array(state["regrets"])


def _grown(array: Array) -> Array:
    bigger = np.empty((max(_FIRST_CAPACITY, 2 * len(array)), *array.shape[1:]))
    bigger[: len(array)] = array
    return bigger
