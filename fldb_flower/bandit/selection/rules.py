r"""The selection rules: pure functions, each with its formula and its source.

All have one signature, ``rule(features, theta, whitener, width, noise)``:

- features: the arms, (agents, arms, d); an agent may be there several times, once an iteration;
- theta: the estimate, (d,), or (agents, d) for one per agent;
- whitener: ``C`` with ``||x||_{W^-1} = ||x C||_2``, (d, d) or (agents, d, d), or for another
  form of W as :mod:`~fldb_flower.linalg.whiteners` has it;
- width: ``beta_scale * beta_t / kappa_mu`` (:func:`~fldb_flower.bandit.theory.width`), or one for
  each agent, (agents,);
- noise: standard draws for the rules that need them, shape as they say; others ignore it.

They return the first and the second arm's numbers, (agents,) each, and raise
``FloatingPointError`` where a feature, theta or W is NaN or infinite. Ties go to the lowest
number, in pairs to the lowest first arm and then the lowest second one; scores that only
rounding errors tell apart are ties (:func:`~fldb_flower.bandit.selection.scores.tie_step`).

The two arms may be the same: that duel carries no information, and its regret still counts.

**Applicability.** The sources prove their regret bounds for one agent, the exact MLE and a
``kappa_mu`` that bounds mu' from below. The default kappa_mu = 1 does not (mu' <= 1/4), the
arms are not bounded, and between two exchanges agents select with an old theta and W: here
the rules are heuristics whose regret is measured, not guaranteed.
"""

from __future__ import annotations

import math

from fldb_flower.bandit.selection.scores import (
    Width,
    column,
    norms,
    pick,
    rewards,
    tie_breaks,
    tie_step,
)
from fldb_flower.linalg.arrays import Array, namespace
from fldb_flower.linalg.whiteners import Whitener, transposed, whitened

Pair = tuple[Array, Array]


def ucb(
    features: Array, theta: Array, whitener: Whitener, width: Width, _noise: Array | None = None
) -> Pair:
    r"""Return the paper's pair (Algorithm 1, lines 4 and 5).

    ``first = argmax theta . phi(x)``; ``second = argmax theta . (phi(x) - phi(first))
    + width ||phi(x) - phi(first)||_{W^-1}``.

    See Also
    --------
    colstim : The same second arm against a perturbed first one.
    maxpairucb : Both arms optimistic.
    """
    xp = namespace(features)
    ties = tie_breaks(features, theta, whitener, width)
    predicted = rewards(features, theta)
    predicted -= ties
    first = xp.argmax(predicted, axis=1)
    return first, _challenger(features, predicted, first, whitener, width)


def _challenger(
    features: Array, predicted: Array, first: Array, whitener: Whitener, width: Width
) -> Array:
    """Return the arm that may beat ``first`` by most: the second arm of ucb and colstim."""
    xp = namespace(features)
    # phi(first) - phi(x): repeated and in place, twice as fast as by broadcasting.
    relative = xp.repeat(pick(features, first), features.shape[1], axis=0)
    relative -= features.reshape(relative.shape)
    # theta . phi(first) is the same for all of an agent's arms and does not move the argmax.
    scores = norms(relative.reshape(features.shape), whitener)
    scores *= column(width)
    scores += predicted
    return xp.argmax(scores, axis=1)


def colstim(features: Array, theta: Array, whitener: Whitener, width: Width, noise: Array) -> Pair:
    r"""Return CoLSTIM's pair: a leader perturbed as people's answers are, and its challenger.

    ``first = argmax theta . phi(x) + eps_x ||phi(x)||_{W^-1}`` with ``eps_x`` the noise
    cut off at ``+-width``; ``second`` challenges it as in :func:`ucb`.

    Comparing utilities to which Gumbel noise was added *is* the BTL model: the first arm
    imitates the person, less and less as the norms fall. The source has two thresholds,
    ``C_thresh`` of the noise and ``c_1`` of the second arm's norm; both are ``width`` here.
    It also lets all arms share one draw with a probability that grows with t; this does not.
    The norm of an arm itself, not of a difference, depends on where the features' origin is.

    Parameters
    ----------
    features, theta, whitener, width
        See the module.
    noise : Array
        Standard Gumbel, (agents, arms).

    References
    ----------
    Bengs, Saha and Huellermeier, "Stochastic Contextual Dueling Bandits under Linear
    Stochastic Transitivity Models", ICML 2022, Algorithm 1.
    """
    xp = namespace(features)
    ties = tie_breaks(features, theta, whitener, width)
    predicted = rewards(features, theta)
    predicted -= ties
    perturbation = xp.clip(noise, -column(width), column(width)) * norms(features, whitener)
    first = xp.argmax(predicted + perturbation, axis=1)
    return first, _challenger(features, predicted, first, whitener, width)


def thompson(features: Array, theta: Array, whitener: Whitener, width: Width, noise: Array) -> Pair:
    r"""Return the favourites of two independent draws from a Gaussian posterior.

    ``first = argmax theta_1 . phi(x)`` and ``second = argmax theta_2 . phi(x)`` with
    ``theta_j = theta + width C n_j``, that is ``theta_j ~ N(theta, width^2 W^-1)``.

    The scale is a choice. A Laplace approximation of the posterior would have covariance
    ``H^-1``, H the Hessian of the loss, but agents have W alone: ``H^-1 <= (kappa_mu W)^-1``
    where kappa_mu bounds mu' from below, and since ``mu' <= 1/4`` it is at least about
    ``4 W^-1``. ``width`` is the half-axis of the confidence ellipsoid instead, as in the
    analyses of linear Thompson sampling that have a frequentist bound (Agrawal and Goyal
    2013; Abeille and Lazaric 2017). It is several times Laplace's deviation, so a smaller
    ``beta_scale`` helps: docs/selection.md compares the two. Draws of covariance ``W^-1`` are
    too narrow: after an unlucky start they rarely explore again.

    Parameters
    ----------
    features, theta, whitener
        See the module.
    width : float
        Standard deviation of the draws, times that of ``W^-1``. 0 never explores.
    noise : Array
        Standard normal, (agents, 2, d).

    References
    ----------
    Li, Zhao and Gu, "Feel-Good Thompson Sampling for Contextual Dueling Bandits", ICML 2024:
    two independent draws, one for each arm. Their posterior is not Gaussian and has a
    "feel-good" term that favours optimistic theta; this one has neither, so their regret
    bound does not cover it.
    """
    xp = namespace(features)
    deviations = whitened(noise, transposed(whitener))  # (agents, 2, d): row j is C n_j
    reach = math.sqrt(float(xp.max(noise * noise)) * noise.shape[-1])  # >= ||n_j||
    ties = tie_breaks(features, theta, whitener, width * reach)
    sampled = (theta if theta.ndim == 1 else theta[:, None, :]) + column(width, 2) * deviations
    scores = features @ xp.matrix_transpose(sampled)  # (agents, arms, 2)
    chosen = xp.argmax(scores - ties[:, None], axis=1)
    return chosen[:, 0], chosen[:, 1]


def maxpairucb(
    features: Array, theta: Array, whitener: Whitener, width: Width, _noise: Array | None = None
) -> Pair:
    r"""Return the pair whose sum of rewards may be largest: both arms are optimistic.

    ``argmax over (x, x') of theta . (phi(x) + phi(x')) + width ||phi(x) - phi(x')||_{W^-1}``.

    The score is symmetric, so the first arm is the one with the lower number. Costs
    K (K + 1) / 2 norms an agent, where :func:`ucb` needs K.

    References
    ----------
    Di, Jin, Wu, Zhao, Farnoud and Gu, "Variance-Aware Regret Bounds for Stochastic Contextual
    Dueling Bandits", ICLR 2024: the symmetric selection of VACDB's layers, without the
    layers and the variance weights. Their experiments call this MaxPairUCB.
    """
    step = tie_step(features, theta, whitener, width)
    predicted = rewards(features, theta)
    scores = _pair_norms(features, whitener)
    for first, row in enumerate(scores):
        scores[first] = column(width) * row + predicted[:, first:] + predicted[:, first : first + 1]
    return _best_pair(scores, step)


def maxinp(
    features: Array, theta: Array, whitener: Whitener, width: Width, _noise: Array | None = None
) -> Pair:
    r"""Return the most informative pair among the arms that may be best.

    The candidates are the arms x with ``theta . (phi(x) - phi(x'))
    + width ||phi(x) - phi(x')||_{W^-1} >= 0`` for all x'; the pair is
    ``argmax over candidates (x, x') of ||phi(x) - phi(x')||_{W^-1}``. A sole candidate is
    both arms.

    The source demands ``> 0`` of x' other than x, which no two equal arms can meet: there
    may then be no candidate at all. With ``>= 0`` the arm of largest predicted reward
    always is one. The first arm is the one with the lower number.

    References
    ----------
    Saha, "Optimal Algorithms for Stochastic Contextual Preference Bandits", NeurIPS 2021,
    "Maximum-Informative-Pair".
    """
    xp = namespace(features)
    step = tie_step(features, theta, whitener, width)
    predicted = rewards(features, theta)
    pair_norms = _pair_norms(features, whitener)
    candidates = _candidates(predicted, pair_norms, width, step)
    for first, row in enumerate(pair_norms):
        both = candidates[:, first:] & candidates[:, first : first + 1]
        pair_norms[first] = xp.where(both, row, -xp.inf)
    return _best_pair(pair_norms, tie_step(features, xp.zeros_like(theta), whitener, 1.0))


def _candidates(predicted: Array, pair_norms: list[Array], width: Width, step: float) -> Array:
    """Which arms no other arm surely beats: (agents, arms), of bool."""
    xp = namespace(predicted)
    beaten = xp.zeros_like(predicted, dtype=xp.bool)
    for first, row in enumerate(pair_norms):
        lead = predicted[:, first : first + 1] - predicted[:, first:]
        margin = column(width) * row + step
        beaten[:, first:] |= lead > margin
        beaten[:, first] |= xp.any(-lead > margin, axis=1)
    return ~beaten


def _pair_norms(features: Array, whitener: Whitener) -> list[Array]:
    """``||phi(x) - phi(x')||_{W^-1}``: for each x those of x' from x on, (agents, arms - x).

    Subtracting before taking norms keeps the norms of close arms exact to rounding, which
    expanding the square (the Gram matrix) does not; half the pairs suffice by symmetry.
    """
    return [
        norms(features[:, first:] - features[:, first : first + 1], whitener)
        for first in range(features.shape[1])
    ]


def _best_pair(scores: list[Array], step: float) -> Pair:
    """Return the pair of largest score, ties to the lowest first and then second arm.

    Parameters
    ----------
    scores : list of Array
        For each first arm those of the second arms from it on, (agents, arms - first).
    step : float
        Scores that differ by less are ties.
    """
    xp = namespace(scores[0])
    agents, num_arms = scores[0].shape
    places = {"dtype": scores[0].dtype, "device": scores[0].device}
    ties = step * xp.arange(num_arms, **places)
    best = xp.full((agents,), -xp.inf, **places)
    pairs = xp.zeros((agents,), dtype=xp.int64, device=scores[0].device)
    for first, row in enumerate(scores):
        seconds = xp.argmax(row - ties[: num_arms - first], axis=1)
        values = pick(row, seconds)
        better = values > best + step
        best = xp.where(better, values, best)
        pairs = xp.where(better, first * num_arms + first + seconds, pairs)
    return pairs // num_arms, pairs % num_arms
