"""What the agents of a block are offered: arms, their rewards and noise.

None of it depends on what the agents select, so a small block draws several iterations at once.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from fldb_flower.bandit.streams import make_streams
from fldb_flower.catalogue import ENVIRONMENTS
from fldb_flower.environments import (
    ChangingEnvironment,
    Contexts,
    Environment,
    RecordedAnswers,
    make_environment,
)
from fldb_flower.environments.base import check_contexts, state_arrays
from fldb_flower.errors import DataError
from fldb_flower.federation.blocks import blocks_of, rows_in_block
from fldb_flower.linalg.arrays import Array, Arrays, arrays_on, copy, join_parts, namespace, part_of
from fldb_flower.settings import Settings

AHEAD = 16
"""Iterations that are drawn at once if one is requested, and if their arms fit in the cache.

For small blocks, calls cost more than the numbers.
"""


class Offers(NamedTuple):
    """Arms, rewards and noise of consecutive iterations.

    Attributes
    ----------
    features : Array
        Features of the arms, (iterations, agents, arms, d).
    rewards : Array
        Latent rewards of the arms, (iterations, agents, arms).
    best : Array
        The largest of an agent's rewards, (iterations, agents).
    noise : Array
        Standard logistic, (iterations, agents).
    """

    features: Array
    rewards: Array
    best: Array
    noise: Array


class OfferStream:
    """The offers of a block of agents, each taken once and in order.

    ``capacity`` is the largest number of iterations that are taken at once.
    """

    def __init__(self, settings: Settings, agents: range, arrays: Arrays) -> None:
        self.environment = make_environment(settings, agents)
        self._shape = (len(agents), settings.num_arms, settings.dimension)
        self._arrays = arrays
        self._is_external = settings.environment.name in ENVIRONMENTS.added
        self._streams = make_streams(settings, agents)
        self.capacity = max(1, rows_in_block(settings) // len(agents))
        is_recorded = isinstance(self.environment, RecordedAnswers)
        # Recorded answers are those to the contexts drawn last; the block stores their state.
        self._ahead = 1 if is_recorded else AHEAD
        self._changing: ChangingEnvironment | None = None
        if isinstance(self.environment, ChangingEnvironment) and not is_recorded:
            self._changing = self.environment
        self._drawn: Offers | None = None  # offers drawn last, while not all are taken
        self._taken = 0  # number of iterations of these that were taken
        self._before = self._position()  # before these were drawn

    def take(self, most: int, left: int) -> Offers:
        """Return the offers of the next ``most`` iterations, or of ``capacity`` if that is less.

        ``left`` is the number of iterations up to the horizon. A single iteration is drawn with
        later ones. How many are returned does not depend on that, so that results do not either.
        """
        wanted = min(most, self.capacity)
        drawn = self._drawn
        missing = wanted if drawn is None else self._taken + wanted - len(drawn.noise)
        if missing > 0:
            drawn = self._extended(drawn, missing, left)
        assert drawn is not None
        first, self._taken = self._taken, self._taken + wanted
        offers = Offers(*[each[first : self._taken] for each in drawn])
        self._drawn = drawn
        if self._taken == len(drawn.noise):
            self._drawn, self._taken = None, 0
        return offers

    def _extended(self, drawn: Offers | None, missing: int, left: int) -> Offers:
        """Return offers with ``missing`` more iterations, or with those drawn ahead."""
        if drawn is not None:
            drawn = Offers(*map(copy, drawn))  # an environment may reuse its arrays
            more = self._draw(missing)
            xp = namespace(more.noise)
            return Offers(*[xp.concat(both) for both in zip(drawn, more, strict=True)])
        count = missing if missing > 1 else max(1, min(self._ahead, left, self.capacity))
        if count > missing:
            self._before = self._position()
        return self._draw(count)

    def _draw(self, iterations: int) -> Offers:
        contexts = self.environment.contexts(self._streams, iterations)
        if self._is_external:
            agents, *arms = self._shape
            check_contexts(self.environment, contexts, (agents, iterations, *arms))
        noise = self._streams.logistic("preferences", iterations)
        return self._by_iteration(contexts, noise)

    def _by_iteration(self, contexts: Contexts, noise: Array) -> Offers:
        """Return arrays of the backend whose first axis are iterations."""
        features, rewards, noise = (
            self._arrays.make(each).swapaxes(0, 1)
            for each in (contexts.features, contexts.rewards, noise)
        )
        return Offers(features, rewards, _largest(rewards), noise)

    def _position(self) -> dict[str, Array]:
        """Return where the streams and the environment are."""
        changing = {} if self._changing is None else state_arrays(self._changing)
        return join_parts({"streams": self._streams.state(), "environment": changing})

    def state(self) -> dict[str, Array]:
        """Return where streams and environment are, and how many iterations were taken since."""
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
    """Check that an arm is better than another, for some agent and iteration of a run.

    Offers are drawn again, from the start, until one has such an arm: usually the first.

    Raises
    ------
    DataError
        All arms have the same reward, in each iteration of each agent. Where agents are shown
        recorded duels, which have no rewards: all answers are ties.
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


def _largest(rewards: Array) -> Array:
    """Return the largest reward of each agent; ``max`` along short rows is ten times slower."""
    xp = namespace(rewards)
    return functools.reduce(xp.maximum, (rewards[..., arm] for arm in range(rewards.shape[-1])))
