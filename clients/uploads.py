"""What a device computes for a server from its store, and what it stores of a broadcast."""

from __future__ import annotations

import time

import numpy as np

from clients.learning import PersonalLearner
from clients.store import DuelStore, Evidence, Synchronization
from fldb_flower.bandit.duels import clipped
from fldb_flower.bandit.limits import units_of
from fldb_flower.bandit.prior import CommonPrior, ShareChange, scale_of
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.federation.contributions import limited_statistics, sizes_and_weights
from fldb_flower.federation.exchange import Broadcast, PlayRequest, Upload, statistics
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.forms import make_form
from fldb_flower.settings import SELECTION_SETTINGS, Settings


def private_prior(prior: CommonPrior, settings: Settings) -> CommonPrior:
    """Return the prior with the lower limit of v and the fixed scale of privacy, if any."""
    if settings.clip is None:
        return prior
    variance = max(prior.variance, settings.privacy.min_variance)
    return prior._replace(variance=variance, scale=float(scale_of(settings.clip**2)))


class UploadMaker:
    """Computes the uploads of a device, with the settings of a server's run.

    Parameters
    ----------
    store : DuelStore
        The device's store.
    settings : Settings
        Those of the server's run.

    Raises
    ------
    SettingsError
        The run has another dimension than the device's duels.
    """

    def __init__(self, store: DuelStore, settings: Settings) -> None:
        known = store.dimension
        if known not in (None, settings.dimension):
            raise SettingsError(
                f"dimension={settings.dimension} (from the server's run): this device's duels have"
                f" {known} features"
            )
        self._store = store
        self._settings = settings
        self.form = make_form(settings)

    def nothing(self, broadcast: Broadcast) -> Upload:
        """Return the reply to a broadcast that requests no statistics."""
        none = np.zeros((0, self._settings.dimension))
        return statistics(broadcast, none, np.zeros(0), none, self.form)

    def upload(
        self, broadcast: Broadcast, start: int, end: int, counted: int | None = None
    ) -> tuple[Upload, Evidence]:
        """Return the statistics of the answers between two cuts, and these answers.

        Parameters
        ----------
        broadcast : Broadcast
            The request.
        start, end : int
            The cuts.
        counted : int, optional
            The cut, up to ``start``, whose share the server's sums contain; by default ``start``.
        """
        duels, clip = self._store.evidence(start, end), self._settings.clip
        differences = duels.differences.reshape(-1, self._settings.dimension)
        if clip is None:
            upload = statistics(broadcast, differences, duels.preferences, differences, self.form)
        else:
            upload = self._private(broadcast, clipped(differences, clip), duels.preferences)
        rotated = self.form.rotated
        upload = upload._replace(
            information=rotated(upload.information),
            hessian=None if upload.hessian is None else rotated(upload.hessian),
        )
        if broadcast.shares:
            known = start if counted is None else counted
            upload = upload._replace(shares=self._share_change(broadcast, known, end, start))
        return upload, duels

    def _private(self, broadcast: Broadcast, differences: Array, preferences: Array) -> Upload:
        """Return the statistics of clipped differences, with the limit on a person."""
        if self._settings.privacy.unit == "answer" or broadcast.theta_hat is None:
            return statistics(broadcast, differences, preferences, differences, self.form)
        units = units_of(*sizes_and_weights(broadcast, self._settings))
        return limited_statistics(broadcast, differences, preferences, 1, self.form, units=units)

    def _share_change(self, broadcast: Broadcast, start: int, end: int, scored: int) -> ShareChange:
        """Return the change of this device's share between two cuts, with losses after ``scored``.

        The share at ``end`` is computed once, from all answers up to it that are left, and stored.
        With privacy, the whole share is returned and none is stored: what the server's sums contain
        of this device is not known, because of the noise.
        """
        store = self._store
        if self._settings.is_private:
            units = units_of(*sizes_and_weights(broadcast, self._settings))
            learner = PersonalLearner(self._settings, self._prior(broadcast))
            change = learner.limited(store.answers(0, scored), store.answers(scored, end), units)
            return change._replace(members=0.0 if start else 1.0)
        span = store.share_span(start, end)
        if start < end and not store.has_share(end):
            learner = PersonalLearner(self._settings, self._prior(broadcast), store.share(start))
            known, new = store.answers(span.start, span.scored), store.answers(span.scored, end)
            store.keep_share(end, learner.share(known, new))
        return store.share_change(start, end, scored)

    def _prior(self, broadcast: Broadcast) -> CommonPrior:
        prior = None if broadcast.play is None else broadcast.play.estimate
        if not isinstance(prior, CommonPrior):
            raise DataError("the broadcast requests a share without a prior")
        return private_prior(prior, self._settings)

    def synchronize(self, play: PlayRequest, counted: int, duels: int) -> None:
        """Store the estimate of a broadcast.

        Parameters
        ----------
        play : PlayRequest
            With an estimate.
        counted : int
            Number of the last answer of this device that the server has counted.
        duels : int
            Number of duels, of all devices, that the estimate is based on.

        Raises
        ------
        DataError
            W_sync is not positive definite.
        """
        estimate = play.estimate
        assert estimate is not None
        prior = None
        if isinstance(estimate, CommonPrior):
            prior = private_prior(estimate, self._settings)
            information = prior.precision
            ridge = self._settings.personal_ridge * (prior.scale or 1.0)
            theta = self.form.solve(information, prior.shift, ridge)  # the common mean
        else:
            theta, information = estimate.theta_sync, estimate.information
            try:
                self.form.whiten(information)
            except np.linalg.LinAlgError:
                raise DataError(
                    "the broadcast's W_sync is not positive definite: not stored"
                ) from None
        chosen = {name: getattr(self._settings, name) for name in SELECTION_SETTINGS}
        self._store.synchronize(
            Synchronization(
                received=time.time(),
                round=play.last,
                counted=counted,
                duels=duels,
                theta=theta,
                information=self.form.pack(information),
                parameters={**chosen, "lambda_": self._settings.ridge},
                prior=prior,
            )
        )
