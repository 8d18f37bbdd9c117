"""Selection of the two arms of a duel.

:mod:`~fldb_flower.bandit.selection.rules` has the rules, which are pure functions;
:mod:`~fldb_flower.bandit.selection.scores` their building blocks; and
:mod:`~fldb_flower.bandit.selection.selector` applies the rule that the settings name.
"""

from fldb_flower.bandit.selection.rules import colstim, maxinp, maxpairucb, thompson, ucb
from fldb_flower.bandit.selection.scores import norms, pick, rewards, tie_breaks, tie_step
from fldb_flower.bandit.selection.selector import Rule, Selector, find_rule
from fldb_flower.linalg.linear import whiten

__all__ = [
    "Rule",
    "Selector",
    "colstim",
    "find_rule",
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
