"""The estimate and the prior that agents share, with which they select their arms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fldb_flower.errors import DataError
from fldb_flower.linalg.arrays import Array, FloatArray, namespace
from fldb_flower.linalg.linear import Whitener, whiten
from fldb_flower.settings import Settings


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimate of theta, (d,), and the matrix of the norm that rules select with.

    The matrix is W_sync, or the Hessian A of FLDB-ONS. It is symmetric positive definite: (d, d),
    or its diagonal, (d,).

    Examples
    --------
    With W = diag(4, 1), a vector along the first axis has half its length:

    >>> import numpy as np
    >>> from fldb_flower.bandit.estimate import Estimate
    >>> estimate = Estimate(np.array([1.0, 0.0]), np.diag([4.0, 1.0]))
    >>> np.linalg.norm(np.array([3.0, 0.0]) @ estimate.whitener)
    np.float64(1.5)
    """

    theta_sync: Array
    information: Array

    @cached_property
    def whitener(self) -> Whitener:
        """C with ``||x||_{W^-1} = ||x C||_2`` for the matrix W, computed once for all agents."""
        try:
            return whiten(self.information)
        except np.linalg.LinAlgError:
            raise DataError(
                "W_sync is not positive definite: rounding errors exceed its smallest eigenvalue,"
                " lambda / kappa_mu (FLDB-ONS: ons_ridge); increase it"
            ) from None


VARIANCES: FloatArray = 10.0 ** np.linspace(-3.0, 1.0, 11)
"""Values of v under which agents predict answers, in units of ``1 / scale``; ascending."""

MIXES: FloatArray = np.array([0.0, 0.03, 0.1, 0.3, 1.0])
"""Values of rho, the part of v in all directions, under which agents predict answers if V is
learned."""

START = 0.1
"""The first v, in these units."""

HALF_WEIGHT, SLOPE = 40.0, 0.15
"""Constants of :func:`mean_variance`, chosen by measurement (docs/personal.md)."""

LONGEST = 10.0
"""``|V m_i|`` is at most this many times ``sqrt(d / lambda_0)``."""

PRIVATE_LONGEST = 1.5
"""The same with privacy, where the noise is proportional to it: |theta_i| is longer than 1.5 times
``sqrt(d / lambda_0)`` for 5 % of agents with theta_i ~ N(0, I / lambda_0) and d = 5."""

MAX_EXCESS = 1.0
"""Largest excess log loss of one predicted answer in the sums that select v, in nats."""

_LEAST = 1e-200  # of a scale
_TYPICAL = 10.0  # the mean squared length of differences of two N(0, I) arms with d = 5


def scale_of(squared_length: Array) -> Array:
    """Return the scale of differences with this mean squared length: 1 for N(0, I) arms, d = 5.

    Features in other units change the scale and nothing else: lambda_0 is proportional to it,
    v inversely proportional. Without a length above 1e-100 (arms that are all equal), it is 1.
    """
    scale = squared_length / _TYPICAL
    return scale + (scale <= _LEAST)


class CommonPrior(NamedTuple):
    """What agents need for their own priors, ``theta_i ~ N(theta, V)``.

    ``V = v I``, or ``V = v [(1 - mix) R + mix I]`` with the ``shape`` R if it is learned.
    """

    precision: Array  # sum of all agents' shares M_i, (d, d); with `lambda_0 I` it is A
    shift: Array  # c, the sum of all agents' shares m_i, (d,)
    variance: float  # v, in units of `1 / scale`
    # Unit of squared features (:func:`scale_of`); 0 if the server does not know it yet. Then each
    # agent uses the scale of the arms that it has seen.
    scale: float
    shape: Array | None = None  # R, (d, d); None: V = v I
    mix: float = 1.0  # the part of v in all directions

    def covariance(self) -> Array:
        """Return V, (d, d), in units of ``1 / scale``."""
        every = np.eye(len(self.shift))
        if self.shape is None:
            return self.variance * every
        return self.variance * ((1.0 - self.mix) * self.shape + self.mix * every)

    def hypotheses(self) -> tuple[Array, Array | None]:
        """Return the eigenvalues of each V that answers are predicted under, and eigenvectors.

        The eigenvalues are (11, d), or (55, d) with a shape: each v of the :data:`VARIANCES` with
        each rho of the :data:`MIXES`. The eigenvectors, in columns, are those of R; None: I.
        """
        if self.shape is None:
            return np.tile(VARIANCES[:, None], len(self.shift)), None
        values, vectors = np.linalg.eigh(self.shape)
        mixed = (1.0 - MIXES[:, None]) * np.maximum(values, 0.0) + MIXES[:, None]
        return (VARIANCES[:, None, None] * mixed).reshape(-1, len(values)), vectors


def num_hypotheses(prior: Any) -> int:
    """Return how many log losses an upload has."""
    is_learned = isinstance(prior, CommonPrior) and prior.shape is not None
    return len(VARIANCES) * (len(MIXES) if is_learned else 1)


def first_prior(settings: Settings) -> CommonPrior:
    """Return the prior of agents before the first one of the server."""
    d = settings.dimension
    shape = np.eye(d) if settings.learns_directions else None
    return CommonPrior(np.zeros((d, d)), np.zeros(d), START, 0.0, shape)


def private_prior(prior: CommonPrior, settings: Settings) -> CommonPrior:
    """Return the prior with the lower limit of v and the fixed scale of privacy, if any."""
    if settings.clip is None:
        return prior
    variance = max(prior.variance, settings.privacy.min_variance)
    return prior._replace(variance=variance, scale=float(scale_of(settings.clip**2)))


class ShareChange(NamedTuple):
    """Shares of FLDB-Personal: the change of their sum since the last upload that was counted.

    Inside a block of agents, the arrays have the shares of each agent, (agents, ...).
    """

    precision: Array  # of the sum of M_i, (d, d)
    shift: Array  # of the sum of m_i, (d,)
    losses: Array  # excess log loss of the new answers under each v, (11,), or V, (55,)
    # Mean squared length of the differences offered, summed over the new answers.
    squares: Any
    members: Any  # of the number of agents with a share; 1 for each that has one
    scatter: Array | None = None  # if V is learned: of the sum of G_i, (d, d)

    def converted(self, hypotheses: int) -> ShareChange:
        """Return it with 11 log losses and no scatter, or with 55 and one.

        11 log losses are those of each rho, since they prefer none.
        """
        if len(self.losses) == hypotheses:
            return self
        if hypotheses == len(VARIANCES):
            return self._replace(losses=self.losses[len(MIXES) - 1 :: len(MIXES)], scatter=None)
        losses = np.repeat(self.losses, len(MIXES))
        return self._replace(losses=losses, scatter=np.zeros_like(self.precision))


def mean_squared_length(features: Array) -> Array:
    """Return the mean squared length of the differences of arms: (rows, K, d) -> (rows,)."""
    xp, arms = namespace(features), features.shape[1]
    centred = features - xp.mean(features, axis=1, keepdims=True)
    return 2.0 / (arms - 1) * xp.sum(xp.sum(centred * centred, axis=2), axis=1)


def longest_shift(dimension: int, ridge: Array, longest: float = LONGEST) -> Array:
    """Return the largest ``|V m_i|``, for lambda_0 and V in the units of the features."""
    return longest * math.sqrt(dimension) / ridge**0.5


def mean_variance(losses: Array, answers: float) -> float:
    """Return the estimate of v, in units of ``1 / scale``, from the total excess log losses, (11,).

    It is the mean of v over a tempered posterior: the weight of each of the :data:`VARIANCES` is
    ``v^-0.15 exp(-eta loss)``, with ``eta = n / (n + 40)`` for n answers per agent. If v is too
    small, agents that differ lose much more than agents that are alike lose if v is too large. A
    mean of v, not of its logarithm, takes account of that, and so does eta: with few answers per
    agent, the log losses favour a small v too early.
    """
    eta = answers / (answers + HALF_WEIGHT)
    weights = VARIANCES**-SLOPE * np.exp(-eta * (losses - losses.min()))
    return float(weights @ VARIANCES / weights.sum())
