r"""Discrete Gaussian noise, exact.

Floating-point noise reveals information: the set of floats that a number plus noise can take
depends on the number (Mironov 2012). A number is therefore rounded to a multiple of a quantum, and
an integer is added. OpenDP draws it exactly from ``P(k) ~ exp(-k^2 / 2 s^2)`` (Canonne, Kamath and
Steinke 2020), with random bits of the operating system. The scale s is at least
:data:`LEAST_SCALE` quanta. The probabilities are then those of a Gaussian rounded to integers, up
to a relative error below ``8 / s^2 < 2e-16`` per number within 12 s, so the accounting of Gaussians
applies.

References
----------
I. Mironov, "On Significance of the Least Significant Bits for Differential Privacy", CCS 2012.
C. Canonne, G. Kamath and T. Steinke, "The Discrete Gaussian for Differential Privacy", 2020.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fldb_flower.errors import PrivacyError, extra_missing
from fldb_flower.linalg.arrays import FloatArray, IntArray

LEAST_SCALE = 2.0**28
"""Smallest scale of noise, in quanta."""

_QUANTA = 2.0**40
"""Quanta per standard deviation of :func:`with_discrete_noise`: rounding changes the difference of
two sums of n values by ``sqrt(n) 2^-40`` standard deviations at most, which is negligible."""


def discrete_gaussian(scales: FloatArray) -> IntArray:
    """Return independent integers with ``P(k) ~ exp(-k^2 / 2 s^2)`` for each s, 0 for s = 0.

    They are exact samples from a cryptographic generator without a seed.
    """
    draw = sampler()
    drawn = np.zeros(scales.shape, dtype=np.int64)
    for scale in np.unique(scales[scales > 0.0]):
        places = scales == scale
        drawn[places] = draw(float(scale), int(places.sum()))
    return drawn


def with_discrete_noise(values: FloatArray, deviations: FloatArray) -> FloatArray:
    """Return values with discrete Gaussian noise of the given standard deviations."""
    quanta = deviations / _QUANTA
    multiples = np.rint(values / quanta)
    if not (np.abs(multiples) < 2.0**62).all():
        raise PrivacyError("a sum is too large for its noise: no noise was added")
    noisy = multiples.astype(np.int64) + discrete_gaussian(np.full(values.shape, _QUANTA))
    result: FloatArray = noisy * quanta
    return result


def sampler() -> Callable[[float, int], list[int]]:
    """Return a function that draws samples, given scale and number; the import takes a second.

    A SettingsError is raised if OpenDP is not installed (the privacy extra).
    """
    try:
        from opendp.domains import atom_domain, vector_domain  # noqa: PLC0415
        from opendp.measurements import make_gaussian  # noqa: PLC0415
        from opendp.metrics import l2_distance  # noqa: PLC0415
        from opendp.mod import enable_features  # noqa: PLC0415
    except ImportError as error:
        raise extra_missing("noise of a device", "privacy", reason=error) from None
    enable_features("contrib")  # what OpenDP's authors have not vetted; it is proved there
    space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")
    return lambda scale, count: make_gaussian(*space, scale=scale)([0] * count)
