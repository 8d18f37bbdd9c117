"""FLDB-Personal: an estimate for each agent, with a prior that agents share. Not in the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fldb_flower.algorithms.base import Algorithm, State
from fldb_flower.algorithms.schedules import Round
from fldb_flower.algorithms.structure import kept, mean_mixture, next_covariance, shape_of
from fldb_flower.bandit.directions import directions_of
from fldb_flower.bandit.estimate import (
    START,
    CommonPrior,
    first_prior,
    mean_variance,
    num_hypotheses,
    scale_of,
)
from fldb_flower.federation.exchange import Broadcast, Federation, PlayRequest, ShareUpload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.linear import solve
from fldb_flower.linalg.noisy import blurred, denoised, observed, shrunk
from fldb_flower.settings import AUTO, Settings


class FLDBPersonal(Algorithm):
    r"""FLDB-Personal, this project's algorithm for agents that differ; docs/personal.md derives it.

    The model is ``theta_i ~ N(theta, V)``. In each round an agent receives the sums of all
    shares, subtracts its own, and estimates theta_i from its own duels with the prior that the
    sums give (:mod:`fldb_flower.bandit.estimates`). It returns the change of its share since its
    last upload that was counted, so the sums contain the last counted share of each agent::

        A = lambda_0 I + sum M_i,    c = sum m_i

    The state has ``theta_sync``, the common mean ``A^-1 c``; ``information``, the sum of M_i;
    ``shift``, c; ``losses``, the total log loss for each v, (11,); ``offered``, the mean squared
    length of the differences offered, summed over answers, the number of answers, and the number
    of agents with a share; and ``variances``, v and the smallest eigenvalue of V so far, in units
    of ``1 / scale``.

    With ``personal_structure=isotropic``, V is ``v I``. If it is learned, V is
    ``v [(1 - mix) R + mix I]`` (:mod:`fldb_flower.algorithms.structure`). Then the state also has
    ``scatter``, the sum of ``g_i g_i^T``; ``shape``, R; and ``mix``, (1,). ``losses`` is (55,), for
    each v and rho.

    **With privacy**, agents upload ``D = sum m_i - M_i theta`` and ``M = sum M_i``, with noise, in
    each round, where theta is theta_sync. M is estimated from the last upload
    (:func:`~fldb_flower.linalg.noisy.denoised`). Let x be the estimate of theta* that the answers
    so far give without noise: ``D = M (x - theta)``, and x has the error covariance ``M^-1``. With
    noise of variance s^2, an upload observes x with the precision ``M^2 / s^2``. If the number of
    answers grows from n to n', M grows about as much, and x moves by ``N(0, (n' / n - 1) M^-1)``.
    So the server has a Kalman filter for x, with the precision K and the linear term k::

        K <- (K^-1 + (n' / n - 1) M^-1)^-1 + M^2 / s^2

    In secure sums, if only a share q of the agents uploads, M and D are divided by q, and D has the
    further covariance ``(1 / q - 1) M`` of drawing them. What agents receive as sums of the others'
    shares is for theta*, with the error of x added (:func:`~fldb_flower.linalg.noisy.blurred`)::

        (K^-1 + M^-1)^-1 = M (M + K)^-1 K,    M (M + K)^-1 k

    Without noise, these are the M and the sum of m_i of the last upload. If all is noise, both are
    0, and agents learn alone, with the prior N(0, (1 / lambda_0 + v) I). The state then also has
    ``pooled`` K, ``linear`` k, and ``loss_noise``, the variance in losses.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        # With privacy, v has a lower limit, because the noise is proportional to 1 / v.
        self._least = settings.privacy.min_variance if settings.is_private else 0.0
        self.arrays |= {
            "information": self.form.zeros(),
            "shift": np.zeros(settings.dimension),
            "losses": np.zeros(num_hypotheses(first_prior(settings))),
            "offered": np.zeros(3),
            "variances": np.full(2, max(START, self._least)),
        }
        if settings.learns_directions:
            shape = np.eye(settings.dimension)
            self.arrays |= {"scatter": self.form.zeros(), "shape": shape, "mix": np.ones(1)}
        if settings.is_private:
            self.arrays |= {
                "pooled": self.form.zeros(),
                "linear": np.zeros(settings.dimension),
                "loss_noise": np.zeros(1),
            }

    @property
    def prior(self) -> CommonPrior:
        """What agents receive."""
        arrays = self.arrays
        variance = float(arrays["variances"][0])
        prior = CommonPrior(arrays["information"], arrays["shift"], variance, self.scale)
        if "shape" in arrays:
            prior = prior._replace(shape=arrays["shape"], mix=float(arrays["mix"][0]))
        return prior

    @property
    def scale(self) -> float:
        """Unit of squared features; 0 before the first upload."""
        squares, count, _ = self.arrays["offered"]
        return float(scale_of(squares / count)) if count else 0.0

    @property
    def heterogeneity(self) -> float | None:
        """The estimate v, the mean variance, in squared units of theta; None before an upload."""
        return float(self.arrays["variances"][0]) / self.scale if self.scale else None

    def directions(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return the directions in which agents differ most, with their shares of the variance."""
        return directions_of(self.prior, names)

    def play(self, round_: Round) -> PlayRequest:
        """Return a request with the prior."""
        return PlayRequest(round_.first, round_.last, self.prior)

    def learn(self, federation: Federation, round_: Round) -> State:
        """Add the changes of the shares and choose V."""
        lowest = float(self.arrays["variances"][1])
        upload = federation.exchange(
            Broadcast(self.play(round_), None, shares=True, lowest_variance=lowest)
        )
        change, arrays = upload, self.arrays
        extra: State = {}
        if upload.noise is not None:
            change, extra = self._without_noise(upload)
        new = np.array([change.squares, upload.num_duels, change.members])
        offered = arrays["offered"] + new
        squares, answers, members = offered
        precision, shift = arrays["information"] + change.precision, arrays["shift"] + change.shift
        scale = float(scale_of(squares / max(answers, 1.0)))
        ridge, each = self.settings.personal_ridge * scale, answers / max(members, 1.0)
        if change.scatter is not None:
            extra, variance, least = self._structure(change, precision, scale, each)
        else:
            extra["losses"] = known = arrays["losses"] + change.losses
            if upload.noise is not None:
                known = noisy_losses(known, float(extra["loss_noise"][0]))
            variance = least = self.variance(known, each, scale)
        return {
            "theta_sync": solve(precision, shift, ridge),
            "information": precision,
            "shift": shift,
            "offered": offered,
            "variances": np.array([variance, min(least, lowest)]),
            **extra,
        }

    def _structure(
        self, change: ShareUpload, precision: Array, scale: float, answers: float
    ) -> tuple[State, float, float]:
        """Return the arrays of the learned V, v, and the smallest eigenvalue of V."""
        arrays, members = self.arrays, max(float(self.arrays["offered"][2]) + change.members, 1.0)
        scatter = arrays["scatter"] + change.scatter
        curvature = (1.0 - 1.0 / members) * precision
        covariance = next_covariance(self.prior.covariance(), curvature / scale, scatter / scale)
        shape = shape_of(covariance, precision / scale, self.settings.personal_ridge)
        former = kept(answers, change.num_duels / members, members)
        losses = former * arrays["losses"] + change.losses
        variance, mix = mean_mixture(losses, answers)
        prior = self.prior._replace(variance=variance, shape=shape, mix=mix)
        least = float(np.linalg.eigvalsh(prior.covariance())[0])
        state = {"scatter": scatter, "losses": losses, "shape": shape, "mix": np.array([mix])}
        return state, variance, least

    def _without_noise(self, change: ShareUpload) -> tuple[ShareUpload, State]:
        """Return the change of the sums that agents receive, and the arrays behind them."""
        assert change.noise is not None
        noise, coverage = change.noise.scaled(1.0 / change.coverage), change.coverage
        arrays, theta, least = self.arrays, self.theta_sync, noise.precision
        total = denoised(change.precision / coverage, least)
        pooled, linear = arrays["pooled"], arrays["linear"]
        old = float(arrays["offered"][1])
        if old > 0.0 and change.num_duels > 0:
            growth = self.growth(change, old)
            pooled, linear = blurred(pooled, linear, total / growth, least / growth)
        sampled = 1.0 / coverage - 1.0
        precision, seen = observed(total, sampled, change.shift / coverage, noise.shift**2)
        pooled, linear = pooled + precision, linear + seen + precision @ theta
        known, shift = blurred(pooled, linear, total, least)
        variance = arrays["loss_noise"] + change.noise.losses**2
        change = change._replace(
            precision=known - arrays["information"], shift=shift - arrays["shift"]
        )
        return change, {"pooled": pooled, "linear": linear, "loss_noise": variance}

    def growth(self, change: ShareUpload, old: float) -> float:
        """Return ``n' / n - 1``: the weight of new answers relative to that of the ``old`` ones."""
        if (decay := self.settings.decay) is None:
            return change.num_duels / old
        members = max(float(self.arrays["offered"][2]) + change.members, 1.0)
        rate = -math.log(decay) / members
        return math.expm1(min(rate * change.num_duels, 700.0)) / -math.expm1(-rate * old)

    def variance(self, losses: Array, answers: float, scale: float) -> float:
        """Return v, in units of ``1 / scale``."""
        known = self.settings.personal_variance
        value = mean_variance(losses, answers) if known == AUTO else float(known) * scale
        return max(value, self._least)

    def remedy(self) -> str:
        """Return the setting of the ridge."""
        return f"the features, or personal_ridge={self.settings.personal_ridge:g}, are too extreme"


def noisy_losses(losses: Array, variance: float) -> Array:
    """Return log losses whose differences weigh as much as their noise allows.

    Losses D that two hypotheses predict, 0 and R apart, are observed with noise of variance s^2.
    The logarithm of the likelihood ratio of the hypotheses is ``R D / s^2``, up to a constant,
    instead of D without noise. R is the range of the losses after the share that noise explains is
    removed (:func:`~fldb_flower.linalg.noisy.shrunk`).
    """
    signal = shrunk(losses - losses.mean(), math.sqrt(variance))
    weight = min(1.0, float(np.ptp(signal)) / variance) if variance > 0.0 else 1.0
    return weight * signal
