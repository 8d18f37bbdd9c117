"""Simulated agents, played as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fldb_flower.bandit.duels import DuelLog, clipped, prediction_sums
from fldb_flower.bandit.estimate import ShareChange
from fldb_flower.bandit.limits import units_of
from fldb_flower.bandit.policies import make_policy
from fldb_flower.bandit.streams import check_agents, make_streams
from fldb_flower.bandit.theory import width_settings
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.environments import RecordedAnswers
from fldb_flower.errors import ConvergenceError, DataError
from fldb_flower.federation.blocks import blocks_of
from fldb_flower.federation.contributions import limited_statistics, sizes_and_weights
from fldb_flower.federation.exchange import (
    Broadcast,
    Outcomes,
    PlayRequest,
    Upload,
    statistics,
    total,
)
from fldb_flower.federation.offers import Offers, OfferStream
from fldb_flower.linalg.arrays import (
    LARGEST,
    Array,
    arrays_on,
    has_masked,
    join_parts,
    part_of,
    to_numpy,
)
from fldb_flower.linalg.forms import make_form
from fldb_flower.settings import Settings


class AgentGroup:
    """A contiguous group of the N agents, played as arrays (agents, arms, d).

    Agents are played in blocks whose arms fit in the cache, so the arms of only one block are in
    memory at once. An agent's results do not depend on its group.

    Raises
    ------
    SettingsError
        The agents are invalid.
    """

    def __init__(self, settings: Settings, agents: range) -> None:
        check_agents(agents, settings.num_agents)
        self.agents = agents
        self.blocks = [AgentBlock(settings, block) for block in blocks_of(settings, agents)]

    def answer(self, broadcast: Broadcast, counted: int) -> Upload:
        """Play the requested iterations and return the requested statistics.

        Iterations already played are not played again. ``counted`` is the last iteration whose
        duels the server has counted.
        """
        return total_of_blocks([block.answer(broadcast, counted) for block in self.blocks])

    def state(self) -> dict[str, Array]:
        """Return a copy of the state, for :meth:`restore`."""
        return join_parts({str(place): each.state() for place, each in enumerate(self.blocks)})

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned; later results are identical."""
        for place, block in enumerate(self.blocks):
            block.restore(part_of(state, str(place)))


def total_of_blocks(uploads: Sequence[Upload]) -> Upload:
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

    def answer(self, broadcast: Broadcast, counted: int) -> Upload:
        """Play the requested iterations and return the requested statistics.

        Raises
        ------
        RuntimeError
            An earlier reply, after which duels were counted at once, is not counted.
        """
        if counted < self.log.settled:
            raise RuntimeError(f"the reply up to iteration {self.log.settled} is not counted")
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # results are checked
            self.log.acknowledge(counted)
            self._policy.acknowledge(counted)
            if broadcast.play is not None:
                self._play(broadcast.play)
            upload = self._statistics(broadcast)
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

        Raises
        ------
        DataError
            A feature or reward is not finite, or too large, or has the wrong shape.
        ConvergenceError
            An independent agent's estimate was not found, or scores overflow.
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

    def _statistics(self, broadcast: Broadcast) -> Upload:
        """Return the sums over the block's duels (Algorithm 1, lines 7 to 11)."""
        log = self.log
        fresh, answers = log.fresh()
        outcomes = (Outcomes(log.counted + 1, len(self.agents), log.fresh_outcomes()),)
        differences, preferences = log.all() if broadcast.scope == "all" else (fresh, answers)
        if broadcast.theta_hat is not None:
            broadcast = broadcast._replace(theta_hat=self._arrays.make(broadcast.theta_hat))
        if self._limits_persons and broadcast.theta_hat is not None:
            units = units_of(*sizes_and_weights(broadcast, self._settings))
            upload = limited_statistics(
                broadcast, fresh, answers, len(self.agents), self._form, units=units
            )
        else:
            upload = statistics(broadcast, differences, preferences, fresh, self._form)
        return upload._replace(
            gradient=to_numpy(upload.gradient),
            information=to_numpy(upload.information),
            hessian=None if upload.hessian is None else to_numpy(upload.hessian),
            outcomes=outcomes,
            shares=self._shares(broadcast) if broadcast.shares else None,
        )

    def _shares(self, broadcast: Broadcast) -> ShareChange | None:
        units = None
        if self._limits_persons:
            units = units_of(*sizes_and_weights(broadcast, self._settings))
        return self._policy.shares(self.log.played, units)

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
