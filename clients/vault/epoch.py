"""The epoch file: how far a device has got in secure sums, outside its store.

A store that is restored from a backup contains an older journal. With it, a server could have a
sum opened for a second time, or the same answers sent again. The epoch file shows that the store is
older. It is beside the private key, ``KEY.epoch``, so that another store with the same key does not
evade it. **No backup may contain it.**

It also contains the ledger of privacy, so that a restored store does not forget what was spent. It
is written after the journal is stored, and before the reply; the ledger is written before both.
Only its owner can read it: a cut is a number of answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from clients.vault.ledger import Ledger, day_of
from fldb_flower.errors import DataError, OutputError
from fldb_flower.secure.canonical import check_integer, from_json, parse, to_json
from fldb_flower.secure.journal import Journal
from fldb_flower.secure.roster import LARGEST_NUMBER
from fldb_flower.system.files import replace_file

_LEDGER = "ledger"
_MODE = 0o600


class Epoch(NamedTuple):
    """How far a device has got in secure sums.

    Attributes
    ----------
    contributed, opened : int
        Round of the last contribution, and of the last opening.
    cut : int
        The last cut that was sent.
    ledger : Ledger
        What the contributions have cost.
    """

    contributed: int = 0
    opened: int = 0
    cut: int = 0
    ledger: Ledger = Ledger()

    @classmethod
    def of(cls, journal: Journal, ledger: Ledger) -> Epoch:
        """Return how far a journal has got, and its ledger."""
        contributed, opened = (
            max(journal.base_round, 0 if record is None else record.round)
            for record in (journal.contribution, journal.opening)
        )
        return cls(contributed, opened, journal.sent, ledger)

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers, without the ledger."""
        return self.contributed, self.opened, self.cut

    def is_ahead_of(self, other: Epoch) -> bool:
        """Whether this is later in any respect."""
        return any(mine > its for mine, its in zip(self.counts, other.counts, strict=True))

    def merged(self, other: Epoch) -> Epoch:
        """Return the later one in each respect."""
        contributed, opened, cut = map(max, self.counts, other.counts)
        return Epoch(contributed, opened, cut, self.ledger.merged(other.ledger))


class EpochFile:
    """The file of an epoch.

    Parameters
    ----------
    key : Path
        The file of the private key.
    """

    def __init__(self, key: Path) -> None:
        self._key = key
        self.path = key.with_name(f"{key.name}.epoch")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other vault with this key reply, from what its store contains until the epoch.

        The vault of another store could otherwise open a second set before the epoch is written.

        The lock is on the private key, which other users cannot open.

        Raises
        ------
        DataError
            The private key cannot be read.
        """
        import fcntl  # noqa: PLC0415 - Windows has no vault

        try:
            file = self._key.open("rb")
        except OSError as reason:
            raise DataError(f"cannot read {self._key}: {reason.strerror}") from None
        with file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def read(self) -> Epoch | None:
        """Return the epoch in the file, or None if there is no file.

        Raises
        ------
        DataError
            The file cannot be read, or is damaged.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as reason:
            raise DataError(f"cannot read {self.path}: {reason.strerror}") from None
        names = Epoch._fields if _LEDGER in parse(content, str(self.path)) else Epoch._fields[:-1]
        fields = from_json(content, str(self.path), names)
        content_of_ledger = fields.pop(_LEDGER, None)
        for name, value in fields.items():
            check_integer(f"{name} in {self.path}", value, 0, LARGEST_NUMBER)
        if content_of_ledger is None:  # of a version without noise
            contributed = fields["contributed"]
            ledger = Ledger(exact=day_of(contributed / 1000)) if contributed else Ledger()
        else:
            ledger = Ledger.from_fields(content_of_ledger, f"{_LEDGER} in {self.path}")
        return Epoch(**fields, ledger=ledger)

    def write(self, epoch: Epoch) -> None:
        """Replace the epoch durably.

        Raises
        ------
        OutputError
            The file cannot be written.
        """
        fields = epoch._asdict() | {_LEDGER: epoch.ledger.to_fields()}
        try:
            replace_file(self.path, to_json(fields), _MODE)
        except OSError as reason:
            raise OutputError(f"cannot write {self.path}: {reason.strerror}") from None
