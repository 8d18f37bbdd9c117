"""How a device selects the two arms of a duel."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np

from clients.learning import Learner
from clients.store import Evidence, duel_key
from fldb_flower.bandit.preference import link
from fldb_flower.bandit.selection import find_rule, norms, rewards
from fldb_flower.bandit.selection.scores import tie_breaks, tie_step
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.whiteners import Whitener, whitened
from fldb_flower.settings import Settings

PURPOSES = ("suggest", "rank")
"""What duels are for: few bad arms shown, or all arms ranked well."""

CREDIBLE = 1.5
"""Arms that may be best: within as many posterior standard deviations of the favourite."""

MOST_COMPARED = 300
"""Arms whose pairs are all compared; of more arms, as many are drawn at random."""


class PairSelector:
    """Selects pairs with a learner, and counts how often each duel was answered.

    A person who is asked the same question again tends to repeat the answer, so the second answer
    teaches less than the model assumes. There are three rules:

    - ``purpose="suggest"`` with a person's own estimate: the first arm is the favourite, ``argmax
      theta . x``. The second arm is one that may be best, that is within 1.5 posterior standard
      deviations of the favourite: among these, one that was compared with the favourite least
      often, and among those the one with the largest ``theta . x + width ||x - first||``. If no
      other arm may be best, it is the challenger of FLDB-Personal, the arm with the largest such
      bound of all. So regret stays low, and the same pair is not asked while other arms may be
      best. It is the rule for ``selection=ucb``.
    - ``purpose="suggest"`` with an estimate of FLDB-ONS or FLDB-OGD, or another ``selection``: the
      rule of the server's settings.
    - ``purpose="rank"``: the most informative pair. It has the largest
      ``log(1 + p (1 - p) ||x - x'||^2) / (1 + n)``: the information gained about theta, where p is
      the predicted probability and n how often the pair was answered or skipped. Regret is ignored.

    If a rule selects the same arm twice, or a pair that the person has skipped, the second arm is
    the best challenger among the others: those that were skipped least often with the first arm.

    Parameters
    ----------
    learner : Learner
        What is known about the person.
    settings : Settings
        With which a device selects.
    purpose : {"suggest", "rank"}
        What duels are for.
    skipped : Counter
        How often each duel was skipped, by its :func:`~clients.store.duel_key`.
    """

    def __init__(
        self, learner: Learner, settings: Settings, purpose: str, skipped: Counter[bytes]
    ) -> None:
        self._learner = learner
        self._purpose = purpose
        self._skipped = skipped
        self._answered: Counter[bytes] = Counter()
        self._avoids_repeats = (settings.algorithm, settings.selection) == ("fldb_personal", "ucb")
        self._rule = find_rule(settings.selection)
        self._streams = AgentStreams(int.from_bytes(os.urandom(8), "little"), range(1))

    def count(self, duels: Evidence) -> None:
        """Count answers."""
        self._answered.update(duel_key(difference) for difference in duels.differences)

    def select(self, arms: FloatArray) -> tuple[int, int]:
        """Return the indices of two different arms, (K, d); the first is the favourite of both."""
        theta, whitener, width = self._learner.theta, self._learner.whitener, self._learner.width
        if self._purpose == "rank":
            first, second = self._most_informative(arms, theta, whitener)
        elif self._avoids_repeats:
            first, second = self._least_compared(arms, theta, whitener, width)
        else:
            rule = self._rule
            noise = None if rule.noise is None else rule.noise(self._streams, 1, arms.shape)[:, 0]
            firsts, seconds = rule.select(arms[None], theta, whitener, width, noise)
            first, second = int(firsts[0]), int(seconds[0])
        if first != second and not self._skipped[duel_key(arms[first] - arms[second])]:
            return first, second
        others = np.delete(arms, first, axis=0)
        skips = np.array([self._skipped[duel_key(arms[first] - other)] for other in others])
        bonus = norms((others - arms[first])[None], whitener)
        bounds = (rewards(others[None], theta) + width * bonus)[0]
        best = int(np.argmax(np.where(skips == skips.min(), bounds, -np.inf)))
        return first, best + int(best >= first)

    def _repeats(self, difference: FloatArray) -> int:
        key = duel_key(difference)
        return self._answered[key] + self._skipped[key]

    def _least_compared(
        self, arms: FloatArray, theta: FloatArray, whitener: Whitener, width: float
    ) -> tuple[int, int]:
        predicted = arms @ theta - tie_breaks(arms[None], theta, whitener, width + CREDIBLE)
        first = int(np.argmax(predicted))
        deviations = norms((arms - arms[first])[None], whitener)[0]
        scores = predicted + width * deviations
        may_be_best = predicted + CREDIBLE * deviations >= predicted[first]
        scores[first], may_be_best[first] = -np.inf, False
        candidates = np.flatnonzero(may_be_best).tolist()
        if not candidates:
            return first, int(np.argmax(scores))
        repeats = {arm: self._repeats(arms[first] - arms[arm]) for arm in candidates}
        return first, min(candidates, key=lambda arm: (repeats[arm], -scores[arm]))

    def _most_informative(
        self, arms: FloatArray, theta: FloatArray, whitener: Whitener
    ) -> tuple[int, int]:
        step = tie_step(arms[None], theta, whitener, 1.0)  # raises if scores overflow
        drawn = np.arange(len(arms))
        if len(arms) > MOST_COMPARED:
            drawn = np.sort(np.random.default_rng().choice(drawn, MOST_COMPARED, replace=False))
        firsts, seconds = np.triu_indices(len(drawn), 1)
        firsts, seconds = drawn[firsts], drawn[seconds]
        logits = (arms @ theta)[firsts] - (arms @ theta)[seconds]
        spread = whitened(arms, whitener)
        squares = ((spread[firsts] - spread[seconds]) ** 2).sum(axis=1)
        curvatures = link(logits / np.sqrt(1.0 + np.pi / 8.0 * squares))[1]
        information = np.log1p(curvatures * squares)
        best, most = 0, -np.inf
        for pair in np.argsort(-information, kind="stable").tolist():
            if information[pair] <= most:
                break
            repeats = self._repeats(arms[firsts[pair]] - arms[seconds[pair]])
            if information[pair] / (1 + repeats) > most:
                best, most = pair, information[pair] / (1 + repeats)
        first, second = int(firsts[best]), int(seconds[best])
        return (first, second) if logits[best] >= -step else (second, first)
