"""Algorithms, selection rules and environments by name.

Each is declared here, in one line, and looked up by name everywhere else. Code outside the
package adds its own with :meth:`Catalogue.register`, before it builds its settings.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from fldb_flower.errors import SettingsError, one_line, shown


@dataclass(frozen=True)
class Entry:
    """A class or function, or its reference ``"module:name"``, imported on first use."""

    target: str | Callable[..., Any]


Agents = Literal["common", "local", "personal", "uniform"]
Exchanges = Literal["none", "one", "several_first", "several"]
_KINDS = {"agents": get_args(Agents), "exchanges": get_args(Exchanges)}


@dataclass(frozen=True)
class AlgorithmEntry(Entry):
    """An algorithm: a subclass of :class:`fldb_flower.algorithms.base.Algorithm`.

    Attributes
    ----------
    agents : {"common", "local", "personal", "uniform"}
        How agents select: with the server's estimate, each with its own, each with its own and a
        prior from the server, or at random.
    keeps_duels : bool
        Whether agents keep counted duels, for exchanges with ``scope="all"``.
    online : bool
        Whether a round needs its fresh duels only. ``mode=devices`` and ``robust`` require it.
    scheduled : bool
        Whether ``tau`` and ``schedule`` determine the rounds, and results depend on them.
    exchanges : {"none", "one", "several_first", "several"}
        Exchanges of statistics in a round: none; one; several in the first round and one in each
        later round, or one in all with ``first_round=step``; several.

    Examples
    --------
    >>> from fldb_flower.catalogue import ALGORITHMS
    >>> ALGORITHMS["ldb"].agents, ALGORITHMS["ldb"].online
    ('local', False)
    """

    agents: Agents = "common"
    keeps_duels: bool = False
    online: bool = False
    scheduled: bool = True
    exchanges: Exchanges = "several"


@dataclass(frozen=True)
class SelectionEntry(Entry):
    """A selection rule: a function ``rule(features, theta, whitener, width, noise)``.

    See :func:`fldb_flower.bandit.selection.ucb`. ``noise`` is a function that draws the noise
    from ``(streams, iterations, (arms, d))``, or its reference; None for a deterministic rule.

    Examples
    --------
    >>> from fldb_flower.catalogue import SELECTIONS
    >>> SELECTIONS["ucb"].noise is None
    True
    """

    noise: str | Callable[..., Any] | None = None


E = TypeVar("E", bound=Entry)
T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class EnvironmentEntry(Entry):
    """An environment: a class like :class:`fldb_flower.environments.base.Environment`.

    Attributes
    ----------
    implies : bool
        Whether its data determine settings that are ``auto``.

    Examples
    --------
    >>> from fldb_flower.catalogue import ENVIRONMENTS
    >>> ENVIRONMENTS["duels"].implies
    True
    """

    implies: bool = False


class Catalogue(Mapping[str, E]):
    """Entries of one kind by name. Those of the package cannot be replaced.

    Examples
    --------
    >>> from fldb_flower.catalogue import ALGORITHMS
    >>> ALGORITHMS.register("my_ons", "fldb_flower.algorithms.ons:FLDBONS", online=True)
    'fldb_flower.algorithms.ons:FLDBONS'
    >>> ALGORITHMS.load("my_ons").__name__
    'FLDBONS'
    """

    def __init__(self, kind: type[E], entries: dict[str, E]) -> None:
        self._kind, self._entries, self._fixed = kind, dict(entries), frozenset(entries)

    def __getitem__(self, name: str) -> E:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def added(self) -> frozenset[str]:
        """The names that :meth:`register` added."""
        return frozenset(self._entries) - self._fixed

    def load(self, name: str, part: str = "target") -> Any:
        """Return the class or function of an entry; a SettingsError if it cannot be imported."""
        found = getattr(self._entries[name], part)
        if not isinstance(found, str):
            return found
        try:
            return pkgutil.resolve_name(found)
        except (ImportError, AttributeError) as error:
            setting = self._kind.__name__.removesuffix("Entry").lower()
            raise SettingsError(
                f"{setting}={name}: its {part} is registered as {found!r}, which cannot be imported"
                f" ({one_line(error)}); register a class or function, or where it can be imported"
            ) from error

    def register(self, name: str, target: Any = None, **facts: Any) -> Any:
        """Add an entry, or replace one that was added before.

        Parameters
        ----------
        name : str
            Value of the setting, in snake_case.
        target : type, callable or str, optional
            Class or function, or its reference ``"module:name"``; it is returned. Without it, a
            decorator is returned.
        **facts
            The other attributes of an entry.

        Raises
        ------
        SettingsError
            The name, the target or another attribute is invalid, or the package has the name.

        Examples
        --------
        >>> import numpy as np
        >>> @SELECTIONS.register("first_two")
        ... def first_two(features, theta, whitener, width, noise):
        ...     arms = np.zeros(len(features), dtype=np.int64)
        ...     return arms, arms + 1
        """
        if not isinstance(name, str):
            raise SettingsError(
                f"{shown(name)} cannot be registered: the first argument must be the name, as in"
                ' @register_algorithm("mine")'
            )
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise SettingsError(f"{name!r} cannot be registered: the name must be in snake_case")
        if name in self._fixed:
            raise SettingsError(f"{name!r} cannot be registered: the package has it already")
        for fact, value in facts.items():
            _check_fact(name, fact, value)

        def add(target: Any) -> Any:
            if not _is_reference(target) and not callable(target):
                raise SettingsError(
                    f"{name!r} cannot be registered: {shown(target)} must be a class or function,"
                    ' or its reference "module:name"'
                )
            self._entries[name] = self._kind(target, **facts)
            return target

        return add if target is None else add(target)

    def remove(self, name: str) -> None:
        """Remove an entry that :meth:`register` added."""
        if name not in self._fixed:
            self._entries.pop(name, None)


def _check_fact(name: str, fact: str, value: Any) -> None:
    """Raise a SettingsError if an attribute of an entry is invalid."""
    if fact in _KINDS:
        is_valid, valid = value in _KINDS[fact], f"one of {', '.join(_KINDS[fact])}"
    elif fact == "noise":
        is_valid = value is None or _is_reference(value) or callable(value)
        valid = 'a function, its reference "module:name", or None'
    else:
        is_valid, valid = isinstance(value, bool), "True or False"
    if not is_valid:
        raise SettingsError(f"{name!r} cannot be registered: {fact}={shown(value)} must be {valid}")


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\w+(\.\w+)*:\w+", value) is not None


_ALGORITHMS, _RULES = "fldb_flower.algorithms", "fldb_flower.bandit.selection.rules"
_ENVIRONMENTS, _NOISE = "fldb_flower.environments", "fldb_flower.bandit.selection.selector"


def _independent(agents: Literal["local", "personal", "uniform"]) -> AlgorithmEntry:
    target = f"{_ALGORITHMS}.base:Independent"
    return AlgorithmEntry(target, agents=agents, scheduled=False, exchanges="none")


ALGORITHMS = Catalogue(
    AlgorithmEntry,
    {
        "fldb_ogd": AlgorithmEntry(
            f"{_ALGORITHMS}.ogd:FLDBOGD", online=True, exchanges="several_first"
        ),
        "fldb_gd": AlgorithmEntry(f"{_ALGORITHMS}.gd:FLDBGD", keeps_duels=True, scheduled=False),
        "fldb_ons": AlgorithmEntry(
            f"{_ALGORITHMS}.ons:FLDBONS", online=True, exchanges="several_first"
        ),
        "fldb_personal": AlgorithmEntry(
            f"{_ALGORITHMS}.personal:FLDBPersonal", agents="personal", online=True, exchanges="one"
        ),
        "alone": _independent("personal"),
        "ldb": _independent("local"),
        "random": _independent("uniform"),
    },
)

SELECTIONS = Catalogue(
    SelectionEntry,
    {
        "ucb": SelectionEntry(f"{_RULES}:ucb"),
        "maxinp": SelectionEntry(f"{_RULES}:maxinp"),
        "colstim": SelectionEntry(f"{_RULES}:colstim", noise=f"{_NOISE}:gumbel_per_arm"),
        "maxpairucb": SelectionEntry(f"{_RULES}:maxpairucb"),
        "thompson": SelectionEntry(f"{_RULES}:thompson", noise=f"{_NOISE}:normal_per_draw"),
    },
)

ENVIRONMENTS = Catalogue(
    EnvironmentEntry,
    {
        "synthetic": EnvironmentEntry(f"{_ENVIRONMENTS}.synthetic:Synthetic"),
        "movielens": EnvironmentEntry(f"{_ENVIRONMENTS}.movielens:MovieLens"),
        "duels": EnvironmentEntry(f"{_ENVIRONMENTS}.duels:Duels", implies=True),
    },
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
    agents, keeps_duels, online, scheduled, exchanges
        See :class:`AlgorithmEntry`.

    Returns
    -------
    callable
        Decorator of a subclass of :class:`fldb_flower.algorithms.base.Algorithm`.

    Raises
    ------
    SettingsError
        The name is not in snake_case, or is one of the package's own.

    Examples
    --------
    Online gradient descent with half the step size of FLDB-OGD:

    >>> import fldb_flower as fldb
    >>> from fldb_flower.algorithms.ogd import FLDBOGD
    >>> @fldb.register_algorithm("slow_ogd", online=True)
    ... class SlowOGD(FLDBOGD):
    ...     def step(self, upload, round_):
    ...         changed = super().step(upload, round_)
    ...         half = (self.theta_hat + changed["theta_hat"]) / 2
    ...         return {**changed, "theta_hat": half}
    >>> result = fldb.run(algorithm="slow_ogd", num_agents=5, horizon=20)
    >>> result.summary["exchanges"] > 0
    True
    """
    decorate: Callable[[T], T] = ALGORITHMS.register(
        name, agents=agents, keeps_duels=keeps_duels, online=online, scheduled=scheduled,
        exchanges=exchanges,
    )  # fmt: skip
    return decorate


def register_environment(name: str, *, implies: bool = False) -> Callable[[T], T]:
    """Register an environment, so that ``environment=name`` is valid.

    Parameters
    ----------
    name : str
        Value of the setting ``environment``, in snake_case.
    implies : bool
        See :class:`EnvironmentEntry`.

    Returns
    -------
    callable
        Decorator of a class like :class:`fldb_flower.environments.base.Environment`.

    Raises
    ------
    SettingsError
        The name is not in snake_case, or is one of the package's own.

    Examples
    --------
    Two arms with the rewards 0 and 1, for every agent:

    >>> import numpy as np
    >>> import fldb_flower as fldb
    >>> from fldb_flower.environments.base import Contexts
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
    decorate: Callable[[T], T] = ENVIRONMENTS.register(name, implies=implies)
    return decorate


def register_selection(
    name: str, *, noise: str | Callable[..., Any] | None = None
) -> Callable[[T], T]:
    """Register a selection rule, so that ``selection=name`` is valid.

    Parameters
    ----------
    name : str
        Value of the setting ``selection``, in snake_case.
    noise : callable or str, optional
        See :class:`SelectionEntry`.

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
    decorate: Callable[[T], T] = SELECTIONS.register(name, noise=noise)
    return decorate
