"""The interface of environments: arms and their latent rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.linalg.arrays import Array


@dataclass(frozen=True, slots=True)
class Contexts:
    """The arms of some iterations, for a block of agents.

    Attributes
    ----------
    features : Array
        ``phi(x)`` of every arm, (agents, iterations, arms, d), float64.
    rewards : Array
        Latent reward ``f(x)`` of every arm, (agents, iterations, arms), float64. Used only to
        draw preferences and to compute the regret.
    """

    features: Array
    rewards: Array


class Environment(Protocol):
    """Simulated arms and rewards for one block of agents.

    It is constructed as ``Class(settings, agents)``, with the range of the agents' numbers.
    Preferences are drawn from the rewards with the BTL model by
    :class:`fldb_flower.federation.agents.AgentBlock`.

    A static method ``max_difference(settings)`` is optional. It returns an upper bound of the
    length of a difference of two arms' features.
    """

    def contexts(self, streams: AgentStreams, iterations: int) -> Contexts:
        """Draw the arms of the next iterations.

        Parameters
        ----------
        streams : AgentStreams
            The only source of randomness to use.
        iterations : int
            Number of iterations to draw, at least 1.
        """
        ...
