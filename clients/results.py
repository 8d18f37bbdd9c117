"""What a preference agent returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Duel:
    """Two arms to show.

    The first arm is the favourite: show the two in random order, or a preference for a position is
    learned as a preference for an arm.

    Attributes
    ----------
    id : str
        Argument of :meth:`~clients.preference_agent.PreferenceAgent.record`.
    first, second : int
        Indices of the arms among those proposed, from 0; they differ.
    first_key, second_key : str or None
        Their keys, if keys were given.
    predicted : float or None
        P(first preferred); None before the first answer and broadcast.
    expires : float
        In seconds since 1970.

    Examples
    --------
    >>> from clients.preference_agent import PreferenceAgent
    >>> with PreferenceAgent("duels.db") as agent:
    ...     duel = agent.propose([[0.1, 0.9], [0.8, 0.2]], keys=["tea", "coffee"])
    >>> sorted([duel.first_key, duel.second_key]), duel.predicted
    (['coffee', 'tea'], None)
    """

    id: str
    first: int
    second: int
    first_key: str | None
    second_key: str | None
    predicted: float | None
    expires: float


@dataclass(frozen=True)
class Weights:
    """What was learned: the estimate of theta and its uncertainty.

    Attributes
    ----------
    weights : list of float
        theta, of d features.
    deviations : list of float
        A standard deviation of each weight.
    names : list of str or None
        Names of the features, if they have names.
    own : bool
        True: the person's own theta, which each answer changes at once. False: the server's.

    Examples
    --------
    Nothing is known before the first duel:

    >>> from clients.preference_agent import PreferenceAgent
    >>> PreferenceAgent("duels.db").explain()
    Weights(weights=[], deviations=[], names=None, own=True)
    """

    weights: list[float]
    deviations: list[float]
    names: list[str] | None
    own: bool
