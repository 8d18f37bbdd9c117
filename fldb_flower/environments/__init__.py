"""Environments by name. A new one is a class like those here and a line in the table."""

from __future__ import annotations

import math
from collections.abc import Callable

from fldb_flower.bandit.streams import check_agents
from fldb_flower.environments.base import Contexts, Environment
from fldb_flower.environments.movielens import MovieLens
from fldb_flower.environments.sentences import Sentences
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.settings import AUTO, Settings

_TABLE: dict[str, Callable[[Settings, range], Environment]] = {
    "synthetic": Synthetic,
    "movielens": MovieLens,
    "sentences": Sentences,
}


def make_environment(settings: Settings, agents: range) -> Environment:
    """Return the environment that the settings name, for a block of agents.

    Raises
    ------
    SettingsError
        ``agents`` is not a range of some of the settings' agents.
    """
    check_agents(agents, settings.num_agents)
    return _TABLE[settings.environment.name](settings, agents)


def max_difference(settings: Settings) -> float:
    """Return L, which no difference of two arms exceeds: the setting, or what ``auto`` derives.

    An environment may say it, as a static method of this name over settings, which needs no data.
    Infinite where it does not, and for devices.
    """
    if settings.max_difference != AUTO:
        return float(settings.max_difference)
    known = getattr(_TABLE[settings.environment.name], "max_difference", None)
    return math.inf if known is None or settings.mode == "devices" else float(known(settings))


__all__ = ["Contexts", "Environment", "make_environment", "max_difference"]
