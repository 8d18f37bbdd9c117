"""Environments: which arms agents see, and their rewards.

They are declared in :data:`fldb_flower.catalogue.ENVIRONMENTS`, where a new one is registered.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fldb_flower.bandit.streams import AgentStreams, check_agents
from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS
from fldb_flower.errors import DataError, shown
from fldb_flower.linalg.arrays import Array, FloatArray, IntArray, has_masked
from fldb_flower.settings import AUTO, Settings

__all__ = ["ChangingEnvironment", "Contexts", "Environment", "RecordedAnswers"]


@dataclass(frozen=True, slots=True)
class Contexts:
    """The arms of some iterations, for a block of agents.

    Attributes
    ----------
    features : Array
        ``phi(x)`` of every arm, (agents, iterations, arms, d), float64.
    rewards : Array
        Latent reward ``f(x)`` of every arm, (agents, iterations, arms), float64. Used only to
        draw preferences and to compute the regret.

    Examples
    --------
    One agent, one iteration, two arms with three features:

    >>> import numpy as np
    >>> from fldb_flower.environments import Contexts
    >>> features = np.array([[[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]])
    >>> Contexts(features, features @ np.array([2.0, 5.0, 0.0])).rewards
    array([[[2., 5.]]])
    """

    features: Array
    rewards: Array


class Environment(Protocol):
    """Simulated arms and rewards for one block of agents.

    It is constructed as ``Class(settings, agents)``, with the range of the agents' numbers.
    Preferences are drawn from the rewards with the BTL model.

    Static methods are optional. ``max_difference(settings)`` returns an upper bound of the length
    of a difference of two arms' features. ``implied(settings)`` returns values of settings that
    are ``auto``, by name, if the catalogue's entry has ``implies=True``. ``stated(settings)``
    returns entries of the run's ``summary.json`` that describe the data, dicts by name. An
    attribute ``found``, which is optional too, describes the data in an error message.

    A run ends with an error if no arm is better than another, for every agent and iteration.

    An environment whose later arms or rewards depend on the number of iterations drawn, or on
    another state, must be a :class:`ChangingEnvironment`. Otherwise, a resumed run would continue
    with a different environment.

    Examples
    --------
    Arms on the unit sphere, and one theta for all agents:

    >>> import numpy as np
    >>> import fldb_flower as fldb
    >>> from fldb_flower.bandit.streams import shared_generator
    >>> from fldb_flower.environments import Contexts
    >>> @fldb.register_environment("unit_sphere")
    ... class UnitSphere:
    ...     def __init__(self, settings, agents):
    ...         self.shape = (settings.num_arms, settings.dimension)
    ...         generator = shared_generator(settings.seed, "theta")
    ...         self.theta = generator.standard_normal(settings.dimension)
    ...
    ...     def contexts(self, streams, iterations):
    ...         features = streams.standard_normal("arms", iterations, *self.shape)
    ...         features /= np.linalg.norm(features, axis=-1, keepdims=True)
    ...         return Contexts(features, features @ self.theta)
    >>> fldb.run(environment="unit_sphere", num_agents=4, horizon=3).regret.shape
    (3, 3)
    """

    def contexts(self, streams: AgentStreams, iterations: int) -> Contexts:
        """Draw the arms of the next iterations.

        Parameters
        ----------
        streams : AgentStreams
            The only source of randomness to use.
        iterations : int
            Number of iterations to draw, at least 1.
        """
        ...


@runtime_checkable
class ChangingEnvironment(Protocol):
    """Additional methods of an environment that changes, needed to resume a run.

    Iterations may be drawn ahead: the state is that of the contexts drawn so far.

    Examples
    --------
    The best arm changes after 100 iterations:

    >>> import numpy as np
    >>> from fldb_flower.environments import Contexts
    >>> class Switch:
    ...     def __init__(self, settings, agents):
    ...         self.drawn = 0
    ...
    ...     def contexts(self, streams, iterations):
    ...         features = streams.standard_normal("arms", iterations, 10, 5)
    ...         signs = np.where(self.drawn + np.arange(iterations) < 100, 1.0, -1.0)
    ...         self.drawn += iterations
    ...         return Contexts(features, signs[:, None] * features.sum(axis=-1))
    ...
    ...     def state(self):
    ...         return {"drawn": self.drawn}
    ...
    ...     def restore(self, state):
    ...         self.drawn = int(state["drawn"])
    """

    def state(self) -> dict[str, Any]:
        """Return the state, numbers or NumPy arrays by name, for :meth:`restore`."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned, as NumPy arrays."""
        ...


@runtime_checkable
class RecordedAnswers(ChangingEnvironment, Protocol):
    """Additional members of an environment with recorded answers as preferences.

    Attributes
    ----------
    shows_pairs : bool
        Whether an iteration shows one pair of arms that the policy cannot change.

    Examples
    --------
    Agents who always prefer the first arm:

    >>> import numpy as np
    >>> from fldb_flower.environments.synthetic import Synthetic
    >>> class AlwaysFirst(Synthetic):
    ...     shows_pairs = False
    ...
    ...     def answers(self, first, second):
    ...         return np.where(first == second, np.nan, 1.0)
    ...
    ...     def state(self):
    ...         return {}
    ...
    ...     def restore(self, state):
    ...         pass
    """

    shows_pairs: bool

    def answers(self, first: IntArray, second: IntArray) -> FloatArray:
        """Return the preferences for the first arms of the contexts drawn last.

        Parameters
        ----------
        first, second : ndarray
            Indices of the arms among those shown, (rows,), with a row per agent for the first
            iteration, then for the second, ...

        Returns
        -------
        ndarray
            1 if the first arm won, 0 if the second won, 0.5 for a tie, or a value between; NaN if
            nothing is learned: the person was asked before, or the two arms are the same.
        """
        ...


def make_environment(settings: Settings, agents: range) -> Environment:
    """Return the settings' environment for a block of agents; a DataError if it is not one."""
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


def stated(settings: Settings) -> dict[str, Any]:
    """Return what the environment states about its data, for the summary; empty without data."""
    return dict(_of_data(settings, "stated") or {})


def caution(settings: Settings) -> str | None:
    """Return the environment's warning about how the settings use its data, if there is one."""
    line: str | None = _of_data(settings, "caution")
    return line


def feature_names(settings: Settings) -> list[str] | None:
    """Return the names of the features of the environment's data; None if they have none."""
    return [*(_of_data(settings, "names") or [])] or None


def _of_data(settings: Settings, name: str) -> Any:
    """Return what a function of the environment returns; None without it, or without its data."""
    if settings.mode != "devices":
        function = getattr(ENVIRONMENTS.load(settings.environment.name), name, None)
        with contextlib.suppress(DataError):  # of data that only the nodes can read
            return function and function(settings)
    return None


def check_contexts(environment: Environment, contexts: Any, shape: tuple[int, ...]) -> None:
    """Raise a DataError unless ``contexts`` returned unmasked arrays with these shapes.

    ``shape`` is that of the features, (agents, iterations, arms, d).
    """
    fault = ""
    for name, expected in (("features", shape), ("rewards", shape[:3])):
        array = getattr(contexts, name, None)
        if (found := getattr(array, "shape", None)) is None:
            fault = shown(contexts)
        elif found != expected:
            fault = f"{name} of shape {tuple(found)}"
        elif has_masked(array):
            fault = f"{name} with masked entries"
        if fault:
            raise DataError(
                f"{type(environment).__name__}.contexts returned {fault}: must return Contexts with"
                f" arrays, features of shape {shape} and rewards of shape {shape[:3]}"
            )


def state_arrays(environment: ChangingEnvironment) -> dict[str, Array]:
    """Return copies of the state of an environment, as arrays; refuse other states."""
    state = environment.state()
    try:
        arrays = {name: np.array(value) for name, value in dict(state).items()}
    except (ValueError, TypeError):  # not a dict, or lists of different lengths
        arrays = {"": np.array(None)}
    if any(not isinstance(name, str) or each.dtype.hasobject for name, each in arrays.items()):
        raise DataError(
            f"{type(environment).__name__}.state returned {shown(state)}: must return a dict of"
            " numbers or NumPy arrays of numbers, with strings as names"
        )
    return arrays
