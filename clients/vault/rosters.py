"""The roster of a device in secure sums: the newest one that it has seen."""

from __future__ import annotations

import datetime
import logging

from clients.store import DuelStore
from clients.vault.config import VaultConfig
from fldb_flower.deployment.key_files import read_file
from fldb_flower.errors import DataError, FldbError, SecureError, one_line
from fldb_flower.secure.roster import Roster, read_signed, verify

_LOG = logging.getLogger(__name__)


class RosterKeeper:
    """Keeps the newest roster in the store.

    Parameters
    ----------
    store : DuelStore
        The device's store.
    config : VaultConfig
        With the pinned key, and the file of the owner's roster.

    Raises
    ------
    DataError, SecureError
        The file cannot be read, or is not a roster signed with the pinned key.
    """

    def __init__(self, store: DuelStore, config: VaultConfig) -> None:
        self._store = store
        self._signer = config.signer
        self._path = config.roster
        self._seen = b""  # content of the file
        self._parsed: tuple[bytes | None, Roster | None] = (None, None)
        self._checked: tuple[bytes | None, datetime.date] | None = None
        try:
            self._read_file()
        except SecureError as reason:
            raise SecureError(f"{self._path}: {reason}") from None
        except DataError as reason:
            raise DataError(f"{self._path}: {reason}") from None

    @property
    def is_from_file(self) -> bool:
        """Whether the newest roster is the owner's file."""
        return self._store.secure_part("roster") == self._seen

    def latest(self) -> Roster:
        """Return the newest roster, whether it is valid today or not."""
        content = self._store.secure_part("roster")
        if self._parsed[1] is None or self._parsed[0] != content:
            self._parsed = content, read_signed(content or b"", self._signer)
        assert self._parsed[1] is not None
        return self._parsed[1]

    def current(self, today: datetime.date) -> Roster:
        """Return the newest roster; raise SecureError if it is not valid on this day."""
        content = self._store.secure_part("roster")
        if self._checked != (content, today):
            verify(content or b"", self._signer, today)
            self._checked = content, today
        return self.latest()

    def accept(self, content: bytes, today: datetime.date) -> None:
        """Store a roster from the server if it is newer.

        Raises
        ------
        SecureError
            It is damaged, not signed with the pinned key, older, or not valid on this day.
        """
        with self._store.transaction():
            if content == self._store.secure_part("roster"):
                return
            latest = self.latest()
            try:
                roster = verify(content, self._signer, today, latest)
            except DataError as reason:  # about what the server has sent
                raise SecureError(str(reason)) from None
            if roster.version > latest.version:
                self._store.keep_secure_part("roster", content)

    def look_at_file(self) -> None:
        """Use the owner's file if it is newer; log errors."""
        try:
            self._read_file()
        except FldbError as reason:
            _LOG.warning("%s", one_line(f"{self._path}: {reason}: not used"))

    def _read_file(self) -> None:
        content = read_file(self._path)
        if content == self._seen:
            return
        roster = read_signed(content, self._signer)
        with self._store.transaction():
            try:
                latest = self.latest()
            except FldbError:  # there is none, or the owner has pinned another signer
                latest = None
            if latest is None or roster.version > latest.version:
                self._store.keep_secure_part("roster", content)
            elif roster.version == latest.version and roster.digest != latest.digest:
                raise SecureError(f"there are two different rosters of version {roster.version}")
        self._seen = content
