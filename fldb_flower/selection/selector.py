"""Applies the selection rule that the settings name, with the width and noise it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fldb_flower import theory
from fldb_flower.arrays import Array, Arrays, namespace
from fldb_flower.selection.rules import Pair, colstim, maxinp, maxpairucb, thompson, ucb
from fldb_flower.settings import Settings
from fldb_flower.streams import AgentStreams

STREAM = "selection"


def gumbel_per_arm(streams: AgentStreams, num_arms: int, dimension: int) -> Array:  # noqa: ARG001
    """Draw standard Gumbel noise for each arm: (agents, arms)."""
    uniform = streams.random(STREAM, 1, num_arms)[:, 0]
    xp = namespace(uniform)
    return -xp.log(2.0**-54 - xp.log1p(-uniform))  # -log of an exponential; finite at 0 as well


def normal_per_draw(streams: AgentStreams, num_arms: int, dimension: int) -> Array:  # noqa: ARG001
    """Draw standard normal noise for two draws of theta: (agents, 2, d)."""
    return streams.standard_normal(STREAM, 1, 2, dimension)[:, 0]


@dataclass(frozen=True)
class Rule:
    """A selection rule and what it needs.

    Attributes
    ----------
    select : callable
        ``select(features, theta, whitener, width, noise)``, see
        :mod:`~fldb_flower.selection.rules`.
    noise : callable or None
        Draws one iteration's noise from (streams, arms, d): (agents, ...). None: the rule
        is deterministic.
    """

    select: Callable[[Array, Array, Array, float, Array | None], Pair]
    noise: Callable[[AgentStreams, int, int], Array] | None = None


RULES = {
    "ucb": Rule(ucb),
    "maxinp": Rule(maxinp),
    "colstim": Rule(colstim, noise=gumbel_per_arm),
    "maxpairucb": Rule(maxpairucb),
    "thompson": Rule(thompson, noise=normal_per_draw),
}


class Selector:
    """Selects a block of agents' pairs, iteration by iteration.

    Parameters
    ----------
    settings : Settings
        ``selection`` names the rule.
    streams : AgentStreams
        Streams of the block; the noise is the stream "selection".
    arrays : Arrays, optional
        What features and estimates are.
    """

    def __init__(
        self, settings: Settings, streams: AgentStreams, arrays: Arrays | None = None
    ) -> None:
        self._arrays = arrays or Arrays()
        self._settings = settings
        self._streams = streams
        self._rule = RULES[settings.selection]

    def select(
        self, t: int, features: Array, theta: Array, whitener: Array, num_agents: int
    ) -> Pair:
        """Return the two arms' numbers of iteration t, each (agents,).

        Parameters
        ----------
        t : int
            Iteration, from 1; each once, in order: the noise comes from streams.
        features, theta, whitener : Array
            See :mod:`~fldb_flower.selection.rules`: (agents, arms, d), and one theta and
            whitener for all agents of the block or for each.
        num_agents : int
            Agents whose duels are in W: N, or 1 for agents that learn alone.

        Raises
        ------
        FloatingPointError
            A feature, theta or W is NaN or infinite.
        """
        rule, settings = self._rule, self._settings
        noise = None
        if rule.noise is not None:
            drawn = rule.noise(self._streams, settings.num_arms, settings.dimension)
            noise = self._arrays.make(drawn)
        width = theory.width(t, num_agents, settings)
        return rule.select(features, theta, whitener, width, noise)
