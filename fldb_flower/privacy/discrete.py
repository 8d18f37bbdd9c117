r"""Noise of devices in secure sums: discrete Gaussians, in units of the encoding's quantum.

**Who adds how much.** A sum has the noise sigma if h devices add independent noise of variance
``sigma^2 / h`` each. At most T devices of a sum cooperate with the server: it knows their noise and
subtracts it, or they add none. Of n devices, h = n - T are left: ``min_devices`` of the header. An
owner may assume that a share f of the devices cooperates, h = n - floor(f n), and adds more. n is
the smallest number of devices in a sum. With more of them, a sum has more noise than needed.

**Why integers.** Noise of floats gives itself away: not every float is a possible sum of a number
and a noise, and the set of the possible ones depends on the number (Mironov, 2012). So a number is
rounded to a multiple of the quantum first, and an integer is added, which is drawn exactly from
``P(k) ~ exp(-k^2 / 2 s^2)`` (Canonne, Kamath and Steinke, 2020) by OpenDP, with random bits of the
operating system. The scale s is :data:`LEAST_SCALE` quanta at least. Then

- a sum of h such integers is a discrete Gaussian up to a relative error of ``10 h e^(-pi^2 s^2)``
  in its probabilities (Kairouz, Liu and Steinke, 2021), which is 0 in float64,
- the probabilities are those of a Gaussian that is rounded to integers, up to a relative error
  below ``8 / s^2 < 1e-17`` per number within 12 s, so the accounting of Gaussians applies, and
- rounding changes the length of a contribution by ``sqrt(N) / 2`` quanta at most, for N numbers.
  :data:`SLACK` covers it if the noise of the sum has ``2^15 z sqrt(N)`` quanta, for the noise
  multiplier z.

References
----------
I. Mironov, "On Significance of the Least Significant Bits for Differential Privacy", CCS 2012.
C. Canonne, G. Kamath and T. Steinke, "The Discrete Gaussian for Differential Privacy", 2020.
P. Kairouz, Z. Liu and T. Steinke, "The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation", ICML 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from fldb_flower.errors import PrivacyError, extra_missing
from fldb_flower.federation.exchange import Broadcast, Noise
from fldb_flower.linalg.arrays import FloatArray, IntArray
from fldb_flower.privacy.sensitivities import release_of
from fldb_flower.secure.encoding import Encoding
from fldb_flower.settings import Settings
from fldb_flower.wire.secure_upload import deviations_of

LEAST_SCALE = 2.0**30
"""Smallest scale of the noise of a device, in quanta."""

SLACK = 1.0 + 2.0**-16
"""Factor of the noise for the rounding of contributions.

In standard deviations of the noise, a contribution has length ``1 / (SLACK z)`` at most, and
rounding adds ``sqrt(N) / 2 s`` for a scale of s quanta. Together that is ``1 / z`` at most if
``s >= z sqrt(N) / (2 (1 - 1 / SLACK))``.
"""


def noise_of_sum(broadcast: Broadcast, settings: Settings, multiplier: float) -> Noise:
    """Return the standard deviations that the sum of a broadcast needs, by part."""
    return release_of(broadcast, settings).noise().scaled(SLACK * multiplier)


def honest_devices(least: int, others: int, colluding: float | None = None) -> int:
    """Return h, the number of devices whose noise the server does not know, in the smallest sum.

    Parameters
    ----------
    least : int
        The smallest number n of devices in a sum.
    others : int
        Those that do not cooperate with the server, ``n - T``.
    colluding : float, optional
        The share of the devices that cooperates, as the device's owner assumes.

    Examples
    --------
    >>> from fldb_flower.privacy.discrete import honest_devices
    >>> honest_devices(12, 10), honest_devices(12, 10, colluding=0.5)
    (10, 6)
    """
    if colluding is None:
        return others
    share = Fraction(str(colluding))  # as written: in floats, 0.29 * 100 is below 29
    return max(1, min(others, least - math.floor(share * least)))


def device_noise(
    noise: Noise, encoding: Encoding, honest: int, multiplier: float = 1.0
) -> IntArray:
    """Return the noise of one device as integers, (n,); 0 for counts.

    Parameters
    ----------
    noise : Noise
        Standard deviations that the sum needs.
    encoding : Encoding
        Of the numbers.
    honest : int
        :func:`honest_devices`.
    multiplier : float
        The noise multiplier z.

    Raises
    ------
    PrivacyError
        A scale has too few quanta: the bounds of the encoding are too large.
    SettingsError
        OpenDP is not installed (the privacy extra).
    """
    deviations = deviations_of(noise, encoding)
    exponents = np.repeat(encoding.exponents, [block.size for block in encoding.blocks])
    scales = np.ldexp(deviations / math.sqrt(honest), exponents)
    for_rounding = multiplier * math.sqrt(encoding.size) / (2.0 * (1.0 - 1.0 / SLACK))
    least = max(LEAST_SCALE, for_rounding)
    smallest = scales[deviations > 0.0].min(initial=math.inf)
    if smallest < least:
        raise PrivacyError(
            f"the noise of a device has {smallest:.3g} quanta of the encoding: must be at least"
            f" {least:.3g}"
        )
    return discrete_gaussian(scales)


def discrete_gaussian(scales: FloatArray) -> IntArray:
    """Return independent integers with ``P(k) ~ exp(-k^2 / 2 s^2)`` for each s, 0 for s = 0.

    They are exact samples from a cryptographic generator, which no seed determines.

    Raises
    ------
    SettingsError
        OpenDP is not installed (the privacy extra).

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.privacy.discrete import discrete_gaussian
    >>> drawn = discrete_gaussian(np.repeat([0.0, 1e12], [1, 99]))
    >>> drawn.dtype, int(drawn[0]), bool(abs(drawn[1:]).max() < 1e13)
    (dtype('int64'), 0, True)
    """
    draw = _sampler()
    drawn = np.zeros(scales.shape, dtype=np.int64)
    for scale in np.unique(scales[scales > 0.0]):
        places = scales == scale
        drawn[places] = draw(float(scale), int(places.sum()))
    return drawn


def require_sampler() -> None:
    """Raise a SettingsError if the sampler is not installed."""
    _sampler()


def _sampler() -> Callable[[float, int], list[int]]:
    """Return a function of scale and number that returns samples; the import takes a second."""
    try:
        from opendp.domains import atom_domain, vector_domain  # noqa: PLC0415
        from opendp.measurements import make_gaussian  # noqa: PLC0415
        from opendp.metrics import l2_distance  # noqa: PLC0415
        from opendp.mod import enable_features  # noqa: PLC0415
    except ImportError as error:
        raise extra_missing("noise of a device", "privacy", reason=error) from None
    enable_features("contrib")  # what OpenDP's authors have not vetted; it is proved there
    space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")

    def draw(scale: float, count: int) -> list[int]:
        drawn: list[int] = make_gaussian(*space, scale=scale)([0] * count)
        return drawn

    return draw
