"""Simulated agents, played as arrays: what they are offered, their duels, and their statistics."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fldb_flower.bandit.duels import DuelLog, clipped, prediction_sums
from fldb_flower.bandit.limits import units_of
from fldb_flower.bandit.policies import make_policy
from fldb_flower.bandit.streams import AgentStreams, make_streams
from fldb_flower.bandit.theory import width_settings
from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS
from fldb_flower.environments import (
    ChangingEnvironment,
    Environment,
    RecordedAnswers,
    check_contexts,
    make_environment,
    state_arrays,
)
from fldb_flower.errors import ConvergenceError, DataError
from fldb_flower.federation.exchange import (
    AnyUpload,
    Broadcast,
    Outcomes,
    PlayRequest,
    ShareUpload,
    limited_statistics,
    sizes_and_weights,
    statistics,
    total,
)
from fldb_flower.linalg.arrays import (
    LARGEST,
    Array,
    Arrays,
    arrays_on,
    copy,
    has_masked,
    join_parts,
    namespace,
    part_of,
    to_numpy,
)
from fldb_flower.linalg.linear import make_form
from fldb_flower.settings import Settings
from fldb_flower.system.process import require_memory

BLOCK_NUMBERS = 2**16
"""Size of a block's features in one iteration: half a MiB, which fits in the cache."""

GPU_BLOCK_NUMBERS = 2**24
_NUMBER_BYTES = 8
_MATRICES = {"local": 1, "personal": 7, "pooled": 3}  # (d, d) of each agent with an own estimate

AHEAD = 16
"""Iterations that are drawn at once if one is requested, and if their arms fit in the cache.

For small blocks, calls cost more than the numbers.
"""


def agents_of_node(partition_id: int, num_partitions: int, num_agents: int) -> range:
    """Return the contiguous agents that a node hosts; raise ValueError if there are none.

    The first ``num_agents % num_partitions`` nodes host one agent more than the others.
    """
    if not 0 <= partition_id < num_partitions:
        raise ValueError(f"partition-id={partition_id} is not in 0..{num_partitions - 1}")
    if num_partitions > num_agents:
        raise ValueError(f"num-partitions={num_partitions} is more than num-agents={num_agents}")
    size, larger = divmod(num_agents, num_partitions)
    start = partition_id * size + min(partition_id, larger)
    return range(start, start + size + (partition_id < larger))


def blocks_of(settings: Settings, agents: range) -> Iterator[range]:
    """Split agents into blocks, which end where cohorts of streams end; pooled ones are one."""
    size, start = block_size(settings), agents.start
    if ALGORITHMS[settings.algorithm].agents == "pooled":
        size = agents.stop
    while start < agents.stop:
        stop = min(agents.stop, (start // size + 1) * size)
        yield range(start, stop)
        start = stop


def block_size(settings: Settings) -> int:
    """Return the largest number of agents in a block: a multiple of a cohort."""
    cohort = AgentStreams.COHORT
    return max(1, rows_in_block(settings) // cohort) * cohort


def rows_in_block(settings: Settings) -> int:
    """Return how many times the arms of one agent in one iteration fit in a block."""
    numbers = BLOCK_NUMBERS if settings.backend in {"numpy", "cpu"} else GPU_BLOCK_NUMBERS
    return numbers // (settings.num_arms * settings.dimension)


def require_agents(settings: Settings, agents: int, *, may_repeat: bool = True) -> None:
    """Raise SettingsError if memory does not suffice for this number of simulated agents.

    The estimate is a lower bound: the duels that are stored and the matrices of agents' own
    estimates; of one block, the arms of an iteration, as drawn and in the order of iterations, and
    their differences from the first arm, or the norms of all pairs. If no message is repeated, a
    block's duels are dropped after the last exchange of a round (``Broadcast.final``).
    """
    if settings.backend not in {"numpy", "cpu"}:
        return  # they are in a GPU's memory
    arms, d = settings.num_arms, settings.dimension
    policy = ALGORITHMS[settings.algorithm].agents
    stored, in_block = _stored_duels(settings), 0
    if not may_repeat and ALGORITHMS[settings.algorithm].online and policy not in _MATRICES:
        stored, in_block = int(not settings.takes_first_step), stored
    each = stored * (d + 1) + d * d * _MATRICES.get(policy, 0)
    seen = 3 * arms * d + in_block * (d + 1)
    if settings.selection in {"maxinp", "maxpairucb"} and policy != "uniform":
        seen += arms * (arms + 1) // 2
    names = ("num_agents", "horizon", "num_arms", "dimension")
    given = ", ".join(f"{name}={getattr(settings, name)}" for name in names)
    each += agents * (policy == "pooled")  # distances between all
    numbers = agents * each + min(block_size(settings), agents) * seen
    require_memory(numbers * _NUMBER_BYTES, f"{given}: {agents} agents")


def _stored_duels(settings: Settings) -> int:
    """Return a lower bound of the largest number of duels stored for one agent."""
    horizon, algorithm = settings.horizon, ALGORITHMS[settings.algorithm]
    if algorithm.keeps_duels or algorithm.agents in _MATRICES:
        return horizon
    if algorithm.agents == "uniform":
        return 1
    if settings.schedule.name == "periodic":
        return max(1, min(settings.tau, horizon) - 1)  # t = 1 is a round of its own
    return max(1, math.floor(horizon * (1.0 - 1.0 / settings.schedule.ratio)) - 1)


class Offers(NamedTuple):
    """Arms, rewards and noise of consecutive iterations."""

    features: Array  # (iterations, agents, arms, d)
    rewards: Array  # latent, (iterations, agents, arms)
    best: Array  # the largest of an agent's rewards, (iterations, agents)
    noise: Array  # standard logistic, (iterations, agents)


class OfferStream:
    """The offers of a block of agents, each taken once and in order.

    They do not depend on what agents select, so a small block draws several iterations at once.
    """

    def __init__(self, settings: Settings, agents: range, arrays: Arrays) -> None:
        self.environment = make_environment(settings, agents)
        self.capacity = max(1, rows_in_block(settings) // len(agents))  # iterations at once
        self._shape = (len(agents), settings.num_arms, settings.dimension)
        self._arrays = arrays
        self._is_external = settings.environment.name in ENVIRONMENTS.added
        self._streams = make_streams(settings, agents)
        self._ahead = AHEAD
        self._changing: ChangingEnvironment | None = None
        if isinstance(self.environment, RecordedAnswers):
            # Its answers are those to the contexts drawn last; the block stores its state.
            self._ahead = 1
        elif isinstance(self.environment, ChangingEnvironment):
            self._changing = self.environment
        self._drawn: Offers | None = None  # offers drawn last, while not all are taken
        self._taken = 0  # number of iterations of these that were taken
        self._before = self._position()  # before these were drawn

    def take(self, most: int, left: int) -> Offers:
        """Return the offers of the next ``most`` iterations, or of ``capacity`` if that is less.

        ``left`` is the number of iterations up to the horizon. A single iteration is drawn with
        later ones, which changes neither the number returned nor the results.
        """
        wanted = min(most, self.capacity)
        end, drawn = self._taken + wanted, self._drawn
        if drawn is None:
            count = wanted if wanted > 1 else max(1, min(self._ahead, left, self.capacity))
            if count > wanted:
                self._before = self._position()
            drawn = self._draw(count)
        elif (missing := end - len(drawn.noise)) > 0:
            former = [copy(each) for each in drawn]  # an environment may reuse its arrays
            more = self._draw(missing)
            xp = namespace(more.noise)
            drawn = Offers(*[xp.concat(both) for both in zip(former, more, strict=True)])
        offers = Offers(*[each[self._taken : end] for each in drawn])
        is_rest = end == len(drawn.noise)
        self._drawn, self._taken = (None, 0) if is_rest else (drawn, end)
        return offers

    def _draw(self, iterations: int) -> Offers:
        contexts = self.environment.contexts(self._streams, iterations)
        if self._is_external:
            agents, *arms = self._shape
            check_contexts(self.environment, contexts, (agents, iterations, *arms))
        noise = self._streams.logistic("preferences", iterations)
        features, rewards, noise = (
            self._arrays.make(each).swapaxes(0, 1)
            for each in (contexts.features, contexts.rewards, noise)
        )
        # `max` along short rows is ten times slower.
        columns = (rewards[..., arm] for arm in range(rewards.shape[-1]))
        best = functools.reduce(namespace(rewards).maximum, columns)
        return Offers(features, rewards, best, noise)

    def _position(self) -> dict[str, Array]:
        """Return the state of the streams and of the environment."""
        changing = {} if self._changing is None else state_arrays(self._changing)
        return join_parts({"streams": self._streams.state(), "environment": changing})

    def state(self) -> dict[str, Array]:
        """Return the state before the last draw, and how many iterations were taken since."""
        position = self._position() if self._drawn is None else self._before
        return {"taken": np.array(self._taken), **position}

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned; later offers are identical."""
        self._taken, self._drawn = 0, None
        self._streams.restore(part_of(state, "streams"))
        if self._changing is not None:
            self._changing.restore(part_of(state, "environment"))
        if taken := int(state["taken"]):
            self._draw(taken)


def require_better_arm(settings: Settings) -> None:
    """Raise DataError if all arms have the same reward, in each iteration of each agent.

    Recorded duels have no rewards: it is raised if all answers are ties. Offers are drawn from the
    start until one has a better arm, usually the first.
    """
    for agents in blocks_of(settings, range(settings.num_agents)):
        stream = OfferStream(settings, agents, arrays_on(settings.backend))
        for done in range(settings.horizon):
            if _has_better_arm(stream.take(1, settings.horizon - done), stream.environment):
                return
    found = getattr(stream.environment, "found", "")
    raise DataError(
        f"environment={settings.environment.name}: no arm is better than another, for any agent"
        f" and iteration, so the regret of every algorithm is 0{found and '; found '}{found}"
    )


def _has_better_arm(offers: Offers, environment: Environment) -> bool:
    if isinstance(environment, RecordedAnswers) and environment.shows_pairs:
        first = np.zeros(offers.noise.size, dtype=np.int64)
        answers = environment.answers(first, first + 1)
        return bool((answers[~np.isnan(answers)] != 0.5).any())
    return bool((offers.rewards != offers.best[..., None]).any())


class AgentGroup:
    """A contiguous group of the N agents, played as arrays (agents, arms, d).

    Agents are played in blocks whose arms fit in the cache, so the arms of only one block are in
    memory at once. An agent's results do not depend on its group.
    """

    def __init__(self, settings: Settings, agents: range) -> None:
        self.agents = agents
        self.blocks = [AgentBlock(settings, block) for block in blocks_of(settings, agents)]

    def answer(self, broadcast: Broadcast, counted: int) -> Any:
        """Play the requested iterations, each once, and return the requested statistics.

        ``counted`` is the last iteration whose duels the server has counted.
        """
        return total_of_blocks([block.answer(broadcast, counted) for block in self.blocks])

    def state(self) -> dict[str, Array]:
        """Return a copy of the state, for :meth:`restore`."""
        return join_parts({str(place): each.state() for place, each in enumerate(self.blocks)})

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned; later results are identical."""
        for place, block in enumerate(self.blocks):
            block.restore(part_of(state, str(place)))


def total_of_blocks(uploads: Sequence[Any]) -> Any:
    """Return the sum of the uploads of blocks that played the same iterations."""
    if len(uploads) == 1:
        return uploads[0]
    parts = [upload.outcomes[0] for upload in uploads]
    sums = np.sum([part.sums for part in parts], axis=0)
    outcomes = Outcomes(parts[0].first, sum(part.agents for part in parts), sums)
    return total(uploads)._replace(outcomes=(outcomes,))


class AgentBlock:
    """Agents whose arrays are processed together; see :class:`AgentGroup`."""

    def __init__(self, settings: Settings, agents: range) -> None:
        self.agents = agents
        self._settings = settings
        self._arrays = arrays_on(settings.backend)
        self._clip = settings.clip
        self._limits_persons = settings.is_private and settings.privacy.unit == "person"
        self._form = make_form(settings)
        self.log = DuelLog(
            len(agents),
            settings.dimension,
            keep=ALGORITHMS[settings.algorithm].keeps_duels,
            arrays=self._arrays,
        )
        self._offers = OfferStream(settings, agents, self._arrays)
        streams = make_streams(settings, agents)
        self._policy = make_policy(settings, streams, self._arrays)
        self._parts: dict[str, Any] = {
            "log": self.log, "policy": self._policy, "offers": self._offers, "selection": streams
        }  # fmt: skip
        self._recorded: RecordedAnswers | None = None
        if isinstance(self._offers.environment, RecordedAnswers):
            self._recorded = self._parts["environment"] = self._offers.environment
        # Index of each row's first arm among the arms of all rows.
        rows = len(agents) * self._offers.capacity
        self._offsets = self._arrays.arange(rows) * settings.num_arms

    def answer(self, broadcast: Broadcast, counted: int) -> Any:
        """Play the requested iterations and return the requested statistics."""
        if counted < self.log.settled:  # duels after an earlier reply were counted at once
            raise RuntimeError(f"the reply up to iteration {self.log.settled} is not counted")
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # results are checked
            self.log.acknowledge(counted)
            self._policy.acknowledge(counted)
            if broadcast.play is not None:
                self._play(broadcast.play)
            upload = self._upload(broadcast)
            if broadcast.final:
                self.log.settle()
                self._policy.acknowledge(self.log.counted)
            return upload

    def _play(self, play: PlayRequest) -> None:
        # Iterations whose request was lost are played with the previous estimate.
        self._play_up_to(play.first - 1)
        if play.estimate is not None:
            self._policy.receive(play.estimate)
        self._play_up_to(play.last)

    def _play_up_to(self, last: int) -> None:
        self.log.reserve(last - self.log.played)
        while (played := self.log.played) < last:
            most = 1 if self._policy.learns else last - played
            offers = self._offers.take(most, self._settings.horizon - played)
            self.play_iterations(range(played + 1, played + 1 + len(offers.noise)), offers)

    def play_iterations(self, iterations: range, offers: Offers) -> None:
        """Play one duel per agent and iteration (Algorithm 1, lines 3 to 6).

        Iterations are played once and in order. The first arm wins if the difference of the rewards
        exceeds the noise. With recorded answers, the noise is ignored; a duel without a new answer
        has difference 0.
        """
        xp, count = self._arrays.xp, len(iterations)
        features, rewards, best, noise = (each.reshape(-1, *each.shape[2:]) for each in offers)
        try:
            first, second = self._policy.select(iterations, features)
        except FloatingPointError:
            raise self._overflow(features, iterations) from None
        if self._recorded is not None and self._recorded.shows_pairs:
            first, second = xp.zeros_like(first), xp.ones_like(second)
        offsets = self._offsets[: len(rewards)]
        at_first, at_second = offsets + first, offsets + second
        differences, preferences, outcomes = self.log.append(count)
        arms, flat = features.reshape(-1, features.shape[-1]), rewards.reshape(-1)
        differences[:] = xp.take(arms, at_first, axis=0) - xp.take(arms, at_second, axis=0)
        reward_first, reward_second = xp.take(flat, at_first), xp.take(flat, at_second)
        if self._recorded is None:
            preferences[:] = noise < reward_first - reward_second
        else:
            answers = self._recorded.answers(to_numpy(first), to_numpy(second))
            if has_masked(answers):
                raise DataError(
                    f"{type(self._recorded).__name__}.answers returned masked entries: must return"
                    " NaN for what is not to be learned"
                )
            is_new = self._arrays.make(~np.isnan(answers))
            preferences[:] = xp.where(is_new, self._arrays.make(answers), 0.5)
            differences[:] = xp.where(is_new[:, None], differences, 0.0)
        lost = 2.0 * best - reward_first - reward_second
        outcomes[:, 0] = to_numpy(xp.sum(lost.reshape(count, -1), axis=1))
        if not np.isfinite(outcomes[:, 0]).all():
            raise self._bad_rewards(rewards, iterations)
        logits = self._policy.predict(differences)
        if logits is not None:
            outcomes[:, 1:] = prediction_sums(logits, preferences, differences, count)
        self._policy.learn(differences, preferences)
        if self._clip is not None:
            differences[:] = clipped(differences, self._clip)

    def _upload(self, broadcast: Broadcast) -> AnyUpload:
        """Return the sums over the block's duels (Algorithm 1, lines 7 to 11)."""
        log, units = self.log, None
        fresh, answers = log.fresh()
        outcomes = (Outcomes(log.counted + 1, len(self.agents), log.fresh_outcomes()),)
        if self._limits_persons and broadcast.learns:
            units = units_of(*sizes_and_weights(broadcast, self._settings))
        if broadcast.shares:
            change = self._policy.shares(log.played, units)
            assert change is not None
            return ShareUpload(len(answers), *change, outcomes=outcomes)
        if broadcast.theta_hat is not None:
            broadcast = broadcast._replace(theta_hat=self._arrays.make(broadcast.theta_hat))
        if units is not None:
            parts = broadcast, fresh, answers, len(self.agents), self._form
            upload = limited_statistics(*parts, units=units)
        else:
            differences, answers = log.all() if broadcast.scope == "all" else (fresh, answers)
            upload = statistics(broadcast, differences, answers, fresh, self._form)
        return upload._replace(
            gradient=to_numpy(upload.gradient),
            information=to_numpy(upload.information),
            hessian=None if upload.hessian is None else to_numpy(upload.hessian),
            outcomes=outcomes,
        )

    def _overflow(self, features: Array, iterations: range) -> DataError | ConvergenceError:
        """Return the error for scores that are not finite, caused by features or by settings."""
        sizes = np.abs(to_numpy(features)).max(axis=-1)
        if not (sizes <= LARGEST).all():  # NaN too
            return DataError(
                f"{self._first(~(sizes <= LARGEST), iterations)}: a feature is not finite, or not"
                f" within +-{LARGEST:g}; scale the features"
            )
        return ConvergenceError(
            f"iteration {iterations.start}: the arms' scores overflow, with features up to"
            f" {sizes.max():.1e} and {width_settings(self._settings)}; scale the features, or"
            " choose less extreme settings"
        )

    def _bad_rewards(self, rewards: Array, iterations: range) -> DataError:
        """Return the error for a regret that is not finite."""
        environment = self._settings.environment
        return DataError(
            f"{self._first(~np.isfinite(to_numpy(rewards)), iterations)}: a reward is not a finite"
            f" number, or too large, so the regret is not finite (environment.name="
            f"{environment.name}, environment.sigma={environment.sigma:g})"
        )

    def _first(self, wrong: Array, iterations: range) -> str:
        """Return the first agent, arm and iteration marked in (rows, arms)."""
        rows, arms = np.nonzero(wrong)
        if not rows.size:
            return f"iteration {iterations.start}"
        place, agent = divmod(int(rows[0]), len(self.agents))
        return f"agent {self.agents[agent]}, arm {arms[0]}, iteration {iterations[place]}"

    def state(self) -> dict[str, Array]:
        """Return a copy of the state, for :meth:`restore`."""
        return join_parts({name: part.state() for name, part in self._parts.items()})

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned; later results are identical."""
        for name, part in self._parts.items():
            part.restore(part_of(state, name))
