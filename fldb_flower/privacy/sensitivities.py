r"""Bounds on what one answer, or one person, contributes to an upload.

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
from typing import NamedTuple

import numpy as np

from fldb_flower.bandit import theory
from fldb_flower.bandit.limits import weights_of
from fldb_flower.bandit.preference import logistic
from fldb_flower.errors import PrivacyError
from fldb_flower.federation.exchange import Broadcast, Noise, sizes_and_weights
from fldb_flower.settings import Settings

_SLACK = 1.0 + 1e-9  # for rounding errors

_LARGEST = 1e140  # size of a part: noise that is squared must neither overflow nor vanish


class Release(NamedTuple):
    """The parts of one upload: what a unit contributes at most, and their shares of the noise.

    ``bounds`` has, by part, the largest norm of what one answer (statistics) or one person (shares)
    contributes; for a person's statistics, which are limited together, typical norms. ``weights``
    are the shares of the parts in the squared norm of the scaled vector; they sum to 1. ``norm`` is
    the largest norm of that vector, whose parts are multiplied by ``sqrt(weight) / bound``.
    """

    bounds: dict[str, float]
    weights: dict[str, float]
    norm: float

    def noise(self) -> Noise:
        """Return the standard deviations for noise multiplier 1.

        Divided by them, the contribution of a unit has norm 1 at most.
        """
        return Noise(
            **{
                part: _SLACK * self.norm * bound / math.sqrt(self.weights[part])
                for part, bound in self.bounds.items()
            }
        )


def release_of(broadcast: Broadcast, settings: Settings) -> Release:
    """Return the bounds for the upload that a broadcast requests."""
    _check_request(broadcast, settings)
    clip = settings.clip
    assert clip is not None
    if settings.privacy.unit == "person":
        release = Release(*sizes_and_weights(broadcast, settings), norm=1.0)
    else:
        release = _of_statistics(broadcast, settings, clip)
    for part, bound in release.bounds.items():
        if not 1.0 / _LARGEST < bound < _LARGEST:
            raise PrivacyError(
                f"the size of {part} is {bound:g}: privacy.clip={clip:g} is too far from 1"
            )
    return release


def _check_request(broadcast: Broadcast, settings: Settings) -> None:
    """Raise a PrivacyError if the sensitivity of what a broadcast requests is not known."""
    play, unit = broadcast.play, settings.privacy.unit
    if play is None or broadcast.scope == "all":
        raise asked_again(settings)
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


def asked_again(settings: Settings) -> PrivacyError:
    """Return the error for an exchange over duels that another exchange has released."""
    return PrivacyError(
        f"algorithm={settings.algorithm} asks again about duels that an upload has covered,"
        " which costs privacy again: use privacy.epsilon=none"
    )


def _of_statistics(broadcast: Broadcast, settings: Settings, clip: float) -> Release:
    theta = broadcast.theta_hat
    assert theta is not None
    logit = clip * float(np.linalg.norm(theta))
    bounds = {"gradient": clip, "information": clip**2}
    if broadcast.hessian:
        bounds["hessian"] = clip**2 / 4.0
    if broadcast.loss:
        bounds["loss"] = float(np.logaddexp(0.0, logit))
    unused = []
    if broadcast.hessian and theory.selects_by_curvature(settings):
        unused = ["information"]
    weights = weights_of(bounds, unused)
    curvature = weights.get("hessian", 0.0)
    most = largest_square(weights["gradient"], curvature, float(logistic(np.array(logit))))
    most += weights["information"] + weights.get("loss", 0.0)
    return Release(bounds, weights, math.sqrt(most))


def largest_square(gradient: float, hessian: float, residual: float) -> float:
    """Return the maximum of ``gradient r^2 + 16 hessian r^2 (1 - r)^2`` over 0 <= r <= residual."""

    def square(r: float) -> float:
        return gradient * r * r + 16.0 * hessian * (r * (1.0 - r)) ** 2

    ends = [square(residual)]
    if gradient < 2.0 * hessian:
        inner = (3.0 - math.sqrt(1.0 - gradient / (2.0 * hessian))) / 4.0
        ends.append(square(min(inner, residual)))
    return max(ends)
