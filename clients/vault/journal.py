"""The journal of a device: which answers its reports cover, and which the server has counted.

It is part of the store, beside the last report.
"""

from __future__ import annotations

from typing import NamedTuple

from fldb_flower.errors import DataError
from fldb_flower.secure.canonical import check_integer, from_json, to_json

_LARGEST = 2**53


class Step(NamedTuple):
    """The first exchange whose report covers the answers up to a cut."""

    number: int
    cut: int


class Journal(NamedTuple):
    """Which answers the reports of a device cover.

    Attributes
    ----------
    number : int
        The last exchange that was replied to; 0: none.
    counted : int
        Number of the last answer that the server has counted.
    steps : tuple of Step
        Cuts of later reports, ascending. A report up to an earlier cut has no step of its own.
    """

    number: int = 0
    counted: int = 0
    steps: tuple[Step, ...] = ()

    @property
    def sent(self) -> int:
        """Number of the last answer in a report."""
        return self.steps[-1].cut if self.steps else self.counted

    def acknowledged(self, number: int) -> Journal:
        """Return the journal after the server has counted the report to an exchange.

        Examples
        --------
        >>> from clients.vault.journal import Journal
        >>> journal = Journal().replied(10, 3).replied(20, 3).replied(30, 5)
        >>> journal.acknowledged(20)
        Journal(number=30, counted=3, steps=(Step(number=30, cut=5),))
        >>> journal.acknowledged(30).acknowledged(20).counted
        5
        """
        cuts = [step.cut for step in self.steps if step.number <= number]
        return self._replace(counted=max([self.counted, *cuts]), steps=self.steps[len(cuts) :])

    def replied(self, number: int, cut: int) -> Journal:
        """Return the journal after a report on the answers up to a cut."""
        steps = self.steps if cut == self.sent else (*self.steps, Step(number, cut))
        return self._replace(number=number, steps=steps)

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        return to_json(self._asdict())

    @classmethod
    def from_bytes(cls, content: bytes, what: str) -> Journal:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        fields = from_json(content, what, cls._fields)
        try:
            steps = tuple(Step(*step) for step in fields["steps"])
        except TypeError:
            raise DataError(f"the steps of {what} are damaged") from None
        counts = [each for step in steps for each in step]
        for value in (fields["number"], fields["counted"], *counts):
            check_integer(f"a number of {what}", value, 0, _LARGEST)
        return cls(fields["number"], fields["counted"], steps)
