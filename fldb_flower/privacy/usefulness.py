"""Warnings: of a federation that is too small for the noise, and of a delta that is too large.

The factors are those of FLDB-ONS with d=5, T=500, its default width, a geometric schedule and one
party that adds noise, in docs/results/privacy.json: the mean regret divided by that without noise.
What matters is about the product of epsilon and the number N of agents, because the noise of a sum
does not depend on N, and is proportional to 1 / epsilon. With ``privacy.unit=person``, the noise of
all rounds together is proportional to the square root of their number as well, and with two parties
noise is larger by ``sqrt(2)``.
"""

from __future__ import annotations

import math

import numpy as np

from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.privacy.plan import openings_of
from fldb_flower.settings import Settings, without_effect

AGENTS = (30, 100, 300, 1_000)
EPSILONS = (1.0, 3.0, 8.0)
FACTORS: dict[str, tuple[tuple[float, ...], ...]] = {
    "answer": (
        (3.46, 1.56, 1.10),
        (1.67, 1.09, 1.01),
        (1.20, 1.07, 1.08),
        (1.04, 1.04, 1.00),
    ),
    "person": (
        (65.5, 8.44, 2.67),
        (9.39, 2.67, 1.53),
        (3.15, 1.57, 1.22),
        (1.55, 1.17, 1.06),
    ),
}
"""By the unit: a row for each of :data:`AGENTS`, with a factor for each of :data:`EPSILONS`."""

ROUNDS = 16
"""Rounds of the measured runs."""

USEFUL = 1.25
"""Largest factor without a warning."""


def regret_factor(unit: str, epsilon: float, num_agents: int, rounds: int = ROUNDS) -> float:
    """Return the regret with noise, divided by that without, as measured.

    Between the measured values, logarithms are interpolated. Another epsilon than the measured
    ones is as bad as the nearest of them with the same product of epsilon and N. Fewer agents than
    measured are at least as bad as the measured ones. With ``unit="person"``, four times as many
    rounds are about as bad as half of the agents.
    """
    if unit == "person":
        num_agents = int(num_agents * math.sqrt(ROUNDS / max(rounds, ROUNDS)))
    if num_agents > AGENTS[-1]:
        num_agents, epsilon = AGENTS[-1], epsilon * num_agents / AGENTS[-1]
    measured = min(max(epsilon, EPSILONS[0]), EPSILONS[-1])
    num_agents, epsilon = int(num_agents * epsilon / measured), measured  # the product matters
    logarithms = np.log(np.array(FACTORS[unit]))
    by_epsilon = [np.interp(math.log(max(1, num_agents)), np.log(AGENTS), column)
                  for column in logarithms.T]  # fmt: skip
    return round(math.exp(float(np.interp(math.log(epsilon), np.log(EPSILONS), by_epsilon))), 2)


def weak_delta(settings: Settings, people: int) -> str:
    """Return one line if delta is so large that it protects nobody; empty if not.

    A mechanism that publishes everything about one person, drawn at random, has epsilon = 0 and
    delta = 1 / N.
    """
    delta = settings.privacy.delta
    if not settings.is_private or delta * people < 1.0:
        return ""
    return (
        f"privacy.delta={delta:g} with {people} people: it also allows to publish all answers of"
        f" one of them, drawn at random; it should be far below 1 / {people}"
    )


def warning(settings: Settings) -> str:
    """Return one line if noise costs more than a quarter of the regret; empty if not."""
    if not settings.is_private or settings.mode == "devices":
        return ""
    privacy, agents = settings.privacy, settings.num_agents
    is_common = ALGORITHMS[settings.algorithm].agents == "common"
    # Shares of FLDB-Personal contain all answers, so the noise of more rounds averages out.
    rounds = openings_of(settings) if is_common else ROUNDS
    as_many = int(agents / math.sqrt(privacy.parties))
    factor = regret_factor(privacy.unit, float(privacy.epsilon), as_many, rounds)
    if factor <= USEFUL:
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
    lines = [without_effect(chosen)]
    for each in chosen:
        lines += [weak_delta(each, each.num_agents), warning(each)]
    return list(dict.fromkeys(filter(None, lines)))
