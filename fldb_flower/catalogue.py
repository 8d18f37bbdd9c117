"""Algorithms, selection rules and environments by name, and the facts declared about them.

Each is declared here, in one line, and looked up by name everywhere else. Code outside the
package registers its own before it builds settings. Modules are imported on first use.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from fldb_flower.errors import SettingsError, one_line, shown

Agents = Literal["common", "local", "personal", "uniform", "pooled"]
Exchanges = Literal["none", "one", "several_first", "several"]
_NAMES = {"agents": get_args(Agents), "exchanges": get_args(Exchanges)}
T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """A class or function, or its reference ``"module:name"``, and the facts of ``register_*``."""

    target: str | Callable[..., Any]
    agents: Agents = "common"
    keeps_duels: bool = False
    online: bool = False
    scheduled: bool = True
    exchanges: Exchanges = "several"
    noise: str | Callable[..., Any] | None = None
    implies: bool = False


class Catalogue(dict[str, Entry]):
    """Entries of one kind, a setting, by name. Those of the package cannot be replaced."""

    def __init__(self, kind: str, **entries: Entry) -> None:
        super().__init__(entries)
        self._kind, self._own = kind, frozenset(entries)

    @property
    def added(self) -> frozenset[str]:
        """The names that :meth:`register` added."""
        return frozenset(self) - self._own

    def code(self, name: str) -> str:
        """Return a digest of the source of a class or function that was added, else ""."""
        return _digest(self.load(name)) if name in self.added else ""

    def load(self, name: str, part: str = "target") -> Any:
        """Return the class or function of an entry; a SettingsError if it cannot be imported."""
        found = getattr(self[name], part)
        if not isinstance(found, str):
            return found
        try:
            return pkgutil.resolve_name(found)
        except (ImportError, AttributeError) as error:
            raise SettingsError(
                f"{self._kind}={name}: its {part} is registered as {found!r}, which cannot be"
                f" imported ({one_line(error)}); register a class or function, or where it can be"
                " imported"
            ) from error

    def register(self, name: str, target: Any = None, **facts: Any) -> Callable[[T], T]:
        """Add ``target``, replacing an earlier one; return a decorator that adds another."""
        if not isinstance(name, str):
            example = f'@register_{self._kind}("mine")'
            _refuse(name, f"the first argument must be the name, as in {example}")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            _refuse(name, "the name must be in snake_case")
        if name in self._own:
            _refuse(name, "the package has it already")
        for fact, value in facts.items():
            if fact in _NAMES:
                is_valid, valid = value in _NAMES[fact], f"one of {', '.join(_NAMES[fact])}"
            elif fact == "noise":
                is_valid = value is None or _is_importable(value)
                valid = 'a function, its reference "module:name", or None'
            else:
                is_valid, valid = isinstance(value, bool), "True or False"
            if not is_valid:
                _refuse(name, f"{fact}={shown(value)} must be {valid}")

        def add(target: T) -> T:
            if not _is_importable(target):
                valid = 'a class or function, or its reference "module:name"'
                _refuse(name, f"{shown(target)} must be {valid}")
            self[name] = Entry(target, **facts)
            return target

        if target is not None:
            add(target)
        return add


@functools.cache
def _digest(target: Callable[..., Any]) -> str:
    try:
        source = inspect.getsource(target)
    except (OSError, TypeError):  # typed in a console, or not written in Python
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _refuse(name: object, reason: str) -> None:
    raise SettingsError(f"{shown(name)} cannot be registered: {reason}")


def _is_importable(value: Any) -> bool:
    """Whether a value is a class, a function or a reference to one."""
    is_reference = isinstance(value, str) and re.fullmatch(r"\w+(\.\w+)*:\w+", value)
    return callable(value) or bool(is_reference)


def _algorithm(target: str, **facts: Any) -> Entry:
    return Entry(f"fldb_flower.algorithms.{target}", **facts)


def _rule(name: str, noise: str | None = None) -> Entry:
    module = "fldb_flower.bandit.selection"
    return Entry(f"{module}.rules:{name}", noise=noise and f"{module}.selector:{noise}")


_ROUNDS = {"online": True, "exchanges": "several_first"}
_ALONE = {"scheduled": False, "exchanges": "none"}

ALGORITHMS = Catalogue(
    "algorithm",
    fldb_ogd=_algorithm("ogd:FLDBOGD", **_ROUNDS),
    fldb_gd=_algorithm("gd:FLDBGD", keeps_duels=True),
    fldb_ons=_algorithm("ons:FLDBONS", **_ROUNDS),
    fldb_personal=_algorithm(
        "personal:FLDBPersonal", agents="personal", online=True, exchanges="one"
    ),
    alone=_algorithm("base:Independent", agents="personal", **_ALONE),
    ldb=_algorithm("base:Independent", agents="local", **_ALONE),
    random=_algorithm("base:Independent", agents="uniform", **_ALONE),
    coldb=_algorithm("coldb:COLDB", agents="pooled", **_ALONE),
)

SELECTIONS = Catalogue(
    "selection",
    ucb=_rule("ucb"),
    maxinp=_rule("maxinp"),
    colstim=_rule("colstim", "gumbel_per_arm"),
    maxpairucb=_rule("maxpairucb"),
    thompson=_rule("thompson", "normal_per_draw"),
)

ENVIRONMENTS = Catalogue(
    "environment",
    synthetic=Entry("fldb_flower.environments.synthetic:Synthetic"),
    changing=Entry("fldb_flower.environments.changing:Changing"),
    movielens=Entry("fldb_flower.environments.movielens:MovieLens"),
    duels=Entry("fldb_flower.environments.duels:Duels", implies=True),
)


def register_algorithm(
    name: str,
    *,
    agents: Agents = "common",
    keeps_duels: bool = False,
    online: bool = False,
    scheduled: bool = True,
    exchanges: Exchanges = "several",
) -> Callable[[T], T]:
    """Register an algorithm, so that ``algorithm=name`` is valid.

    Parameters
    ----------
    name : str
        Value of the setting ``algorithm``, in snake_case.
    agents : {"common", "local", "personal", "uniform", "pooled"}
        Estimate by which agents select: the server's, their own, their own with a prior, or none.
        With ``pooled``, the class attribute ``policy`` selects for all (``engine=vectorized``).
    keeps_duels : bool
        Whether agents keep counted duels. If not, ``scope="all"`` means the fresh duels only.
    online : bool
        Whether a round needs only its fresh duels. ``mode=devices`` and ``robust`` require it.
    scheduled : bool
        Whether ``tau`` and ``schedule`` have an effect. If not, a sweep over them runs one job.
    exchanges : {"none", "one", "several_first", "several"}
        Exchanges of statistics in a round; ``several_first``: one except in the first round, as
        ``first_round`` requires. ``privacy.epsilon`` requires one.

    Returns
    -------
    callable
        Decorator of a subclass of :class:`fldb_flower.algorithms.base.Algorithm`.

    Raises
    ------
    SettingsError
        The name is the package's own or not in snake_case, or another value is invalid.

    Examples
    --------
    >>> import fldb_flower as fldb
    >>> from fldb_flower.algorithms.ogd import FLDBOGD
    >>> @fldb.register_algorithm("last_ogd", online=True, exchanges="several_first")
    ... class LastOGD(FLDBOGD):  # selects with the last theta_hat instead of the mean
    ...     def step(self, upload, round_):
    ...         changed = super().step(upload, round_)
    ...         return {**changed, "theta_sync": changed["theta_hat"]}
    """
    facts = {"keeps_duels": keeps_duels, "online": online, "scheduled": scheduled}
    return ALGORITHMS.register(name, agents=agents, exchanges=exchanges, **facts)


def register_environment(name: str, *, implies: bool = False) -> Callable[[T], T]:
    """Register an environment, so that ``environment=name`` is valid.

    Parameters
    ----------
    name : str
        Value of the setting ``environment``, in snake_case.
    implies : bool
        Whether the class has a static method ``implied(settings)``, which returns values of
        ``num_agents``, ``horizon``, ``dimension`` and ``environment.play`` where they are ``auto``,
        as a dict by name. Without it, the first three are 100, 500 and 5.

    Returns
    -------
    callable
        Decorator of a class like :class:`fldb_flower.environments.Environment`.

    Raises
    ------
    SettingsError
        The name is not in snake_case, or is one of the package's own.

    Examples
    --------
    Two arms with the rewards 0 and 1, for every agent:

    >>> import numpy as np
    >>> import fldb_flower as fldb
    >>> from fldb_flower.environments import Contexts
    >>> @fldb.register_environment("two_arms")
    ... class TwoArms:
    ...     def __init__(self, settings, agents):
    ...         self.agents = len(agents)
    ...
    ...     def contexts(self, streams, iterations):
    ...         rewards = np.tile([0.0, 1.0], (self.agents, iterations, 1))
    ...         return Contexts(rewards[..., None].copy(), rewards)
    >>> result = fldb.run(environment="two_arms", num_agents=5, horizon=20, num_arms=2, dimension=1)
    >>> result.summary["final_regret"] < 2 * 20
    True
    """
    return ENVIRONMENTS.register(name, implies=implies)


def register_selection(
    name: str, *, noise: str | Callable[..., Any] | None = None
) -> Callable[[T], T]:
    """Register a selection rule, so that ``selection=name`` is valid.

    Parameters
    ----------
    name : str
        Value of the setting ``selection``, in snake_case.
    noise : callable or str, optional
        A function that draws the rule's noise from ``(streams, iterations, (arms, d))``, or its
        reference ``"module:name"``; None for a deterministic rule.

    Returns
    -------
    callable
        Decorator of a function ``rule(features, theta, whitener, width, noise)``; see
        :func:`fldb_flower.bandit.selection.ucb`.

    Raises
    ------
    SettingsError
        The name is not in snake_case, or is one of the package's own.

    Examples
    --------
    A rule that always shows the first two arms:

    >>> import numpy as np
    >>> import fldb_flower as fldb
    >>> @fldb.register_selection("first_two")
    ... def first_two(features, theta, whitener, width, noise):
    ...     first = np.zeros(len(features), dtype=np.int64)
    ...     return first, first + 1
    >>> fldb.DuelingBandit(selection="first_two").propose([[1.0], [2.0], [3.0]])
    (0, 1)
    """
    return SELECTIONS.register(name, noise=noise)
