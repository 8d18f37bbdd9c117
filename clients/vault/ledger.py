r"""The ledger of a device: how much privacy its contributions to secure sums have cost.

Contributions of one person with noise multipliers z are Gaussian mechanisms. Together they are as
private as one with the multiplier ``1 / sqrt(s)``, s the sum of ``1 / z^2``, also if each z depends
on earlier sums. So this sum is all that the ledger needs. It is kept by day, in UTC, for budgets
per period.

A contribution is charged when it is stored, before it is sent. A repetition sends the stored
numbers and is not charged. A contribution to another exchange has new noise and is charged, also if
it has the same answers.

References
----------
J. Dong, A. Roth and W. Su, "Gaussian Differential Privacy", 2022.
A. Koskela, M. Tobaben and A. Honkela, "Individual Privacy Accounting with Gaussian Differential
Privacy", 2023: a limit on s holds also if each z depends on earlier sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from fldb_flower.errors import DataError
from fldb_flower.secure.canonical import check_integer, from_json, to_json

_FIELDS = ("days", "exact")
_MOST_DAYS = 4_000_000  # since 1970
_SECONDS = 86_400


def day_of(now: float) -> int:
    """Return the day of a time, both since 1970."""
    return int(now // _SECONDS)


@dataclass(frozen=True)
class Ledger:
    """What the contributions of a device have cost.

    Attributes
    ----------
    days : tuple of (int, float)
        Days since 1970, in ascending order, and the sum of ``1 / z^2`` over their contributions.
    exact : int
        The last day on which numbers without noise were sent, or may have been; 0 for none.

    Examples
    --------
    Two contributions with noise multiplier 2 on one day cost as much as one with ``sqrt(2)``:

    >>> from clients.vault.ledger import Ledger
    >>> ledger = Ledger().charged(20_000, 2.0).charged(20_000, 2.0).charged(20_005, 10.0)
    >>> ledger.spent()
    0.51
    >>> ledger.spent(since=20_001)
    0.01
    """

    days: tuple[tuple[int, float], ...] = ()
    exact: int = 0

    def charged(self, day: int, multiplier: float | None) -> Ledger:
        """Return the ledger after a contribution with a noise multiplier; None is without noise."""
        if multiplier is None:
            return replace(self, exact=max(day, self.exact))
        days = dict(self.days)
        days[day] = days.get(day, 0.0) + multiplier**-2
        return replace(self, days=tuple(sorted(days.items())))

    def merged(self, other: Ledger) -> Ledger:
        """Return the larger charge of each day: one of both ledgers may be that of a backup."""
        mine, its = dict(self.days), dict(other.days)
        days = {day: max(mine.get(day, 0.0), its.get(day, 0.0)) for day in mine.keys() | its.keys()}
        return Ledger(tuple(sorted(days.items())), max(self.exact, other.exact))

    def spent(self, since: int = 0) -> float:
        """Return the sum of ``1 / z^2`` from a day on; infinite with numbers without noise."""
        if self.exact and self.exact >= since:
            return math.inf
        return math.fsum(cost for day, cost in self.days if day >= since)

    def to_fields(self) -> dict[str, Any]:
        """Return the ledger as JSON values."""
        return {"days": [list(each) for each in self.days], "exact": self.exact}

    @classmethod
    def from_fields(cls, fields: Any, what: str) -> Ledger:
        """Invert :meth:`to_fields`; raise DataError if the values are damaged."""
        try:
            days = tuple((day, cost) for day, cost in fields["days"])
            exact = fields["exact"]
            is_valid = set(fields) == set(_FIELDS)
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{what} is damaged") from None
        for day in (exact, *(day for day, _ in days)):
            check_integer(f"a day of {what}", day, 0, _MOST_DAYS)
        costs = [cost for _, cost in days]
        is_valid &= all(type(each) is float and 0.0 <= each < math.inf for each in costs)
        if not is_valid or [day for day, _ in days] != sorted(dict(days)):
            raise DataError(f"{what} is damaged")
        return cls(days, exact)

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        return to_json(self.to_fields())

    @classmethod
    def from_bytes(cls, content: bytes) -> Ledger:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        return cls.from_fields(from_json(content, "the ledger", _FIELDS), "the ledger")
