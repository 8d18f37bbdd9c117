"""The account of a device: its ledger of privacy as it is stored, and the owner's budget."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fldb_flower.secure.journal import Journal

from clients.store import DuelStore
from clients.vault.budget import Budget, BudgetError, Spent, spent_of
from clients.vault.epoch import Epoch, EpochFile
from clients.vault.ledger import Ledger, day_of

_LOG = logging.getLogger(__name__)


class Account:
    """Reads and charges the ledger of a device.

    Parameters
    ----------
    store : DuelStore
        Contains the ledger.
    epoch : EpochFile
        Contains it as well, in case the store is a backup.
    budget : Budget
        The owner's.
    clock : callable
        Returns the time in seconds since 1970.
    """

    def __init__(
        self,
        store: DuelStore,
        epoch: EpochFile,
        budget: Budget,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._epoch = store, epoch
        self._budget, self._clock = budget, clock
        self._is_refused = False  # the last exchange, because of the budget

    def spent(self) -> Spent:
        """Return what the contributions have cost, and the owner's cap."""
        spent = spent_of(self.ledger(), self._budget, self._clock())
        return spent._replace(refused=self._is_refused)

    def charge(self, multiplier: float | None) -> None:
        """Charge a contribution with a noise multiplier; None is without noise.

        It is within the transaction that stores the contribution.

        Raises
        ------
        BudgetError
            It would exceed the cap, or has no noise and there is a cap.
        """
        try:
            ledger = self._budget.charge(self.ledger(), multiplier, self._clock())
        except BudgetError as reason:
            self._is_refused = True
            limit = f"max_epsilon={self._budget.max_epsilon:g} of the vault's file"
            _LOG.warning("no contribution to a secure sum: %s (%s)", reason, limit)
            raise
        self._is_refused = False
        self._store.keep_secure_part("ledger", ledger.to_bytes())

    def record(self) -> None:
        """Write the ledger to the epoch file, at the end of the transaction that charges it.

        The vault of another store with the same key then has the charge, also if this process is
        killed before it replies and sends the contribution later.
        """
        known = self._epoch.read() or Epoch()
        ledger = self.stored().merged(known.ledger)
        if ledger != known.ledger:
            self._epoch.write(known._replace(ledger=ledger))

    def ledger(self) -> Ledger:
        """Return the ledger: of the store, and of the epoch file if the store is a backup."""
        epoch = self._epoch.read() or Epoch()
        return self.stored().merged(epoch.ledger)

    def stored(self) -> Ledger:
        """Return the ledger of the store."""
        content = self._store.secure_part("ledger")
        return Ledger() if content is None else Ledger.from_bytes(content)

    def first(self, journal: Journal) -> Ledger:
        """Return the ledger of a store without an epoch file, which may be a backup.

        It then lacks contributions, and nothing bounds their number: numbers without noise may
        have been sent until today.
        """
        ledger = self.stored()
        if not journal.last_round:
            return ledger
        if self._budget.has_cap:
            _LOG.warning(
                "the privacy budget counts as spent today: %s is missing, so the store may be a"
                " backup. If the key is new, copy the epoch file of the former key",
                self._epoch.path,
            )  # fmt: skip
        return ledger.charged(day_of(self._clock()), None)
