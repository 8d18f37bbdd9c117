"""Environments: which arms agents see, and their rewards.

They are declared in :data:`fldb_flower.catalogue.ENVIRONMENTS`, where a new one is registered.
"""

from __future__ import annotations

import math

from fldb_flower.bandit.streams import check_agents
from fldb_flower.catalogue import ENVIRONMENTS
from fldb_flower.environments.base import Contexts, Environment
from fldb_flower.settings import AUTO, Settings


def make_environment(settings: Settings, agents: range) -> Environment:
    """Return the environment that the settings name, for a block of agents.

    Raises
    ------
    SettingsError
        ``agents`` is not a range of some of the settings' agents.
    """
    check_agents(agents, settings.num_agents)
    environment: Environment = ENVIRONMENTS.load(settings.environment.name)(settings, agents)
    return environment


def max_difference(settings: Settings) -> float:
    """Return L, which no difference of two arms exceeds: the setting, or what ``auto`` derives.

    An environment may say it, as a static method of this name over settings, which needs no data.
    Infinite where it does not, and for devices.
    """
    if settings.max_difference != AUTO:
        return float(settings.max_difference)
    known = getattr(ENVIRONMENTS.load(settings.environment.name), "max_difference", None)
    return math.inf if known is None or settings.mode == "devices" else float(known(settings))


__all__ = ["Contexts", "Environment", "make_environment", "max_difference"]
