"""What a device knows about its user: the server's estimate, and the answers in its store."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from clients.store import DuelStore, Evidence, Synchronization
from clients.store.duel_store import selection_settings
from fldb_flower.bandit import theory
from fldb_flower.bandit.estimate import (
    LONGEST,
    PRIVATE_LONGEST,
    START,
    CommonPrior,
    ShareChange,
    num_hypotheses,
    scale_of,
)
from fldb_flower.bandit.estimates import PersonalEstimates
from fldb_flower.bandit.limits import factors
from fldb_flower.bandit.preference import link
from fldb_flower.bandit.selection import norms
from fldb_flower.linalg.arrays import Array, FloatArray
from fldb_flower.linalg.linear import Whitener, make_form, whiten
from fldb_flower.settings import NONE, Settings

_BLOCK = 100  # at least this many answers are known for each one that is predicted together


class CommonLearner:
    """theta_sync of FLDB-ONS or FLDB-OGD, and W or A plus this device's uncounted answers."""

    def __init__(self, last: Synchronization, settings: Settings) -> None:
        self.settings, self.theta = settings, last.theta
        self._form, self._duels = make_form(settings), last.duels
        self._by_curvature = theory.selects_by_curvature(settings)
        self._information: Array = self._form.unpack(last.information)

    @cached_property
    def whitener(self) -> Whitener:
        """C with ``||x||_{W^-1} = ||x C||``."""
        return whiten(self._information)

    @property
    def width(self) -> float:
        """Width of theory, for the duels in W and the next one (the theory's t N)."""
        return theory.width(self._duels + 1, 1, self.settings)

    def learn(self, duels: Evidence) -> None:
        """Add the differences to W, or their Hessian to A; theta_sync does not change."""
        if len(duels.numbers):
            weights = link(duels.differences @ self.theta)[1] if self._by_curvature else None
            self._information = self._information + self._form.gram(duels.differences, weights)
            self._duels += len(duels.numbers)
            self.__dict__.pop("whitener", None)

    def logit(self, difference: FloatArray) -> float:
        """Return ``theta . difference``."""
        return float(self.theta @ difference)

    def deviations(self, rows: FloatArray | None = None) -> FloatArray:
        """Return ``||x||_{A^-1}`` of rows x, (n, d), or ``2 ||x||_{W^-1}`` without A.

        By default, the rows are the unit vectors: the deviations of the weights. A duel's Hessian
        is at most a quarter of its Gram matrix, so the latter are at least the posterior standard
        deviations without a prior.
        """
        return (1.0 if self._by_curvature else 2.0) * _norms(rows, self.whitener)


class PersonalLearner:
    """The person's own theta, by the model of FLDB-Personal.

    ``own`` is M and m of this device that the sums of the prior, of the last broadcast, contain.
    Before the first broadcast, the prior of theta is ``N(0, (1 / lambda_0 + v) I)`` with the v
    that federations start with.
    """

    def __init__(
        self,
        settings: Settings,
        prior: CommonPrior | None = None,
        own: tuple[FloatArray, FloatArray] | None = None,
    ) -> None:
        self.settings, self.width, d = settings, settings.personal_width, settings.dimension
        nothing = np.zeros((d, d)), np.zeros(d)
        self._prior = prior or CommonPrior(*nothing, START, 0.0)
        precision, shift = own or nothing
        self._own = ShareChange(precision[None], shift[None], *[np.zeros(1)] * 3)
        longest = LONGEST if settings.clip is None else PRIVATE_LONGEST
        self._estimates = PersonalEstimates(
            1, d, settings.personal_ridge, longest=longest, decay=settings.decay
        )
        self._squares, self._count = 0.0, 0  # of the answers, for the scale
        self._estimates.receive(self._prior, self._own, self._scale())

    @property
    def theta(self) -> FloatArray:
        """The mean of the posterior."""
        theta: FloatArray = self._estimates.theta[0]
        return theta

    @property
    def whitener(self) -> Whitener:
        """C with ``||x C||`` the posterior standard deviation of ``theta . x``."""
        return self._estimates.whitener()[0]

    def learn(self, duels: Evidence) -> None:
        """Update theta and its posterior."""
        if len(duels.numbers):
            self._squares += _squares(duels)
            self._count += len(duels.numbers)
            if not self._prior.scale:
                self._estimates.set_prior(self._prior, self._own, self._scale())
            self._estimates.add_many(duels.differences[None], duels.preferences[None])

    def logit(self, difference: FloatArray) -> float:
        """Return the logit of the probability, averaged over the posterior."""
        return float(self._estimates.predict(difference[None])[0])

    def deviations(self, rows: FloatArray | None = None) -> FloatArray:
        """Return the posterior standard deviations of ``theta . x`` of rows x, (n, d).

        By default, the rows are the unit vectors: the deviations of the weights.
        """
        return _norms(rows, self.whitener)

    def share(self, known: Evidence, new: Evidence) -> ShareChange:
        """Learn from ``known`` and then ``new`` answers; return the share of all of them.

        Each new answer is predicted, under each v, before it is learned from. The prediction uses
        the posterior given the earlier answers, or all but the last 1% of them. ``losses`` and
        ``squares`` are sums over the new answers.
        """
        before, count = len(known.numbers), len(new.numbers)
        # One scale for the whole share.
        self._squares, self._count = _squares(known) + _squares(new), before + count
        estimates, losses = self._estimates, np.zeros(num_hypotheses(self._prior))
        estimates.receive(self._prior, self._own, self._scale())
        if before:
            estimates.add_many(known.differences[None], known.preferences[None])
        begin = 0
        while begin < count:
            end = min(count, begin + 1 + (before + begin) // _BLOCK)
            differences, preferences = new.differences[begin:end], new.preferences[begin:end]
            for x, y in zip(differences, preferences, strict=True):
                losses += estimates.losses(x[None], y[None])[0]
            estimates.add_many(differences[None], preferences[None])
            begin = end
        precision, shift, gradient = estimates.shares()
        scatter = None if self._prior.shape is None else np.outer(gradient[0], gradient[0])
        return ShareChange(precision[0], shift[0], losses, _squares(new), 1.0, scatter)

    def relative(self, known: Evidence, new: Evidence) -> ShareChange:
        """Return the share relative to the mean of the prior: ``m - M mean`` in place of m."""
        change = self.share(known, new)
        mean = self._estimates.prior_mean[0]
        return change._replace(shift=change.shift - change.precision @ mean)

    def limited(self, known: Evidence, new: Evidence, units: Mapping[str, float]) -> ShareChange:
        """Return the relative share with the limit of privacy, as ``policies.PersonalPolicy``."""
        clip = self.settings.clip
        assert clip is not None
        change = self.relative(known, new)
        parts = {name: getattr(change, name) for name in ("precision", "shift", "losses")}
        (factor,) = factors({name: part[None] for name, part in parts.items()}, units)
        scaled = {name: factor * part for name, part in parts.items()}
        return change._replace(**scaled, squares=clip**2 * len(new.numbers))

    def _scale(self) -> FloatArray:
        mean = np.array([self._squares / max(self._count, 1)])
        scale: FloatArray = np.array([self._prior.scale]) if self._prior.scale else scale_of(mean)
        return scale


def _norms(rows: FloatArray | None, whitener: Whitener) -> FloatArray:
    """Return ``||x C||`` of rows x, (n, d), by default of the unit vectors."""
    rows = np.eye(len(whitener)) if rows is None else rows
    lengths: FloatArray = norms(rows[None], whitener)[0]
    return lengths


def _squares(duels: Evidence) -> float:
    """Return the sum of the squared lengths of the differences."""
    return float(np.vdot(duels.differences, duels.differences))


def make_learner(
    store: DuelStore,
    last: Synchronization | None,
    dimension: int,
    duels: Evidence,
    half_life: float | str = NONE,
) -> CommonLearner | PersonalLearner:
    """Return a learner that knows the last broadcast and a store's answers.

    The half-life is that of a device without a server; a server's settings have their own.
    """
    learner: CommonLearner | PersonalLearner
    if last is None:
        own = {"algorithm": "fldb_personal", "half_life": half_life}
        learner = PersonalLearner(selection_settings(own, dimension))
    elif last.prior is None:
        learner = CommonLearner(last, selection_settings(last.parameters, dimension))
        duels = duels.after(last.counted)
    else:
        settings = selection_settings(last.parameters, dimension)
        learner = PersonalLearner(settings, last.prior, store.share(last.counted))
    learner.learn(duels)
    return learner
