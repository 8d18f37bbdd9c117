r"""Accounting of Gaussian releases, in closed form.

Releases of vectors of one person, of length at most 1 and with noise multipliers z, are together as
private as one Gaussian mechanism with ``mu = sqrt(sum of 1 / z^2)`` (Dong, Roth and Su 2022). If
each z depends on earlier releases, this holds for a fixed limit of the sum (Koskela, Tobaben and
Honkela 2023). The mechanism is (epsilon, delta)-differentially private exactly for

    delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

(Balle and Wang 2018, Theorem 8). Both functions below round toward more noise, by more than the
rounding errors of the formula.

References
----------
B. Balle and Y.-X. Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018.
J. Dong, A. Roth and W. Su, "Gaussian Differential Privacy", 2022.
A. Koskela, M. Tobaben and A. Honkela, "Individual Privacy Accounting with Gaussian Differential
Privacy", ICLR 2023.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

_ROUNDING = 1e-10
"""Relative slack of results: for epsilon of at least 1e-3, the error of delta by rounding is below
1e-9, and mu and epsilon change by less."""


def delta_of(epsilon: float, mu: float) -> float:
    """Return delta of a Gaussian mechanism, mu its sensitivity over its standard deviation."""
    if not mu:
        return 0.0
    first = _log_phi(mu / 2.0 - epsilon / mu)
    ratio = epsilon + _log_phi(-mu / 2.0 - epsilon / mu) - first
    return math.exp(first) * -math.expm1(min(ratio, 0.0))


@functools.lru_cache
def largest_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu that is (epsilon, delta)-differentially private."""
    high = 1.0
    while delta_of(epsilon, high) < delta:
        high *= 2.0
    return _bisect(lambda mu: delta_of(epsilon, mu) <= delta, 0.0, high) * (1.0 - _ROUNDING)


@functools.lru_cache
def noise_multiplier(epsilon: float, delta: float, releases: float) -> float:
    """Return the smallest noise multiplier for (epsilon, delta) and a number of releases.

    Examples
    --------
    >>> from fldb_flower.privacy.accounting import noise_multiplier
    >>> round(noise_multiplier(3.0, 1e-6, releases=17), 2)
    6.37
    """
    return math.sqrt(releases) / largest_mu(epsilon, delta)


@functools.lru_cache
def epsilon_of(multiplier: float, delta: float, releases: float) -> float:
    """Return epsilon of a number of releases with a noise multiplier, at delta.

    It is infinite above a million.

    Examples
    --------
    >>> from fldb_flower.privacy.accounting import epsilon_of
    >>> round(epsilon_of(6.36, 1e-6, releases=17), 2)
    3.0
    """
    mu = math.sqrt(releases) / multiplier
    if delta_of(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while delta_of(high, mu) > delta:
        high *= 2.0
        if high > 1e6:
            return math.inf
    least = _bisect(lambda epsilon: delta_of(epsilon, mu) > delta, 0.0, high)
    return least * (1.0 + _ROUNDING) + _ROUNDING


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the end of the range from ``low`` on where a condition holds; not at ``high``."""
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _log_phi(x: float) -> float:
    """Return the logarithm of the standard normal distribution function."""
    if x > -30.0:
        return math.log(math.erfc(-x / math.sqrt(2.0)) / 2.0)
    # Its asymptotic series; the relative error at -30 is below 1e-15.
    square = 1.0 / (x * x)
    series = 1.0 - square * (1.0 - square * (3.0 - square * (15.0 - square * 105.0)))
    return -x * x / 2.0 - math.log(-x) - math.log(2.0 * math.pi) / 2.0 + math.log(series)
