"""Random streams of agents.

Every draw comes from a stream keyed by (seed, agents, name). Results therefore do not depend on
the engine, the number of nodes, the order of replies, or the number of iterations drawn at once.

If agents draw few numbers, a *cohort* of consecutive agents shares a stream, which is faster than
one generator per agent. Each agent has its own part of the numbers. A block that holds part of a
cohort draws the numbers of the whole cohort and uses its part.

A stream is stored as its position, 32 bytes; a NumPy generator takes 1,000. One generator per block
draws from all of its streams.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fldb_flower.errors import SettingsError
from fldb_flower.linalg.arrays import Array, Arrays, arrays_on, import_torch, namespace, to_numpy
from fldb_flower.settings import Settings

_STATE = {"bit_generator": "SFC64", "has_uint32": 0, "uinteger": 0}  # besides the position


def keyed_generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return the generator of a key: SFC64, NumPy's fastest for normal draws.

    Examples
    --------
    Equal keys give equal draws:

    >>> from fldb_flower.bandit.streams import keyed_generator
    >>> first = keyed_generator(0, "participation", 3).random()
    >>> first == keyed_generator(0, "participation", 3).random()
    True
    >>> first == keyed_generator(0, "participation", 4).random()
    False
    """
    return np.random.Generator(np.random.SFC64(keyed_seed(seed, *key)))


def keyed_seed(seed: int, *key: int | str) -> np.random.SeedSequence:
    """Return the seed of a key's generator."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    return np.random.SeedSequence(seed, spawn_key=words)


def shared_generator(seed: int, name: str) -> np.random.Generator:
    """Return a generator of values that all agents share, such as the true theta.

    Examples
    --------
    >>> from fldb_flower.bandit.streams import shared_generator
    >>> shared_generator(0, "theta").standard_normal(3).shape
    (3,)
    """
    return keyed_generator(seed, 0, name)


def _position(generator: np.random.Generator) -> NDArray[np.uint64]:
    """Return the position of an SFC64 generator: four words."""
    state: Any = generator.bit_generator.state
    words: NDArray[np.uint64] = state["state"]["state"]
    return words


def _checked_seed(seed: Any) -> int:
    if not isinstance(seed, Integral) or isinstance(seed, bool) or int(seed) < 0:
        raise SettingsError(f"seed={seed!r} (from Python): must be a whole number, at least 0")
    return int(seed)


def check_agents(agents: Any, num_agents: int | None = None) -> None:
    """Raise SettingsError unless agents are a non-empty range of consecutive numbers below N."""
    valid = isinstance(agents, range) and agents.step == 1 and 0 <= agents.start < agents.stop
    if not valid or (num_agents is not None and agents.stop > num_agents):
        most = "" if num_agents is None else f" and below num_agents={num_agents}"
        raise SettingsError(
            f"agents={agents!r} (from Python): must be a range of agents, not empty, from 0{most}"
        )


class AgentStreams:
    """Random streams of a contiguous block of agents.

    A stream is identified by a name. Use each name with one method and one shape. Then drawing
    8 iterations at once gives the same numbers as drawing one iteration 8 times.

    Parameters
    ----------
    seed : int
        Seed of the run, at least 0.
    agents : range
        Numbers of the agents, from 0 to N - 1.

    Raises
    ------
    SettingsError
        The seed or the agents are invalid.

    Examples
    --------
    Three agents draw two numbers in each of four iterations. In a block of its own, an agent draws
    the same numbers:

    >>> from fldb_flower.bandit.streams import AgentStreams
    >>> draws = AgentStreams(0, range(3)).standard_normal("arms", 4, 2)
    >>> draws.shape
    (3, 4, 2)
    >>> alone = AgentStreams(0, range(2, 3)).standard_normal("arms", 4, 2)
    >>> bool((alone[0] == draws[2]).all())
    True
    """

    COHORT = 32  # largest number of agents that share a stream; a power of two, as all sizes are
    NUMBERS = 800  # approximate draws of a cohort per iteration; a node of one agent uses few

    def __init__(self, seed: int, agents: range) -> None:
        check_agents(agents)
        self.agents = agents
        self._seed = _checked_seed(seed)
        self._streams: dict[str, Any] = {}  # of each name's cohorts
        self._generator = np.random.Generator(np.random.SFC64(0))
        self._normal: Any = np.random.Generator.standard_normal
        self._uniform: Any = np.random.Generator.random

    def _cohort(self, shape: tuple[int, ...]) -> int:
        """Return the number of agents that share a stream of draws of this shape."""
        fitting = min(self.COHORT, self.NUMBERS // math.prod(shape))
        return 1 << max(0, fitting.bit_length() - 1)

    def _make(self, cohorts: range, name: str) -> Any:
        """Return new streams: their positions, or their generators in a subclass."""
        keys = ((self._seed, 1, cohort, name) for cohort in cohorts)
        return np.array([_position(keyed_generator(*key)) for key in keys])

    def standard_normal(self, name: str, iterations: int, *shape: int) -> Array:
        """Draw N(0, 1); the shape is ``(agents, iterations, *shape)``."""
        return self._draw(self._normal, name, iterations, shape)

    def random(self, name: str, iterations: int, *shape: int) -> Array:
        """Draw uniformly from [0, 1); the shape is ``(agents, iterations, *shape)``."""
        return self._draw(self._uniform, name, iterations, shape)

    def _draw(
        self, draw: Callable[..., Any], name: str, iterations: int, shape: tuple[int, ...]
    ) -> Array:
        """Draw cohort by cohort, and within a cohort iteration by iteration."""
        size = self._cohort(shape)
        cohorts = range(self.agents.start // size, -(-self.agents.stop // size))
        skipped = self.agents.start - cohorts.start * size  # of the first cohort
        numbers = self._empty(len(cohorts), iterations, size, *shape)
        if name not in self._streams:
            self._streams[name] = self._make(cohorts, name)
        streams = self._streams[name]
        for place, part in enumerate(numbers):
            streams[place] = self._fill(draw, streams[place], part)
        # Iterations are contiguous in memory, as agents play iteration by iteration.
        by_iteration = numbers.swapaxes(0, 1).reshape(iterations, -1, *shape)
        return by_iteration[:, skipped : skipped + len(self.agents)].swapaxes(0, 1)

    def _empty(self, *shape: int) -> Array:
        return np.empty(shape)

    def _fill(self, draw: Callable[..., Any], stream: Any, out: Array) -> Any:
        """Draw from a stream and return the stream after it."""
        self._generator.bit_generator.state = _STATE | {"state": {"state": stream}}
        draw(self._generator, out=out)
        return _position(self._generator)

    def logistic(self, name: str, iterations: int) -> Array:
        """Draw from the standard logistic distribution; shape (agents, iterations).

        ``logistic < z`` has probability ``mu(z)``.
        """
        uniform = self.random(name, iterations)
        xp = namespace(uniform)
        return xp.log((uniform + 2.0**-54) / (1.0 - uniform))  # finite at 0

    def permutations(self, name: str, iterations: int, size: int, count: int) -> Array:
        """Draw ``count`` distinct integers below ``size``; shape (agents, iterations, count).

        Each draw takes the r-th integer not yet taken, with r uniform.
        """
        uniform = self.random(name, iterations, count)
        xp = namespace(uniform)
        left = xp.asarray(size - np.arange(count), dtype=uniform.dtype, device=uniform.device)
        ranks = xp.astype(uniform * left, xp.int64)
        for position in range(1, count):
            taken = xp.sort(ranks[..., :position], axis=-1)
            for earlier in range(position):
                ranks[..., position] += ranks[..., position] >= taken[..., earlier]
        return ranks

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the position of each stream: name -> (cohorts, words)."""
        return {name: np.array(streams) for name, streams in self._streams.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the positions that :meth:`state` returned."""
        self._streams = {name: np.array(rows) for name, rows in state.items()}


class TorchStreams(AgentStreams):
    """Streams drawn by PyTorch on its device. The numbers differ from NumPy's.

    Cohorts are larger, because one call on a GPU draws a million numbers as fast as ten.
    """

    COHORT = 4096
    NUMBERS = 2**18

    def __init__(self, seed: int, agents: range, arrays: Arrays) -> None:
        super().__init__(seed, agents)
        self._arrays = arrays
        self._torch = import_torch("rng=torch", "rng=numpy")
        self._normal, self._uniform = self._torch.randn, self._torch.rand

    def _make(self, cohorts: range, name: str) -> Any:
        seeds = (keyed_seed(self._seed, 1, cohort, name) for cohort in cohorts)
        words = (int(seed.generate_state(1, np.uint64)[0]) for seed in seeds)
        return [self._generator_on_device().manual_seed(word >> 1) for word in words]

    def _generator_on_device(self) -> Any:
        return self._torch.Generator(self._arrays.options["device"])

    def _empty(self, *shape: int) -> Array:
        return self._arrays.empty(*shape)

    def _fill(self, draw: Callable[..., Any], stream: Any, out: Array) -> Any:
        for row in out:  # several iterations at once would give other numbers
            draw(row.shape, generator=stream, out=row)
        return stream

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of each generator."""
        return {
            name: np.stack([to_numpy(stream.get_state()) for stream in streams])
            for name, streams in self._streams.items()
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state` returned."""
        torch = self._torch
        self._streams = {
            name: [self._generator_on_device().set_state(torch.tensor(row)) for row in rows]
            for name, rows in state.items()
        }


def make_streams(settings: Settings, agents: range) -> AgentStreams:
    """Return the streams of a block of agents, drawn by NumPy or by torch (setting ``rng``).

    Examples
    --------
    >>> from fldb_flower.bandit.streams import make_streams
    >>> from fldb_flower.settings import Settings
    >>> make_streams(Settings(seed=1), range(10)).agents
    range(0, 10)
    """
    if settings.rng == "torch":
        return TorchStreams(settings.seed, agents, arrays_on(settings.backend))
    return AgentStreams(settings.seed, agents)


def stream_arrays(settings: Settings) -> Arrays:
    """Return the backend of the arrays that streams draw."""
    return arrays_on(settings.backend) if settings.rng == "torch" else Arrays()
