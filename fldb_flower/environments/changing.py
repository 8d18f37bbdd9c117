"""The synthetic environment with a theta that changes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fldb_flower.bandit.streams import shared_generator, stream_arrays
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.linalg.arrays import Array, namespace
from fldb_flower.settings import AUTO, Settings


class Changing(Synthetic):
    """The arms of :class:`~fldb_flower.environments.synthetic.Synthetic`, and its theta at first.

    From the iteration ``environment.change_at`` on, theta has the opposite sign or is another draw
    (``environment.change``). With ``environment.drift``, each later iteration adds a draw from
    ``N(0, drift^2 I)``. Changes are common to all agents: an agent's difference from theta
    (``environment.sigma``) stays the same.
    """

    def __init__(self, settings: Settings, agents: range) -> None:
        super().__init__(settings, agents)
        self._seed, chosen = settings.seed, settings.environment
        self._drift, self._arrays = chosen.drift, stream_arrays(settings)
        self._changed = -self.theta
        if chosen.change == "redraw":
            generator = shared_generator(self._seed, "changed theta")
            self._changed = generator.standard_normal(len(self.theta))
        at = chosen.change_at
        if at == AUTO:
            at = 0 if self._drift else settings.horizon // 2 + 1
        self._change_at = int(at)
        self._steps, self._moved = shared_generator(self._seed, "drift"), 0.0 * self.theta
        self._drawn = 0

    def _rewards(self, rows: Array) -> Array:
        thetas = self._arrays.make(self._next(len(rows)))
        pairs = zip(thetas, rows, strict=True)
        return namespace(rows).concat([self._rewards_of(theta, row[None]) for theta, row in pairs])

    def _next(self, iterations: int) -> Array:
        """Return the common theta of the next iterations, (iterations, d)."""
        numbers = np.arange(self._drawn + 1, self._drawn + iterations + 1)[:, None]
        is_changed = (numbers >= self._change_at) & (self._change_at > 0)
        thetas = np.where(is_changed, self._changed, self.theta)
        self._drawn += iterations
        if not self._drift:
            return thetas
        steps = self._drift * self._steps.standard_normal((iterations, len(self.theta)))
        walk = np.cumsum(np.vstack([self._moved, steps]), axis=0)
        self._moved = walk[-1]
        return thetas + walk[:-1]

    def state(self) -> dict[str, Any]:
        """Return the number of iterations drawn."""
        return {"drawn": self._drawn}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._steps, self._moved = shared_generator(self._seed, "drift"), 0.0 * self.theta
        self._drawn = 0
        self._next(int(state["drawn"]))
