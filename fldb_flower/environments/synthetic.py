"""The paper's synthetic environment (Sec. 5, and App. B.1 for heterogeneous agents)."""

from __future__ import annotations

import math

from fldb_flower.bandit.streams import AgentStreams, make_streams, shared_generator, stream_arrays
from fldb_flower.environments import Contexts
from fldb_flower.linalg.arrays import Array, namespace
from fldb_flower.settings import Settings

REST = 0.005
"""Share of the variance outside the directions of ``environment.directions``."""
_EXCEEDED = 1e-9  # probability that a run has a longer difference than max_difference


class Synthetic:
    """Arms drawn from N(0, I) in each iteration, and theta from N(0, I).

    With ``environment.sigma`` above 0 the agents differ: ``theta_i = theta + N(0, sigma^2 I)``.
    ``environment.directions=r`` confines 99.5% of this variance to r common directions::

        theta_i = theta + B z_i + e_i,    z_i ~ N(0, I_r),    e_i ~ N(0, 0.005 sigma^2 I)

    with the entries of B, (d, r), from ``N(0, 0.995 sigma^2 / r)``. With
    ``environment.clusters=C``, theta_i is theta plus one of C draws from ``N(0, sigma^2 I)``,
    each with probability 1 / C.
    """

    def __init__(self, settings: Settings, agents: range) -> None:
        self._shape = (settings.num_arms, settings.dimension)
        self._sigma = settings.environment.sigma
        self.theta = shared_generator(settings.seed, "theta").standard_normal(settings.dimension)
        self._theta = stream_arrays(settings).make(self.theta)
        self._offsets: Array | None = None  # of the agents, (agents, d)
        if self._sigma > 0:
            self._offsets = self._sigma * _offsets(settings, make_streams(settings, agents))

    def contexts(self, streams: AgentStreams, iterations: int) -> Contexts:
        """Draw arms from N(0, I); see :class:`~fldb_flower.environments.Environment`."""
        features = streams.standard_normal("arms", iterations, *self._shape)
        return Contexts(features, self._rewards(features.swapaxes(0, 1)).swapaxes(0, 1))

    def _rewards(self, rows: Array) -> Array:
        """Return the rewards of arms in the order of memory, (iterations, agents, K, d)."""
        return self._rewards_of(self._theta, rows)

    def _rewards_of(self, theta: Array, rows: Array) -> Array:
        if self._offsets is None:
            rewards = rows.reshape(len(rows), -1, self._shape[1]) @ theta
        else:
            rewards = rows @ (theta + self._offsets)[:, :, None]
        return rewards.reshape(rows.shape[:-1])

    @staticmethod
    def max_difference(settings: Settings) -> float:
        r"""Return L, which a difference in a run exceeds with probability below 1e-9.

        A difference is N(0, 2 I): half its squared length is chi-squared with d degrees of
        freedom, above ``d + 2 sqrt(d x) + 2 x`` with probability at most ``exp(-x)`` (Laurent and
        Massart 2000, Lemma 1). An iteration has fewer than ``N K^2 / 2`` pairs of arms. By the
        union bound, ``x = log(N T K^2 / 1e-9)`` suffices.
        """
        pairs = settings.num_agents * settings.horizon * settings.num_arms**2
        d, x = settings.dimension, math.log(pairs / _EXCEEDED)
        return math.sqrt(2.0 * (d + 2.0 * math.sqrt(d * x) + 2.0 * x))


def _offsets(settings: Settings, streams: AgentStreams) -> Array:
    """Return the agents' differences from theta with sigma = 1, (agents, d)."""
    d, arrays = settings.dimension, stream_arrays(settings)
    directions, clusters = settings.environment.directions, settings.environment.clusters
    if clusters:
        centers = shared_generator(settings.seed, "clusters").standard_normal((clusters, d))
        places = clusters * streams.random("cluster", 1)[:, 0]
        return arrays.make(centers)[namespace(places).astype(places, namespace(places).int64)]
    offsets = streams.standard_normal("theta", 1, d)[:, 0]
    if not directions:
        return offsets
    basis = shared_generator(settings.seed, "directions").standard_normal((d, directions))
    along = streams.standard_normal("directions", 1, directions)[:, 0] @ arrays.make(basis).T
    return math.sqrt((1.0 - REST) / directions) * along + math.sqrt(REST) * offsets
