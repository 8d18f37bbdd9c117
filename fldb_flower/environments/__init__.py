"""Environments: which arms agents see, and their rewards.

They are declared in :data:`fldb_flower.catalogue.ENVIRONMENTS`, where a new one is registered.
"""

from __future__ import annotations

import math

from fldb_flower.bandit.streams import check_agents
from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS
from fldb_flower.environments.base import (
    ChangingEnvironment,
    Contexts,
    Environment,
    RecordedAnswers,
)
from fldb_flower.errors import DataError
from fldb_flower.settings import AUTO, Settings


def make_environment(settings: Settings, agents: range) -> Environment:
    """Return the settings' environment for a block of agents.

    Raises
    ------
    DataError
        The registered environment has no method ``contexts``, or cannot read its data.

    Examples
    --------
    >>> from fldb_flower.bandit.streams import AgentStreams
    >>> from fldb_flower.environments import make_environment
    >>> from fldb_flower.settings import Settings
    >>> environment = make_environment(Settings(num_arms=4, dimension=3), range(2))
    >>> environment.contexts(AgentStreams(0, range(2)), iterations=5).features.shape
    (2, 5, 4, 3)
    """
    check_agents(agents, settings.num_agents)
    name = settings.environment.name
    environment: Environment = ENVIRONMENTS.load(name)(settings, agents)
    if not callable(getattr(environment, "contexts", None)):
        raise DataError(f"environment {name}: {type(environment).__name__} has no method contexts")
    return environment


def max_difference(settings: Settings) -> float:
    """Return L, the maximum length of a difference of two arms.

    With ``max_difference=auto`` it is the result of the environment's static method
    ``max_difference(settings)``. It is infinite for devices, and for an environment without that
    method. With privacy, agents shorten longer differences in statistics to ``privacy.clip``.

    Examples
    --------
    >>> from fldb_flower.environments import max_difference
    >>> from fldb_flower.settings import Settings
    >>> max_difference(Settings(max_difference=3))
    3.0
    >>> max_difference(Settings(mode="devices"))
    inf
    """
    longest = math.inf
    if settings.max_difference != AUTO:
        longest = float(settings.max_difference)
    elif settings.mode != "devices":
        environment = ENVIRONMENTS.load(settings.environment.name)
        if bound := getattr(environment, "max_difference", None):
            longest = float(bound(settings))
    if settings.clip is None:
        return longest
    # Agents of FLDB-Personal learn from the whole differences, and report clip^2 as their squares.
    is_personal = ALGORITHMS[settings.algorithm].agents == "personal"
    return max(longest, settings.clip) if is_personal else min(longest, settings.clip)


__all__ = [
    "ChangingEnvironment",
    "Contexts",
    "Environment",
    "RecordedAnswers",
    "make_environment",
    "max_difference",
]
