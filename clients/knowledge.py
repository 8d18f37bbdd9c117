"""What a device knows about its person at one moment."""

from __future__ import annotations

from collections import Counter

from clients.learning import make_learner, settings_of
from clients.selection import PairSelector
from clients.store import DuelStore
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.system.process import one_blas_thread


class Knowledge:
    """What is known after one broadcast, and the answers of this device that it includes.

    Parameters
    ----------
    store : DuelStore
        The device's store.
    dimension : int
        d.
    purpose : {"suggest", "rank"}
        What duels are for.
    skipped : Counter
        See :class:`~clients.selection.PairSelector`.
    """

    def __init__(
        self, store: DuelStore, dimension: int, purpose: str, skipped: Counter[bytes]
    ) -> None:
        self.version = store.version()
        self.dimension = dimension
        self._store = store
        last, duels = store.synchronized(), store.answers()
        self._known = int(duels.numbers.max(initial=0))
        self.is_informed = last is not None or self._known > 0
        self.is_own = last is None or last.prior is not None
        settings = settings_of(last, dimension)
        self.learner = make_learner(store, last, settings, duels)
        self.selector = PairSelector(self.learner, settings, purpose, skipped)
        self.selector.count(duels)

    def update(self) -> None:
        """Learn from the answers that are new in the store."""
        if self._store.last > self._known:
            new = self._store.answers(self._known)
            with one_blas_thread():
                self.learner.learn(new)
            self.selector.count(new)
            self._known = int(new.numbers.max(initial=self._known))
            self.is_informed |= self._known > 0

    def select(self, arms: FloatArray) -> tuple[int, int]:
        """Return the indices of the two arms to show."""
        return self.selector.select(arms, self._store.asked())
