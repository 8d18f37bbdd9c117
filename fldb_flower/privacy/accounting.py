"""Accounting of Gaussian releases by Google's dp-accounting (the privacy extra).

Its privacy loss distributions give epsilon and delta of a composition numerically, rounded up.
k Gaussian releases with noise multiplier z are equivalent to one with ``z / sqrt(k)``.
"""

from __future__ import annotations

import functools
from typing import Any

from fldb_flower.errors import extra_missing

_DISCRETIZATION = 1e-3
"""Width of the intervals of privacy losses; the result is rounded up by less than 0.1 %."""


@functools.lru_cache
def noise_multiplier(epsilon: float, delta: float, releases: int) -> float:
    """Return the smallest noise multiplier for (epsilon, delta) and a number of releases.

    Raises
    ------
    SettingsError
        dp-accounting is not installed.

    Examples
    --------
    >>> from fldb_flower.privacy.accounting import noise_multiplier
    >>> round(noise_multiplier(3.0, 1e-6, releases=1), 2)
    1.54
    """
    library, accountant = _library()
    multiplier: float = library.calibrate_dp_mechanism(
        accountant,
        lambda z: library.SelfComposedDpEvent(library.GaussianDpEvent(z), releases),
        epsilon,
        delta,
        tol=1e-4,
    )
    return multiplier


@functools.lru_cache
def epsilon_of(multiplier: float, delta: float, releases: int) -> float:
    """Return epsilon of a number of releases with a noise multiplier, at delta.

    Raises
    ------
    SettingsError
        dp-accounting is not installed.
    """
    if not releases:
        return 0.0
    library, accountant = _library()
    event = library.SelfComposedDpEvent(library.GaussianDpEvent(multiplier), releases)
    epsilon: float = accountant().compose(event).get_epsilon(delta)
    return epsilon


def _library() -> tuple[Any, Any]:
    """Return dp-accounting, which takes seconds to import, and a function for accountants."""
    try:
        import dp_accounting  # noqa: PLC0415
        from dp_accounting.pld import PLDAccountant  # noqa: PLC0415
    except ImportError as error:
        raise extra_missing("privacy.epsilon", "privacy", "privacy.epsilon=none", error) from None

    def make() -> Any:
        return PLDAccountant(value_discretization_interval=_DISCRETIZATION)

    return dp_accounting, make
