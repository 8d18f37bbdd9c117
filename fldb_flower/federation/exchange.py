"""The exchange primitive: ``federation.exchange(broadcast) -> upload``.

An exchange is one trip from the server to the agents and back. An algorithm makes one or more of
them in each round. A subclass of :class:`Federation` carries them: direct calls, Flower messages
in one process, Ray, or devices. An algorithm does not depend on which.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from fldb_flower.bandit import preference, theory
from fldb_flower.bandit.estimate import (
    VARIANCES,
    CommonPrior,
    Estimate,
    num_hypotheses,
    private_prior,
)
from fldb_flower.bandit.limits import factors, typical_share_sizes, typical_sizes, weights_of
from fldb_flower.errors import DataError
from fldb_flower.federation.history import Counts
from fldb_flower.linalg.arrays import LARGEST, Array
from fldb_flower.linalg.linear import Form
from fldb_flower.settings import AUTO, Settings

__all__ = ["Broadcast", "Federation", "PlayRequest", "Upload"]

_BATCH = 2**22  # numbers of the matrices of persons that are held at once


class PlayRequest(NamedTuple):
    """The iterations first..last to play before the upload, and the estimate that selects arms.

    Iterations count from 1. The estimate is a prior for FLDB-Personal; it is None if agents use
    local estimates or none.

    Examples
    --------
    >>> from fldb_flower.federation.exchange import PlayRequest
    >>> PlayRequest(first=6, last=10)
    PlayRequest(first=6, last=10, estimate=None)
    """

    first: int
    last: int
    estimate: Estimate | CommonPrior | None = None


class Broadcast(NamedTuple):
    """What the server sends in one exchange.

    Attributes
    ----------
    play : PlayRequest or None
        Iterations to play first, if any.
    theta_hat : Array or None
        Point at which gradients are taken, (d,). None: no gradients are requested.
    scope : {"fresh", "all"}
        Statistics over the duels not yet acknowledged, or over all duels so far.
    hessian, loss : bool
        Whether to return the Hessian and the loss as well.
    robust : bool
        Whether the gradient may be aggregated robustly (the setting ``robust``) instead of
        summed. Used by the server only; not sent.
    shares : bool
        Whether agents return changes of their shares (FLDB-Personal) instead.
    lowest_variance : float
        The smallest v so far, which bounds changes of shares. Used by the server only; not sent.
    final : bool
        Whether this is the last exchange of its round. Agents whose reply cannot be lost then
        count their duels at once. Used by the vectorized engine only; not sent.

    Examples
    --------
    Only the first of these requests statistics, so only it is counted as an exchange:

    >>> import numpy as np
    >>> from fldb_flower.federation.exchange import Broadcast, PlayRequest
    >>> Broadcast(PlayRequest(1, 5), np.zeros(2)).learns
    True
    >>> Broadcast(PlayRequest(1, 5), None).learns
    False
    """

    play: PlayRequest | None
    theta_hat: Array | None
    scope: Literal["fresh", "all"] = "fresh"
    hessian: bool = False
    loss: bool = False
    robust: bool = False
    shares: bool = False
    lowest_variance: float = 0.0
    final: bool = False

    @property
    def learns(self) -> bool:
        """Whether anything but regret is requested; other exchanges are not counted."""
        return self.shares or self.theta_hat is not None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the upload that is requested, in the order of its vector."""
        if self.shares:
            scatter = ["scatter"] * (num_hypotheses(self._estimate) > len(VARIANCES))
            return "shift", "precision", "losses", "squares", "members", *scatter
        if self.theta_hat is None:
            return ()
        return "gradient", "information", *["hessian"] * self.hessian, *["loss"] * self.loss

    @property
    def _estimate(self) -> Estimate | CommonPrior | None:
        return None if self.play is None else self.play.estimate

    def lengths(self, form: Form) -> list[int]:
        """Return how many numbers each of the parts has."""
        hypotheses = num_hypotheses(self._estimate)
        return [hypotheses if p == "losses" else length_of(p, form) for p in self.parts]

    def sizes(self, form: Form) -> tuple[int, int]:
        """Return how many numbers the vectors of an upload and of this broadcast have."""
        estimate, down = self._estimate, form.dimension * (self.theta_hat is not None)
        if estimate is not None:
            down += form.dimension + form.size
        if isinstance(estimate, CommonPrior):
            down += 2 if estimate.shape is None else 3 + form.size  # v, scale, rho and R
        return sum(self.lengths(form)), down


MATRICES = ("information", "hessian", "precision", "scatter")
NUMBERS = ("loss", "squares", "members", "num_duels")
"""Parts of uploads that are matrices and single numbers; others are vectors."""


def length_of(part: str, form: Form) -> int:
    """Return how many numbers a part of an upload has; with ``losses`` of isotropic priors."""
    if part in MATRICES:
        return form.size
    return 1 if part in NUMBERS else len(VARIANCES) if part == "losses" else form.dimension


class Outcomes(NamedTuple):
    """Regret and predictions of consecutive iterations (simulation only)."""

    first: int  # iteration
    agents: int
    sums: Array  # `fldb_flower.bandit.duels.OUTCOMES` of each iteration, (iterations, 5)


class Noise(NamedTuple):
    """Standard deviations of the Gaussian noise that was added to an upload, by part.

    Each number of a part has this standard deviation. In full matrices those are the entries of
    the diagonal. Off-diagonal entries have ``1 / sqrt(2)`` of it, so that the noise is the same in
    any orthonormal basis (``fldb_flower.privacy.mechanism.with_noise``).
    """

    gradient: float = 0.0
    information: float = 0.0
    hessian: float = 0.0
    loss: float = 0.0
    precision: float = 0.0
    shift: float = 0.0
    losses: float = 0.0
    squares: float = 0.0
    members: float = 0.0
    num_duels: float = 0.0

    def scaled(self, factor: float) -> Noise:
        """Return the standard deviations multiplied by a factor."""
        return Noise(*(factor * each for each in self))


class Upload(NamedTuple):
    """Sums over the agents' duels; no arm and no answer leaves an agent.

    Attributes
    ----------
    num_duels : int
        Duels that ``gradient``, ``hessian`` and ``loss`` are sums over.
    gradient : Array
        Gradient of the loss at theta_hat, (d,).
    information : Array
        W_new over the duels not yet acknowledged, (d, d), or (d,) for its diagonal.
    hessian : Array or None
        Hessian of the loss at theta_hat, in the same form.
    loss : float or None
        Loss at theta_hat.
    outcomes : tuple of Outcomes
        Of the iterations not yet acknowledged, one entry per block of agents.
    noise : Noise or None
        What was added for differential privacy; None without.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.federation.exchange import Upload
    >>> upload = Upload(1, np.array([-0.5, 0.0]), np.diag([1.0, 0.0]))
    >>> upload.num_duels
    1
    """

    num_duels: int
    gradient: Array
    information: Array
    hessian: Array | None = None
    loss: float | None = None
    outcomes: tuple[Outcomes, ...] = ()
    noise: Noise | None = None


class ShareUpload(NamedTuple):
    """FLDB-Personal: a :class:`~fldb_flower.bandit.estimate.ShareChange` of agents."""

    num_duels: int
    precision: Array
    shift: Array
    losses: Array
    squares: float
    members: float
    scatter: Array | None = None
    outcomes: tuple[Outcomes, ...] = ()
    noise: Noise | None = None
    coverage: float = 1.0  # share of all agents, if shares are whole and not changes (privacy)


AnyUpload = Upload | ShareUpload
U = TypeVar("U", Upload, ShareUpload)


def statistics(
    broadcast: Broadcast, differences: Array, preferences: Array, fresh: Array, form: Form
) -> Upload:
    """Return the statistics of duels that a broadcast requests (Algorithm 1, lines 7 to 11).

    Differences (n, d) and preferences (n,) are those of the duels in the broadcast's scope.
    ``fresh`` are the differences of the duels not yet acknowledged, (m, d), for W_new. Without
    ``theta_hat``, nothing is requested, so that all sums are zero.
    """
    theta = broadcast.theta_hat
    if theta is None:
        return Upload(0, np.zeros(form.dimension), form.zeros())
    hessian = loss = None
    if broadcast.hessian:
        gradient, hessian = preference.derivatives(theta, differences, preferences, form)
    else:
        gradient = preference.gradient(theta, differences, preferences)
    if broadcast.loss:
        loss = float(preference.loss(theta, differences, preferences))
    return Upload(len(preferences), gradient, preference.gram(fresh, form), hessian, loss)


def sizes_and_weights(
    broadcast: Broadcast,
    settings: Settings,
    fresh: int | None = None,
    answers: int | None = None,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the typical sizes and the weights of the parts that a broadcast requests.

    ``fresh`` and ``answers`` are the numbers of new answers and of all answers of a person. By
    default, they follow from the iterations to play in the broadcast. A person with more answers,
    because a request was lost, has the same limit. Devices have no iterations: the number is 3 d
    for each round, the minimum of an upload.
    """
    play, clip = broadcast.play, settings.clip
    assert play is not None
    assert clip is not None
    each = 3 * settings.dimension if settings.mode == "devices" else 1
    fresh = fresh or each * (play.last - play.first + 1)
    if broadcast.shares:
        assert isinstance(play.estimate, CommonPrior)
        prior, answers = private_prior(play.estimate, settings), answers or each * play.last
        variance, weight = prior.variance / prior.scale, settings.total_weight(answers)
        shares = typical_share_sizes(weight, fresh, clip, settings.dimension, variance)
        unused = [] if settings.personal_variance == AUTO else ["losses"]
        return shares, weights_of(shares, unused)
    parts = ["gradient", "information"] + ["hessian"] * broadcast.hessian
    sizes = typical_sizes(fresh, clip, settings.dimension)
    is_unused = broadcast.hessian and theory.selects_by_curvature(settings)
    return {part: sizes[part] for part in parts}, weights_of(parts, ["information"] * is_unused)


def limited_statistics(
    broadcast: Broadcast,
    differences: Array,
    preferences: Array,
    agents: int,
    form: Form,
    *,
    units: Mapping[str, float],
) -> Upload:
    """Return the statistics of fresh duels, with the limit on each agent's contribution.

    Differences (n, d) and preferences (n,) have a row per agent for the first iteration, then for
    the second, ... ``units`` are the divisors of the parts in the vector whose length is at most 1.
    The broadcast has ``theta_hat`` and the scope "fresh", and requests no loss.
    """
    rows_of = (differences, *preference.residuals(differences @ broadcast.theta_hat, preferences))
    duels, slopes, curvatures = (  # (n, ...) -> (agents, n / agents, ...)
        rows.reshape(-1, agents, *rows.shape[1:]).swapaxes(0, 1) for rows in rows_of
    )
    size = max(1, _BATCH // form.dimension**2)
    sums: dict[str, Array] = {}
    for batch in (slice(start, start + size) for start in range(0, agents, size)):
        x = duels[batch]
        parts = {
            "gradient": (slopes[batch][:, None, :] @ x)[:, 0],
            "information": _grams(x, x, form),
        }
        if broadcast.hessian:
            parts["hessian"] = _grams(x, x * curvatures[batch, :, None], form)
        weights = factors(parts, units)
        for name, part in parts.items():
            total = (weights @ part.reshape(len(part), -1)).reshape(part.shape[1:])
            sums[name] = sums.get(name, 0.0) + total
    return Upload(len(preferences), sums["gradient"], sums["information"], sums.get("hessian"))


def _grams(left: Array, right: Array, form: Form) -> Array:
    """Return each agent's sum of ``left right^T`` over duels, (agents, ...) in the form."""
    if form.is_diagonal:
        return (left * right).sum(axis=1)
    return left.swapaxes(1, 2) @ right


def total(uploads: Sequence[U]) -> U:
    """Sum uploads of one kind in the given order, which must not depend on their arrival."""
    if len(uploads) == 1:
        return uploads[0]
    columns = zip(uploads[0]._fields, zip(*uploads, strict=True), strict=True)
    return uploads[0]._replace(**{
        name: functools.reduce(operator.add, values)
        for name, values in columns
        if values[0] is not None and name != "coverage"
    })  # fmt: skip


class Federation(ABC):
    """Agents that are reached by exchanges. The history records exchanges, bytes and regret.

    A subclass defines :meth:`collect` and :meth:`mark_counted`.

    Parameters
    ----------
    history : Counts
        Where exchanges are recorded.
    privacy : fldb_flower.privacy.mechanism.GaussianMechanism, optional
        Adds noise to the sum of the uploads of each exchange.

    Examples
    --------
    A federation of one agent, whose only duel is known:

    >>> import numpy as np
    >>> from fldb_flower.federation.exchange import Broadcast, Federation, Upload
    >>> from fldb_flower.federation.history import Counts
    >>> class OneDuel(Federation):
    ...     difference, preference = np.array([1.0, 0.0]), 1.0
    ...
    ...     def collect(self, broadcast):
    ...         x = self.difference
    ...         predicted = 1 / (1 + np.exp(-x @ broadcast.theta_hat))
    ...         return Upload(1, (predicted - self.preference) * x, np.outer(x, x))
    ...
    ...     def mark_counted(self):
    ...         pass
    >>> federation = OneDuel(Counts())
    >>> federation.exchange(Broadcast(None, np.zeros(2))).gradient
    array([-0.5, -0. ])
    >>> federation.acknowledge()
    >>> federation.history.exchanges, federation.history.rounds
    (1, 1)
    """

    def __init__(self, history: Counts, privacy: Any = None) -> None:
        self.history = history
        self._privacy = privacy
        self._last: AnyUpload | None = None

    def exchange(self, broadcast: Broadcast) -> Any:
        """Send a broadcast to the agents and return the sum of their uploads.

        It is an :class:`Upload`, or a :class:`ShareUpload` if the broadcast requests shares.

        Raises
        ------
        FloatingPointError
            ``theta_hat`` is not finite, or too large to square; nothing was sent.
        PrivacyError
            The upload would cost more privacy than the budget allows; nothing was sent.
        """
        theta = broadcast.theta_hat
        if theta is not None and not (np.abs(theta) <= LARGEST).all():
            raise FloatingPointError(f"theta_hat is not finite, or above {LARGEST:g}")
        privacy = self._privacy if broadcast.learns else None
        number = self.history.exchanges + 1
        if privacy is not None:
            privacy.require(broadcast, number)
        upload = self.collect(broadcast)
        if privacy is not None:
            self.history.openings = max(self.history.openings, number)
            upload = privacy.add(upload, broadcast, number)
        self._last = upload
        play = broadcast.play
        iterations = None if play is None else (play.first, play.last)
        self.history.count_exchange(iterations, learns=broadcast.learns)
        return upload

    def acknowledge(self, learner: str = "a round") -> None:
        """Count the last upload: its duels are no longer fresh, and its outcomes are recorded.

        The next broadcast carries the acknowledgement. Until then agents keep the duels.

        Raises
        ------
        DataError
            There was no exchange since the last call. The message names the ``learner``.
        """
        if self._last is None:
            raise DataError(f"{learner} made no exchange: call federation.exchange(...)")
        for outcomes in self._last.outcomes:
            self.history.add_outcomes(*outcomes)
        self._last = None
        self.mark_counted()
        self.history.count_round()

    @abstractmethod
    def collect(self, broadcast: Broadcast) -> AnyUpload:
        """Carry out one exchange and return the sum of the uploads."""

    @abstractmethod
    def mark_counted(self) -> None:
        """Store what the next broadcast acknowledges: the duels of the last upload."""
