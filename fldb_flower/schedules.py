"""When agents and server exchange: the iterations that end a communication round."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from fldb_flower.settings import Settings


def periodic(tau: int) -> Iterator[int]:
    """Yield tau, 2 tau, 3 tau, ... (Algorithm 1, line 10)."""
    return itertools.count(tau, tau)


def geometric(ratio: float) -> Iterator[int]:
    """Yield 1, then the different values of ceil(ratio^k), k = 1, 2, ...: O(log T) rounds.

    Ours, beyond the paper: waiting until the number of duels has grown by a factor is
    when W has changed enough for a new estimate to matter.
    """
    last = power = 0
    while True:
        end = math.ceil(ratio**power)
        if end > last:
            last = end
            yield end
            # Do not count through the powers of a ratio near 1 that all round up to this end.
            power = max(power, math.floor(math.log(end) / math.log(ratio)) - 1)
        power += 1


def round_ends(settings: Settings) -> list[int]:
    """Return the iterations at which a round ends, ascending and at most the horizon."""
    schedule = settings.schedule
    ends = periodic(settings.tau) if schedule.name == "periodic" else geometric(schedule.ratio)
    return list(itertools.takewhile(lambda end: end <= settings.horizon, ends))
