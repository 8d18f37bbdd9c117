"""Random streams that belong to agents.

Every draw comes from a stream keyed by (seed, agents, name), never from global state, so
that a result does not depend on the engine, on the number of nodes, on the order of
replies or on how many iterations are drawn at once.

Thirty-two consecutive agents, a *cohort*, share a stream, which gives each its own numbers in
turn: with a generator for every agent, making and calling them costs more than all else in a
large run. A block that holds part of a cohort draws all its numbers and keeps its part.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

COHORT = 32
"""Consecutive agents that share a stream."""


def keyed_generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return the generator of one key; SFC64 is NumPy's fastest for normal draws."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=words)))


def shared_generator(seed: int, name: str) -> np.random.Generator:
    """Return a generator for what all agents have in common, such as the true theta."""
    return keyed_generator(seed, 0, name)


class AgentStreams:
    """The streams of a contiguous block of agents, drawn as arrays.

    A stream has a name and one kind of draw: use a name for one method and one shape.
    Then drawing 8 iterations at once gives the same numbers as drawing one, 8 times.

    Parameters
    ----------
    seed : int
        Seed of the run, at least 0.
    agents : range
        The agents' numbers among all N of the federation.
    """

    def __init__(self, seed: int, agents: range) -> None:
        self.agents = agents
        self._seed = seed
        self._cohorts = range(agents.start // COHORT, -(-agents.stop // COHORT))
        self._generators: dict[str, list[np.random.Generator]] = {}

    def _stream(self, name: str) -> list[np.random.Generator]:
        if name not in self._generators:
            self._generators[name] = [
                keyed_generator(self._seed, 1, cohort, name) for cohort in self._cohorts
            ]
        return self._generators[name]

    def standard_normal(self, name: str, iterations: int, *shape: int) -> FloatArray:
        """Draw N(0, 1); shape (agents, iterations, *shape)."""
        return self._draw(np.random.Generator.standard_normal, name, iterations, shape)

    def random(self, name: str, iterations: int, *shape: int) -> FloatArray:
        """Draw uniformly from [0, 1); shape (agents, iterations, *shape)."""
        return self._draw(np.random.Generator.random, name, iterations, shape)

    def _draw(
        self, fill: Callable[..., Any], name: str, iterations: int, shape: tuple[int, ...]
    ) -> FloatArray:
        """Fill iteration by iteration, and in each cohort by cohort."""
        skipped = self.agents.start - self._cohorts.start * COHORT  # of the first cohort
        numbers = np.empty((iterations, len(self._cohorts), COHORT, *shape))
        for place, generator in enumerate(self._stream(name)):
            for row in numbers:
                fill(generator, out=row[place])
        by_agent = numbers.reshape(iterations, -1, *shape)
        return by_agent[:, skipped : skipped + len(self.agents)].swapaxes(0, 1)

    def logistic(self, name: str, iterations: int) -> FloatArray:
        """Draw from the standard logistic distribution; shape (agents, iterations).

        ``logistic < z`` has probability ``mu(z)``: how a preference is drawn.
        """
        uniform = self.random(name, iterations)
        return np.log(uniform + 2.0**-54) - np.log1p(-uniform)  # finite at 0 as well

    def permutations(self, name: str, iterations: int, size: int, count: int) -> NDArray[np.int64]:
        """Draw ``count`` different numbers below ``size``; (agents, iterations, count).

        Each draw takes the r-th number not yet taken, so that ``count`` uniform numbers
        are enough whatever the ``size``.
        """
        uniform = self.random(name, iterations, count)
        ranks = (uniform * (size - np.arange(count))).astype(np.int64)
        for position in range(1, count):
            taken = np.sort(ranks[..., :position], axis=-1)
            for earlier in range(position):
                ranks[..., position] += ranks[..., position] >= taken[..., earlier]
        return ranks

    def state(self) -> dict[str, NDArray[np.uint64]]:
        """Return each stream's position: name -> (cohorts, 4) words of SFC64."""
        return {
            name: np.stack([_words(generator.bit_generator.state) for generator in generators])
            for name, generators in self._generators.items()
        }

    def restore(self, state: Mapping[str, NDArray[np.uint64]]) -> None:
        """Go back to the positions that :meth:`state` returned."""
        self._generators = {}
        for name, rows in state.items():
            generators = [np.random.Generator(np.random.SFC64(0)) for _ in self._cohorts]
            for generator, words in zip(generators, rows, strict=True):
                position: Any = generator.bit_generator.state
                position["state"]["state"] = words
                generator.bit_generator.state = position
            self._generators[name] = generators


def _words(state: Any) -> NDArray[np.uint64]:
    words: NDArray[np.uint64] = state["state"]["state"]
    return words
