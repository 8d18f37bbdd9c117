"""Accounting of Gaussian releases by Google's dp-accounting (the privacy extra).

Its privacy loss distributions give epsilon and delta of a composition numerically, rounded up.
k releases of equal sensitivity with noise multiplier z lose as much privacy as one with
``z / sqrt(k)``.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from fldb_flower.errors import extra_missing

_PRECISION = 1e-3
"""Width of the intervals of privacy losses, for losses of order 1; results are rounded up."""

_TOLERANCE = 1e-4  # of a noise multiplier


@functools.lru_cache
def noise_multiplier(epsilon: float, delta: float, releases: int) -> float:
    """Return the smallest noise multiplier for (epsilon, delta) and a number of releases.

    The result is never too small, and too large by less than 0.2 %; by 1.2 % at delta = 1e-15.

    Raises
    ------
    SettingsError
        dp-accounting is not installed.

    Examples
    --------
    >>> from fldb_flower.privacy.accounting import noise_multiplier
    >>> round(noise_multiplier(3.0, 1e-6, releases=1), 2)
    1.54
    >>> round(noise_multiplier(3.0, 1e-6, releases=17), 2)
    6.37
    """
    library, make_accountant = _library()
    multiplier: float = library.calibrate_dp_mechanism(
        lambda: make_accountant(epsilon), library.GaussianDpEvent, epsilon, delta, tol=_TOLERANCE
    )
    return multiplier * math.sqrt(releases)


@functools.lru_cache
def epsilon_of(multiplier: float, delta: float, releases: int) -> float:
    """Return epsilon of a number of releases with a noise multiplier, at delta.

    Raises
    ------
    SettingsError
        dp-accounting is not installed.

    Examples
    --------
    >>> from fldb_flower.privacy.accounting import epsilon_of
    >>> round(epsilon_of(6.37, 1e-6, releases=17), 2)
    3.0
    """
    if not releases:
        return 0.0
    library, make_accountant = _library()
    event = library.SelfComposedDpEvent(library.GaussianDpEvent(multiplier), releases)
    mean_loss = releases / (2.0 * multiplier**2)
    epsilon: float = make_accountant(mean_loss).compose(event).get_epsilon(delta)
    return epsilon


def _library() -> tuple[Any, Any]:
    """Return dp-accounting, which takes seconds to import, and a function for accountants."""
    try:
        import dp_accounting  # noqa: PLC0415
        from dp_accounting.pld import PLDAccountant  # noqa: PLC0415
    except ImportError as error:
        raise extra_missing("privacy.epsilon", "privacy", "privacy.epsilon=none", error) from None

    def make_accountant(loss: float) -> Any:
        """Return an accountant for losses of this order."""
        return PLDAccountant(value_discretization_interval=_PRECISION * max(1.0, loss))

    return dp_accounting, make_accountant
