"""The uploads that a device computes from its store, and what it stores of a broadcast."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

import numpy as np

from clients.store import DuelStore, Evidence, Synchronization
from fldb_flower.bandit.duels import clipped
from fldb_flower.bandit.estimate import (
    VARIANCES,
    CommonPrior,
    ShareChange,
    num_hypotheses,
    private_prior,
)
from fldb_flower.bandit.features import Features
from fldb_flower.bandit.limits import units_of
from fldb_flower.errors import ConvergenceError, DataError, SettingsError, one_line
from fldb_flower.federation.exchange import (
    AnyUpload,
    Broadcast,
    PlayRequest,
    ShareUpload,
    Upload,
    limited_statistics,
    sizes_and_weights,
    statistics,
)
from fldb_flower.linalg.arrays import LARGEST, Array, FloatArray
from fldb_flower.linalg.linear import largest_norm, make_form, pack, solve, whiten
from fldb_flower.settings import SELECTION_SETTINGS, Settings
from fldb_flower.wire import encode_upload

if TYPE_CHECKING:
    from clients.learning import PersonalLearner

# Public limits of what a device uses, with features of at most 1e100: squares are then finite.
_LARGEST_SUM = 1e250  # largest sum of products of features
_LARGEST_VARIANCE = 1e90  # largest variance of an entry of theta
_LEAST_V, _LARGEST_V = 1e-12, 1e6  # in units of 1 / scale; estimates are from 1e-3 to 10
_MOST_AGENTS = 1e15  # each M_i is at most I / v
_MOST_LOGIT = 1e3  # largest logit of a typical duel

_LOG = logging.getLogger(__name__)


def _largest(numbers: Array) -> float:
    return float(np.abs(numbers).max())


def _expect(name: str, value: float, most: float, least: float = 0.0) -> None:
    if not least <= value <= most:  # NaN too
        raise DataError(
            f"the broadcast's {name} has the size {value:g}: must be from {least:g} to {most:g};"
            " not stored"
        )


class UploadMaker:
    """Computes the uploads of a device, with the settings of a server's run.

    Statistics are of differences divided by the scales of the federation's ``features``.
    """

    def __init__(
        self, store: DuelStore, settings: Settings, features: Features | None = None
    ) -> None:
        known = store.dimension
        if known not in (None, settings.dimension):
            raise SettingsError(
                f"dimension={settings.dimension} (from the server's run): this device's duels have"
                f" {known} features"
            )
        self._store, self._settings = store, settings
        self.form = make_form(settings)
        self.use(features)

    def use(self, features: Features | None) -> None:
        """Use the features of a broadcast; DataError if this device's have other names."""
        if features is not None:
            if (count := features.dimension) != self._settings.dimension:
                raise DataError(
                    f"the server has scales of {count} features: must be of"
                    f" {self._settings.dimension}, its dimension; nothing was sent"
                )
            features.expect(self._store.feature_names, "this device")
        self._features = features
        self._scales = features or Features.unscaled(self._settings.dimension)

    def report(self, broadcast: Broadcast, known: Evidence, new: Evidence) -> AnyUpload:
        """Return the statistics of a person for a report of secure sums, which limits its length.

        They cover new answers; with shares, the whole share and the log losses of new answers.
        """
        known, new = known.scaled(self._scales), new.scaled(self._scales)
        if not broadcast.shares:
            return self._statistics(broadcast, self._clipped(new), new.preferences)
        count = len(known.numbers) + len(new.numbers)
        return ShareUpload(count, *self._learner(broadcast).relative(known, new))

    def upload(self, broadcast: Broadcast, start: int, end: int) -> tuple[AnyUpload, Evidence]:
        """Return the statistics of the answers between two cuts, and these answers."""
        duels = self._store.evidence(start, end).scaled(self._scales)
        if self._settings.is_private and broadcast.learns:
            return self._private(broadcast, duels, start, end), duels
        if not broadcast.shares:
            return self._statistics(broadcast, duels.differences, duels.preferences), duels

        def share(own: tuple[FloatArray, FloatArray], *read: Evidence) -> ShareChange:
            scaled = (each.scaled(self._scales) for each in read)
            return self._learner(broadcast, own).share(*scaled)

        hypotheses = num_hypotheses(broadcast.play and broadcast.play.estimate)
        change = self._store.share_change(start, end, share, self._features, hypotheses)
        return ShareUpload(len(duels.numbers), *change), duels

    def _statistics(self, broadcast: Broadcast, differences: Array, preferences: Array) -> Upload:
        return statistics(broadcast, differences, preferences, differences, self.form)

    def _private(self, broadcast: Broadcast, duels: Evidence, start: int, end: int) -> AnyUpload:
        """Return the statistics of clipped differences, with the limit on a person.

        They are zeros if they cannot be computed: this may depend on the answers, and a refusal
        would be observed without noise. Numbers of answers are public. Whole shares are returned
        and none is stored: with noise, the part of them in the server's sums is unknown.
        """
        settings, count = self._settings, len(duels.numbers)
        assert settings.clip is not None
        members = 0.0 if start else 1.0
        try:
            units = units_of(*sizes_and_weights(broadcast, settings))
            if broadcast.shares:
                spans = (0, start), (start, end)  # without forgotten answers
                known, new = (self._store.answers(*each).scaled(self._scales) for each in spans)
                share = self._learner(broadcast).limited(known, new, units)
                upload: AnyUpload = ShareUpload(count, *share._replace(members=members))
            else:
                parts = broadcast, self._clipped(duels), duels.preferences, 1, self.form
                upload = limited_statistics(*parts, units=units)
            if np.isfinite(encode_upload(upload, broadcast)).all():
                return upload
            reason: Exception = FloatingPointError("a number is not finite")
        except (ConvergenceError, ArithmeticError, np.linalg.LinAlgError) as error:
            reason = error
        _LOG.warning("%s", one_line(f"contributes zeros, with noise: {reason}"))
        if not broadcast.shares:
            nothing = np.zeros((count, settings.dimension))
            return self._statistics(broadcast, nothing, np.zeros(count))
        zeros = self.form.zeros(), np.zeros(settings.dimension), np.zeros(len(VARIANCES))
        return ShareUpload(count, *zeros, squares=settings.clip**2 * count, members=members)

    def _clipped(self, duels: Evidence) -> Array:
        assert self._settings.clip is not None
        return clipped(duels.differences, self._settings.clip)

    def _learner(
        self, broadcast: Broadcast, own: tuple[FloatArray, FloatArray] | None = None
    ) -> PersonalLearner:
        prior = None if broadcast.play is None else broadcast.play.estimate
        if not isinstance(prior, CommonPrior):
            raise DataError("the broadcast requests a share without a prior")
        # Each message starts a process, and only FLDB-Personal needs these modules.
        from clients.learning import PersonalLearner  # noqa: PLC0415

        return PersonalLearner(self._settings, private_prior(prior, self._settings), own)

    @np.errstate(all="ignore")  # what overflows is beyond the limits
    def check(self, broadcast: Broadcast) -> None:
        """Raise DataError unless the device can use a broadcast, with any arms and any answers.

        The limits are public: whether a broadcast is refused does not depend on the device's data.
        """
        estimate = None if broadcast.play is None else broadcast.play.estimate
        if broadcast.theta_hat is not None:
            _expect("theta_hat", _largest(broadcast.theta_hat), LARGEST)
        if isinstance(estimate, CommonPrior):
            self._check_prior(private_prior(estimate, self._settings))
        elif estimate is not None:
            _expect("theta_sync", _largest(estimate.theta_sync), LARGEST)
            _expect("W_sync", _largest(estimate.information), _LARGEST_SUM)
            try:
                whitener = whiten(estimate.information)
            except np.linalg.LinAlgError:
                raise DataError(
                    "the broadcast's W_sync is not positive definite: not stored"
                ) from None
            _expect("the inverse of W_sync", largest_norm(whitener) ** 2, _LARGEST_VARIANCE)

    def _check_prior(self, prior: CommonPrior) -> None:
        settings, scale = self._settings, prior.scale or 1.0
        if settings.matrix_form != "full":
            raise DataError(f"the broadcast has a prior, and matrix_form={settings.matrix_form}")
        ridge, variance = settings.personal_ridge * scale, prior.variance / scale
        _expect("scale", scale, _LARGEST_SUM, 1e-200)
        _expect("v", prior.variance, _LARGEST_V, _LEAST_V)
        _expect("the variance of the prior", 1.0 / ridge + variance, _LARGEST_VARIANCE)
        _expect("the sum of M_i, times v", _largest(prior.precision) * variance, _MOST_AGENTS)
        _expect("the sum of M_i", _largest(prior.precision), _LARGEST_SUM)
        try:
            mean = solve(prior.precision, prior.shift, ridge)
        except np.linalg.LinAlgError as reason:
            raise DataError(f"the broadcast's sum of M_i: {reason}") from None
        _expect("the mean of the prior", _largest(mean) * math.sqrt(scale), _MOST_LOGIT)

    def synchronize(self, play: PlayRequest, counted: int, duels: int) -> None:
        """Store the estimate of a broadcast; a device that cannot use it keeps its former one.

        The prior without this device's share is checked as well: a server's sums may not contain
        it. The server does not observe the result, since it may depend on that share.
        """
        try:
            received = self.synchronization(play, counted, duels)
            if (prior := received.prior) is not None and self._store.has_share(counted):
                from clients.learning import PersonalLearner  # noqa: PLC0415 - see `_learner`

                name = "prior without the device's own share"
                with np.errstate(over="raise", invalid="raise", divide="raise"):
                    learner = PersonalLearner(self._settings, prior, self._store.share(counted))
                    logit = _largest(learner.theta) * math.sqrt(prior.scale or 1.0)
                    _expect(name, logit, _MOST_LOGIT)
                    _expect(name, largest_norm(learner.whitener) ** 2, _LARGEST_VARIANCE)
        except (ArithmeticError, DataError, np.linalg.LinAlgError) as reason:
            _LOG.warning("%s", one_line(f"keeps its former estimate: {reason}"))
            return
        self._store.synchronize(received)

    def synchronization(self, play: PlayRequest, counted: int, duels: int) -> Synchronization:
        """Return the estimate of a broadcast, after :meth:`check`, as the store keeps it.

        The server has counted ``counted`` answers of this device, and ``duels`` of all devices.
        """
        estimate = play.estimate
        assert estimate is not None
        prior = None
        if isinstance(estimate, CommonPrior):
            prior = private_prior(estimate, self._settings)
            information = prior.precision
            ridge = self._settings.personal_ridge * (prior.scale or 1.0)
            theta = solve(information, prior.shift, ridge)  # the common mean
        else:
            theta, information = estimate.theta_sync, estimate.information
        chosen = {name: getattr(self._settings, name) for name in SELECTION_SETTINGS}
        chosen["lambda_"] = self._settings.ridge
        received = time.time(), play.last, counted, duels, theta, pack(information), chosen, prior
        return Synchronization(*received, features=self._features)
