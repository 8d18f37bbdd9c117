"""Selection: which two of K arms to show.

A rule is a pure function of one iteration's ``features`` (agents, arms, d), an estimate
``theta``, the ``whitener`` of the information matrix (:func:`whiten`), the exploration
``width`` and, for some, ``noise``; it returns the two arms' numbers, each of shape
(agents,). ``theta`` (d,) and ``whitener`` (d, d) are shared by all agents, or one for each:
(agents, d) and (agents, d, d).

:mod:`~fldb_flower.bandit.selection.scores` has what the rules are made of,
:mod:`~fldb_flower.bandit.selection.rules` the rules, and
:mod:`~fldb_flower.bandit.selection.selector` applies the one that the settings name.
"""

from fldb_flower.bandit.selection.rules import colstim, maxinp, maxpairucb, thompson, ucb
from fldb_flower.bandit.selection.scores import norms, pick, rewards, tie_breaks, tie_step
from fldb_flower.bandit.selection.selector import Rule, Selector, find_rule
from fldb_flower.linalg.whiteners import whiten

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
