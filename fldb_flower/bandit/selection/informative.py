"""Selection of a pair for a ranking of all arms: the most informative one, without regret."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fldb_flower.bandit.preference import link
from fldb_flower.bandit.selection.rules import tie_step
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.linear import Whitener, whitened

PURPOSES = ("suggest", "rank")
"""Purposes of duels: few bad arms are shown, or all arms are ranked well."""

MOST_COMPARED = 300
"""Largest number of arms whose pairs are all compared; of more, this many are drawn at random."""


def most_informative(
    arms: FloatArray,
    theta: FloatArray,
    whitener: Whitener,
    known: Callable[[int, int], tuple[bool, float]],
) -> tuple[int, int]:
    """Return the pair with the largest ``log(1 + p (1 - p) ||x - x'||^2) / (1 + n)``.

    ``known`` returns whether a pair was asked, and n, how often it was answered. Pairs that were
    not asked come first. The arm with the larger predicted reward is the first one.
    """
    step = tie_step(arms[None], theta, whitener, 1.0)  # raises if scores overflow
    drawn = np.arange(len(arms))
    if len(arms) > MOST_COMPARED:
        drawn = np.sort(np.random.default_rng().choice(drawn, MOST_COMPARED, replace=False))
    arms = arms[drawn]
    firsts, seconds = np.triu_indices(len(drawn), 1)
    rewards, spread = arms @ theta, whitened(arms, whitener)
    logits = rewards[firsts] - rewards[seconds]
    squares = ((spread[firsts] - spread[seconds]) ** 2).sum(axis=1)
    curvatures = link(logits / np.sqrt(1.0 + np.pi / 8.0 * squares))[1]
    information = np.log1p(curvatures * squares)
    best, most = 0, (False, -np.inf)  # pairs that were not asked come first
    for pair in np.argsort(-information, kind="stable").tolist():
        if (True, information[pair]) <= most:
            break
        asked, times = known(int(drawn[firsts[pair]]), int(drawn[seconds[pair]]))
        if (value := (not asked, information[pair] / (1 + times))) > most:
            best, most = pair, value
    first, second = int(drawn[firsts[best]]), int(drawn[seconds[best]])
    return (first, second) if logits[best] >= -step else (second, first)
