r"""The Gaussian mechanism: a bound on what a unit contributes to an upload, and noise for it.

**One answer.** Let L be ``privacy.clip``, phi the clipped difference, ``|phi| <= L``, z the logit
``theta_hat . phi`` and ``r = |mu(z) - y|``. The answer contributes to the gradient, W_new and the
Hessian::

    |g| = r |phi| <= L,    ||phi phi^T||_F = |phi|^2 <= L^2
    ||mu'(z) phi phi^T||_F = r (1 - r) |phi|^2 <= L^2 / 4    for y = 0 or 1

``||.||_F`` is the Frobenius norm. A diagonal has at most that of its matrix. The norms cannot all
be largest at once. With weights w of the three parts, which sum to 1, the scaled vector of all
parts satisfies::

    w_g |g|^2 / L^2 + w_W ||W||^2 / L^4 + w_H ||H||^2 / (L^2 / 4)^2
        <= w_W + max of w_g r^2 + 16 w_H r^2 (1 - r)^2 over 0 <= r <= mu(L |theta_hat|)

The maximum is at the end of the range or where the derivative is 0,
``r = (3 - sqrt(1 - w_g / (2 w_H))) / 4``. With a tie, y = 1/2, the Hessian's factor is
``1/4 - r^2``, and the sum is convex in r^2: at most w_H or w_g / 4, both below the value at
r = 1/2 above. At theta_hat = 0, r is at most 1/2.

**One person.** Agents limit the length of the vector of all parts of a person's n answers in a
round to 1 (:mod:`fldb_flower.bandit.limits`). That holds for statistics and for the shares of
FLDB-Personal. With privacy, the scale of the features is ``L^2 / 10``, and agents report L^2 for
each squared length. Squares and members are then numbers of duels and of agents, which are public.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fldb_flower.bandit import theory
from fldb_flower.bandit.limits import units_of, weights_of
from fldb_flower.bandit.preference import logistic
from fldb_flower.bandit.streams import keyed_generator
from fldb_flower.errors import PrivacyError
from fldb_flower.federation.exchange import (
    MATRICES,
    AnyUpload,
    Broadcast,
    Noise,
    ShareUpload,
    sizes_and_weights,
)
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.linear import form_of, pack
from fldb_flower.privacy.discrete import with_discrete_noise
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.settings import Settings

AddNoise = Callable[[FloatArray, FloatArray], FloatArray]
"""Adds noise to values, (n,), with standard deviations, (n,)."""

_PARTS = ("gradient", "information", "hessian", "loss", "shift", "precision", "losses")
"""Parts of an upload, or of its shares, in the order in which their noise is drawn."""

_SLACK = 1.0 + 1e-9  # for rounding errors

_LARGEST = 1e140  # size of a part: noise that is squared must neither overflow nor vanish


class GaussianMechanism:
    """Adds Gaussian noise to the sum of the uploads of each exchange.

    The noise multiplier is calibrated once, to all exchanges of the schedule. The noise of an
    exchange is drawn from a stream keyed by (seed, "privacy", number of the exchange). Results
    therefore do not depend on the engine or the number of nodes. **Anyone who knows the seed can
    compute the noise**: in a simulation, it shows the cost of privacy and protects nobody.

    With devices and without secure sums, the noise is exact (:mod:`~.discrete`). The server
    receives the uploads of single devices without noise, so **the server must be trusted**. The
    noise protects against those who receive the estimates. With secure sums, the noise is that of
    ``strategies.secure``.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.plan = ReleasePlan(settings)
        self._covered = 0  # the last iteration whose duels were released

    def require(self, broadcast: Broadcast, number: int) -> None:
        """Raise a PrivacyError if exchange ``number`` must not release the requested upload.

        The upload must not exceed the budget, must have a known sensitivity, and must not cover
        duels that an earlier exchange has released.
        """
        noise_per_unit(broadcast, self._settings)
        assert broadcast.play is not None
        if broadcast.play.first <= self._covered:
            raise _asked_again(self._settings)
        self.plan.require(number)

    def deviations(self, broadcast: Broadcast) -> Noise:
        """Return the standard deviations of the noise in the sum that a broadcast requests."""
        return noise_per_unit(broadcast, self._settings).scaled(self.plan.deviation)

    def add(self, upload: AnyUpload, broadcast: Broadcast, number: int) -> AnyUpload:
        """Return the upload of exchange ``number`` with noise, after :meth:`require`."""
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
        if part in MATRICES:
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


def noise_per_unit(broadcast: Broadcast, settings: Settings) -> Noise:
    """Return the standard deviations for noise multiplier 1, for the upload that is requested.

    Divided by them, the contribution of a unit has a norm of at most 1.
    """
    _check_request(broadcast, settings)
    clip = settings.clip
    assert clip is not None
    if settings.privacy.unit == "person":
        norm, (sizes, weights) = 1.0, sizes_and_weights(broadcast, settings)
    else:
        norm, sizes, weights = _of_an_answer(broadcast, settings, clip)
    for part, size in sizes.items():
        if not 1.0 / _LARGEST < size < _LARGEST:
            raise PrivacyError(
                f"the size of {part} is {size:g}: privacy.clip={clip:g} is too far from 1"
            )
    scaled = {part: _SLACK * norm * size for part, size in sizes.items()}
    return Noise(**units_of(scaled, weights))


def _check_request(broadcast: Broadcast, settings: Settings) -> None:
    """Raise a PrivacyError if the sensitivity of what a broadcast requests is not known."""
    play, unit = broadcast.play, settings.privacy.unit
    if play is None or broadcast.scope == "all":
        raise _asked_again(settings)
    if not 1 <= play.first <= play.last:  # sizes would be 0, without any noise
        raise PrivacyError(
            f"a request to play iterations {play.first} to {play.last}: the first must be at least"
            " 1, and at most the last"
        )
    if broadcast.shares and broadcast.theta_hat is not None:
        raise PrivacyError("shares and gradients are requested together: only one has a limit")
    if broadcast.shares and unit == "answer":
        raise PrivacyError("shares are requested: use privacy.unit=person")
    if broadcast.loss and unit == "person":
        raise PrivacyError("a loss is requested, which the limit on a person does not include")


def _asked_again(settings: Settings) -> PrivacyError:
    """Return the error for an exchange over duels that another exchange has released."""
    return PrivacyError(
        f"algorithm={settings.algorithm} asks again about duels that an upload has covered,"
        " which costs privacy again: use privacy.epsilon=none"
    )


def _of_an_answer(
    broadcast: Broadcast, settings: Settings, clip: float
) -> tuple[float, dict[str, float], dict[str, float]]:
    """Return the largest norm of the scaled vector, and the largest norms and weights by part."""
    theta = broadcast.theta_hat
    assert theta is not None
    logit = clip * float(np.linalg.norm(theta))
    sizes = {"gradient": clip, "information": clip**2}
    if broadcast.hessian:
        sizes["hessian"] = clip**2 / 4.0
    if broadcast.loss:
        sizes["loss"] = float(np.logaddexp(0.0, logit))
    is_unused = broadcast.hessian and theory.selects_by_curvature(settings)
    weights = weights_of(sizes, ["information"] * is_unused)
    residual = float(logistic(np.array(logit)))
    most = largest_square(weights["gradient"], weights.get("hessian", 0.0), residual)
    most += weights["information"] + weights.get("loss", 0.0)
    return math.sqrt(most), sizes, weights


def largest_square(gradient: float, hessian: float, residual: float) -> float:
    """Return the maximum of ``gradient r^2 + 16 hessian r^2 (1 - r)^2`` over 0 <= r <= residual."""
    places = [residual]
    if gradient < 2.0 * hessian:
        inner = (3.0 - math.sqrt(1.0 - gradient / (2.0 * hessian))) / 4.0
        places.append(min(inner, residual))
    return max(gradient * r * r + 16.0 * hessian * (r * (1.0 - r)) ** 2 for r in places)
