"""A block of simulated agents that plays as arrays and answers broadcasts."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

import numpy as np
from threadpoolctl import threadpool_limits

from fldb_flower.arrays import Array
from fldb_flower.checkpoints import join_parts, part_of
from fldb_flower.duels import DuelLog
from fldb_flower.environments import Contexts, make_environment
from fldb_flower.errors import DataError
from fldb_flower.federation import Broadcast, Play, Regrets, Upload, statistics
from fldb_flower.policies import make_policy
from fldb_flower.settings import Settings
from fldb_flower.streams import AgentStreams

_LOOKAHEAD_NUMBERS = 2**24  # of features drawn at once: 128 MiB
_LOOKAHEAD_ITERATIONS = 64
_MANY_DIMENSIONS = 128  # from here on, BLAS threads pay
_CHUNK_NUMBERS = 2**16  # of features worked on at once: half a MiB, within the cache


class AgentGroup:
    """Some of the N agents: a contiguous block, played as arrays (agents, arms, d).

    A block of one agent or of all gives each agent the same numbers.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    agents : range
        Numbers of the agents in this block.
    resumable : bool
        Whether :meth:`state` can be called at any time. Remembering where thousands of streams
        stood costs as much as drawing from them; see :meth:`can_save`.
    """

    def __init__(self, settings: Settings, agents: range, *, resumable: bool = False) -> None:
        self.agents = agents
        self._resumable = resumable
        self._remembers = resumable  # where the streams stand before the next block is drawn
        self._horizon = settings.horizon
        size = settings.num_arms * settings.dimension
        self._chunk = max(1, _CHUNK_NUMBERS // size)
        # Where each agent's arms begin in a chunk's arms, one after the other.
        self._places = np.arange(min(self._chunk, len(agents))) * settings.num_arms
        self._lookahead = min(
            _LOOKAHEAD_ITERATIONS, max(1, _LOOKAHEAD_NUMBERS // (size * len(agents)))
        )
        self._environment = make_environment(settings, agents)
        self._streams = AgentStreams(settings.seed, agents)  # what the world draws, in blocks
        self._policy_streams = AgentStreams(settings.seed, agents)  # what the agents draw
        self._policy = make_policy(settings, self._policy_streams)
        self._log = DuelLog(len(agents), settings.dimension, keep=settings.algorithm == "fldb_gd")
        self._block = _Block.empty()

    def answer(self, broadcast: Broadcast, counted: int) -> Upload:
        """Play what the broadcast asks for and return the statistics.

        Parameters
        ----------
        broadcast : Broadcast
            From the server. Iterations already played are not played again.
        counted : int
            Acknowledgement: the last iteration whose duels the server has counted.
        """
        self._log.acknowledge(counted)
        if broadcast.play is not None:
            self._play(broadcast.play)
        return self._statistics(broadcast)

    def _play(self, play: Play) -> None:
        # Iterations whose broadcast never arrived are played with what was known then.
        for t in range(self._log.played + 1, play.first):
            self._play_iteration(t)
        self._policy.receive(play)
        for t in range(max(self._log.played + 1, play.first), play.last + 1):
            self._play_iteration(t)

    def _play_iteration(self, t: int) -> None:
        """Select, show and answer one pair for every agent (Algorithm 1, lines 3 to 6)."""
        block, row = self._block_of(t)
        differences, preferences = self._log.append()
        for start in range(0, len(self.agents), self._chunk):
            chunk = slice(start, start + self._chunk)
            features = block.features[row, chunk]
            try:
                first, second = self._policy.select(t, chunk, features)
            except FloatingPointError:
                raise self._bad_features(features, start, t) from None
            places = self._places[: len(features)]
            at_first, at_second = places + first, places + second
            arms = features.reshape(-1, features.shape[-1])
            differences[chunk] = arms.take(at_first, axis=0) - arms.take(at_second, axis=0)
            shortfall = block.shortfall[row, chunk].reshape(-1)
            short_first, short_second = shortfall.take(at_first), shortfall.take(at_second)
            preferences[chunk] = block.noise[row, chunk] < short_second - short_first
            self._log.add_regret(float((short_first + short_second).sum()))
        self._policy.learn(differences, preferences)

    def _block_of(self, t: int) -> tuple[_Block, int]:
        """Return the drawn block that holds iteration t, and its row there."""
        if t > self._block.last:
            self._block = self._draw(self._block.last + 1)
        return self._block, t - self._block.first

    def _draw(self, first: int) -> _Block:
        # The streams of the first block stand at their beginning, which costs nothing to know.
        remembered = self._remembers or first == 1
        return self._draw_from(self._streams.state() if remembered else None, first)

    def _draw_from(self, before: dict[str, Array] | None, first: int) -> _Block:
        count = min(self._lookahead, max(1, self._horizon - first + 1))
        contexts = self._environment.contexts(self._streams, count)
        return _Block(first, contexts, self._streams.logistic("preferences", count), before)

    def _statistics(self, broadcast: Broadcast) -> Upload:
        """Sum what the broadcast asks for over the block's duels (Algorithm 1, lines 7 to 11)."""
        log = self._log
        fresh, answers = log.fresh()
        regrets = (Regrets(log.counted + 1, len(self.agents), log.fresh_regrets()),)
        differences, preferences = log.all() if broadcast.scope == "all" else (fresh, answers)
        return statistics(broadcast, differences, preferences, fresh)._replace(regrets=regrets)

    def _bad_features(self, features: Array, start: int, t: int) -> DataError:
        agent, arm = np.argwhere(~np.isfinite(features).all(axis=-1))[0]
        return DataError(
            f"agent {self.agents[start + int(agent)]}, arm {arm}, iteration {t}:"
            " a feature is not a finite number"
        )

    def can_save(self) -> bool:
        """Whether :meth:`state` can be called now; else it can once another block is drawn."""
        self._remembers = self._resumable or self._block.before is None
        return self._block.before is not None

    def state(self) -> dict[str, Array]:
        """Return what must outlive the process, as arrays; see :meth:`restore`."""
        assert self._block.before is not None, "see can_save"
        parts = {
            "log": self._log.state(),
            "policy": self._policy.state(),
            "streams": self._block.before,
            "draws": self._policy_streams.state(),
        }
        return {"block": np.array([self._block.first, self._block.last]), **join_parts(parts)}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from where :meth:`state` was taken, with identical numbers."""
        self._log.restore(part_of(state, "log"))
        self._policy.restore(part_of(state, "policy"))
        self._policy_streams.restore(part_of(state, "draws"))
        before = part_of(state, "streams")
        self._streams.restore(before)
        first, last = (int(number) for number in state["block"])
        self._block = self._draw_from(before, first) if last else _Block.empty()


class _Block:
    """Iterations first..last as the environment drew them, iteration by iteration.

    Attributes
    ----------
    features : ndarray
        (iterations, agents, arms, d).
    shortfall : ndarray
        How much worse than the best each arm is, (iterations, agents, arms): never below 0,
        so neither is a regret.
    noise : ndarray
        Standard logistic, (iterations, agents).
    before : dict or None
        The streams' state before the block was drawn, so that it can be drawn again, if it was
        remembered.
    """

    def __init__(
        self, first: int, contexts: Contexts, noise: Array, before: dict[str, Array] | None
    ) -> None:
        self.first, self.last = first, first + noise.shape[1] - 1
        self.features = np.ascontiguousarray(contexts.features.swapaxes(0, 1))
        rewards = np.ascontiguousarray(contexts.rewards.swapaxes(0, 1))
        # A running maximum over the arms: np.max along short rows is ten times slower.
        best = functools.reduce(np.maximum, (rewards[..., arm] for arm in range(rewards.shape[-1])))
        self.shortfall = best[..., None] - rewards
        self.noise = np.ascontiguousarray(noise.T)
        self.before = before

    @classmethod
    def empty(cls) -> _Block:
        nothing = np.empty((0, 0, 1))
        return cls(1, Contexts(nothing[..., None], nothing), nothing[..., 0], {})


def one_blas_thread(dimension: int) -> AbstractContextManager[object]:
    """Keep BLAS to one thread while the matrices are small, as a context or for good.

    Its threads wait for each other by spinning: with another process on the machine, products
    of small matrices take up to six times as long.
    """
    limit = 1 if dimension < _MANY_DIMENSIONS else None
    threads: AbstractContextManager[object] = threadpool_limits(limit, user_api="blas")
    return threads


def agents_of_node(partition_id: int, num_partitions: int, num_agents: int) -> range:
    """Return the contiguous block of agents that a node hosts.

    The first ``num_agents % num_partitions`` nodes host one agent more than the others.

    Raises
    ------
    ValueError
        The partition does not exist, or there are more nodes than agents.
    """
    if not 0 <= partition_id < num_partitions:
        raise ValueError(f"partition-id={partition_id} is not in 0..{num_partitions - 1}")
    if num_partitions > num_agents:
        raise ValueError(f"num-partitions={num_partitions} is more than num-agents={num_agents}")
    size, larger = divmod(num_agents, num_partitions)
    start = partition_id * size + min(partition_id, larger)
    return range(start, start + size + (partition_id < larger))
