"""What an environment is: the arms that agents see, and how good each one really is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fldb_flower.bandit.streams import AgentStreams


@dataclass(frozen=True, slots=True)
class Contexts:
    """The arms of some iterations, for a block of agents.

    Attributes
    ----------
    features : ndarray
        ``phi(x)`` of every arm, (agents, iterations, arms, d), float64.
    rewards : ndarray
        Latent reward ``f(x)`` of every arm, (agents, iterations, arms), float64. Only the
        simulated person and the regret use it.
    """

    features: NDArray[np.float64]
    rewards: NDArray[np.float64]


class Environment(Protocol):
    """A simulated world for one block of agents.

    It is constructed as ``Class(settings, agents)``, with the range of the agents'
    numbers. A preference is drawn from the rewards by the BTL model, elsewhere.
    """

    def contexts(self, streams: AgentStreams, iterations: int) -> Contexts:
        """Draw the arms of the next iterations.

        Parameters
        ----------
        streams : AgentStreams
            The only source of randomness to use; see there how names keep results
            independent of how many iterations are drawn at once.
        iterations : int
            How many iterations to draw, at least 1.
        """
        ...
