"""Estimates of LDB's agents: a maximum likelihood estimate for each, computed as one batch."""

from __future__ import annotations

import numpy as np

from fldb_flower.bandit.local_newton import Ridge, minimise, not_found, with_room
from fldb_flower.bandit.online import learn_duel, next_fit
from fldb_flower.bandit.preference import link
from fldb_flower.linalg.arrays import Array, Arrays, copy, to_numpy
from fldb_flower.linalg.linear import whiten

_NEW_DIRECTION = 1e-13  # of a duel's length: a shorter remainder is a rounding error


class LocalEstimates:
    """Estimates theta_i of a block of agents that do not communicate.

    Each is the minimiser of the agent's own loss with ridge lambda (paper, Eq. 1 with N = 1).
    It is computed from a warm start (:mod:`fldb_flower.bandit.local_newton`).

    The minimiser lies in the span of the duels. While there are at most d duels, the variables are
    coordinates in an orthonormal basis of that span; later they are theta itself.

    With a ``refit_ratio`` above 1, the minimisers are exact only after some duels; between them,
    a duel takes O(d^2) (:mod:`fldb_flower.bandit.online`).

    Parameters
    ----------
    agents, dimension : int
        Number of agents and of features.
    ridge : float
        lambda, above 0.
    arrays : Arrays, optional
        Backend of the duels and the estimates; NumPy by default.
    refit_ratio : float, optional
        Ratio of the numbers of duels of two fits; 1 by default, a fit after each duel.
    """

    def __init__(
        self,
        agents: int,
        dimension: int,
        ridge: float,
        arrays: Arrays | None = None,
        refit_ratio: float = 1.0,
    ) -> None:
        self._arrays, self._refit_ratio = arrays or Arrays(), refit_ratio
        self._prior = Ridge(ridge, self._arrays)
        self.theta = self._arrays.zeros(agents, dimension)
        self._count = self._fitted = 0  # numbers of duels: all, and those of the last fit
        # C with C C^T the inverse Hessian, (agents, d, d); None if the next duel is fitted.
        self._factors: Array | None = None
        # Basis of the span, (agents, d, m); a column is 0 if its duel added no direction.
        # None: the variables are theta itself.
        self._basis: Array | None = self._arrays.zeros(agents, dimension, 0)
        # An agent's duels are the columns of a matrix (m or d, duels).
        self._duels = self._arrays.zeros(agents, 0, 8)
        self._preferences = self._arrays.empty(agents, 8)

    def add(self, differences: Array, preferences: Array) -> None:
        """Add one duel of each agent, (agents, d) and (agents,), and update the minimisers.

        Raises
        ------
        ConvergenceError
            An agent's minimiser was not found within 200 Newton steps, or is not finite.
        """
        try:
            self._add(differences, preferences)
        except np.linalg.LinAlgError as error:
            duels = self._duels[..., : self._count]
            raise not_found(str(error), duels, self._prior) from None

    def _add(self, differences: Array, preferences: Array) -> None:
        if self._basis is not None and self._count == self.theta.shape[1]:
            self._duels, self._basis = self._basis @ self._duels, None
        if self._count == self._preferences.shape[1]:
            self._duels = self._arrays.xp.concat([self._duels] * 2, axis=2)
            self._preferences = self._arrays.xp.concat([self._preferences] * 2, axis=1)
        column = differences if self._basis is None else self._coordinates(differences)
        self._duels[:, :, self._count] = column
        self._preferences[:, self._count] = preferences
        self._count += 1
        if self._count < self._next_fit():
            learn_duel(self.theta, self._factors, differences, preferences)
        else:
            self._fit()

    def _next_fit(self) -> int:
        return next_fit(self._fitted, self._refit_ratio, self.theta.shape[1])

    def _fit(self) -> None:
        """Set the minimisers for all duels, and the factors if the next duel is not fitted."""
        duels, answers = self._duels[..., : self._count], self._preferences[:, : self._count]
        self._fitted, self._factors = self._count, None
        if self._basis is not None:
            start = (self.theta[:, None, :] @ self._basis)[:, 0]
            found = minimise(start, duels, answers, self._prior, self._arrays)
            self.theta = (self._basis @ found[..., None])[..., 0]
            return
        self.theta = minimise(self.theta, duels, answers, self._prior, self._arrays)
        if self._next_fit() > self._count + 1:  # after more than d duels
            curvatures = link((self.theta[:, None, :] @ duels)[:, 0])[1]
            hessian = (duels * curvatures[:, None, :]) @ duels.swapaxes(1, 2)
            self._prior.add_curvature(hessian)
            self._factors = whiten(hessian)

    def _coordinates(self, differences: Array) -> Array:
        """Return a duel's coordinates, (agents, m); the last one is along a new basis vector."""
        xp = self._arrays.xp
        coordinates, rest = 0.0, differences
        for _ in range(2):  # Gram-Schmidt orthogonalization, twice because of rounding errors
            seen = (rest[:, None, :] @ self._basis)[:, 0]
            coordinates = coordinates + seen
            rest = rest - (self._basis @ seen[..., None])[..., 0]
        length, whole = (xp.sqrt(xp.vecdot(each, each)) for each in (rest, differences))
        is_new = length > _NEW_DIRECTION * whole
        length = xp.where(is_new, length, 0.0)
        direction = xp.where(is_new[:, None], rest / xp.where(is_new, length, 1.0)[:, None], 0.0)
        self._basis = xp.concat([self._basis, direction[..., None]], axis=2)
        row = self._arrays.zeros(len(self.theta), 1, self._duels.shape[2])
        self._duels = xp.concat([self._duels, row], axis=1)
        return xp.concat([coordinates, length[:, None]], axis=1)

    def state(self) -> dict[str, Array]:
        """Return a copy of the state, for :meth:`restore`."""
        nothing = self._arrays.zeros(len(self.theta), 0, 0)
        basis = nothing if self._basis is None else self._basis
        factors = nothing if self._factors is None else self._factors
        return {
            "theta": to_numpy(copy(self.theta)),
            "duels": to_numpy(copy(self._duels[..., : self._count])),
            "preferences": to_numpy(copy(self._preferences[:, : self._count])),
            "basis": to_numpy(copy(basis)),
            "factors": to_numpy(copy(factors)),
            "fitted": np.array(self._fitted),
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned."""
        make = self._arrays.make
        self.theta = make(np.array(state["theta"]))
        basis = make(np.array(state["basis"]))
        self._basis = basis if basis.shape[1] else None
        self._count = state["preferences"].shape[1]
        self._fitted = int(state.get("fitted", self._count))  # older states have neither
        factors = make(np.array(state.get("factors", np.zeros((0, 0)))))
        self._factors = factors if factors.shape[1] else None
        self._duels = with_room(state["duels"], self._arrays)
        self._preferences = with_room(state["preferences"], self._arrays)
