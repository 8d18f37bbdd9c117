r"""How FLDB-Personal learns the covariance V of the agents; docs/theory.md derives both rules.

Let F be ``(1 - 1 / N) sum M_i``, and G the sum of ``g_i g_i^T``, where g_i is the gradient of the
loss of agent i's own duels at theta_i. Half of ``G - F`` is the gradient of the restricted marginal
likelihood with respect to V. So G estimates the shape of V. Its scale, and how much of it has no
direction, are chosen by prediction: by the log losses of answers under several V.
"""

from __future__ import annotations

import numpy as np

from fldb_flower.bandit.estimate import MIXES, SLOPE, VARIANCES
from fldb_flower.linalg.arrays import Array

PULL = 0.3  # nu: how many agents' weight the pull to v I has
HALF_WEIGHT = 20.0  # answers per agent after which log losses have half of their weight
SPAN, GROWTH, FEW = 10.0, 3.0, 50.0  # constants of `kept`


def next_covariance(covariance: Array, curvature: Array, scatter: Array) -> Array:
    """Return V after one minorise-maximise step, ``X V^-1 X``, for V, F and G, (d, d).

    X is the positive definite solution of ``X (F + nu V^-1) X = V G V + nu v I`` with
    ``v = tr V / d``: ``C (C^T L C)^(-1/2) C^T``, where L is the left matrix and ``C C^T`` the right
    one. nu pulls V to v I, which keeps it invertible.
    """
    d = len(covariance)
    precision = np.linalg.inv(covariance)
    left = curvature + PULL * precision
    right = covariance @ scatter @ covariance
    root = np.linalg.cholesky(right + PULL * np.trace(covariance) / d * np.eye(d))
    values, vectors = np.linalg.eigh(root.T @ left @ root)
    turned = root @ vectors
    mean = turned / np.sqrt(np.maximum(values, values[-1] * np.finfo(float).eps)) @ turned.T
    found: Array = mean @ precision @ mean
    return (found + found.T) / 2.0


def shape_of(covariance: Array, information: Array, ridge: float) -> Array:
    """Return V divided by its mean variance, in the directions that answers inform about.

    The weights of the directions are ``W = I - lambda_0 A^-1`` with ``A = lambda_0 I + sum M_i``.
    """
    eye = np.eye(len(covariance))
    weights = eye - ridge * np.linalg.inv(information + ridge * eye)
    total = float(np.trace(weights))
    if not total > 0.0:  # no answers
        weights, total = eye, float(len(eye))
    return covariance * (total / float(np.trace(covariance @ weights)))


def mean_mixture(losses: Array, answers: float) -> tuple[float, float]:
    """Return v and mix of the mean of ``v [(1 - rho) R + rho I]``, from log losses, (55,).

    The weight of each v and rho is ``v^-0.15 exp(-eta loss)`` with ``eta = t / (t + 20)`` for t
    answers per agent, as of :func:`~fldb_flower.bandit.estimate.mean_variance`.
    """
    eta = answers / (answers + HALF_WEIGHT)
    table = losses.reshape(len(VARIANCES), len(MIXES))
    weights = VARIANCES[:, None] ** -SLOPE * np.exp(-eta * (table - table.min()))
    weights /= weights.sum()
    variance = float(VARIANCES @ weights.sum(axis=1))
    return variance, float(VARIANCES @ weights @ MIXES) / variance


def kept(answers: float, new: float, agents: float) -> float:
    """Return the weight of the former log losses after ``new`` of ``answers`` per agent.

    The sums span the last ``w = (10 + t / 3) (1 + 50 / N)`` answers of an agent: R has changed
    since the earlier ones. With few agents, fewer answers would leave the choice to chance.
    """
    span = (SPAN + answers / GROWTH) * (1.0 + FEW / agents)
    return float((1.0 - 1.0 / span) ** new)
