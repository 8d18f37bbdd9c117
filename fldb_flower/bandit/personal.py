r"""Estimates of FLDB-Personal's agents, computed as one batch.

The model is ``theta_i ~ N(theta, v I)``. With ``A`` and ``c`` the sums over the shares of the
other agents, ``A`` including ``lambda_0 I``, agent i's prior and estimate are::

    Q = (A^-1 + v I)^-1,  mean = A^-1 c
    theta_i = argmin L_i(theta) + (theta - mean)^T Q (theta - mean) / 2

Around theta_i, the loss L_i of the agent's own duels is summarised by its Hessian H_i and
``b_i = H_i theta_i - grad L_i(theta_i)``. docs/personal.md derives all formulas.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fldb_flower.bandit.local_newton import minimise, with_room
from fldb_flower.bandit.online import learn_duel, next_fit
from fldb_flower.bandit.preference import losses, residuals
from fldb_flower.bandit.prior import (
    LONGEST,
    MAX_EXCESS,
    VARIANCES,
    CommonPrior,
    longest_shift,
)
from fldb_flower.linalg.arrays import Array, Arrays, copy, namespace, to_numpy
from fldb_flower.linalg.linear import solve, whiten


class Shares(NamedTuple):
    """What agents have contributed to the sums of the server.

    Attributes
    ----------
    precision : Array
        M_i of each agent, (agents, d, d).
    shift : Array
        m_i of each agent, (agents, d).
    losses : Array
        Sum over all agents and answers of the excess log loss under each v, (11,).
    squares : Array
        Of each agent, the mean squared length of the differences offered, summed over answers,
        (agents,).
    members : Array
        1 for each agent that has contributed, (agents,).
    """

    precision: Array
    shift: Array
    losses: Array
    squares: Array
    members: Array


class Gaussian(NamedTuple):
    """The term ``(point - mean)^T Q (point - mean) / 2`` of each agent; see `local_newton`."""

    precision: Array  # Q, (agents, d, d)
    mean: Array  # (agents, d)
    name: str = "personal_ridge"
    remedy: str = "a larger personal_ridge (with privacy.epsilon, privacy.clip)"

    def only(self, agents: Array) -> Gaussian:
        """Return the prior of some agents."""
        return Gaussian(self.precision[agents], self.mean[agents])

    def gradient(self, point: Array) -> Array:
        """Return ``Q (point - mean)``."""
        return _times(self.precision, point - self.mean)

    def add_curvature(self, hessians: Array) -> None:
        """Add Q."""
        hessians += self.precision

    def offset(self, point: Array) -> Array:
        """Return the steps to the mean."""
        return self.mean - point


class PersonalEstimates:
    """Estimates theta_i of a block of agents with a common prior.

    Parameters
    ----------
    agents, dimension : int
        Number of agents and of features.
    ridge : float
        lambda_0, in units of the scale.
    arrays : Arrays, optional
        Backend of the duels and the estimates; NumPy by default.
    longest : float, optional
        Bound of m_i; see :func:`~fldb_flower.bandit.prior.longest_shift`.
    refit_ratio : float, optional
        Ratio of the numbers of duels of two fits; 1 by default, a fit after each duel. Between two
        fits, a duel takes O(d^2) (:mod:`fldb_flower.bandit.online`).

    Attributes
    ----------
    theta : Array
        theta_i, (agents, d).
    posterior : Array
        ``Q + H_i``, the precision of the posterior, (agents, d, d).
    """

    def __init__(
        self,
        agents: int,
        dimension: int,
        ridge: float,
        arrays: Arrays | None = None,
        longest: float = LONGEST,
        *,
        refit_ratio: float = 1.0,
    ) -> None:
        self._arrays, self._longest = arrays or Arrays(), longest
        make = self._arrays.zeros
        self._relative_ridge, self._refit_ratio = ridge, refit_ratio
        self._count = self._fitted = 0  # numbers of duels: all, and those of the last fit
        # An agent's duels are the columns of a matrix (d, duels).
        self._duels, self._preferences = make(agents, dimension, 8), make(agents, 8)
        self.theta = make(agents, dimension)
        self._hessian, self._linear = make(agents, dimension, dimension), make(agents, dimension)
        self._prior = Gaussian(self._hessian, self._linear)  # until the first is received
        self._whitener: Array | None = None  # of the posterior; None if it must be computed
        self._grid = self._arrays.make(np.array(VARIANCES))

    def receive(self, prior: CommonPrior, counted: Shares, scale: Array) -> None:
        """Use a prior from now on; see :meth:`set_prior`.

        The estimates take one Newton step to their new minimisers, with the summaries of their
        losses; the next answer makes them exact.
        """
        self.set_prior(prior, counted, scale)
        target = _times(self._prior.precision, self._prior.mean) + self._linear
        self.theta = solve(self.posterior, target)

    def set_prior(self, prior: CommonPrior, counted: Shares, scale: Array) -> None:
        """Compute Q and the mean from the shares of the other agents.

        Parameters
        ----------
        prior : CommonPrior
            Of the last broadcast.
        counted : Shares
            The agents' own shares that the sums of the prior contain.
        scale : Array
            Of each agent, (agents,).
        """
        make, xp = self._arrays.make, self._arrays.xp
        self._scale, self._ridge = scale, self._relative_ridge * scale
        self._variance = prior.variance / scale
        others = make(prior.precision) - counted.precision
        others = others + self._ridge[:, None, None] * self._arrays.eye(others.shape[-1])
        values, self._basis = xp.linalg.eigh(others)
        floor = self._ridge[:, None]  # rounding errors, or dishonest shares, can make it smaller
        self._values = xp.where(values > floor, values, floor)
        shift = make(prior.shift) - counted.shift
        turn = xp.matrix_transpose(self._basis)
        self._center = _times(turn, shift) / self._values
        precisions = self._values / (1.0 + self._variance[:, None] * self._values)
        precision = (self._basis * precisions[:, None, :]) @ turn
        self._prior = Gaussian(precision, _times(self._basis, self._center))
        self.posterior, self._whitener = precision + self._hessian, None

    @property
    def prior_mean(self) -> Array:
        """The mean of each agent's prior, (agents, d)."""
        return self._prior.mean

    def whitener(self) -> Array:
        """Return C with ``||x||_{(Q + H_i)^-1} = ||x C||_2``, (agents, d, d)."""
        if self._whitener is None:
            self._whitener = whiten(self.posterior)
        return self._whitener

    def predict(self, differences: Array) -> Array:
        """Return the logits of the probabilities that first arms are preferred, (agents,).

        ``theta_i . x / sqrt(1 + pi / 8 x^T (Q + H_i)^-1 x)``: approximately the mean over the
        posterior (MacKay 1992).
        """
        xp = self._arrays.xp
        seen = (differences[:, None, :] @ self.whitener())[:, 0]
        return _moderated(xp.vecdot(differences, self.theta), xp.vecdot(seen, seen))

    def losses(self, differences: Array, preferences: Array) -> Array:
        """Return the excess log loss of one answer per agent under each v, summed over agents.

        See :meth:`losses_by_agent`.
        """
        return self._arrays.xp.sum(self.losses_by_agent(differences, preferences), axis=0)

    def losses_by_agent(self, differences: Array, preferences: Array) -> Array:
        """Return the excess log loss of one answer per agent under each v, (agents, 11).

        The excess is over the v with the least loss for this answer. It is at most 1 nat, which
        bounds the influence of one answer on the choice of v.

        Each v gives a prior and, with the summary of the loss, a posterior. In the eigenbasis of A
        the precisions of all priors are diagonal.
        """
        xp = self._arrays.xp
        turn = xp.matrix_transpose(self._basis)
        hessian = turn @ self._hessian @ self._basis
        linear, seen = (_times(turn, each) for each in (self._linear, differences))
        values = self._values[:, None, :]
        variances = self._grid[:, None] / self._scale[:, None, None]
        precisions = values / (1.0 + variances * values)  # (agents, 11, d)
        posterior = hessian[:, None] + precisions[..., None] * self._arrays.eye(seen.shape[-1])
        response = solve(posterior, xp.broadcast_to(seen[:, None], precisions.shape))
        target = precisions * self._center[:, None] + linear[:, None]
        logits = _moderated(xp.vecdot(response, target), xp.vecdot(response, seen[:, None]))
        each = losses(logits, preferences[:, None])
        excess = each - xp.min(each, axis=1, keepdims=True)
        return xp.where(excess < MAX_EXCESS, excess, MAX_EXCESS)

    def add(self, differences: Array, preferences: Array) -> None:
        """Add one duel of each agent, (agents, d) and (agents,), and update the minimisers.

        Raises
        ------
        ConvergenceError
            An agent's minimiser was not found.
        """
        self._store(differences[:, None, :], preferences[:, None])
        if self._count >= next_fit(self._fitted, self._refit_ratio, self.theta.shape[1]):
            self._fit()
            return
        new = learn_duel(self.theta, self.whitener(), differences, preferences)
        weighted = new.curvatures[:, None] * differences
        self._hessian += differences[:, :, None] * weighted[:, None, :]
        self._linear += new.logits[:, None] * weighted - new.slopes[:, None] * differences
        self.posterior = self._prior.precision + self._hessian

    def add_many(self, differences: Array, preferences: Array) -> None:
        """Add n duels of each agent, (agents, n, d) and (agents, n), with one minimisation.

        Raises as :meth:`add`.
        """
        self._store(differences, preferences)
        self._fit()

    def _store(self, differences: Array, preferences: Array) -> None:
        xp, end = self._arrays.xp, self._count + preferences.shape[1]
        while end > self._preferences.shape[1]:
            self._duels = xp.concat([self._duels] * 2, axis=2)
            self._preferences = xp.concat([self._preferences] * 2, axis=1)
        self._duels[:, :, self._count : end] = xp.matrix_transpose(differences)
        self._preferences[:, self._count : end] = preferences
        self._count = end

    def _fit(self) -> None:
        """Set the minimisers, and the expansions there, for all duels."""
        duels, answers = self._duels[..., : self._count], self._preferences[:, : self._count]
        self.theta = minimise(self.theta, duels, answers, self._prior, self._arrays)
        slopes, curvatures = residuals((self.theta[:, None, :] @ duels)[:, 0], answers)
        self._hessian = (duels * curvatures[:, None, :]) @ duels.swapaxes(1, 2)
        gradient = _times(duels, slopes)
        self._linear = _times(self._hessian, self.theta) - gradient
        self.posterior = self._prior.precision + self._hessian
        self._fitted, self._whitener = self._count, None

    def shares(self) -> tuple[Array, Array]:
        """Return ``M_i = H_i (I + v H_i)^-1`` and ``m_i = (I + v H_i)^-1 b_i``.

        Two bounds limit the influence of one agent: ``0 <= M_i <= I / v``, and the length of m_i
        (:func:`~fldb_flower.bandit.prior.longest_shift`). Before, theta_i is fitted to all duels.

        Raises
        ------
        ConvergenceError
            An agent's minimiser was not found.
        """
        if self._fitted < self._count:
            self._fit()
        xp, variance = self._arrays.xp, self._variance[:, None]
        d = self.theta.shape[1]
        mixed = self._arrays.eye(d) + variance[..., None] * self._hessian
        precision = xp.linalg.solve(mixed, self._hessian)
        shift = solve(mixed, self._linear)
        length = xp.sqrt(xp.vecdot(shift, shift))
        longest = longest_shift(d, self._ridge, self._variance, self._longest)
        shift = shift * (longest / xp.where(length > longest, length, longest))[:, None]
        return (precision + xp.matrix_transpose(precision)) / 2.0, shift

    def state(self) -> dict[str, Array]:
        """Return a copy of the state, for :meth:`restore`, without the prior."""
        is_fitted = self._fitted == self._count
        whitener = self._hessian[:, :0] if is_fitted else self.whitener()
        return {
            "theta": to_numpy(copy(self.theta)),
            "hessian": to_numpy(copy(self._hessian)),
            "linear": to_numpy(copy(self._linear)),
            "duels": to_numpy(copy(self._duels[..., : self._count])),
            "preferences": to_numpy(copy(self._preferences[:, : self._count])),
            "fitted": np.array(self._fitted),
            "whitener": to_numpy(copy(whitener)),
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned, with the current prior."""
        make = self._arrays.make
        self.theta, self._hessian, self._linear = (
            make(np.array(state[name])) for name in ("theta", "hessian", "linear")
        )
        self.posterior = self._prior.precision + self._hessian
        self._count = state["preferences"].shape[1]
        self._fitted = int(state.get("fitted", self._count))  # older states have neither
        whitener = make(np.array(state.get("whitener", np.zeros((0, 0)))))
        self._whitener = whitener if whitener.shape[1] else None
        self._duels = with_room(state["duels"], self._arrays)
        self._preferences = with_room(state["preferences"], self._arrays)


def _moderated(logits: Array, variances: Array) -> Array:
    """Return logits divided by ``sqrt(1 + pi / 8 variance)``."""
    return logits / namespace(logits).sqrt(1.0 + (math.pi / 8.0) * variances)


def _times(matrices: Array, vectors: Array) -> Array:
    """Return the products of each agent's matrix and vector."""
    return (matrices @ vectors[..., None])[..., 0]
