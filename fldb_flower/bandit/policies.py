"""How a block of agents selects its pairs: with the server's estimate, alone, or at random.

A policy is given each iteration's features and returns two arms for each agent. It knows
neither rewards nor the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from fldb_flower.bandit.estimate import Estimate
from fldb_flower.bandit.local_estimates import LocalEstimates
from fldb_flower.bandit.selection import Selector
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.linalg.arrays import Array, Arrays, copy, to_numpy
from fldb_flower.linalg.forms import make_form
from fldb_flower.linalg.whiteners import Whitener, add_to_whiteners, moved
from fldb_flower.settings import Settings


class Policy(Protocol):
    """Selects pairs for a block of agents.

    Attributes
    ----------
    waits : bool
        Whether it learns from broadcasts only, so that the iterations of a round can be
        selected at once.
    """

    waits: bool

    def receive(self, estimate: Estimate) -> None:
        """Take in what the server broadcast."""

    def select(self, iterations: range, features: Array) -> tuple[Array, Array]:
        """Return the two arms' numbers of some iterations, each (rows,).

        Called once for each iteration, with ``features`` (rows, arms, d): a row for each agent in
        the first iteration, then in the second, ... Several at once only if the policy ``waits``.
        """

    def learn(self, differences: Array, preferences: Array) -> None:
        """See the duels: (rows, d) and (rows,)."""

    def state(self) -> dict[str, Array]:
        """Return what must outlive the process, as arrays that do not change any more."""

    def restore(self, state: dict[str, Array]) -> None:
        """Take back what :meth:`state` returned."""


class CommonEstimatePolicy:
    """Selects with theta_sync and W_sync of the last broadcast (Algorithm 1, lines 4 and 5)."""

    waits = True

    def __init__(self, settings: Settings, streams: AgentStreams, arrays: Arrays) -> None:
        self._selector = Selector(settings, streams, arrays)
        self._num_agents = settings.num_agents
        self._arrays = arrays
        identity = make_form(settings).identity(settings.ridge / settings.kappa_mu)
        self.receive(Estimate(np.zeros(settings.dimension), identity))

    def receive(self, estimate: Estimate) -> None:
        """Keep the broadcast estimate."""
        self._estimate = estimate
        self._prepared: tuple[Array, Whitener] | None = None  # on the backend, when first needed

    def select(self, iterations: range, features: Array) -> tuple[Array, Array]:
        """Apply the selection rule."""
        if self._prepared is None:
            theta, whitener = self._estimate.theta_sync, self._estimate.whitener
            self._prepared = self._arrays.make(theta), moved(whitener, self._arrays)
        return self._selector.select(iterations, features, *self._prepared, self._num_agents)

    def learn(self, differences: Array, preferences: Array) -> None:
        """Nothing: the server learns."""

    def state(self) -> dict[str, Array]:
        """Return the estimate, which missed broadcasts make worth keeping."""
        return {"theta_sync": self._estimate.theta_sync, "information": self._estimate.information}

    def restore(self, state: dict[str, Array]) -> None:
        """Take back the estimate."""
        self.receive(Estimate(state["theta_sync"], state["information"]))


class LocalEstimatesPolicy:
    """LDB: each agent selects with its own theta_i and W_i, and learns from its own duels.

    Of W_i it keeps the whitener alone, and updates it.
    """

    waits = False

    def __init__(self, settings: Settings, streams: AgentStreams, arrays: Arrays) -> None:
        agents, d = len(streams.agents), settings.dimension
        self._selector = Selector(settings, streams, arrays)
        self._estimates = LocalEstimates(agents, d, settings.ridge, arrays)
        self._arrays = arrays
        identity = arrays.eye(d) * math.sqrt(settings.kappa_mu / settings.ridge)
        self._whiteners = arrays.zeros(agents, d, d) + identity  # W_i^-1/2

    def receive(self, estimate: Estimate) -> None:
        """Nothing: no estimate arrives."""

    def select(self, iterations: range, features: Array) -> tuple[Array, Array]:
        """Apply the selection rule, agent by agent."""
        theta, whiteners = self._estimates.theta, self._whiteners
        return self._selector.select(iterations, features, theta, whiteners, num_agents=1)

    def learn(self, differences: Array, preferences: Array) -> None:
        """Add a duel to each agent's estimate and information."""
        self._estimates.add(differences, preferences)
        add_to_whiteners(self._whiteners, differences)

    def state(self) -> dict[str, Array]:
        """Return the estimates, the duels behind them, and the whiteners."""
        return {"whiteners": to_numpy(copy(self._whiteners)), **self._estimates.state()}

    def restore(self, state: dict[str, Array]) -> None:
        """Take them back."""
        self._estimates.restore(state)
        self._whiteners = self._arrays.make(np.array(state["whiteners"]))


class UniformPolicy:
    """Draws each pair uniformly among the pairs of different arms."""

    waits = True

    def __init__(self, settings: Settings, streams: AgentStreams, arrays: Arrays) -> None:
        self._streams = streams
        self._arrays = arrays
        self._num_arms = settings.num_arms

    def receive(self, estimate: Estimate) -> None:
        """Nothing: no estimate is used."""

    def select(self, iterations: range, features: Array) -> tuple[Array, Array]:
        """Draw pairs."""
        pairs = self._streams.permutations("pairs", len(iterations), self._num_arms, 2)
        pairs = self._arrays.make(pairs.swapaxes(0, 1).reshape(-1, 2))
        return pairs[:, 0], pairs[:, 1]

    def learn(self, differences: Array, preferences: Array) -> None:
        """Nothing."""

    def state(self) -> dict[str, Array]:
        """Return nothing: the streams know their position."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """Nothing."""


_TABLE: dict[str, Callable[[Settings, AgentStreams, Arrays], Policy]] = {
    "ldb": LocalEstimatesPolicy,
    "random": UniformPolicy,
}


def make_policy(settings: Settings, streams: AgentStreams, arrays: Arrays | None = None) -> Policy:
    """Return the policy that the settings' algorithm calls for, working on arrays of one kind."""
    return _TABLE.get(settings.algorithm, CommonEstimatePolicy)(
        settings, streams, arrays or Arrays()
    )
