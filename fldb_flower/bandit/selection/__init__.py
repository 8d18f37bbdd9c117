"""Selection of the two arms of a duel: rules, which are pure functions, and their building blocks.

:mod:`~fldb_flower.bandit.selection.selector` applies the rule that the settings name.
"""

from fldb_flower.bandit.selection.rules import (
    colstim,
    maxinp,
    maxpairucb,
    norms,
    pick,
    rewards,
    thompson,
    tie_breaks,
    tie_step,
    ucb,
)
from fldb_flower.linalg.linear import whiten

__all__ = [
    "colstim",
    "maxinp",
    "maxpairucb",
    "norms",
    "pick",
    "rewards",
    "thompson",
    "tie_breaks",
    "tie_step",
    "ucb",
    "whiten",
]
