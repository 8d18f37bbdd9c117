"""The epoch file: how far a device has got in secure sums, outside its store.

A store that is restored from a backup contains an older journal. With it, a server could have a
sum opened for a second time, or the same answers sent again. The epoch file shows that the store is
older. It is beside the private key, ``KEY.epoch``, so that another store with the same key does not
evade it. **No backup may contain it.**

It is written after the journal is stored, and before the reply.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fldb_flower.errors import DataError, OutputError
from fldb_flower.secure.canonical import check_integer, from_json, to_json
from fldb_flower.secure.journal import Journal
from fldb_flower.secure.roster import LARGEST_NUMBER
from fldb_flower.system.files import replace_file


class Epoch(NamedTuple):
    """How far a device has got in secure sums.

    Attributes
    ----------
    contributed, opened : int
        Round of the last contribution, and of the last opening.
    cut : int
        The last cut that was sent.
    """

    contributed: int = 0
    opened: int = 0
    cut: int = 0

    @classmethod
    def of(cls, journal: Journal) -> Epoch:
        """Return how far a journal has got."""
        contributed, opened = (
            max(journal.base_round, 0 if record is None else record.round)
            for record in (journal.contribution, journal.opening)
        )
        return cls(contributed, opened, journal.sent)

    def is_ahead_of(self, other: Epoch) -> bool:
        """Whether this is later in any respect."""
        return any(mine > its for mine, its in zip(self, other, strict=True))


class EpochFile:
    """The file of an epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

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
        fields = from_json(content, str(self.path), Epoch._fields)
        for name, value in fields.items():
            check_integer(f"{name} in {self.path}", value, 0, LARGEST_NUMBER)
        return Epoch(**fields)

    def write(self, epoch: Epoch) -> None:
        """Replace the epoch durably.

        Raises
        ------
        OutputError
            The file cannot be written.
        """
        try:
            replace_file(self.path, to_json(epoch._asdict()))
        except OSError as reason:
            raise OutputError(f"cannot write {self.path}: {reason.strerror}") from None
