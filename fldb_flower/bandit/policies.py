"""Policies: how a block of agents selects the pairs that it shows.

A policy gets the features of each iteration and returns two arms for each agent. It has no access
to rewards or to the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fldb_flower.bandit import theory
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.bandit.local_estimates import LocalEstimates
from fldb_flower.bandit.selection import Selector
from fldb_flower.bandit.selection.rules import Pair
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.linalg.arrays import Array, Arrays, copy, to_numpy
from fldb_flower.linalg.forms import make_form
from fldb_flower.linalg.whiteners import Whitener, add_to_whiteners, on_backend
from fldb_flower.settings import Settings


class Policy:
    """Selects pairs for a block of agents."""

    learns = False
    """Whether it learns from each duel. If not, several iterations can be selected at once."""

    def receive(self, estimate: Estimate) -> None:
        """Use the server's estimate from now on; by default it is ignored."""

    def select(self, iterations: range, features: Array) -> Pair:
        """Return the numbers of the first and the second arms, each (rows,).

        Each iteration is selected once and in order. ``features`` is (rows, arms, d), with a row
        per agent for the first iteration, then for the second, ... There is only one iteration if
        the policy ``learns``.
        """
        raise NotImplementedError

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

    def receive(self, estimate: Estimate) -> None:
        self._estimate = estimate
        self._prepared: tuple[Array, Whitener] | None = None  # on the backend, when first needed

    def select(self, iterations: range, features: Array) -> Pair:
        if self._prepared is None:
            theta, whitener = self._estimate.theta_sync, self._estimate.whitener
            self._prepared = self._arrays.make(theta), on_backend(whitener, self._arrays)
        return self._selector.select(iterations, features, *self._prepared, self._num_agents)

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
        self._estimates = LocalEstimates(agents, d, settings.ridge, arrays)
        self._arrays = arrays
        identity = arrays.eye(d) * math.sqrt(settings.kappa_mu / settings.ridge)
        self._whiteners = arrays.zeros(agents, d, d) + identity  # W_i^-1/2

    def select(self, iterations: range, features: Array) -> Pair:
        theta, whiteners = self._estimates.theta, self._whiteners
        return self._selector.select(iterations, features, theta, whiteners, num_agents=1)

    def learn(self, differences: Array, preferences: Array) -> None:
        self._estimates.add(differences, preferences)
        add_to_whiteners(self._whiteners, differences)

    def state(self) -> dict[str, Array]:
        return {"whiteners": to_numpy(copy(self._whiteners)), **self._estimates.state()}

    def restore(self, state: dict[str, Array]) -> None:
        self._estimates.restore(state)
        self._whiteners = self._arrays.make(np.array(state["whiteners"]))


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
    "uniform": UniformPolicy,
}


def make_policy(settings: Settings, streams: AgentStreams, arrays: Arrays | None = None) -> Policy:
    """Return the policy of the settings' algorithm, on the given kind of arrays."""
    policy = _POLICIES[ALGORITHMS[settings.algorithm].agents]
    return policy(settings, streams, arrays or Arrays())
