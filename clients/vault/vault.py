"""The vault: replies of a device to the requests of secure sums.

Each reply is sent after all that it depends on is durable: the journal, the numbers, the cut and
the ledger of privacy in one transaction of the store, and then the epoch file, which has the ledger
already before that transaction ends. After a crash, the same request therefore gives the same
reply.

With differential privacy, the numbers contain this device's part of the noise: they are never
stored or sent without it.
"""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
from fldb_flower.secure.device import Device
from fldb_flower.secure.encoding import Encoding
from fldb_flower.secure.entries import SEED_BYTES
from fldb_flower.secure.field import from_bytes, to_bytes
from fldb_flower.secure.header import Header, check_header
from fldb_flower.secure.journal import Journal
from fldb_flower.wire.secure_messages import (
    Blamed,
    Collect,
    Declined,
    Deliver,
    Delivered,
    Hello,
    Introduced,
    Opened,
    Pieces,
    Refused,
    Reply,
    decode_request,
    encode,
)
from fldb_flower.wire.secure_upload import numbers_of
from fldb_flower.wire.shared_broadcast import SharedBroadcast, decode_shared, describe_encoding

from clients.store import DuelStore
from clients.uploads import UploadMaker
from clients.vault.account import Account
from clients.vault.budget import BudgetError, Spent, noise_for, require_noise
from clients.vault.config import VaultConfig
from clients.vault.epoch import Epoch, EpochFile
from clients.vault.ledger import Ledger
from clients.vault.rosters import RosterKeeper
from fldb_flower.bandit.prior import CommonPrior
from fldb_flower.errors import (
    BlameError,
    ConvergenceError,
    DataError,
    DeclinedError,
    FldbError,
    SecureError,
    SettingsError,
    one_line,
)
from fldb_flower.system.process import one_blas_thread

WITHHELD = "the device cannot take part now: its owner finds the reason in the service's log"
"""Reason of a refusal that depends on the answers or on the device's files."""

_LOG = logging.getLogger(__name__)
_Q = TypeVar("_Q")
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
        self._epoch = EpochFile(config.key)
        self._account = Account(store, self._epoch, config.budget, clock)
        self._rosters = RosterKeeper(store, config)
        with self._epoch.locked():
            self._begin()
        self._check_roster()

    @property
    def min_devices(self) -> int:
        """The owner's smallest number of other devices in a sum."""
        return self._config.limits.min_devices

    def spent(self) -> Spent:
        """Return what the contributions have cost, and the owner's cap."""
        return self._account.spent()

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
        with self._epoch.locked():
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
            self._rosters.accept(content, self._today())
        # Also if it is not valid today: the server sends a newer one to a device that it knows.
        return Introduced(self._config.name, self._rosters.latest().version)

    def _collect(self, header: Header, counted: bytes | None) -> Pieces:
        device = self._device()
        check_header(header, device.roster, device.limits, device.name, self._clock())
        shared = _from_server(decode_shared, header.broadcast)
        least = self._config.least_duels(shared.settings.dimension, header.min_devices)
        if header.min_duels < least:
            raise SecureError(
                f"the exchange has min_duels={header.min_duels}, and the device requires {least}"
            )
        encoding = self._encoding(header, shared)
        require_noise(shared)
        self._receive(shared, lambda journal: journal.acknowledge(header, counted))
        self._store.expect(header.min_duels)
        try:
            sealed = self._contribute(device, header, shared, encoding)
        except (DeclinedError, BudgetError):
            raise
        except SecureError as reason:  # it may name counts of answers
            raise DataError(str(reason)) from None
        self._advance_epoch()
        return Pieces(sealed)

    def _receive(self, shared: SharedBroadcast, acknowledged: Callable[[Journal], Journal]) -> None:
        """Store what the server has counted, and the estimate of a broadcast."""
        dimension = shared.settings.dimension
        if self._store.dimension not in {None, dimension}:
            raise SecureError(
                f"the exchange has dimension={dimension}, and the device has another one"
            )
        play = shared.broadcast.play
        with self._store.transaction(), one_blas_thread():
            journal = acknowledged(self._journal())
            self._keep(journal)
            if play is not None and play.estimate is not None:
                uploads = UploadMaker(self._store, shared.settings)
                uploads.synchronize(play, journal.counted, shared.duels)

    def _contribute(
        self, device: Device, header: Header, shared: SharedBroadcast, encoding: Encoding
    ) -> dict[str, bytes]:
        store, now = self._store, self._clock()
        with store.transaction(), one_blas_thread():
            journal = self._journal()
            start, cut = device.span(header, journal, store.last, now=now)
            seed = os.urandom(SEED_BYTES)
            if device.repeated(header, journal):
                content = store.secure_part("numbers")
                if content is None:
                    raise DeclinedError("the answers were forgotten since the first request")
            else:
                store.add_cut(start, cut, header.min_duels)
                self._account.charge(None if shared.privacy is None else shared.privacy.multiplier)
                content = self._numbers(header, shared, encoding, (start, cut), journal.counted)
                store.keep_secure_part("numbers", content)
            if content:
                numbers = from_bytes(content)
                sealed, journal = device.collect(header, journal, numbers, cut, seed, now=now)
            else:
                sealed, journal = {}, journal.contribute(header, cut, seed, content)
            self._keep(journal)
            self._account.record()
        if not sealed:
            self._advance_epoch()
            raise DataError("the answers have no numbers within the bounds of the exchange")
        return sealed

    def _numbers(
        self,
        header: Header,
        shared: SharedBroadcast,
        encoding: Encoding,
        span: tuple[int, int],
        counted: int,
    ) -> bytes:
        """Return the numbers of answers, or no bytes if they cannot be encoded.

        That they cannot depends on the answers, and the server observes it. The cut is therefore
        used up as by a contribution: else the server could search for the bounds, and for the
        largest number with them, by requests about the same answers.
        """
        uploads = UploadMaker(self._store, shared.settings)
        try:
            upload, _ = uploads.upload(shared.broadcast, *span, counted)
            integers = encoding.quantise(numbers_of(upload, shared.broadcast))
            if shared.privacy is not None:
                integers += noise_for(shared, header, encoding, self._config.budget)
            return to_bytes(encoding.elements(integers))
        except (ConvergenceError, DataError, ArithmeticError, np.linalg.LinAlgError) as reason:
            _LOG.warning("%s", one_line(f"no contribution to a secure sum: {reason}"))
            return b""

    def _encoding(self, header: Header, shared: SharedBroadcast) -> Encoding:
        """Return the encoding of the numbers, after a check of what the header states of it."""
        broadcast, longest = shared.broadcast, shared.settings.max_difference
        if not broadcast.learns:
            raise SecureError("the exchange requests no statistics")
        if broadcast.shares:
            prior = None if broadcast.play is None else broadcast.play.estimate
            if not isinstance(prior, CommonPrior) or not broadcast.lowest_variance > 0.0:
                raise SecureError("the exchange requests shares without a prior, or a lowest v")
        if isinstance(longest, float) and longest > self._config.max_difference:
            raise SecureError(
                f"the exchange has max_difference={longest:g}, and the device accepts at most"
                f" {self._config.max_difference:g}"
            )
        encoding = _from_server(
            lambda devices: shared.encoding(devices, header.max_duels), len(header.asked)
        )
        if (header.numbers, header.encoding) != (encoding.size, describe_encoding(encoding)):
            raise SecureError("the exchange has another encoding than that of its broadcast")
        return encoding

    def _open(self, header: Header, sealed: Mapping[str, bytes]) -> Opened:
        device = self._device()
        with self._store.transaction():
            opening, journal = device.open(header, self._journal(), sealed, now=self._clock())
            self._keep(journal)
        self._advance_epoch()
        return Opened(opening)

    def _device(self) -> Device:
        config, roster = self._config, self._rosters.current(self._today())
        return Device(config.name, config.private, roster, config.limits)

    def _check_roster(self) -> None:
        """Log why the device cannot take part; an owner's file without its key is an error."""
        config = self._config
        try:
            Device(config.name, config.private, self._rosters.latest(), config.limits)
        except SecureError as reason:
            if self._rosters.is_from_file:
                raise SecureError(f"{config.roster}: {reason}") from None
            # A roster from the server must not stop the service of the owner.
            _LOG.warning("%s", one_line(f"no part in secure sums: {reason}"))
            return
        try:
            self._rosters.current(self._today())
        except SecureError as reason:  # the person can still answer duels
            _LOG.warning("%s", one_line(f"no part in secure sums: {config.roster}: {reason}"))

    def _today(self) -> datetime.date:
        return datetime.datetime.fromtimestamp(self._clock(), datetime.UTC).date()

    def _begin(self) -> None:
        """Create the epoch file of a key, or check that the one of this key exists."""
        store, public = self._store, self._config.private.public_key().public_bytes_raw()
        with store.transaction():
            journal = self._stored()
            if store.secure_part("journal") is None:
                journal = self._start_after(store.pruned, 0)  # they cannot be sent
            if self._epoch.read() is None:
                if store.secure_part("key") == public:  # stored with the first epoch file
                    raise DataError(
                        f"{self._epoch.path} is missing, so sums may have been opened that the"
                        f" store does not contain: create a new key instead of {self._config.key},"
                        " and have it certified in the roster (fldb keys roster)"
                    )
                if journal.last_round:
                    # Nothing of earlier exchanges opens with another key, but this store may be a
                    # backup: answers could be sent for a second time.
                    journal = self._start_after(store.last, journal.last_round)
                self._epoch.write(Epoch.of(journal, self._account.first(journal)))
            store.keep_secure_part("key", public)
            self._journal()

    def _start_after(self, position: int, round: int) -> Journal:
        """Return the stored journal of a device that sends no answer up to a number again."""
        journal = Journal.restored(round, position)
        self._store.skip_to(position)
        self._keep(journal)
        return journal

    def _journal(self) -> Journal:
        """Return the journal, within a transaction; that of a restored store is replaced."""
        journal, epoch = self._stored(), self._epoch.read()
        if epoch is None:
            raise DataError(f"{self._epoch.path} is missing: start the service again")
        if epoch.is_ahead_of(Epoch.of(journal, Ledger())):
            _LOG.warning(
                "%s was restored from a backup: its answers up to number %d are not sent again",
                one_line(self._store.path), max(epoch.cut, journal.sent),
            )  # fmt: skip
            cut, last = max(epoch.cut, journal.sent), max(epoch.contributed, epoch.opened)
            journal = self._start_after(cut, max(last, journal.last_round))
        return journal

    def _stored(self) -> Journal:
        content = self._store.secure_part("journal")
        return Journal() if content is None else Journal.from_bytes(content)

    def _keep(self, journal: Journal) -> None:
        self._store.keep_secure_part("journal", journal.to_bytes())

    def _advance_epoch(self) -> None:
        with self._store.transaction():  # of two processes, none sets it back
            known = self._epoch.read() or Epoch()
            epoch = known.merged(Epoch.of(self._stored(), self._account.stored()))
            if epoch != known:
                self._epoch.write(epoch)


def _counted(journal: Journal, exchange: bytes) -> Journal:
    """Return the journal after a request without an exchange named the last counted exchange."""
    return replace(journal, counted=dict(journal.cuts).get(exchange, journal.counted))


def _from_server(read: Callable[[_Q], _T], content: _Q) -> _T:
    """Read something that the server has sent; the errors tell nothing about this device."""
    try:
        return read(content)
    except (DataError, SettingsError) as reason:
        raise SecureError(str(reason)) from None
