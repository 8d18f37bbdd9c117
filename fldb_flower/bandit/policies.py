"""Policies: how a block of agents selects the pairs that it shows.

A policy gets the features of each iteration and returns two arms for each agent. It has no access
to rewards or to the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fldb_flower.bandit import theory
from fldb_flower.bandit.estimate import (
    LONGEST,
    PRIVATE_LONGEST,
    CommonPrior,
    Estimate,
    ShareChange,
    first_prior,
    mean_squared_length,
    num_hypotheses,
    private_prior,
    scale_of,
)
from fldb_flower.bandit.estimates import OwnEstimates, PersonalEstimates
from fldb_flower.bandit.limits import factors
from fldb_flower.bandit.selection.rules import Pair
from fldb_flower.bandit.selection.selector import Selector
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.linalg.arrays import Array, Arrays, copy, fields_of, join_parts, part_of, to_numpy
from fldb_flower.linalg.linear import Whitener, add_to_whiteners, make_form, whiten
from fldb_flower.settings import Settings


class Policy:
    """Selects pairs for a block of agents."""

    learns = False
    """Whether it learns from each duel. If not, several iterations can be selected at once."""

    def receive(self, estimate: Estimate | CommonPrior) -> None:
        """Use an estimate of the server from now on; ignored by default."""

    def acknowledge(self, counted: int) -> None:
        """Note that the server has counted all uploads up to an iteration; ignored by default."""

    def shares(self, played: int, units: Mapping[str, float] | None = None) -> ShareChange | None:
        """Return the change of the shares, after the last iteration played; None without shares.

        ``units`` limit each agent's contribution (:func:`~fldb_flower.bandit.limits.factors`).
        """

    def select(self, iterations: range, features: Array) -> Pair:
        """Return the indices of the first and the second arms, each (rows,).

        Each iteration is selected once and in order. ``features`` is (rows, arms, d), with a row
        per agent for the first iteration, then for the second, ... There is only one iteration if
        the policy ``learns``.
        """
        raise NotImplementedError

    def predict(self, differences: Array) -> Array | None:
        """Return the logits of the answers to the duels selected last, (rows, d) -> (rows,).

        It is called before :meth:`learn`. None, the default, is no prediction.
        """
        return None

    def learn(self, differences: Array, preferences: Array) -> None:
        """Learn from duels, (rows, d) and (rows,); by default they are ignored."""

    def state(self) -> dict[str, Array]:
        """Return a copy of the state, for :meth:`restore`; by default there is none."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned."""


class CommonEstimatePolicy(Policy):
    """Selects with the estimate of the last broadcast (Algorithm 1, lines 4 and 5)."""

    def __init__(self, settings: Settings, streams: AgentStreams, arrays: Arrays) -> None:
        self._selector = Selector(settings, streams, arrays)
        self._num_agents = settings.num_agents
        self._arrays = arrays
        identity = make_form(settings).identity(theory.prior_precision(settings))
        self.receive(Estimate(np.zeros(settings.dimension), identity))

    def receive(self, estimate: Estimate | CommonPrior) -> None:
        assert isinstance(estimate, Estimate)
        self._estimate = estimate
        self._prepared: tuple[Array, Whitener] | None = None  # on the backend, when first needed

    def select(self, iterations: range, features: Array) -> Pair:
        return self._selector.select(iterations, features, *self._on_backend(), self._num_agents)

    def predict(self, differences: Array) -> Array:
        return differences @ self._on_backend()[0]

    def _on_backend(self) -> tuple[Array, Whitener]:
        if self._prepared is None:
            theta, whitener = self._estimate.theta_sync, self._estimate.whitener
            self._prepared = self._arrays.make(theta), self._arrays.make(whitener)
        return self._prepared

    def state(self) -> dict[str, Array]:
        return {"theta_sync": self._estimate.theta_sync, "information": self._estimate.information}

    def restore(self, state: dict[str, Array]) -> None:
        self.receive(Estimate(state["theta_sync"], state["information"]))


class LocalEstimatesPolicy(Policy):
    """LDB: each agent selects with its own theta_i and W_i, and learns from its own duels.

    Only the whitener of W_i is stored and updated.
    """

    learns = True

    def __init__(self, settings: Settings, streams: AgentStreams, arrays: Arrays) -> None:
        agents, d = len(streams.agents), settings.dimension
        self._selector = Selector(settings, streams, arrays)
        fits: Any = {"refit_ratio": settings.refit_ratio, "decay": settings.decay}
        self._estimates = OwnEstimates(agents, d, settings.ridge, arrays, **fits)
        self._arrays, self._decay = arrays, settings.decay
        self._prior = arrays.eye(d) * theory.prior_precision(settings)
        identity = arrays.eye(d) * math.sqrt(settings.kappa_mu / settings.ridge)
        self._whiteners = arrays.zeros(agents, d, d) + identity  # W_i^-1/2

    def select(self, iterations: range, features: Array) -> Pair:
        theta, whiteners = self._estimates.theta, self._whiteners
        return self._selector.select(iterations, features, theta, whiteners, num_agents=1)

    def predict(self, differences: Array) -> Array:
        return self._arrays.xp.vecdot(self._estimates.theta, differences)

    def learn(self, differences: Array, preferences: Array) -> None:
        self._estimates.add(differences, preferences)
        if self._decay is None:
            add_to_whiteners(self._whiteners, differences)
        else:  # the weights of all earlier duels have changed
            self._whiteners = whiten(self._estimates.gram() + self._prior)

    def state(self) -> dict[str, Array]:
        return {"whiteners": to_numpy(copy(self._whiteners)), **self._estimates.state()}

    def restore(self, state: dict[str, Array]) -> None:
        self._estimates.restore(state)
        self._whiteners = self._arrays.make(np.array(state["whiteners"]))


class PersonalPolicy(Policy):
    """FLDB-Personal: each agent has a theta_i, with a prior from the other agents' shares.

    Agents upload changes of their shares since the last upload that the server has counted. The
    shares after an iteration are computed once, so that repeated requests return the same change.

    With limits, agents upload whole shares, M_i and ``m_i - M_i theta`` with the mean theta of the
    prior, so that noise does not add up. The prior contains the agent's own share, which is not
    subtracted: it is smaller than the noise, and its part in the sums is unknown.
    """

    learns = True

    def __init__(self, settings: Settings, streams: AgentStreams, arrays: Arrays) -> None:
        agents, d = len(streams.agents), settings.dimension
        self._selector = Selector(settings, streams, arrays)
        # With privacy, the scale is fixed, and lower and upper limits bound the shares.
        self._clip, self._settings = settings.clip, settings
        longest = LONGEST if self._clip is None else PRIVATE_LONGEST
        self._estimates = PersonalEstimates(
            agents, d, settings.personal_ridge, arrays, longest,
            refit_ratio=settings.refit_ratio, decay=settings.decay,
        )  # fmt: skip
        self._arrays, self._width = arrays, settings.personal_width
        self._sends = ALGORITHMS[settings.algorithm].exchanges != "none"
        zeros = arrays.zeros
        rows = () if self._clip is None else (agents,)
        self._prior = first_prior(settings)
        losses, none = zeros(*rows, num_hypotheses(self._prior)), zeros(agents)
        scatter = None if self._prior.shape is None else zeros(agents, d, d)
        shares = zeros(agents, d, d), zeros(agents, d), losses, none, none, scatter
        self._counted = ShareChange(*shares)
        self._sent, self._sent_after = self._counted, 0
        self._losses, self._squares, self._offers = losses, none, 0
        self._scale: Array | None = None  # until the first arms are seen

    def acknowledge(self, counted: int) -> None:
        if counted >= self._sent_after:
            old, self._counted = self._counted, self._sent
            if self._clip is not None:  # whole shares are sent, so 0 of them is counted
                self._counted = self._sent._replace(precision=old.precision, shift=old.shift)

    def receive(self, estimate: Estimate | CommonPrior) -> None:
        assert isinstance(estimate, CommonPrior)
        self._prior, self._scale = private_prior(estimate, self._settings), None

    def select(self, iterations: range, features: Array) -> Pair:
        self._offers += 1
        squares = mean_squared_length(features) if self._clip is None else self._clip**2
        self._squares = self._squares + squares
        if self._scale is None:
            known = self._prior.scale
            ones = self._arrays.zeros(len(features)) + 1.0
            self._scale = ones * known if known else scale_of(self._squares / self._offers)
            self._estimates.receive(self._prior, self._counted, self._scale)
        theta, whitener = self._estimates.theta, self._estimates.whitener()
        return self._selector.select(iterations, features, theta, whitener, 1, width=self._width)

    def predict(self, differences: Array) -> Array:
        return self._estimates.predict(differences)

    def learn(self, differences: Array, preferences: Array) -> None:
        if self._sends:
            losses = self._estimates.losses(differences, preferences)
            is_limited = self._clip is not None
            self._losses = self._losses + (losses if is_limited else losses.sum(axis=0))
        self._estimates.add(differences, preferences)

    def shares(self, played: int, units: Mapping[str, float] | None = None) -> ShareChange:
        if played > self._sent_after:
            precision, shift, gradient = self._estimates.shares()
            scatter = None
            if self._counted.scatter is not None:
                scatter = gradient[:, :, None] * gradient[:, None, :]
            if units is not None:
                precision, shift = self._limited(precision, shift, units)
            members = self._arrays.zeros(len(precision)) + 1.0
            parts = precision, shift, self._losses, self._squares, members, scatter
            self._sent = ShareChange(*parts)
            self._sent_after = played
        xp, sent, counted = self._arrays.xp, self._sent, self._counted
        pairs = zip(sent, counted, strict=True)
        changes = (None if new is None else new - old for new, old in pairs)
        precision, shift, losses, squares, members, scatter = changes
        return ShareChange(
            precision=to_numpy(xp.sum(precision, axis=0)),
            shift=to_numpy(xp.sum(shift, axis=0)),
            losses=to_numpy(losses if self._clip is None else xp.sum(losses, axis=0)),
            squares=float(xp.sum(squares)),
            members=float(xp.sum(members)),
            scatter=None if scatter is None else to_numpy(xp.sum(scatter, axis=0)),
        )

    def _limited(
        self, precision: Array, shift: Array, units: Mapping[str, float]
    ) -> tuple[Array, Array]:
        """Limit each agent's share, relative to the mean of the prior, and its new losses."""
        shift = shift - (precision @ self._estimates.prior_mean[..., None])[..., 0]
        fresh = self._losses - self._counted.losses
        factor = factors({"precision": precision, "shift": shift, "losses": fresh}, units)
        self._losses = self._counted.losses + factor[:, None] * fresh
        return factor[:, None, None] * precision, factor[:, None] * shift

    def state(self) -> dict[str, Array]:
        return join_parts({
            "estimates": self._estimates.state(),
            "counted": fields_of(self._counted),
            "sent": fields_of(self._sent),
            "prior": fields_of(self._prior),
            "own": {
                "after": np.array([self._sent_after, self._offers, self._scale is not None]),
                "losses": to_numpy(copy(self._losses)),
                "squares": to_numpy(copy(self._squares)),
                "scale": to_numpy(self._squares if self._scale is None else self._scale),
            },
        })  # fmt: skip

    def restore(self, state: dict[str, Array]) -> None:
        make = self._arrays.make
        for name in ("counted", "sent"):
            arrays = part_of(state, name).items()
            shares = ShareChange(**{key: make(np.array(array)) for key, array in arrays})
            setattr(self, f"_{name}", shares)
        prior: dict[str, Any] = {**part_of(state, "prior")}
        prior |= {name: float(each) for name, each in prior.items() if not each.ndim}
        self._prior = CommonPrior(**prior)
        own = part_of(state, "own")
        self._sent_after, self._offers, known = (int(number) for number in own["after"])
        self._losses, self._squares = make(np.array(own["losses"])), make(np.array(own["squares"]))
        self._scale = make(np.array(own["scale"])) if known else None
        if self._scale is not None:
            self._estimates.set_prior(self._prior, self._counted, self._scale)
        self._estimates.restore(part_of(state, "estimates"))


class UniformPolicy(Policy):
    """Draws each pair uniformly among the pairs of different arms."""

    def __init__(self, settings: Settings, streams: AgentStreams, arrays: Arrays) -> None:
        self._streams = streams
        self._arrays = arrays
        self._num_arms = settings.num_arms

    def select(self, iterations: range, features: Array) -> Pair:
        pairs = self._streams.permutations("pairs", len(iterations), self._num_arms, 2)
        pairs = self._arrays.make(pairs.swapaxes(0, 1).reshape(-1, 2))
        return pairs[:, 0], pairs[:, 1]


_POLICIES: dict[str, Callable[[Settings, AgentStreams, Arrays], Policy]] = {
    "common": CommonEstimatePolicy,
    "local": LocalEstimatesPolicy,
    "personal": PersonalPolicy,
    "uniform": UniformPolicy,
}


def make_policy(settings: Settings, streams: AgentStreams, arrays: Arrays | None = None) -> Policy:
    """Return the policy of the settings' algorithm, on the given kind of arrays."""
    agents = ALGORITHMS[settings.algorithm].agents
    policy = _POLICIES.get(agents) or ALGORITHMS.load(settings.algorithm).policy
    return policy(settings, streams, arrays or Arrays())
