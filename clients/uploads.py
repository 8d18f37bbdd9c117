"""What a device computes for a server from its store, and what it stores of a broadcast."""

from __future__ import annotations

import time

import numpy as np

from clients.learning import PersonalLearner
from clients.store import DuelStore, Evidence, Synchronization
from fldb_flower.bandit.prior import CommonPrior, ShareChange
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.federation.exchange import Broadcast, PlayRequest, Upload, statistics
from fldb_flower.linalg.forms import make_form
from fldb_flower.settings import SELECTION_SETTINGS, Settings


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
        duels = self._store.evidence(start, end)
        differences = duels.differences.reshape(-1, self._settings.dimension)
        upload = statistics(broadcast, differences, duels.preferences, differences, self.form)
        rotated = self.form.rotated
        upload = upload._replace(
            information=rotated(upload.information),
            hessian=None if upload.hessian is None else rotated(upload.hessian),
        )
        if broadcast.shares:
            known = start if counted is None else counted
            upload = upload._replace(shares=self._share_change(broadcast, known, end, start))
        return upload, duels

    def _share_change(self, broadcast: Broadcast, start: int, end: int, scored: int) -> ShareChange:
        """Return the change of this device's share between two cuts, with losses after ``scored``.

        The share at ``end`` is computed once, from all answers up to it that are left, and stored.
        """
        store = self._store
        span = store.share_span(start, end)
        if start < end and not store.has_share(end):
            prior = None if broadcast.play is None else broadcast.play.estimate
            if not isinstance(prior, CommonPrior):
                raise DataError("the broadcast requests a share without a prior")
            learner = PersonalLearner(self._settings, prior, store.share(start))
            known, new = store.answers(span.start, span.scored), store.answers(span.scored, end)
            store.keep_share(end, learner.share(known, new))
        return store.share_change(start, end, scored)

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
            prior, information = estimate, estimate.precision
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
