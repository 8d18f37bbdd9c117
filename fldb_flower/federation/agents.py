"""Simulated agents that play as arrays and answer broadcasts."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from fldb_flower.bandit.duels import DuelLog
from fldb_flower.bandit.policies import make_policy
from fldb_flower.bandit.streams import AgentStreams, check_agents, make_streams
from fldb_flower.environments import make_environment
from fldb_flower.errors import ConvergenceError, DataError
from fldb_flower.federation.exchange import (
    Broadcast,
    PlayRequest,
    Regrets,
    Upload,
    statistics,
    total,
)
from fldb_flower.linalg.arrays import LARGEST, Array, arrays_on, namespace, to_numpy
from fldb_flower.linalg.forms import make_form
from fldb_flower.linalg.named_arrays import join_parts, part_of
from fldb_flower.settings import Settings
from fldb_flower.system.memory import require_agents

_DRAWN_AT_ONCE = 8  # iterations of noise: one number an agent costs less than calling for it
_BLOCK_NUMBERS = 2**16  # of features worked on at once: half a MiB, within the cache
_GPU_BLOCK_NUMBERS = 2**24


class AgentGroup:
    """Some of the N agents, contiguous, played as arrays (agents, arms, d).

    They are played in blocks that fit a processor's cache, so that memory grows by what agents
    remember and not by what they see. A group of one agent or of all gives each agent the same
    numbers.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    agents : range
        Numbers of the agents in this group.

    Raises
    ------
    SettingsError
        They are not some of the settings' agents, or need more memory than there is.
    """

    def __init__(self, settings: Settings, agents: range) -> None:
        check_agents(agents, settings.num_agents)
        require_agents(settings, len(agents), min(block_size(settings), len(agents)))
        self.agents = agents
        self.blocks = [AgentBlock(settings, block) for block in blocks_of(settings, agents)]

    def answer(self, broadcast: Broadcast, counted: int) -> Upload:
        """Play what the broadcast asks for and return the statistics.

        Parameters
        ----------
        broadcast : Broadcast
            From the server. Iterations already played are not played again.
        counted : int
            Acknowledgement: the last iteration whose duels the server has counted.
        """
        return total_of_blocks([block.answer(broadcast, counted) for block in self.blocks])

    def state(self) -> dict[str, Array]:
        """Return what must outlive the process, as arrays; see :meth:`restore`."""
        return join_parts({str(place): each.state() for place, each in enumerate(self.blocks)})

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from where :meth:`state` was taken, with identical numbers."""
        for place, block in enumerate(self.blocks):
            block.restore(part_of(state, str(place)))


def total_of_blocks(uploads: Sequence[Upload]) -> Upload:
    """Sum the uploads of blocks that played the same iterations, and their regrets too."""
    parts = [upload.regrets[0] for upload in uploads]
    sums = np.sum([part.sums for part in parts], axis=0)
    regrets = Regrets(parts[0].first, sum(part.agents for part in parts), sums)
    return total(uploads)._replace(regrets=(regrets,))


def blocks_of(settings: Settings, agents: range) -> Iterator[range]:
    """Cut a group of agents where cohorts end, into blocks of about as many features."""
    size, start = block_size(settings), agents.start
    while start < agents.stop:
        stop = min(agents.stop, (start // size + 1) * size)
        yield range(start, stop)
        start = stop


def block_size(settings: Settings) -> int:
    """Return how many agents a block has at most, which is a multiple of a cohort."""
    cohort = AgentStreams.COHORT
    return max(1, _fitting(settings) // cohort) * cohort


def _fitting(settings: Settings) -> int:
    """Return how many agents' arms of one iteration fit in a block."""
    numbers = _BLOCK_NUMBERS if settings.backend in {"numpy", "cpu"} else _GPU_BLOCK_NUMBERS
    return numbers // (settings.num_arms * settings.dimension)


class AgentBlock:
    """Agents that are played together: see :class:`AgentGroup`."""

    def __init__(self, settings: Settings, agents: range) -> None:
        self.agents = agents
        self._settings = settings
        self._arrays = arrays_on(settings.backend)
        self._form = make_form(settings)
        self.log = DuelLog(
            len(agents),
            settings.dimension,
            keep=settings.algorithm == "fldb_gd",
            arrays=self._arrays,
        )
        self._environment = make_environment(settings, agents)
        self._streams = make_streams(settings, agents)
        self._policy = make_policy(settings, self._streams, self._arrays)
        # Few agents select for several iterations at once, in fewer calls of NumPy.
        self._together = max(1, _fitting(settings) // len(agents)) if self._policy.waits else 1
        self._drawn_at_once = max(self._together, _DRAWN_AT_ONCE)
        # Where each row's arms begin among all arms, one after the other.
        self._places = self._arrays.arange(len(agents) * self._together) * settings.num_arms

    def answer(self, broadcast: Broadcast, counted: int) -> Upload:
        """Play what the broadcast asks for and return the statistics."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # checked below
            self.log.acknowledge(counted)
            if broadcast.play is not None:
                self._play(broadcast.play)
            return self._statistics(broadcast)

    def _play(self, play: PlayRequest) -> None:
        # Iterations whose broadcast never arrived are played with what was known then.
        self._play_up_to(play.first - 1)
        if play.estimate is not None:
            self._policy.receive(play.estimate)
        self._play_up_to(play.last)

    def _play_up_to(self, last: int) -> None:
        for drawn in _chunks(range(self.log.played + 1, last + 1), self._drawn_at_once):
            noise = self._arrays.make(self._streams.logistic("preferences", len(drawn)).T)
            for iterations in _chunks(drawn, self._together):
                start = iterations.start - drawn.start
                self.play_iterations(iterations, noise[start : start + len(iterations)])

    def play_iterations(self, iterations: range, noise: Array) -> None:
        """Select, show and answer a pair an iteration for every agent (Algorithm 1, lines 3 to 6).

        Parameters
        ----------
        iterations : range
            From 1; each once, in order. Nothing is learned between them.
        noise : Array
            Standard logistic, (iterations, agents): the first arm wins where its lead in reward
            is larger.

        Raises
        ------
        DataError
            A feature or reward is not finite, or too large.
        ConvergenceError
            An agent that learns alone found no estimate, or scores overflow.
        """
        xp, count = self._arrays.xp, len(iterations)
        contexts = self._environment.contexts(self._streams, count)
        features, rewards = (self._rows(each) for each in (contexts.features, contexts.rewards))
        try:
            first, second = self._policy.select(iterations, features)
        except FloatingPointError:
            raise self._overflow(features, iterations) from None
        places = self._places[: len(rewards)]
        at_first, at_second = places + first, places + second
        differences, preferences, regrets = self.log.append(count)
        arms, flat = features.reshape(-1, features.shape[-1]), rewards.reshape(-1)
        differences[:] = xp.take(arms, at_first, axis=0) - xp.take(arms, at_second, axis=0)
        reward_first, reward_second = xp.take(flat, at_first), xp.take(flat, at_second)
        preferences[:] = noise.reshape(-1) < reward_first - reward_second
        lost = 2.0 * _largest(rewards) - reward_first - reward_second
        regrets[:] = to_numpy(xp.sum(lost.reshape(count, -1), axis=1))
        if not np.isfinite(regrets).all():
            raise self._bad_rewards(rewards, iterations)
        self._policy.learn(differences, preferences)

    def _rows(self, numbers: Array) -> Array:
        """Put agents' iterations one after the other: (agents, iterations, ...) -> (rows, ...)."""
        numbers = self._arrays.make(numbers).swapaxes(0, 1)
        return numbers.reshape(-1, *numbers.shape[2:])

    def _statistics(self, broadcast: Broadcast) -> Upload:
        """Sum what the broadcast asks for over the block's duels (Algorithm 1, lines 7 to 11)."""
        log = self.log
        fresh, answers = log.fresh()
        regrets = (Regrets(log.counted + 1, len(self.agents), log.fresh_regrets()),)
        differences, preferences = log.all() if broadcast.scope == "all" else (fresh, answers)
        if broadcast.theta_hat is not None:
            broadcast = broadcast._replace(theta_hat=self._arrays.make(broadcast.theta_hat))
        upload = statistics(broadcast, differences, preferences, fresh, self._form)
        hessian = upload.hessian
        return upload._replace(
            gradient=to_numpy(upload.gradient),
            information=to_numpy(upload.information),
            hessian=None if hessian is None else to_numpy(hessian),
            regrets=regrets,
        )

    def _overflow(self, features: Array, iterations: range) -> DataError | ConvergenceError:
        """Return why scores are not finite: an arm's features, or the settings."""
        sizes = np.abs(to_numpy(features)).max(axis=-1)
        where = self._first(~(sizes <= LARGEST), iterations)  # NaN too
        if where:
            return DataError(
                f"{where}: a feature is not a finite number, or too large: it must be within"
                f" +-{LARGEST:g}; give features in other units"
            )
        settings = self._settings
        return ConvergenceError(
            f"iteration {iterations.start}: the arms' scores overflow, with features up to"
            f" {sizes.max():.1e} and beta_scale={settings.beta_scale:g},"
            f" kappa_mu={settings.kappa_mu:g}, lambda={settings.ridge:g}: use features or settings"
            " nearer to 1"
        )

    def _bad_rewards(self, rewards: Array, iterations: range) -> DataError:
        """Return which reward makes the regret infinite or NaN."""
        where = self._first(~np.isfinite(to_numpy(rewards)), iterations)
        environment = self._settings.environment
        return DataError(
            f"{where or f'iteration {iterations.start}'}: a reward is not a finite number, or too"
            f" large, so the regret is not finite (environment.name={environment.name},"
            f" environment.sigma={environment.sigma:g})"
        )

    def _first(self, wrong: Array, iterations: range) -> str:
        """Return the first agent, arm and iteration where something is wrong; "" if nothing is."""
        rows, arms = np.nonzero(wrong)
        if not rows.size:
            return ""
        place, agent = divmod(int(rows[0]), len(self.agents))
        return f"agent {self.agents[agent]}, arm {arms[0]}, iteration {iterations[place]}"

    def state(self) -> dict[str, Array]:
        """Return what must outlive the process, as arrays; see :meth:`restore`."""
        parts = {
            "log": self.log.state(),
            "policy": self._policy.state(),
            "streams": self._streams.state(),
        }
        return join_parts(parts)

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from where :meth:`state` was taken, with identical numbers."""
        self.log.restore(part_of(state, "log"))
        self._policy.restore(part_of(state, "policy"))
        self._streams.restore(part_of(state, "streams"))


def _chunks(iterations: range, size: int) -> Iterator[range]:
    """Cut a range into ranges of at most so many."""
    return (iterations[start : start + size] for start in range(0, len(iterations), size))


def _largest(rewards: Array) -> Array:
    """Return the reward of each agent's best arm.

    A running maximum over the arms: along short rows ``max`` is ten times slower.
    """
    xp = namespace(rewards)
    return functools.reduce(xp.maximum, (rewards[:, arm] for arm in range(rewards.shape[1])))


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
