"""Communication rounds: the iterations at which agents and server exchange."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from fldb_flower.settings import Settings

__all__ = ["Round", "geometric", "periodic", "round_ends", "rounds"]


class Round(NamedTuple):
    """Iterations first..last, inclusive, between two exchanges.

    ``number`` is t_c, or 0 for t = 1 if no round ends there. ``learns`` is whether the round ends
    with an exchange; the iterations after the last exchange are only played.

    Examples
    --------
    >>> from fldb_flower.algorithms.schedules import Round
    >>> Round(number=2, first=4, last=6)
    Round(number=2, first=4, last=6, learns=True)
    """

    number: int
    first: int
    last: int
    learns: bool = True


def periodic(tau: int) -> Iterator[int]:
    """Return tau, 2 tau, 3 tau, ... (Algorithm 1, line 10)."""
    return itertools.count(tau, tau)


def geometric(ratio: float) -> Iterator[int]:
    """Return 1, then the distinct values of ceil(ratio^k), k = 1, 2, ...: O(log T) rounds.

    This schedule is not in the paper. A new estimate matters once the number of duels has grown
    by a factor, because then W has changed enough.
    """
    last = power = 0
    while True:
        end = math.ceil(ratio**power)
        if end > last:
            last = end
            yield end
            # Skip the powers of a ratio near 1 that also round up to this end.
            power = max(power, math.floor(math.log(end) / math.log(ratio)) - 1)
        power += 1


def round_ends(settings: Settings) -> Iterator[int]:
    """Return the iterations at which a round ends, ascending, up to the horizon."""
    schedule = settings.schedule
    ends = periodic(settings.tau) if schedule.name == "periodic" else geometric(schedule.ratio)
    return itertools.takewhile(lambda end: end <= settings.horizon, ends)


def rounds(settings: Settings) -> Iterator[Round]:
    """Yield the rounds of a run, which together play every iteration once.

    The first is t = 1 alone, which gives the first estimate.
    """
    ends = round_ends(settings)
    first = next(ends, None)
    number = played = 0
    if first != 1:
        yield Round(0, 1, 1)
        played = 1
    for number, end in enumerate(itertools.chain([first] if first else [], ends), start=1):
        yield Round(number, played + 1, end)
        played = end
    if played < settings.horizon:
        yield Round(number + 1, played + 1, settings.horizon, learns=False)
