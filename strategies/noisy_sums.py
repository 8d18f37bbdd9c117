"""Sums of reports by the server and the helper, each of which adds noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from logging import WARNING, getLogger

import numpy as np

from fldb_flower.errors import RoundAbandonedError
from fldb_flower.linalg.arrays import FloatArray, IntArray
from fldb_flower.secure.messages import SumRequest
from fldb_flower.secure.report import KINDS, SCALE, Header, signed
from strategies.channel import Contribution
from strategies.devices import short_name
from strategies.helper_client import HelperClient

MOST_PARTS = 2**18
"""Number of values in the answer ``parts`` up to which each report is a group of its own."""

FAR = 8.0
"""Standard deviations of noise beyond which a sum is out of range: one in 10^15 values."""

_MOST_NAMES = 3  # in a line of the log
_LOG = getLogger("flwr")


class NoisySums:
    """The sums of the reports of one exchange.

    The server adds noise to each answer of the helper, of the same size, before it looks at it.
    The helper knows its own noise, and can shift an answer: without the server's noise, it could
    read exact numbers from the estimates that are published.
    """

    def __init__(
        self, helper: HelperClient, header: Header, noise: Callable[[FloatArray], IntArray]
    ) -> None:
        self._helper, self._header, self._noise = helper, header, noise

    def total(self, reports: list[Contribution]) -> tuple[FloatArray, list[Contribution]]:
        """Return the sum of the reports in units of length, and those that are in it.

        Reports that are further out than honest ones can be are left out; RoundAbandonedError if
        none is left. The sum is shortened to the length that so many reports can have.
        """
        (values,), included = self._ask("sum", [self._in_range(reports)])
        length = float(np.linalg.norm(values))
        longest = len(included) + self.deviation() * (math.sqrt(len(values)) + FAR)
        return (values * (longest / length) if length > longest else values), included

    def deviation(self, kind: str = "sum") -> float:
        """Return the standard deviation of both parties' noise, in units of length."""
        return math.sqrt(2.0) * KINDS[kind] * self._header.multiplier

    def _in_range(self, reports: list[Contribution]) -> list[Contribution]:
        """Return the reports without groups whose sum is further out than honest ones can be."""
        (trial,), opened = self._ask("trial", [reports])
        if self._is_possible(trial, len(opened), "trial"):
            return opened
        groups, kept = self._groups(opened), list[Contribution]()
        sums, _ = self._ask("parts", groups)
        for group, values in zip(groups, sums, strict=True):
            if self._is_possible(values, len(group), "parts"):
                kept += group
            else:
                _LOG.log(WARNING, "not counted: reports out of range of %s", _names(group))
        if not kept:
            raise RoundAbandonedError("no group of reports is within range")
        return sorted(kept, key=lambda each: each.order)

    def _groups(self, reports: list[Contribution]) -> list[list[Contribution]]:
        """Return groups of equal size, each report alone if the answer is not too large."""
        least = math.isqrt(len(reports)) + 1
        count = min(len(reports), max(least, MOST_PARTS // self._header.numbers))
        drawn = np.random.default_rng().permutation(len(reports))
        return [[reports[place] for place in part] for part in np.array_split(drawn, count)]

    def _ask(
        self, kind: str, groups: list[list[Contribution]]
    ) -> tuple[list[FloatArray], list[Contribution]]:
        """Return the noisy sum of each group, in units of length, and the reports in the sums."""
        reports = [each for group in groups for each in group]
        sealed = tuple(each.claim.sealed for each in reports)
        request = SumRequest(self._header, kind, tuple(map(len, groups)), sealed)
        shape = len(groups), self._header.numbers
        # Drawn before the answer is there, so that nothing is done with an answer without it.
        own = self._noise(np.full(shape, float(self._header.sigma * KINDS[kind])))
        answer = self._helper.sums(request)
        sums, refused = answer.sums + own.astype(np.uint64), set(answer.refused)
        included, places = list[Contribution](), np.repeat(np.arange(len(groups)), request.sizes)
        for number, (place, report) in enumerate(zip(places, reports, strict=True)):
            if number not in refused:
                sums[place] += report.claim.masked
                included.append(report)
        if refused:
            text = "not counted: %d reports that the helper cannot open, or has twice: %s"
            names = _names([reports[number] for number in answer.refused])
            _LOG.log(WARNING, text, len(refused), names)
        if not included:
            raise RoundAbandonedError("the helper could open no report")
        return [signed(each).astype(np.float64) / SCALE for each in sums], included

    def _is_possible(self, values: FloatArray, reports: int, kind: str) -> bool:
        """Whether honest reports can have a sum, given its noise."""
        return float(np.abs(values).max()) <= reports + FAR * self.deviation(kind)


def _names(reports: list[Contribution]) -> str:
    """Return the names of some devices for a line of the log."""
    names = ", ".join(short_name(each.order) for each in reports[:_MOST_NAMES])
    more = len(reports) - _MOST_NAMES
    return f"{names} and {more} more" if more > 0 else names
