"""Base classes of the algorithms: a state, and how one communication round changes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fldb_flower.algorithms import schedules
from fldb_flower.algorithms.schedules import Round
from fldb_flower.algorithms.solvers import TOLERANCE, Minimum, newton
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.errors import ConvergenceError, DataError, shown
from fldb_flower.federation.exchange import Broadcast, Federation, PlayRequest, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.linear import make_form, solve
from fldb_flower.linalg.noisy import denoised, observed
from fldb_flower.settings import Settings

State = dict[str, Array]
"""Arrays by name. Arrays of a state are not changed in place."""

APPROXIMATE_TOLERANCE = 1e-4
"""Tolerance of the first minimiser without full Hessians: its error is far below its distance
from the true theta."""

FIRST_STEP = 2.0
"""``first_round=step``: length of the step from 0, in units of Newton's.

Newton's step from 0 is the least-squares fit to the logits +2 and -2. It is too short: with normal
logits z and many duels, it is ``4 E[mu'(z)] theta`` (Stein's lemma). The factor 2 is right for
logits with standard deviation 2.7. The root mean square of the logits of the estimate is at most 4
for any duels.
"""

FIRST_CURVATURE = 0.1
"""``first_round=step``: share of the Hessian at 0 that A keeps.

mu' is largest at 0, so the Hessian at 0 is too large and the estimate is rough. With a small share,
the next Newton step corrects it.
"""
_FIXED = frozenset({"theta_sync", "theta_hat", "information"})  # arrays whose shape is fixed

_REPORTS = 50  # reports of the regret in a run of independent agents
_FIRST_EXCHANGES = 50  # limit for the first minimiser; six are usual


class Algorithm(ABC):
    """Base class of the algorithms: what the server computes.

    ``arrays`` is the state on which later rounds depend. It always has ``theta_sync``, (d,),
    zero at first, and ``information``, W_sync in the form of the settings, (lambda / kappa_mu) I
    at first. :meth:`learn` returns the arrays that a round changes.

    Examples
    --------
    The mean difference between winners and losers, in five lines. At theta = 0, the gradient
    of the loss is the sum of ``-(y - 1/2) phi``, because mu(0) = 1/2:

    >>> import fldb_flower as fldb
    >>> from fldb_flower.algorithms import Algorithm
    >>> from fldb_flower.federation.exchange import Broadcast
    >>> @fldb.register_algorithm("mean_winner", keeps_duels=True, exchanges="one")
    ... class MeanWinner(Algorithm):
    ...     def learn(self, federation, round_):
    ...         zero = 0.0 * self.theta_sync
    ...         upload = federation.exchange(Broadcast(self.play(round_), zero, scope="all"))
    ...         return {"theta_sync": -2.0 * upload.gradient / upload.num_duels}

    It is now a value of the setting ``algorithm``:

    >>> fldb.run(algorithm="mean_winner", num_agents=5, horizon=20).summary["exchanges"]
    5
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.form = make_form(settings)
        self.arrays: State = {
            "theta_sync": np.zeros(settings.dimension),
            "information": self.form.identity(settings.ridge / settings.kappa_mu),
        }

    @property
    def theta_sync(self) -> Array:
        """Estimate with which agents select arms, (d,)."""
        return self.arrays["theta_sync"]

    @property
    def information(self) -> Array:
        """W_sync."""
        return self.arrays["information"]

    @property
    def estimate(self) -> Estimate:
        """Estimate with which agents select arms; by default theta_sync and W_sync."""
        return Estimate(self.theta_sync, self.information)

    @property
    def heterogeneity(self) -> float | None:
        """Variance of agents' theta around the common one; None if it is not estimated."""
        return None

    def directions(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return the directions in which agents differ most; empty if they are not estimated."""
        return []

    def rounds(self) -> Iterator[Round]:
        """Yield the rounds of a run; by default those of the schedule."""
        return schedules.rounds(self.settings)

    def play(self, round_: Round) -> PlayRequest:
        """Return the request to the agents to play a round."""
        return PlayRequest(round_.first, round_.last, self.estimate)

    def round(self, federation: Federation, round_: Round) -> None:
        """Let the agents play a round, learn from its duels and acknowledge them."""
        if not round_.learns:
            federation.exchange(Broadcast(self.play(round_), None, final=True))
            federation.acknowledge()
            return
        before = federation.history.exchanges
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                changed = self.learn(federation, round_)
                self._check(changed, "learn")
                _require_finite(changed)
        except (FloatingPointError, np.linalg.LinAlgError) as error:
            raise ConvergenceError(f"iteration {round_.last}: {error}: {self.remedy()}") from None
        self._check_exchanges(federation.history.exchanges - before, round_)
        self.arrays = {**self.arrays, **changed}
        federation.history.heterogeneity = self.heterogeneity
        federation.history.directions = self.directions
        federation.acknowledge(f"{type(self).__name__}.learn")

    def _check_exchanges(self, made: int, round_: Round) -> None:
        """Raise a DataError if a round made more exchanges than the algorithm declares."""
        declared = self.settings.exchanges
        if made > 1 and (declared == "one" or (declared == "several_first" and round_.first > 1)):
            raise DataError(
                f"{type(self).__name__}.learn made {made} exchanges in the round of iteration"
                f" {round_.last}, and is registered with"
                f" exchanges={ALGORITHMS[self.settings.algorithm].exchanges!r}"
            )

    def _check(self, changed: Any, method: str) -> None:
        """Raise a DataError unless a method returned arrays of the state."""
        returned = f"{type(self).__name__}.{method} returned"
        if not isinstance(changed, dict):
            valid = "a dict of the changed arrays by name"
            raise DataError(f"{returned} {shown(changed)}: must be {valid}")
        for name, value in changed.items():
            if name not in self.arrays:
                names = ", ".join(self.arrays)
                raise DataError(f"{returned} {name!r}: must be one of the state's arrays, {names}")
            valid = self.arrays[name].shape
            if getattr(value, "shape", None) != valid and name in _FIXED:
                kind = f"type {type(value).__name__}"
                if hasattr(value, "shape"):
                    kind = f"shape {value.shape}"
                raise DataError(f"{returned} {name} of {kind}: must be an array of shape {valid}")

    @abstractmethod
    def learn(self, federation: Federation, round_: Round) -> State:
        """Exchange as often as needed and return the changed arrays of the state.

        The last exchange of a round is the one that is acknowledged.
        """

    def remedy(self) -> str:
        """Return the settings to change if numbers overflow, for an error message."""
        if self.settings.algorithm in ALGORITHMS.added:
            return f"check the arrays that {type(self).__name__} returns"
        ridge, kappa_mu = self.settings.ridge, self.settings.kappa_mu
        return f"features, lambda={ridge:g} or kappa_mu={kappa_mu:g} are too far from 1"

    def state(self) -> State:
        """Return the state; see :meth:`restore`."""
        return dict(self.arrays)

    def restore(self, state: State) -> None:
        """Resume from what :meth:`state` returned, with identical numbers."""
        self.arrays = {name: np.array(state[name]) for name in self.arrays}


class Independent(Algorithm):
    """The agents play on their own; the server only collects the regret.

    LDB, FLDB-Personal without exchanges, and uniform pairs.
    """

    def rounds(self) -> Iterator[Round]:
        """Yield about 50 equal parts of the run, each of which ends with a report."""
        horizon = self.settings.horizon
        stride = -(-horizon // _REPORTS)
        for number, first in enumerate(range(1, horizon + 1, stride), start=1):
            yield Round(number, first, min(first + stride - 1, horizon), learns=False)

    def play(self, round_: Round) -> PlayRequest:
        """Return a request without an estimate."""
        return PlayRequest(round_.first, round_.last)

    def learn(self, federation: Federation, round_: Round) -> State:
        """Return no change: no round learns."""
        return {}


class Online(Algorithm):
    """An algorithm with one exchange per round, after a first minimiser found by exchanges.

    The first minimiser is that of the loss of the duels of t = 1. With ``first_round=step``, the
    first round has one exchange too: the gradient g and ``W_new`` at 0 give::

        theta = -2 (W_new / 4 + ridge I)^-1 g

    which takes the place of the minimiser, with a tenth of the Hessian ``W_new / 4``; see
    :data:`FIRST_STEP` and :data:`FIRST_CURVATURE`. The state also has ``theta_hat``, (d,), the
    point at which gradients are taken.

    With privacy, matrices of uploads are noisy. They are replaced by estimates that are positive
    semi-definite (``fldb_flower.linalg.noisy.denoised``), so sums of them only grow.

    Examples
    --------
    Stochastic gradient descent with steps 1 / t, from the first minimiser:

    >>> from fldb_flower.algorithms import Online
    >>> class GradientDescent(Online):
    ...     first_ridge = 1.0
    ...
    ...     def begin(self, minimum):
    ...         return {}
    ...
    ...     def step(self, upload, round_):
    ...         theta = self.theta_hat - upload.gradient / round_.last
    ...         return {"theta_hat": theta, "theta_sync": theta}
    >>> from fldb_flower.settings import Settings
    >>> GradientDescent(Settings(dimension=3)).theta_hat
    array([0., 0., 0.])
    """

    HESSIAN = False
    """Whether a round's upload includes the Hessian."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.arrays["theta_hat"] = np.zeros(settings.dimension)

    @property
    def theta_hat(self) -> Array:
        """Point at which gradients are taken, (d,)."""
        return self.arrays["theta_hat"]

    def learn(self, federation: Federation, round_: Round) -> State:
        """Find the first estimate, or take a step with the statistics of the fresh duels."""
        if round_.first == 1:
            is_step = self.settings.takes_first_step
            minimum = (self._first_step if is_step else self._first_minimum)(federation, round_)
            upload = minimum.upload
            changed = {"theta_sync": minimum.theta, "theta_hat": minimum.theta}
            changed |= self.begin(minimum)
        else:
            upload = without_noise(
                self._only_exchange(federation, round_, self.theta_hat, self.HESSIAN)
            )
            changed = self.step(upload, round_)
            self._check(changed, "step")
        prior = self.settings.ridge / self.settings.kappa_mu
        changed["information"] = self.faded(self.information, prior, upload) + upload.information
        return changed

    def faded(self, matrix: Array, prior: float, upload: Upload) -> Array:
        """Return ``prior I`` plus a sum over earlier rounds with its weight after an upload.

        Without ``half_life``, it is the matrix, ``prior I`` plus this sum.
        """
        if self.settings.decay is None:
            return matrix
        kept = self.settings.decay ** (upload.num_duels / self.settings.num_agents)
        return kept * matrix + self.form.identity((1.0 - kept) * prior)

    def _only_exchange(
        self, federation: Federation, round_: Round, point: Array, hessian: bool = False
    ) -> Upload:
        """Play a round; it is final unless a subclass's :meth:`learn` may exchange once more."""
        final = type(self).learn is Online.learn
        request = Broadcast(self.play(round_), point, hessian=hessian, robust=True, final=final)
        upload: Upload = federation.exchange(request)
        return upload

    @property
    @abstractmethod
    def first_ridge(self) -> float:
        """Ridge of the first minimiser."""

    @abstractmethod
    def begin(self, minimum: Minimum) -> State:
        """Return the arrays that depend on the first minimiser, besides theta.

        With ``first_round=step``, ``minimum`` has the estimate and the share of the Hessian.
        """

    @abstractmethod
    def step(self, upload: Upload, round_: Round) -> State:
        """Return ``theta_hat``, ``theta_sync`` and other arrays after a round's fresh duels."""

    def _first_minimum(self, federation: Federation, round_: Round) -> Minimum:
        # Quasi-Newton steps need many exchanges.
        tolerance = TOLERANCE if self.settings.matrix_form == "full" else APPROXIMATE_TOLERANCE
        start = federation.exchange(Broadcast(self.play(round_), self.theta_sync, hessian=True))
        return newton(
            lambda trial: federation.exchange(Broadcast(None, trial, hessian=True)),
            start,
            self.theta_sync,
            self.first_ridge,
            tolerance=tolerance,
            max_exchanges=_FIRST_EXCHANGES,
        )

    def _first_step(self, federation: Federation, round_: Round) -> Minimum:
        """Return a long Newton step from 0, and the upload with a share of the Hessian at 0.

        No upload has a Hessian: at 0 all mu' are 1/4, so it is ``W_new / 4``.

        With noise of variance s^2, the step is that of Bayes' rule. Without noise, the step
        ``-2 (W_new / 4)^-1 g`` with the precision ``W_new / 40`` is that of an observation
        ``-g = H theta + e`` with ``H = W_new / 8`` and e of covariance 5 H. Noise adds ``s^2 I`` to
        it, and theta has the prior N(0, I / ons_ridge), which bounds the step.
        """
        upload = self._only_exchange(federation, round_, np.zeros_like(self.theta_hat))
        if upload.noise is not None:
            return self._noisy_first_step(without_noise(upload), upload.noise.gradient)
        hessian = 0.25 * upload.information
        step = solve(hessian, upload.gradient, self.first_ridge)
        kept = FIRST_CURVATURE * hessian
        return Minimum(-FIRST_STEP * step, upload._replace(hessian=kept))

    def _noisy_first_step(self, upload: Upload, deviation: float) -> Minimum:
        """Return the first estimate, and the upload with its precision as Hessian."""
        spread = 1.0 / (FIRST_STEP * FIRST_CURVATURE)
        hessian = 0.25 / FIRST_STEP * upload.information
        precision, linear = observed(hessian, spread, -upload.gradient, deviation**2)
        theta = solve(precision, linear, self.settings.ons_ridge)
        return Minimum(theta, upload._replace(hessian=precision))


def without_noise(upload: Upload) -> Upload:
    """Return an upload whose noisy matrices are replaced by estimates; unchanged without noise."""
    noise = upload.noise
    if noise is None:
        return upload
    information, hessian = denoised(upload.information, noise.information), upload.hessian
    if hessian is not None:
        hessian = denoised(hessian, noise.hessian)
    return upload._replace(information=information, hessian=hessian)


def _require_finite(state: State) -> None:
    """Raise a FloatingPointError if a number is NaN or infinite."""
    for name, array in state.items():
        if not np.isfinite(array).all():
            raise FloatingPointError(f"{name} is not finite")
