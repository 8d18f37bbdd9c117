"""Environments by name. A new one is a class like those here and a line in the table."""

from __future__ import annotations

from collections.abc import Callable

from fldb_flower.environments.base import Contexts, Environment
from fldb_flower.environments.movielens import MovieLens
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.settings import Settings

_TABLE: dict[str, Callable[[Settings, range], Environment]] = {
    "synthetic": Synthetic,
    "movielens": MovieLens,
}


def make_environment(settings: Settings, agents: range) -> Environment:
    """Return the environment that the settings name, for a block of agents."""
    return _TABLE[settings.environment.name](settings, agents)


__all__ = ["Contexts", "Environment", "make_environment"]
