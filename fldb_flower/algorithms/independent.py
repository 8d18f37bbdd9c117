"""Agents that do not collaborate: LDB, and pairs drawn uniformly."""

from __future__ import annotations

from collections.abc import Iterator

from fldb_flower.algorithms.base import Algorithm
from fldb_flower.algorithms.schedules import Round
from fldb_flower.federation.exchange import Federation, PlayRequest

_REPORTS = 50  # of the regret so far, in a run


class Independent(Algorithm):
    """Lets every agent play by itself to the horizon; only the regret is collected."""

    def rounds(self) -> Iterator[Round]:
        """Yield about 50 equal parts of the run, after each of which the regret is reported."""
        horizon = self.settings.horizon
        stride = -(-horizon // _REPORTS)
        for number, first in enumerate(range(1, horizon + 1, stride), start=1):
            yield Round(number, first, min(first + stride - 1, horizon), learns=False)

    def play(self, turn: Round) -> PlayRequest:
        """Return the round's iterations, without an estimate."""
        return PlayRequest(turn.first, turn.last)

    def learn(self, federation: Federation, turn: Round) -> None:
        """Nothing: no round learns."""
