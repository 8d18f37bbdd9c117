"""COLDB: clustering of linear dueling bandits, a baseline that sees the duels of all agents.

Written from the published description, and not compared with its authors' code.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from fldb_flower.algorithms.base import Independent
from fldb_flower.bandit import theory
from fldb_flower.bandit.newton import Loss, minimise
from fldb_flower.bandit.policies import Policy
from fldb_flower.bandit.selection.rules import Pair
from fldb_flower.bandit.selection.selector import Selector
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.errors import ConvergenceError
from fldb_flower.linalg.arrays import Array, Arrays, to_numpy
from fldb_flower.linalg.linear import whiten
from fldb_flower.settings import Settings


def components(edges: Array) -> Array:
    """Return for each vertex the lowest vertex of its connected component, (N,).

    ``edges`` is a symmetric matrix of bool, (N, N), with a true diagonal.
    """
    labels = np.arange(len(edges))
    while True:
        lowest = np.where(edges, labels, len(edges)).min(axis=1)
        if (lowest == labels).all():
            return labels
        labels = lowest


class ClusteredPolicy(Policy):
    """Selects the pairs of all agents with the estimates of their clusters; see :class:`COLDB`.

    What it learns are NumPy arrays on every backend.
    """

    learns = True

    def __init__(self, settings: Settings, streams: AgentStreams, arrays: Arrays) -> None:
        agents, d, horizon = len(streams.agents), settings.dimension, settings.horizon
        self._selector, self._settings = Selector(settings, streams, arrays), settings
        self._arrays, self._ridge = arrays, settings.ridge * np.eye(d)
        self._prior = theory.prior_precision(settings) * np.eye(d)
        self._known = {
            "played": np.zeros(1, dtype=np.int64),
            "duels": np.zeros((agents, d, horizon)),
            "preferences": np.zeros((agents, horizon)),
            "own": np.zeros((agents, d)),  # theta_i
            "grams": np.zeros((agents, d, d)),  # sums of x x^T over the duels of an agent
            "edges": np.ones((agents, agents), dtype=bool),
            "theta": np.zeros((agents, d)),  # that of the agent's cluster, like the matrix V
            "information": np.zeros((agents, d, d)) + self._prior,
        }
        self._prepare()

    def _prepare(self) -> None:
        theta, make = self._known["theta"], self._arrays.make
        self._estimates = make(theta), make(whiten(self._known["information"]))

    def select(self, iterations: range, features: Array) -> Pair:
        agents = self._settings.num_agents
        return self._selector.select(iterations, features, *self._estimates, agents)

    def predict(self, differences: Array) -> Array:
        return self._arrays.xp.vecdot(self._estimates[0], differences)

    def learn(self, differences: Array, preferences: Array) -> None:
        known, rows = self._known, to_numpy(differences)
        played = int(known["played"][0])
        known["duels"][:, :, played] = rows
        known["preferences"][:, played] = to_numpy(preferences)
        known["played"][0] = played + 1
        known["grams"] += rows[:, :, None] * rows[:, None, :]
        try:
            self._cluster(known["duels"][..., : played + 1], known["preferences"][:, : played + 1])
        except np.linalg.LinAlgError as error:
            raise ConvergenceError(
                f"no minimiser of the loss of a cluster: {error} (lambda={self._settings.ridge:g});"
                " use a larger lambda, or scale the features to about 1"
            ) from None
        self._prepare()

    def _cluster(self, duels: Array, answers: Array) -> None:
        """Delete edges, and set the estimates of the clusters."""
        known, d = self._known, duels.shape[1]
        prior = self._ridge, np.zeros(d)
        own = known["own"] = minimise(known["own"], Loss(duels, answers), *prior).point
        gaps = np.linalg.norm(own[:, None] - own, axis=2)
        known["edges"] &= gaps <= 2.0 * self._bound(answers.shape[1])
        labels, before = components(known["edges"]), known["theta"]
        known["theta"] = own.copy()
        for first in np.unique(labels):
            members = np.flatnonzero(labels == first)
            known["information"][members] = self._prior + known["grams"][members].sum(axis=0)
            if len(members) > 1:
                pooled = duels[members].swapaxes(0, 1).reshape(1, d, -1)
                loss = Loss(pooled, answers[members].reshape(1, -1))
                known["theta"][members] = minimise(before[members[:1]], loss, *prior).point

    def _bound(self, played: int) -> float:
        """Return f(T), which is the same for all agents."""
        chosen, kappa_mu = self._settings, self._settings.kappa_mu
        growth = math.log1p(played * kappa_mu / (chosen.dimension * chosen.ridge))
        logarithms = 2.0 * math.log(chosen.num_agents / chosen.delta) + chosen.dimension * growth
        radius = math.sqrt(chosen.ridge * kappa_mu) + math.sqrt(logarithms)
        return chosen.coldb_edge * radius / (kappa_mu * math.sqrt(played))

    def state(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self._known.items()}

    def restore(self, state: dict[str, Array]) -> None:
        self._known = {name: np.array(state[name]) for name in self._known}
        self._prepare()


class COLDB(Independent):
    r"""Clustering of linear dueling bandits (Wang et al., ICML 2025), for comparisons.

    It is not federated: one policy sees each duel of each agent. It runs in simulations with
    ``engine=vectorized`` only, and counts no exchanges.

    The agents are the vertices of a graph with all edges at first. After every iteration, theta_i
    is the minimiser of the loss of agent i's duels, with the ridge lambda, and the edge between i
    and l is deleted for good if::

        |theta_i - theta_l| > f(T_i) + f(T_l)
        f(T) = coldb_edge (sqrt(lambda kappa_mu) + sqrt(2 log(N / delta)
               + d log(1 + T kappa_mu / (d lambda)))) / (kappa_mu sqrt(T))

    T_i is the number of iterations that agent i played. ``coldb_edge`` replaces a constant of the
    paper that depends on the distribution of the arms. The agents of a connected component are a
    cluster. They select with the minimiser of the loss of all their duels, and with
    ``V = (lambda / kappa_mu) I + sum x x^T``. In the paper, one agent plays in an iteration. Here,
    all do, so beta_t is that of t N duels.
    """

    policy: ClassVar[type[Policy]] = ClusteredPolicy
