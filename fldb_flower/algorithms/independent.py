"""Agents without collaboration: LDB, FLDB-Personal without exchanges, and uniform pairs."""

from __future__ import annotations

from collections.abc import Iterator

from fldb_flower.algorithms.base import Algorithm, State
from fldb_flower.algorithms.schedules import Round
from fldb_flower.federation.exchange import Federation, PlayRequest

_REPORTS = 50  # number of reports of the regret in a run


class Independent(Algorithm):
    """The agents play on their own; the server collects the regret only."""

    def rounds(self) -> Iterator[Round]:
        """Yield about 50 equal parts of the run, each of which ends with a report."""
        horizon = self.settings.horizon
        stride = -(-horizon // _REPORTS)
        for number, first in enumerate(range(1, horizon + 1, stride), start=1):
            yield Round(number, first, min(first + stride - 1, horizon), learns=False)

    def play(self, round_: Round) -> PlayRequest:
        """Return a request without an estimate."""
        return PlayRequest(round_.first, round_.last)

    def learn(self, federation: Federation, round_: Round) -> State:
        """Return no change: no round learns."""
        return {}
