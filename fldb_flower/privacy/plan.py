"""The plan of a run: the number of its releases, their noise and cost, and warnings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fldb_flower.algorithms import make_algorithm
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.environments import caution
from fldb_flower.errors import PrivacyError
from fldb_flower.privacy import accounting
from fldb_flower.secure.protocol import COST
from fldb_flower.settings import Settings, without_effect

AGENTS, EPSILONS, ROUNDS = (30, 100, 300, 1_000), (1.0, 3.0, 8.0), 16
FACTORS: dict[str, tuple[tuple[float, ...], ...]] = {
    "answer": ((3.46, 1.56, 1.10), (1.67, 1.09, 1.01), (1.20, 1.07, 1.08), (1.04, 1.04, 1.00)),
    "person": ((65.5, 8.44, 2.67), (9.39, 2.67, 1.53), (3.15, 1.57, 1.22), (1.55, 1.17, 1.06)),
}
"""Regret with noise over that without, by the unit: a row for each of AGENTS, and in it a factor
for each of EPSILONS. Of FLDB-ONS with d=5, T=500, its default width, a geometric schedule of ROUNDS
rounds and one party that adds noise (docs/results/privacy.json)."""

_USEFUL = 1.25  # largest factor without a warning


def openings_of(settings: Settings) -> int:
    """Return the number of exchanges that release an upload: with devices, ``devices.rounds``."""
    if settings.mode == "devices":
        return settings.devices.rounds
    return sum(each.learns for each in make_algorithm(settings).rounds())


class ReleasePlan:
    """The releases of one run: their number, their noise and their cost.

    Releases are counted by the number of their exchange. One that runs again with the same number,
    as after a resume from a checkpoint, releases the same numbers with the same noise, and is
    charged once. Every other exchange draws new noise and is charged.

    The noise is calibrated to the number ``planned`` of releases. ``multiplier`` is the standard
    deviation of the noise of one party over the sensitivity, and ``deviation`` that of all.
    """

    def __init__(self, settings: Settings) -> None:
        privacy = settings.privacy
        self._settings, self._epsilon = settings, float(privacy.epsilon)
        self.planned = openings_of(settings)
        self.multiplier = accounting.noise_multiplier(
            self._epsilon, privacy.delta, self._of_unit(self.planned)
        )
        self._parties = 2 if settings.secure else privacy.parties
        self.deviation = math.sqrt(self._parties) * self.multiplier

    def _of_unit(self, openings: int) -> float:
        """Return the number of releases to which a unit contributes; an answer contributes to one.

        With secure sums, each exchange costs as much as :data:`~fldb_flower.secure.protocol.COST`.
        """
        if self._settings.privacy.unit == "answer":
            return min(openings, 1)
        return openings * (COST if self._settings.secure else 1.0)

    def spent(self, openings: int) -> float:
        """Return epsilon of the first releases, at the delta of the settings.

        For the planned releases, it is at most that of the settings: the noise is calibrated to it.
        """
        delta = self._settings.privacy.delta
        spent = accounting.epsilon_of(self.multiplier, delta, self._of_unit(openings))
        # The minimum excludes rounding errors.
        return spent if openings > self.planned else min(spent, self._epsilon)

    def require(self, number: int) -> None:
        """Raise a PrivacyError if release ``number``, counted from 1, exceeds the budget."""
        if number > self.planned:
            raise PrivacyError(self.exhausted())

    def exhausted(self) -> str:
        """Return the reason, in one line, why nothing is released after the planned releases."""
        covered = f"privacy.epsilon={self._epsilon:g} is spent: the noise covers"
        if self._settings.mode == "devices":
            return (
                f"{covered} {self.planned} sums (devices-rounds), and as many were opened; a"
                " federation with another output-dir has a new budget"
            )
        return (
            f"{covered} the {self.planned} exchanges of the schedule, and algorithm="
            f"{self._settings.algorithm} makes more"
        )

    def summary(self, openings: int) -> dict[str, Any]:
        """Return the entry ``privacy`` of ``summary.json`` after the first releases."""
        privacy = self._settings.privacy
        entry: dict[str, Any] = {
            "epsilon": privacy.epsilon,
            "delta": privacy.delta,
            "unit": privacy.unit,
            "clip": self._settings.clip,
            "parties": self._parties,
            "openings": openings,
            "noise_multiplier": self.multiplier,
            "spent": self.spent(openings),
        }
        if self._settings.mode != "devices":
            entry["note"] = (
                "the noise is drawn from the seed, so it protects nobody; the reported regret is"
                " exact and not private"
            )
        return entry


def regret_factor(unit: str, epsilon: float, num_agents: int, rounds: int = ROUNDS) -> float:
    """Return the regret with noise, divided by that without, as measured (:data:`FACTORS`).

    The noise of a sum does not depend on the number N of agents, and is proportional to
    1 / epsilon. The factor is therefore mainly a function of their product, and an epsilon outside
    the measured range is replaced by the nearest measured one with the same product. Between
    measured values, logarithms are interpolated. With ``unit="person"``, the noise of all rounds is
    proportional to the square root of their number: four times as many rounds are about as bad as
    half as many agents.
    """
    if unit == "person":
        num_agents = int(num_agents * math.sqrt(ROUNDS / max(rounds, ROUNDS)))
    if num_agents > AGENTS[-1]:
        num_agents, epsilon = AGENTS[-1], epsilon * num_agents / AGENTS[-1]
    measured = min(max(epsilon, EPSILONS[0]), EPSILONS[-1])
    size = math.log(max(1, int(num_agents * epsilon / measured)))
    columns = np.log(FACTORS[unit]).T
    by_epsilon = [np.interp(size, np.log(AGENTS), column) for column in columns]
    return round(math.exp(float(np.interp(math.log(measured), np.log(EPSILONS), by_epsilon))), 2)


def _weak_delta(settings: Settings) -> str:
    """Return a warning if delta is too large to protect anybody, else an empty string.

    A mechanism that publishes everything about one person, drawn at random, has epsilon = 0 and
    delta = 1 / N.
    """
    delta, people = settings.privacy.delta, settings.num_agents
    if delta * people < 1.0:
        return ""
    return (
        f"privacy.delta={delta:g} with {people} people: publishing all answers of one person, drawn"
        f" at random, would satisfy this delta; choose one far below 1 / {people}"
    )


def _costly_noise(settings: Settings) -> str:
    """Return a warning if noise adds more than a quarter to the regret, else an empty string."""
    privacy, agents = settings.privacy, settings.num_agents
    is_common = ALGORITHMS[settings.algorithm].agents == "common"
    # Shares of FLDB-Personal contain all answers, so the noise of more rounds averages out.
    rounds = openings_of(settings) if is_common else ROUNDS
    as_many = int(agents / math.sqrt(privacy.parties))
    factor = regret_factor(privacy.unit, float(privacy.epsilon), as_many, rounds)
    if factor <= _USEFUL:
        return ""
    cost = "agents rely more on their own answers"
    remedies = "more agents or a larger privacy.epsilon"
    if is_common:
        cost = f"expect about {factor:.1f} times the regret without noise, or more"
    if is_common and privacy.unit == "person":
        fewer = "fewer rounds (schedule=geometric), " if rounds > ROUNDS else ""
        remedies = f"{fewer}more agents, a larger privacy.epsilon or privacy.unit=answer"
    return (
        f"privacy.epsilon={privacy.epsilon:g} with num_agents={agents} and privacy.unit="
        f"{privacy.unit}: {cost}; {remedies} would help"
    )


def cautions(*chosen: Settings) -> list[str]:
    """Return the warnings before simulations, one line each and each once."""
    lines: list[str | None] = [without_effect(chosen)]
    for each in chosen:
        lines.append(caution(each))
        if each.is_private:
            lines += [_weak_delta(each), _costly_noise(each)]
    return list(dict.fromkeys(filter(None, lines)))
