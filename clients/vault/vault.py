"""The vault: replies of a device to the requests of secure sums, and its file ``--vault``.

What the server can observe of a reply depends only on the request, the ledger, the clock and the
owner's file. Whether there are answers, and whether their statistics can be computed, changes only
the numbers, which are encrypted. The order of writes is fixed. The
exchange is charged in the ledger before an answer is read. The report and the journal are one
transaction of the store. What was sent is then written to the ledger, before the report leaves the
device. A process that is killed in between sends no second report to the same exchange.

The owner's file is a TOML file. Only the user of the service and root may be able to write it and
the file of ``helper``. Relative paths begin at the folder of the file::

    federation = "tea"        # its name
    helper = "helper.pub"     # public key of the helper, from `fldb keys helper`
    dimension = 5             # number of features
    # All others are optional.
    max_epsilon = 3.0         # of all reports, for a person
    max_delta = 1e-6
    privacy_days = 365        # the limit is for each period of this many days; default: no period
    ledger = "vault.ledger"   # what was spent; no backup may contain it. Default: this name
"""

from __future__ import annotations

import logging
import re
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from clients.learning import make_learner
from clients.store import DuelStore
from clients.uploads import UploadMaker
from clients.vault.ledger import Journal, Last, Ledger, LedgerFile, Sent, day_of
from fldb_flower.bandit.estimate import CommonPrior
from fldb_flower.bandit.features import Features
from fldb_flower.deployment.keys import load_helper_public_key
from fldb_flower.errors import DataError, FldbError, SecureError, one_line, shown
from fldb_flower.linalg.arrays import LARGEST, IntArray
from fldb_flower.linalg.linear import make_form
from fldb_flower.privacy.accounting import epsilon_of, largest_mu
from fldb_flower.secure.protocol import (
    AHEAD_SECONDS,
    ESTIMATE,
    HELLO,
    REFUSED,
    REPORT,
    Header,
    HelperKey,
    Reply,
    Request,
    integers_of,
    make_report,
    task_of,
)
from fldb_flower.secure.statistics import Shared, size_of, vector_of
from fldb_flower.settings import MAX_DIMENSION
from fldb_flower.system.files import check_writers, reported
from fldb_flower.system.process import one_blas_thread

WITHHELD = "the device cannot take part now: its owner finds the reason in the service's log"
"""Reason of a refusal that is about the device's files."""

MOST_OF_LIMIT = 0.1
"""Largest share of the owner's limit that one exchange may cost."""

_BEHIND, _AHEAD = 86_400_000, 1000 * AHEAD_SECONDS  # ms, of numbers and the device's clock
_EARLIEST = 1_760_000_000_000  # ms since 1970; a clock before this time is wrong
_ROUNDING = 1e-12  # relative, of sums
_KNOWN = (FldbError, ArithmeticError, np.linalg.LinAlgError)
_LOG = logging.getLogger(__name__)


_FILE = "the name of a file", r"[^\0]+"
_TEXTS: dict[str, tuple[str, str]] = {
    "federation": ("1 to 64 letters, digits, '.', '_' or '-'", r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
    "helper": _FILE, "ledger": _FILE,
}  # fmt: skip
_NUMBERS: dict[str, tuple[type, float, float]] = {
    "dimension": (int, 1, MAX_DIMENSION), "privacy_days": (int, 1, 100_000),
    "max_epsilon": (float, 1e-3, 1e3), "max_delta": (float, 1e-15, 0.1),  # as privacy.epsilon
}  # fmt: skip


@dataclass(frozen=True)
class VaultConfig:
    """The federation of a device, its helper, and the owner's limits."""

    path: Path
    federation: str
    helper: Ed25519PublicKey
    dimension: int
    ledger: Path
    max_epsilon: float = 3.0
    max_delta: float = 1e-6
    privacy_days: int | None = None  # None: the limit is for the ledger's life

    @property
    def task(self) -> bytes:
        """Hash of what the device pins."""
        return task_of(self.federation, self.helper.public_bytes_raw(), self.dimension)

    @property
    def most(self) -> float:
        """Largest sum of ``1 / z^2`` within the limit."""
        return largest_mu(self.max_epsilon, self.max_delta) ** 2


def read_config(path: Path) -> VaultConfig:
    """Return the configuration in a file; raise DataError if others can write it or the key."""
    check_writers(path)
    try:
        with reported(DataError, f"read {path}"):
            entries = tomllib.loads(path.read_text("utf-8"))
    except ValueError as reason:
        raise DataError(f"{path} is not valid TOML: {reason}") from None
    for name, value in entries.items():
        if name not in (known := [*_TEXTS, *_NUMBERS]):
            raise DataError(f"{path}: {shown(name)} is unknown: must be one of {', '.join(known)}")
        if valid := _valid_instead(name, value):
            raise DataError(f"{path}: {name}={shown(value)}: must be {valid}")
    if missing := [name for name in ("federation", "helper", "dimension") if name not in entries]:
        raise DataError(f"{path}: {missing[0]} is missing")
    helper = path.parent / entries["helper"]
    ledger = path.parent / entries.get("ledger", path.with_suffix(".ledger").name)
    try:
        check_writers(helper)
        key = load_helper_public_key(helper)
    except DataError as reason:
        raise DataError(f"{path}: {reason}") from None
    return VaultConfig(path, **{**entries, "helper": key, "ledger": ledger})


def _valid_instead(name: str, value: Any) -> str:
    """Return a description of valid values if an entry of the file is invalid, else ""."""
    if name in _TEXTS:
        text, pattern = _TEXTS[name]
        return "" if isinstance(value, str) and re.fullmatch(pattern, value) else text
    kind, low, high = _NUMBERS[name]
    what = "a whole number" if kind is int else "a number"
    is_valid = type(value) in {int, kind} and low <= value <= high
    return "" if is_valid else f"{what}, {low:g} to {high:g}"


class Spent(NamedTuple):
    """The cost of the reports of a device, for a person."""

    epsilon: float
    delta: float
    max_epsilon: float  # the owner's limit
    days: int | None  # length of the period of both epsilons; None: for the ledger's life
    refused: bool  # whether the last exchange was, because of the limit


class Vault:
    """The replies of a device to the requests of secure sums.

    Several vaults, in different threads and processes, may use one store, or one ledger.
    """

    def __init__(
        self, store: DuelStore, config: VaultConfig, clock: Callable[[], float] = time.time
    ) -> None:
        self._store, self._config, self._clock = store, config, clock
        self._file = LedgerFile(config.ledger)
        self._is_refused = False  # the last exchange, because of the limit
        found = store.settle_dimension(config.dimension)
        if found != config.dimension:
            raise DataError(
                f"{config.path}: dimension={config.dimension}, but the duels in {store.path} have"
                f" {found} features"
            )
        with self._file.locked():
            self._known()

    def spent(self) -> Spent:
        """Return what the reports of the owner's period have cost, and the limit."""
        config, ledger = self._config, self._file.read()
        cost = config.most if ledger is None else ledger.spent(self._since())
        epsilon = epsilon_of(cost**-0.5, config.max_delta, 1) if cost else 0.0
        days = config.privacy_days
        return Spent(epsilon, config.max_delta, config.max_epsilon, days, self._is_refused)

    def answer(self, content: bytes) -> bytes:
        """Return the reply to a request, both of ``fldb_flower.secure.protocol``.

        The reason of a refusal reveals nothing about answers; reasons about files are only logged.
        """
        try:
            return self._reply(*_read(content))
        except SecureError as reason:
            text = one_line(reason)
        except FldbError as reason:
            _LOG.warning("%s", one_line(f"request of secure sums refused: {reason}"))
            text = WITHHELD
        return Reply(REFUSED, self._store.device_id, text).to_bytes()

    def _reply(self, request: Request, shared: Shared | None) -> bytes:
        if shared is None:
            return Reply(HELLO, self._store.device_id).to_bytes()
        if shared.settings.dimension != self._config.dimension:
            raise SecureError(
                f"the exchange has dimension={shared.settings.dimension}, and the device"
                f" {self._config.dimension}"
            )
        if shared.features is not None:
            shared.features.expect(self._store.feature_names, str(self._store.path))
        if request.kind == ESTIMATE:
            with self._file.locked(), self._store.transaction():
                _, journal = self._known()
                self._receive(journal.acknowledged(request.counted), shared)
            return Reply(ESTIMATE, self._store.device_id).to_bytes()
        assert request.header is not None
        assert request.key is not None
        helper = self._checked(request.header, request.key, shared)
        return self._report(request.header, request.counted, shared, helper)

    def _report(
        self, header: Header, counted: int, shared: Shared, helper: X25519PublicKey
    ) -> bytes:
        store = self._store
        with self._file.locked():
            ledger, journal = self._known()
            last = Last(header.number, header.digest.hex())
            known = ledger.last(header.task)
            if known.number == header.number:
                return self._repeated(header, is_same=known == last)
            ledger = self._charged(ledger, header).begun(header.task, last)
            with store.transaction():
                cut = store.last
                sent = Sent(header.number, journal.sent)
                self._file.write(ledger.with_sent(store.device_id, sent))
                # From here on, answers are read.
                journal = self._receive(journal.acknowledged(counted), shared)
                integers = self._integers(shared, journal.counted, cut, header.numbers)
                report = make_report(header, integers, helper).to_bytes()
                reply = Reply(REPORT, store.device_id, report=report, digest=header.digest)
                content = reply.to_bytes()
                store.keep_secure_part("report", content)
                self._keep(journal.replied(header.number, cut))
                store.mark_sent(cut)
            self._file.write(ledger.with_sent(store.device_id, Sent(header.number, cut)))
            return content

    def _checked(self, header: Header, key: HelperKey, shared: Shared) -> X25519PublicKey:
        """Return the helper's key after checking that the device can report and its pins match."""
        if header.task != self._config.task:
            raise SecureError(
                "the exchange has another federation, helper or dimension than the device's file"
            )
        if header.key != key.key:
            raise SecureError("the exchange has another key of the helper than its header")
        public = key.verified(self._config.helper, self._clock())
        broadcast, play = shared.broadcast, shared.broadcast.play
        if not broadcast.learns:
            raise SecureError("the exchange requests no statistics")
        if shared.settings.clip is None:
            raise SecureError("the exchange has no privacy.epsilon")
        if broadcast.shares and not (play and isinstance(play.estimate, CommonPrior)):
            raise SecureError("the exchange requests shares without a prior")
        size = size_of(broadcast, make_form(shared.settings))
        if header.numbers != size:
            raise SecureError(f"the exchange has {header.numbers} values, and its broadcast {size}")
        return public

    def _repeated(self, header: Header, *, is_same: bool) -> bytes:
        """Return the report that was stored for this header."""
        content = self._store.secure_part("report") if is_same else None
        if content is None or Reply.from_bytes(content).digest != header.digest:
            kind = "after an interruption" if is_same else "with another header"
            raise SecureError(f"the exchange was requested before, {kind}: it needs a new number")
        return content

    def _charged(self, ledger: Ledger, header: Header) -> Ledger:
        """Return the ledger with the cost of a new exchange, or refuse it."""
        now, number = round(self._clock() * 1000), header.number
        if not now - _BEHIND <= number <= now + _AHEAD:
            raise SecureError(
                f"the exchange is of {_time(number)}, and the device's clock shows {_time(now)}:"
                " one of them is wrong"
            )
        earliest = max(ledger.created, ledger.last(header.task).number)
        if number <= earliest:
            raise SecureError(
                f"the exchange is of {_time(number)}, and the device accepts exchanges after"
                f" {_time(earliest)}"
            )
        config, cost, refusal = self._config, header.cost, ""
        if cost > MOST_OF_LIMIT * config.most:
            refusal = (
                f"the exchange costs more than a tenth of the device's budget: its noise multiplier"
                f" is {header.multiplier:.4g}"
            )
        elif ledger.spent(self._since()) + cost > config.most * (1.0 + _ROUNDING):
            refusal = "the device's limit of privacy is spent"
        self._is_refused = bool(refusal)
        if refusal:
            limit = f"max_epsilon={config.max_epsilon:g} in {config.path}"
            _LOG.warning("%s", one_line(f"no report to secure sums: {refusal} ({limit})"))
            raise SecureError(refusal)
        return ledger.charged(day_of(self._clock()), cost)

    def _since(self) -> int:
        """Return the first day of the owner's period.

        The period has one day more than the owner's number. The limit then holds for any period of
        this length, whatever the time of day at its start.
        """
        days = self._config.privacy_days
        return 0 if days is None else day_of(self._clock()) - days

    def _integers(self, shared: Shared, counted: int, cut: int, numbers: int) -> IntArray:
        """Return the numbers of the report: 0 if the statistics cannot be computed.

        A failure may depend on the answers, and a refusal would be observed without noise.
        """
        store, broadcast = self._store, shared.broadcast
        try:
            with np.errstate(all="ignore"), one_blas_thread():
                uploads = UploadMaker(store, shared.settings, shared.features)
                known = store.answers(0, counted if broadcast.shares else 0)
                upload = uploads.report(broadcast, known, store.answers(counted, cut))
                return integers_of(vector_of(upload, broadcast, shared.units, uploads.form))
        except Exception as reason:
            _log("a report to secure sums has only zeros", reason)
            return np.zeros(numbers, dtype=np.int64)

    def _receive(self, journal: Journal, shared: Shared) -> Journal:
        """Store what is counted, and the estimate of a broadcast; return the journal.

        An estimate with which no duel can be proposed is left out.
        """
        store, play = self._store, shared.broadcast.play
        self._keep(journal)
        if play is None or play.estimate is None:
            return journal
        try:
            with np.errstate(all="raise", under="ignore"), one_blas_thread():
                uploads = UploadMaker(store, shared.settings, shared.features)
                uploads.check(shared.broadcast)
                received = uploads.synchronization(play, journal.counted, shared.duels)
                dimension = self._config.dimension
                scales = shared.features or Features.unscaled(dimension)
                learner = make_learner(store, received, dimension, store.answers().scaled(scales))
                if not (np.abs([learner.theta, learner.deviations()]) <= LARGEST).all():
                    raise FloatingPointError(f"a number is not finite, or above {LARGEST:g}")
            store.synchronize(received)
        except Exception as reason:
            _log("an estimate from the server is not used", reason)
        return journal

    # Ledger and journal.

    def _known(self) -> tuple[Ledger, Journal]:
        """Return ledger and journal, after a check that neither of them is a backup."""
        store, now = self._store, max(round(self._clock() * 1000), _EARLIEST)
        with store.transaction():
            content, ledger = store.secure_part("journal"), self._file.read()
            what = f"the journal of secure sums in {store.path}"
            journal = Journal() if content is None else Journal.from_bytes(content, what)
            if (ledger or Ledger()).sent(store.device_id).number < journal.number:
                ledger = self._renewed(ledger or Ledger(), journal.number, now)
                self._file.write(ledger)
            elif ledger is None or (ledger == Ledger(ledger.created) and ledger.created > now):
                ledger = Ledger(created=now)
                self._file.write(ledger)
            sent = ledger.sent(store.device_id)
            if sent.cut > journal.sent:
                _LOG.warning(
                    "%s may be a backup: its answers up to number %d are not sent again",
                    one_line(store.path), sent.cut,
                )  # fmt: skip
                journal = Journal(sent.number, sent.cut)
                self._keep(journal)
                store.mark_sent(sent.cut)
            elif sent.cut < journal.sent:  # killed before it was written
                ledger = ledger.with_sent(store.device_id, sent._replace(cut=journal.sent))
                self._file.write(ledger)
        return ledger, journal

    def _renewed(self, ledger: Ledger, number: int, now: int) -> Ledger:
        """Return the ledger of a store that has replied to a later exchange than the ledger has.

        What was spent is unknown, and counts as the whole limit. Numbers that may have been
        answered are refused. The store may be a backup as well, so none of its answers is sent.
        """
        store, config = self._store, self._config
        _LOG.warning(
            "%s is missing, or older than %s: what was spent is unknown and counts as the whole"
            " limit. Reports begin again with a larger max_epsilon in %s. Do not restore %s from a"
            " backup",
            *(one_line(path) for path in (self._file.path, store.path, config.path)),
            self._file.path.name,
        )  # fmt: skip
        charged = ledger.charged(day_of(self._clock()), config.most)
        charged = replace(charged, created=max(ledger.created, number, now) + _AHEAD)
        return charged.with_sent(store.device_id, Sent(number, store.last))

    def _keep(self, journal: Journal) -> None:
        self._store.keep_secure_part("journal", journal.to_bytes())


def _read(content: bytes) -> tuple[Request, Shared | None]:
    """Read a request and its broadcast, if any; errors tell nothing about this device."""
    try:
        request = Request.from_bytes(content)
        return request, None if request.kind == HELLO else Shared.from_bytes(request.broadcast)
    except FldbError as reason:
        raise SecureError(str(reason)) from None
    except Exception:
        _LOG.exception("a request of secure sums cannot be read")
        raise SecureError("the request is damaged") from None


def _log(what: str, reason: Exception) -> None:
    """Log what the server must not learn, with the stack trace of an unexpected error."""
    is_known = isinstance(reason, _KNOWN)
    _LOG.warning("%s", one_line(f"{what}: {reason}"), exc_info=None if is_known else reason)


def _time(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(milliseconds // 1000))
