"""How a device selects the two arms of a duel, by all that it knows."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np

from clients.learning import make_learner
from clients.store import DuelStore, Evidence
from fldb_flower.bandit.preference import duel_key, logistic
from fldb_flower.bandit.selection import norms
from fldb_flower.bandit.selection.informative import most_informative
from fldb_flower.bandit.selection.rules import tie_breaks
from fldb_flower.bandit.selection.selector import best_challenger, find_rule
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.settings import NONE
from fldb_flower.system.process import one_blas_thread

CREDIBLE = 1.5
"""Posterior standard deviations from the favourite within which an arm may be best."""


class PairSelector:
    """Selects pairs after one broadcast, with the answers in the device's store.

    A person who is asked the same question again tends to repeat the answer, so the second answer
    teaches less than the model assumes. There are three rules:

    - ``purpose="suggest"`` with a person's own estimate and ``selection=ucb``: the first arm is the
      favourite, ``argmax theta . x``. The second arm is one within 1.5 posterior standard
      deviations of it: among these, one that was compared with the favourite least often, with the
      largest ``theta . x + width ||x - first||``. If there is none, it is the arm with the largest
      such bound of all.
    - ``purpose="suggest"`` otherwise: the rule of the server's settings.
    - ``purpose="rank"``: the pair with the largest ``log(1 + p (1 - p) ||x - x'||^2) / (1 + n)``:
      the information gained about theta, where p is the predicted probability and n how often the
      pair was answered or skipped. Regret is ignored.

    An upload needs enough distinct duels. With every rule, pairs that were neither asked since the
    last upload nor skipped therefore come first. If the pair of the rule is not new, the second arm
    is the best challenger that is new with the first arm. If there is none, the first arm is the
    next best one with such a challenger. Two arms with the same features are not a pair. Once all
    pairs were asked, the rule selects among all; of skipped pairs, among those skipped least often.

    ``skipped`` counts how often each duel was skipped, by its ``duel_key``. Lengths and estimates
    are of features divided by their scales (``DuelStore.features``).
    """

    def __init__(
        self,
        store: DuelStore,
        dimension: int,
        purpose: str,
        skipped: Counter[bytes],
        half_life: float | str = NONE,
    ) -> None:
        with store.reading():
            self.version, self.dimension = store.version(), dimension
            last, duels = store.synchronized(), store.answers()
            self.features = store.features(dimension)
        self._store, self._purpose, self._skipped = store, purpose, skipped
        self.is_own = last is None or last.prior is not None
        self._has_broadcast = last is not None
        scaled = duels.scaled(self.features)
        self.learner = make_learner(store, last, dimension, scaled, half_life)
        settings = self.learner.settings
        self._avoids_repeats = (settings.algorithm, settings.selection) == ("fldb_personal", "ucb")
        self._rule = find_rule(settings.selection)
        self._streams = AgentStreams(int.from_bytes(os.urandom(8), "little"), range(1))
        self._answered: Counter[bytes] = Counter()
        self._known = 0  # the last answer that was learned from
        self._count(duels)

    def update(self) -> None:
        """Learn from the answers that are new in the store."""
        if self._store.last > self._known:
            new = self._store.answers(self._known)
            with one_blas_thread():
                self.learner.learn(new.scaled(self.features))
            self._count(new)

    def _count(self, duels: Evidence) -> None:
        self._answered.update(map(duel_key, duels.differences))
        self._known = int(duels.numbers.max(initial=self._known))

    @property
    def is_informed(self) -> bool:
        """Whether there was a broadcast or an answer."""
        return self._has_broadcast or self._known > 0

    def predict(self, difference: FloatArray) -> float:
        """Return the probability that the first arm is preferred."""
        return float(logistic(np.float64(self.learner.logit(self.features.scaled(difference)))))

    def rewards(self, arms: FloatArray) -> FloatArray:
        """Return theta . x of arms, (K, d)."""
        rewards: FloatArray = self.features.scaled(arms) @ self.learner.theta
        return rewards

    def select(self, offered: FloatArray) -> tuple[int, int]:
        """Return the indices of two different arms, (K, d); the first is the favourite of both."""
        asked, arms = self._store.asked(), self.features.scaled(offered)
        estimate = self.learner.theta, self.learner.whitener, self.learner.width
        if self._purpose == "rank":

            def known(one: int, other: int) -> tuple[bool, float]:
                difference = offered[one] - offered[other]
                return duel_key(difference) in asked, self._repeats(difference)

            first, second = most_informative(arms, *estimate[:2], known)
        elif self._avoids_repeats:
            first, second = self._least_compared(arms, offered)
        else:
            first, second = self._rule.pair(arms, *estimate, self._streams)

        def is_new(difference: FloatArray) -> bool:
            key = duel_key(difference)
            return bool(difference.any()) and key not in asked and not self._skipped[key]

        if is_new(offered[first] - offered[second]):
            return first, second
        tried = set[bytes]()
        for arm in (first, *np.argsort(-(arms @ estimate[0]), kind="stable").tolist()):
            if arms[arm].tobytes() not in tried:
                tried.add(arms[arm].tobytes())
                allowed = np.array([is_new(offered[arm] - other) for other in offered])
                if allowed.any():
                    return arm, best_challenger(arms, arm, *estimate, allowed=allowed)
        keys = [duel_key(offered[first] - other) for other in offered]
        if first != second and not self._skipped[keys[second]]:
            return first, second
        skips = np.array([self._skipped[key] for key in keys], float)
        skips[first] = np.inf
        return first, best_challenger(arms, first, *estimate, allowed=skips == skips.min())

    def _repeats(self, difference: FloatArray) -> int:
        key = duel_key(difference)
        return self._answered[key] + self._skipped[key]

    def _least_compared(self, arms: FloatArray, offered: FloatArray) -> tuple[int, int]:
        theta, whitener, width = self.learner.theta, self.learner.whitener, self.learner.width
        predicted = arms @ theta - tie_breaks(arms[None], theta, whitener, width + CREDIBLE)
        first = int(np.argmax(predicted))
        deviations = norms((arms - arms[first])[None], whitener)[0]
        scores = predicted + width * deviations
        may_be_best = predicted + CREDIBLE * deviations >= predicted[first]
        scores[first], may_be_best[first] = -np.inf, False
        candidates = np.flatnonzero(may_be_best).tolist()
        if not candidates:
            return first, int(np.argmax(scores))
        repeats = {arm: self._repeats(offered[first] - offered[arm]) for arm in candidates}
        return first, min(candidates, key=lambda arm: (repeats[arm], -scores[arm]))
