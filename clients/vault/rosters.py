"""The roster of a device in secure sums: the newest one that it has seen.

It is in the store. A store that is restored from a backup may contain an older one, with which a
server could use the keys of devices that were removed. So there is a copy beside the private key,
``KEY.roster``, like the epoch file. **No backup may contain it.**
"""

from __future__ import annotations

import datetime
import logging
from functools import lru_cache, partial
from pathlib import Path

from fldb_flower.secure.roster import Roster, read_signed, verify

from clients.store import DuelStore
from clients.vault.config import VaultConfig
from fldb_flower.deployment.key_files import read_file, reported
from fldb_flower.errors import DataError, FldbError, OutputError, SecureError, one_line
from fldb_flower.system.files import replace_file

_LOG = logging.getLogger(__name__)


class RosterKeeper:
    """Keeps the newest roster in the store, and beside the private key.

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
    OutputError
        The copy cannot be written.
    """

    def __init__(self, store: DuelStore, config: VaultConfig) -> None:
        self._store = store
        self._signer = config.signer
        self._path = config.roster
        self._copy = config.key.with_name(f"{config.key.name}.roster")
        self._seen = b""  # content of the owner's file
        self._parsed = lru_cache(maxsize=2)(partial(read_signed, signer=config.signer))
        self._checked: tuple[bytes | None, datetime.date] | None = None
        if self._copied() is not None:
            self._use(self._copy)
        self._seen = self._use(self._path)
        self._save(self._content)

    @property
    def is_from_file(self) -> bool:
        """Whether the newest roster is the owner's file."""
        return self._content == self._seen

    @property
    def _content(self) -> bytes:
        return self._store.secure_part("roster") or b""

    def latest(self) -> Roster:
        """Return the newest roster, whether it is valid today or not."""
        return self._parsed(self._content)

    def current(self, today: datetime.date) -> Roster:
        """Return the newest roster; raise SecureError if it is not valid on this day."""
        content = self._content
        if self._checked != (content, today):
            verify(content, self._signer, today)
            self._checked = content, today
        return self.latest()

    def accept(self, content: bytes, today: datetime.date) -> None:
        """Store a roster from the server if it is newer.

        Raises
        ------
        SecureError
            It is damaged, not signed with the pinned key, older, or not valid on this day.
        OutputError
            It cannot be stored.
        """
        with self._store.transaction():
            if content == self._content:
                return
            latest = self.latest()
            try:
                roster = verify(content, self._signer, today, latest)
            except DataError as reason:  # about what the server has sent
                raise SecureError(str(reason)) from None
            if roster.version > latest.version:
                self._keep(content)

    def look_at_file(self) -> None:
        """Use the owner's file if it is newer; log errors."""
        try:
            self._seen = self._use(self._path)
        except FldbError as reason:
            _LOG.warning("%s", one_line(f"{reason}: not used"))

    def _use(self, path: Path) -> bytes:
        """Keep the roster of a file if it is newer; return the content of the file."""
        content = read_file(path)
        if content == self._seen:
            return content
        try:
            roster = self._parsed(content)
            with self._store.transaction():
                try:
                    latest = self.latest()
                except FldbError:  # there is none, or the owner has pinned another signer
                    latest = None
                if latest is None or roster.version > latest.version:
                    self._keep(content)
                elif roster.version == latest.version and roster.digest != latest.digest:
                    text = f"there are two different rosters of version {roster.version}"
                    raise SecureError(text)
        except (DataError, SecureError) as reason:
            raise type(reason)(f"{path}: {reason}") from None
        return content

    def _keep(self, content: bytes) -> None:
        self._store.keep_secure_part("roster", content)
        self._save(content)

    def _save(self, content: bytes) -> None:
        """Write the copy, unless it is as new: the vault of another store may have written it."""
        copied = self._copied()
        if copied is None or copied.version < self._parsed(content).version:
            with reported(OutputError, f"write {self._copy}"):
                replace_file(self._copy, content, 0o600)

    def _copied(self) -> Roster | None:
        """Return the roster of the copy; None if there is none, or it is of another signer."""
        try:
            return self._parsed(read_file(self._copy)) if self._copy.exists() else None
        except SecureError:  # the owner has pinned another signer
            return None
        except DataError as reason:
            raise DataError(f"{self._copy}: {reason}") from None
