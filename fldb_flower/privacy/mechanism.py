"""The Gaussian mechanism: noise on the sum of the uploads of one exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fldb_flower.bandit.streams import keyed_generator
from fldb_flower.errors import PrivacyError
from fldb_flower.federation.exchange import AnyUpload, Broadcast, Noise, ShareUpload
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.linear import form_of, pack
from fldb_flower.privacy.discrete import with_discrete_noise
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.privacy.sensitivities import asked_again, release_of
from fldb_flower.settings import Settings

_MATRICES = ("information", "hessian", "precision")
_PARTS = ("gradient", "information", "hessian", "loss", "shift", "precision", "losses")
"""Parts of an upload, or of its shares, in the order in which their noise is drawn."""


AddNoise = Callable[[FloatArray, FloatArray], FloatArray]
"""Adds noise to values, (n,), with standard deviations, (n,)."""


class GaussianMechanism:
    """Adds Gaussian noise to the sum of the uploads of each exchange.

    The noise multiplier is calibrated once, to all exchanges of the schedule. The noise of an
    exchange is drawn from a stream keyed by (seed, "privacy", number of the exchange), so results
    do not depend on the engine or the number of nodes. **Who knows the seed knows the noise**: in
    a simulation, the noise shows what privacy costs, and protects nobody.

    With devices and without secure sums, the noise is exact (:mod:`~.discrete`). The server
    receives the uploads of single devices without noise, so **it is trusted with them**: the noise
    protects against those who receive the estimates. With secure sums, the noise is that of
    ``strategies.secure``.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.plan = ReleasePlan(settings)
        self._covered = 0  # the last iteration whose duels were released

    def require(self, broadcast: Broadcast, number: int) -> None:
        """Raise a PrivacyError if exchange ``number`` must not release the requested upload.

        It exceeds the budget, its sensitivity is not known, or it is over duels that an earlier
        exchange has released.
        """
        release_of(broadcast, self._settings)
        assert broadcast.play is not None
        if broadcast.play.first <= self._covered:
            raise asked_again(self._settings)
        self.plan.require(number)

    def deviations(self, broadcast: Broadcast) -> Noise:
        """Return the standard deviations of the noise in the sum that a broadcast requests."""
        return release_of(broadcast, self._settings).noise().scaled(self.plan.deviation)

    def add(self, upload: AnyUpload, broadcast: Broadcast, number: int) -> AnyUpload:
        """Return the upload of exchange ``number`` with noise; :meth:`require` is called first."""
        self.require(broadcast, number)
        noise, play = self.deviations(broadcast), broadcast.play
        assert play is not None
        self._covered = play.last
        if self._settings.mode == "devices":  # a known seed protects nobody
            return with_noise(upload, noise, with_discrete_noise)
        generator = keyed_generator(self._settings.seed, "privacy", number)
        return with_noise(upload, noise, simulated(generator))


def noise_of(settings: Settings) -> GaussianMechanism | None:
    """Return the mechanism of the settings; None without privacy."""
    return GaussianMechanism(settings) if settings.is_private else None


def with_noise(upload: AnyUpload, noise: Noise, add: AddNoise) -> AnyUpload:
    """Return an upload with independent Gaussian noise of the given standard deviations by part."""
    form = form_of(upload.precision if isinstance(upload, ShareUpload) else upload.information)
    noisy: dict[str, Any] = {}
    for part in _PARTS:
        if (exact := getattr(upload, part, None)) is None:
            continue
        deviation = getattr(noise, part)
        if not deviation > 0.0:
            raise PrivacyError(f"the sensitivity of {part} is not known, so it is not released")
        if part in _MATRICES:
            factors = 1.0 / form.off_diagonal()
            noisy[part] = form.unpack(add(pack(exact), deviation * factors))
        else:
            values = np.ravel(exact)
            found = add(values, np.full(values.shape, deviation))
            noisy[part] = float(found[0]) if np.ndim(exact) == 0 else found
    return upload._replace(**noisy, noise=noise)


def simulated(generator: np.random.Generator) -> AddNoise:
    """Return a function that adds noise from a generator, in floats."""
    return lambda values, deviations: values + deviations * generator.standard_normal(values.shape)
