"""Application of a selection rule by name, for a block of agents or for one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fldb_flower.bandit import theory
from fldb_flower.bandit.selection.rules import Pair, Width, norms, rewards
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.catalogue import SELECTIONS
from fldb_flower.errors import DataError, shown
from fldb_flower.linalg.arrays import Array, Arrays, has_masked, namespace
from fldb_flower.linalg.linear import Whitener
from fldb_flower.settings import Settings

_STREAM = "selection"


def gumbel_per_arm(streams: AgentStreams, iterations: int, shape: tuple[int, int]) -> Array:
    """Draw standard Gumbel noise for each arm: (agents, iterations, arms)."""
    uniform = streams.random(_STREAM, iterations, shape[0])
    xp = namespace(uniform)
    return -xp.log(2.0**-54 - xp.log1p(-uniform))  # -log of an exponential; finite at 0 as well


def normal_per_draw(streams: AgentStreams, iterations: int, shape: tuple[int, int]) -> Array:
    """Draw standard normal noise for two draws of theta: (agents, iterations, 2, d)."""
    return streams.standard_normal(_STREAM, iterations, 2, shape[1])


@dataclass(frozen=True)
class Rule:
    """A selection rule with its source of noise.

    ``select(features, theta, whitener, width, noise)`` is a function like
    :func:`~fldb_flower.bandit.selection.ucb`. ``noise(streams, iterations, (arms, d))`` draws its
    noise, (agents, iterations, ...); it is None if the rule is deterministic.
    """

    select: Callable[[Array, Array, Whitener, Width, Array | None], Pair]
    noise: Callable[[AgentStreams, int, tuple[int, int]], Array] | None = None

    def pair(
        self, arms: Array, theta: Array, whitener: Whitener, width: float, streams: AgentStreams
    ) -> tuple[int, int]:
        """Return the pair of one agent, with arms (K, d)."""
        noise = None if self.noise is None else self.noise(streams, 1, arms.shape)[:, 0]
        firsts, seconds = self.select(arms[None], theta, whitener, width, noise)
        return int(firsts[0]), int(seconds[0])


def best_challenger(
    arms: Array, first: int, theta: Array, whitener: Whitener, width: float, *, allowed: Array
) -> int:
    """Return the allowed arm, (K,) of bool, with the largest upper confidence bound."""
    bonus = norms((arms - arms[first])[None], whitener)
    bounds = (rewards(arms[None], theta) + width * bonus)[0]
    return int(np.argmax(np.where(allowed, bounds, -np.inf)))


def find_rule(name: str) -> Rule:
    """Return the selection rule of a name in :data:`fldb_flower.catalogue.SELECTIONS`.

    What a rule from outside the package returns is checked; an invalid pair is a DataError.
    """
    select = SELECTIONS.load(name)
    if name in SELECTIONS.added:
        select = functools.partial(_checked_pair, name, select)
    return Rule(select, SELECTIONS.load(name, "noise"))


def _checked_pair(
    name: str, select: Callable[..., Any], features: Array, *others: Any, **named: Any
) -> Pair:
    """Return the pair that a rule selects, as integers."""
    pair = select(features, *others, **named)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(
            f"selection={name}: the rule returned {shown(pair)}: must be (first, second), two"
            " arrays with an arm per row of features"
        )
    xp, (rows, count), checked = namespace(features), features.shape[:2], []
    for arms in pair:
        wrong = shown(arms)
        if not has_masked(arms):
            with contextlib.suppress(TypeError, ValueError):
                arms = xp.asarray(arms)  # noqa: PLW2901
                wrong = f"{wrong} of shape {tuple(arms.shape)}"
                if arms.shape == (rows,) and xp.isdtype(arms.dtype, "integral"):
                    outside = arms[(arms < 0) | (arms >= count)]
                    wrong = f"arm {int(outside[0])}" if len(outside) else ""
        if wrong:
            raise DataError(
                f"selection={name}: the rule returned {wrong}: must be {rows} whole numbers from 0"
                f" to {count - 1}, one per row of features"
            )
        checked.append(xp.astype(arms, xp.int64, copy=False))
    return checked[0], checked[1]


class Selector:
    """Selects the pairs of a block of agents, iteration by iteration.

    The rule is that of the setting ``selection``. Noise is drawn from the block's stream
    "selection", and made an array of the backend of features and estimates, NumPy by default.
    """

    def __init__(
        self, settings: Settings, streams: AgentStreams, arrays: Arrays | None = None
    ) -> None:
        self._arrays = arrays or Arrays()
        self._settings = settings
        self._streams = streams
        self._rule = find_rule(settings.selection)

    def select(
        self,
        iterations: range,
        features: Array,
        theta: Array,
        whitener: Whitener,
        num_agents: int,
        *,
        width: float | None = None,
    ) -> Pair:
        """Return the indices of the two arms, each (rows,).

        Each iteration is selected once and in order, because noise is drawn from streams.
        ``features`` is (rows, arms, d), with a row per agent for the first iteration, then for the
        second, ... ``theta`` and ``whitener`` are shared by all agents, or one per agent (for a
        single iteration). ``num_agents`` is the number of agents whose duels are in W. The default
        width is that of the theory.
        """
        rule, settings = self._rule, self._settings
        noise = None
        if rule.noise is not None:
            drawn = rule.noise(self._streams, len(iterations), features.shape[1:]).swapaxes(0, 1)
            noise = self._arrays.make(drawn.reshape(-1, *drawn.shape[2:]))
        if width is not None:
            return rule.select(features, theta, whitener, width, noise)
        widths = [theory.width(t, num_agents, settings) for t in iterations]
        each: Width = widths[0]
        if len(widths) > 1:
            each = self._arrays.make(np.repeat(widths, len(features) // len(widths)))
        return rule.select(features, theta, whitener, each, noise)
