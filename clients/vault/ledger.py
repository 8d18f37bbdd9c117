"""The cost of the reports of a device, the exchanges they reply to, and the answers they cover.

Reports of one person with noise multipliers z are together as private as one Gaussian mechanism
with ``mu^2 = sum of 1 / z^2`` (:mod:`fldb_flower.privacy.accounting`), so this sum is all that the
ledger needs. It is kept by day, in UTC, for limits per period. An exchange is charged before an
answer is read.

The ledger is a file outside the store. It records what was sent even if the store is restored from
a backup. **No backup may contain the ledger**: with an older one, the same exchange could be
answered twice. Only its owner can read it, since a cut is a number of answers.

The journal is part of the store, like the last report. It records which answers the reports cover,
and which of them the server has counted.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from fldb_flower.errors import DataError, OutputError
from fldb_flower.secure.protocol import from_json, to_json
from fldb_flower.system.files import check_writers, replace_file, reported

_MODE = 0o600
_SECONDS = 86_400


def day_of(now: float) -> int:
    """Return the day of a time, both since 1970."""
    return int(now // _SECONDS)


class Last(NamedTuple):
    """The last exchange of a task: its number, and the hash of its header."""

    number: int
    digest: str


class Sent(NamedTuple):
    """The last exchange that a store was charged for, and the cut of the last report it sent."""

    number: int
    cut: int


@dataclass(frozen=True)
class Ledger:
    """The cost of the reports of a device, and the exchanges it has replied to."""

    created: int = 0  # exchanges up to this time, in ms since 1970, may be in an earlier ledger
    days: Mapping[int, float] = field(default_factory=dict)  # sum of 1 / z^2 by day since 1970
    tasks: Mapping[str, Last] = field(default_factory=dict)  # by task, in hexadecimal digits
    stores: Mapping[str, Sent] = field(default_factory=dict)  # by identifier of the store

    def charged(self, day: int, cost: float) -> Ledger:
        """Return the ledger after an exchange with this cost, ``1 / z^2``."""
        return replace(self, days={**self.days, day: self.days.get(day, 0.0) + cost})

    def spent(self, since: int = 0) -> float:
        """Return the cost of all exchanges from a day on."""
        return math.fsum(cost for day, cost in self.days.items() if day >= since)

    def last(self, task: bytes) -> Last:
        """Return the last exchange of a task."""
        return self.tasks.get(task.hex(), Last(0, ""))

    def begun(self, task: bytes, last: Last) -> Ledger:
        """Return the ledger after a request of a task."""
        return replace(self, tasks={**self.tasks, task.hex(): last})

    def sent(self, store: str) -> Sent:
        """Return what a store has sent."""
        return self.stores.get(store, Sent(0, 0))

    def with_sent(self, store: str, sent: Sent) -> Ledger:
        """Return the ledger with what a store has sent."""
        return replace(self, stores={**self.stores, store: sent})

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        return to_json({**vars(self), "days": {str(day): cost for day, cost in self.days.items()}})

    @classmethod
    def from_bytes(cls, content: bytes, what: str) -> Ledger:
        """Invert :meth:`to_bytes`; raise DataError if the bytes are damaged."""
        fields = from_json(content, what, cls.__dataclass_fields__)
        try:
            return cls(
                fields["created"],
                {int(day): cost for day, cost in fields["days"].items()},
                {task: Last(*last) for task, last in fields["tasks"].items()},
                {store: Sent(*sent) for store, sent in fields["stores"].items()},
            )
        except (AttributeError, TypeError, ValueError):
            raise DataError(f"{what} is damaged") from None


class LedgerFile:
    """The file of a ledger, with a lock beside it."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))  # links to one ledger have one lock

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Block all other vaults that use this ledger, of this store or of another."""
        import fcntl  # noqa: PLC0415 - Windows has no vault

        lock = self.path.with_name(f"{self.path.name}.lock")
        with reported(OutputError, f"write {lock}"):
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, _MODE)  # others cannot hold it
        try:
            with reported(OutputError, f"lock {lock}"):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def read(self) -> Ledger | None:
        """Return the ledger, or None without a file; raise DataError if others can write it."""
        with reported(DataError, f"read {self.path}"):
            try:
                content = self.path.read_bytes()
            except FileNotFoundError:
                return None
        check_writers(self.path)
        try:
            return Ledger.from_bytes(content, str(self.path))
        except DataError as reason:
            raise DataError(
                f"{reason}. Delete the file: what was spent then counts as max_epsilon. Do not"
                " restore it from a backup"
            ) from None

    def write(self, ledger: Ledger) -> None:
        """Replace the ledger durably."""
        with reported(OutputError, f"write {self.path}"):
            replace_file(self.path, ledger.to_bytes(), _MODE)


class Step(NamedTuple):
    """The first exchange whose report covers the answers up to a cut."""

    number: int
    cut: int


class Journal(NamedTuple):
    """Which answers the reports of a device cover."""

    number: int = 0  # the last exchange that was replied to; 0: none
    counted: int = 0  # number of the last answer that the server has counted
    steps: tuple[Step, ...] = ()  # of later reports, ascending; one up to an earlier cut has none

    @property
    def sent(self) -> int:
        """Number of the last answer in a report."""
        return self.steps[-1].cut if self.steps else self.counted

    def acknowledged(self, number: int) -> Journal:
        """Return the journal after the server has counted the report to an exchange."""
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
        steps = tuple(Step(*step) for step in fields["steps"])
        return cls(fields["number"], fields["counted"], steps)
