"""The vault: replies of a device to the requests of secure sums.

Each reply is sent after all that it depends on is durable: the journal, the numbers and the cut in
one transaction of the store, and then the epoch file. After a crash, the same request therefore
gives the same reply.
"""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from clients.store import DuelStore
from clients.uploads import UploadMaker
from clients.vault.config import VaultConfig
from clients.vault.epoch import Epoch, EpochFile
from clients.vault.rosters import RosterKeeper
from fldb_flower.bandit.prior import CommonPrior
from fldb_flower.errors import (
    BlameError,
    DataError,
    DeclinedError,
    FldbError,
    SecureError,
    SettingsError,
    one_line,
)
from fldb_flower.secure.device import Device
from fldb_flower.secure.encoding import Encoding
from fldb_flower.secure.field import from_bytes, to_bytes
from fldb_flower.secure.header import Header, check_header
from fldb_flower.secure.journal import SEED_BYTES, Journal
from fldb_flower.system.process import one_blas_thread
from fldb_flower.wire.secure_messages import (
    Blamed,
    Collect,
    Declined,
    Deliver,
    Delivered,
    Hello,
    Introduced,
    Open,
    Opened,
    Pieces,
    Refused,
    Reply,
    decode_request,
    encode,
)
from fldb_flower.wire.secure_upload import numbers_of
from fldb_flower.wire.shared_broadcast import SharedBroadcast, decode_shared, describe_encoding

WITHHELD = "the device cannot take part now: its owner finds the reason in the service's log"
"""Reason of a refusal that depends on the answers or on the device's files."""

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class Vault:
    """The replies of a device to the requests of secure sums.

    Several vaults, in different threads and processes, may use one store.

    Parameters
    ----------
    store : DuelStore
        The device's store.
    config : VaultConfig
        Of :func:`read_config`.
    clock : callable
        Returns the time in seconds since 1970.

    Raises
    ------
    DataError, SecureError
        The roster cannot be used, or does not have this device; or the epoch file is missing or
        damaged.
    OutputError
        The store or the epoch file cannot be written.
    """

    def __init__(
        self, store: DuelStore, config: VaultConfig, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._epoch = EpochFile(config.key.with_name(f"{store.path.name}.epoch"))
        self._rosters = RosterKeeper(store, config)
        self._begin()
        try:
            self._device(self._rosters.latest().version)
        except SecureError as reason:
            # A roster from the server without this device must not stop the owner's service.
            _LOG.warning("%s", one_line(f"no part in secure sums: {reason}"))

    @property
    def min_devices(self) -> int:
        """The owner's smallest number of other devices in a sum."""
        return self._config.limits.min_devices

    def answer(self, request: bytes) -> bytes:
        """Return the reply to a request, both of :mod:`fldb_flower.wire.secure_messages`.

        Reasons of refusals tell nothing about answers: the others are only logged.
        """
        reply: Reply
        try:
            reply = self._reply(request)
        except DeclinedError:
            reply = Declined()
        except BlameError as blame:
            reply = Blamed(blame.devices)
        except SecureError as reason:
            reply = Refused(one_line(reason))
        except FldbError as reason:
            _LOG.warning("%s", one_line(f"request of a secure sum refused: {reason}"))
            reply = Refused(WITHHELD)
        return encode(reply)

    def _reply(self, content: bytes) -> Reply:
        request = _from_server(decode_request, content)
        if isinstance(request, Hello):
            return self._introduce(request.roster)
        if isinstance(request, Deliver):
            shared = _from_server(decode_shared, request.broadcast)
            self._receive(shared, lambda journal: _counted(journal, request.counted))
            return Delivered()
        header = _from_server(Header.from_bytes, request.header)
        if isinstance(request, Collect):
            return self._collect(header, request.counted or None)
        return self._open(header, request.sealed)

    def _introduce(self, content: bytes) -> Introduced:
        self._rosters.look_at_file()
        if content:
            _from_server(lambda roster: self._rosters.accept(roster, self._today()), content)
        return Introduced(self._config.name, self._rosters.current(self._today()).version)
