"""The owner's budget of privacy, and the noise of a device's contributions."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from fldb_flower.secure.encoding import Encoding
from fldb_flower.secure.header import Header
from fldb_flower.wire.shared_broadcast import SharedBroadcast

from clients.vault.ledger import Ledger, day_of
from fldb_flower.errors import DataError, PrivacyError, SecureError, SettingsError, shown
from fldb_flower.linalg.arrays import LARGEST, IntArray
from fldb_flower.privacy import accounting, discrete
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.wire.codec import encode_broadcast

DELTA = 1e-6
"""The delta for which epsilon is shown if the owner has set none."""

_ROUNDING = 1e-9  # relative, of sums and standard deviations

_CALIBRATION = 1e-3
"""Relative difference of noise multipliers by two versions of dp-accounting. A ledger is charged
with the multiplier of the exchange, so a cap holds whatever it is."""


class BudgetError(SecureError):
    """An exchange would cost more privacy than the owner allows. The reason is public."""


@dataclass(frozen=True)
class Budget:
    """What the owner of a device allows its contributions to cost.

    Attributes
    ----------
    max_epsilon : float
        Epsilon of all contributions, at ``max_delta``; infinite without a cap.
    max_delta : float
        Their delta.
    days : int or None
        Length of the period that the cap is for; None: for ever.
    colluding : float or None
        Share of the devices in a sum that may cooperate with the server, so that their noise
        protects nobody; None: as many as the header tolerates (T).
    """

    max_epsilon: float = math.inf
    max_delta: float = DELTA
    days: int | None = None
    colluding: float | None = None

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("max_epsilon", self.max_epsilon, 1e-3, 1e3),  # as of privacy.epsilon and .delta
            ("max_delta", self.max_delta, 1e-15, 0.1),
        ):
            is_uncapped = name == "max_epsilon" and value == math.inf
            if not is_uncapped and not (_is_number(value) and low <= value <= high):
                raise DataError(f"{name}={shown(value)}: must be a number, {low:g} to {high:g}")
        days, share = self.days, self.colluding
        if days is not None and (type(days) is not int or not 1 <= days <= 100_000):
            raise DataError(f"privacy_days={shown(days)}: must be a whole number, 1 to 100000")
        if share is not None and (not _is_number(share) or not 0.0 <= share < 1.0):
            raise DataError(f"colluding={shown(share)}: must be a number from 0 up to below 1")

    @property
    def has_cap(self) -> bool:
        """Whether contributions are limited."""
        return self.max_epsilon < math.inf

    def since(self, now: float) -> int:
        """Return the first day of the period that ends now.

        It has one day more than the owner's number, so that the charges of any period of this
        length, from any time of a day, are within the cap.
        """
        return 0 if self.days is None else max(0, day_of(now) - self.days)

    def charge(self, ledger: Ledger, multiplier: float | None, now: float) -> Ledger:
        """Return the ledger after a contribution.

        Raises
        ------
        BudgetError
            It would exceed the cap, or has no noise and there is a cap.
        """
        charged = ledger.charged(day_of(now), multiplier)
        if self.has_cap:
            if multiplier is None:
                raise BudgetError(
                    "its owner allows only sums with noise (max_epsilon), and this one has none"
                )
            if charged.spent(self.since(now)) > _largest(self.max_epsilon, self.max_delta):
                raise BudgetError("its privacy budget is spent")
        return charged


class Spent(NamedTuple):
    """What the contributions have cost, for a person.

    Attributes
    ----------
    epsilon : float or None
        At ``delta``; None if numbers without noise were sent, dp-accounting is not installed, or
        the noise was so small that epsilon is beyond all bounds.
    delta : float
        Delta.
    noise : bool
        Whether contributions with noise were sent.
    exact : bool
        Whether numbers without noise were sent, or may have been.
    max_epsilon : float or None
        The cap; None without one.
    days : int or None
        Length of the period of both; None: since the first contribution.
    refused : bool
        Whether the last exchange was refused, because it would have exceeded the cap.
    """

    epsilon: float | None
    delta: float
    noise: bool
    exact: bool
    max_epsilon: float | None
    days: int | None
    refused: bool = False


def spent_of(ledger: Ledger, budget: Budget, now: float) -> Spent:
    """Return what the contributions of the owner's period have cost."""
    cost = ledger.spent(budget.since(now))
    is_exact = math.isinf(cost)
    epsilon = None if is_exact else _epsilon(cost, budget.max_delta)
    cap = budget.max_epsilon if budget.has_cap else None
    return Spent(epsilon, budget.max_delta, bool(ledger.days), is_exact, cap, budget.days)


def require_noise(shared: SharedBroadcast) -> None:
    """Check on a device that an exchange has the noise that its settings promise.

    The device computes the noise multiplier from (epsilon, delta) and the number of planned
    exchanges, and the standard deviations from the multiplier, the unit and the clip.

    Raises
    ------
    SecureError
        It has less, or the device cannot compute it because a package is missing.
    """
    settings, privacy = shared.settings, shared.privacy
    if not settings.is_private:
        if privacy is not None:
            raise SecureError("the exchange has noise, and no privacy.epsilon")
        return
    if privacy is None:
        raise SecureError("the exchange has privacy.epsilon, and no noise")
    # Overflow would depend on the answers, and so would a refusal because of it.
    vector, _ = encode_broadcast(shared.broadcast)
    if not (np.abs(vector) <= LARGEST).all():
        raise SecureError(f"the exchange has a number beyond {LARGEST:g} in its broadcast")
    try:
        discrete.require_sampler()
        least = ReleasePlan(settings).multiplier
        needed = discrete.noise_of_sum(shared.broadcast, settings, privacy.multiplier)
    except (PrivacyError, SettingsError) as reason:
        raise SecureError(str(reason)) from None
    slack = 1.0 - _ROUNDING
    if privacy.multiplier < least * (1.0 - _CALIBRATION):
        raise SecureError(
            f"the exchange has the noise multiplier {privacy.multiplier:g}: privacy.epsilon="
            f"{settings.privacy.epsilon:g} needs at least {least:g}"
        )
    for part, given, least_noise in zip(needed._fields, privacy.noise, needed, strict=True):
        if given < least_noise * slack:
            raise SecureError(
                f"the exchange has noise of {given:g} in {part}: must be at least {least_noise:g}"
            )


def noise_for(
    shared: SharedBroadcast, header: Header, encoding: Encoding, budget: Budget
) -> IntArray:
    """Return the noise of this device, as integers.

    Raises
    ------
    PrivacyError
        The encoding is too coarse for it.
    """
    privacy = shared.privacy
    assert privacy is not None
    honest = discrete.honest_devices(header.least_devices, header.min_devices, budget.colluding)
    return discrete.device_noise(privacy.noise, encoding, honest, privacy.multiplier)


@functools.lru_cache
def _largest(epsilon: float, delta: float) -> float:
    """Return the largest sum of ``1 / z^2`` within (epsilon, delta)."""
    return (1.0 + _ROUNDING) * accounting.noise_multiplier(epsilon, delta, 1) ** -2


def _epsilon(cost: float, delta: float) -> float | None:
    if not cost:
        return 0.0
    try:
        return accounting.epsilon_of(cost**-0.5, delta, 1)
    except (SettingsError, OverflowError):  # an epsilon of a million is none
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
