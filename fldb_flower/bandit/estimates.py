r"""Estimates of agents from their own duels and a prior, computed as one batch.

Agents of LDB have a ridge (:class:`OwnEstimates`), those of FLDB-Personal a prior that they share
(:class:`PersonalEstimates`). An estimate minimises the loss of the agent's duels and the prior's
term (:mod:`fldb_flower.bandit.newton`), after each duel or, with a ``refit_ratio`` above 1, after a
growing number of duels; between two fits, a duel takes O(d^2) (:mod:`fldb_flower.bandit.online`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fldb_flower.bandit.estimate import (
    LONGEST,
    MAX_EXCESS,
    CommonPrior,
    ShareChange,
    longest_shift,
)
from fldb_flower.bandit.newton import hessian_of, logits_of, minimise, times
from fldb_flower.bandit.online import learn_duel, next_fit
from fldb_flower.bandit.preference import link, losses, residuals
from fldb_flower.errors import ConvergenceError
from fldb_flower.linalg.arrays import Array, Arrays, copy, namespace, to_numpy
from fldb_flower.linalg.linear import solve, whiten

_NEW_DIRECTION = 1e-13  # of a duel's length: a shorter remainder is a rounding error


class OwnEstimates:
    """Estimates ``theta``, (agents, d), and the duels that they are fitted to.

    The prior is a ridge, lambda (paper, Eq. 1 with N = 1). A minimiser then lies in the span of the
    duels. Up to d duels, it is found by coordinates in an orthonormal basis of that span, so that
    the ridge may be below the rounding errors of the Hessian.

    With a ``decay`` below 1, the loss of a duel has the weight ``decay ** n`` after n later answers
    of the agent. A tie of equal arms is no answer: recorded duels without one.
    """

    def __init__(
        self,
        agents: int,
        dimension: int,
        ridge: float,
        arrays: Arrays | None = None,
        *,
        refit_ratio: float = 1.0,
        decay: float | None = None,
    ) -> None:
        self._arrays, self._refit_ratio, self._decay = arrays or Arrays(), refit_ratio, decay
        self._settings, self._remedy = f"lambda={ridge:g}", "a larger lambda"
        self._precision = self._arrays.eye(dimension) * ridge  # of the prior: Q, and its mean
        self._mean = self._arrays.zeros(dimension)
        self.theta = self._arrays.zeros(agents, dimension)
        self._count = self._fitted = 0  # numbers of duels: all, and those of the last fit
        # An agent's duels are the columns of a matrix, (d, duels).
        self._duels = self._arrays.zeros(agents, dimension, 8)
        self._preferences = self._arrays.empty(agents, 8)
        self._whitener: Array | None = None  # computed when needed, as are the directions of duels
        self._directions = self._arrays.zeros(agents, dimension, 0)

    def add(self, differences: Array, preferences: Array) -> None:
        """Add one duel of each agent, (agents, d) and (agents,), and update the minimisers."""
        self._store(differences[:, None, :], preferences[:, None])
        if self._count < next_fit(self._fitted, self._refit_ratio, self.theta.shape[1]):
            self._update(self._learn, differences, preferences)
        else:
            self._update(self._fit)

    def _update(self, update: Callable[..., None], *duel: Array) -> None:
        """Call a method; raise ConvergenceError if an agent's minimiser was not found."""
        try:
            update(*duel)
        except np.linalg.LinAlgError as error:
            longest = float(self._arrays.xp.max(abs(self._duels[..., : self._count])))
            raise ConvergenceError(
                f"no minimiser of an agent's own loss: {error} ({self._settings}, differences of"
                f" features up to {longest:.1e}); use {self._remedy}, or scale the features to"
                " about 1"
            ) from None

    def whitener(self) -> Array:
        """Return C with ``C C^T`` the inverse Hessian of each agent's objective, (agents, d, d)."""
        if self._whitener is None:
            self._whitener = whiten(self.posterior)
        return self._whitener

    def _store(self, differences: Array, preferences: Array) -> None:
        """Store n duels of each agent, (agents, n, d) and (agents, n)."""
        xp, end = self._arrays.xp, self._count + preferences.shape[1]
        while end > self._preferences.shape[1]:
            self._duels = xp.concat([self._duels] * 2, axis=2)
            self._preferences = xp.concat([self._preferences] * 2, axis=1)
        self._duels[:, :, self._count : end] = xp.matrix_transpose(differences)
        self._preferences[:, self._count : end] = preferences
        self._count = end

    def _stored(self) -> tuple[Array, Array]:
        return self._duels[..., : self._count], self._preferences[:, : self._count]

    def _weights(self, duels: Array, answers: Array) -> Array | None:
        """Return the weights of the losses of duels, (agents, duels); None if all are 1."""
        if self._decay is None:
            return None
        answered = (self._arrays.xp.any(duels != 0.0, axis=1) | (answers != 0.5)) * 1.0
        later = answered.sum(axis=1)[:, None] - answered.cumsum(axis=1)
        weights: Array = self._decay**later
        return weights

    def gram(self) -> Array:
        """Return the weighted sum of ``x x^T`` over each agent's duels, (agents, d, d)."""
        duels, answers = self._stored()
        weights = self._weights(duels, answers)
        return hessian_of(duels, self._arrays.xp.ones_like(answers) if weights is None else weights)

    def _fit(self) -> None:
        """Set the minimisers for all duels."""
        (duels, answers), count = self._stored(), self._count
        self._fitted, self._whitener, weights = count, None, self._weights(duels, answers)
        if count > self.theta.shape[1]:
            prior = self._precision, self._mean
            self.theta = minimise(self.theta, duels, answers, *prior, weights=weights)
            return
        basis = self._span(duels)
        start, coordinates = logits_of(self.theta, basis), basis.swapaxes(1, 2) @ duels
        prior = self._precision[:count, :count], self._mean[:count]
        self.theta = times(basis, minimise(start, coordinates, answers, *prior, weights=weights))

    def _span(self, duels: Array) -> Array:
        """Return a basis with a column for each duel, 0 if the duel added no direction."""
        xp = self._arrays.xp
        for place in range(self._directions.shape[2], duels.shape[2]):
            duel = rest = duels[..., place]
            for _ in range(2):  # Gram-Schmidt orthogonalization, twice because of rounding errors
                rest = rest - times(self._directions, logits_of(rest, self._directions))
            length, whole = (xp.sqrt(xp.vecdot(each, each))[:, None] for each in (rest, duel))
            is_new = length > _NEW_DIRECTION * whole
            column = xp.where(is_new, rest, 0.0) / xp.where(is_new, length, 1.0)
            self._directions = xp.concat([self._directions, column[..., None]], axis=2)
        return self._directions

    def _learn(self, differences: Array, preferences: Array) -> None:
        """Update the minimisers for one more duel of each agent, without a fit."""
        learn_duel(self.theta, self.whitener(), differences, preferences)

    @property
    def posterior(self) -> Array:
        """The Hessian of each agent's objective at the last fit, (agents, d, d)."""
        duels = self._duels[..., : self._fitted]
        curvatures = link(logits_of(self.theta, duels))[1]
        weights = self._weights(duels, self._preferences[:, : self._fitted])
        if weights is not None:
            curvatures = weights * curvatures
        return hessian_of(duels, curvatures) + self._precision

    def state(self) -> dict[str, Array]:
        """Return a copy of the state, for :meth:`restore`; it does not include the prior."""
        duels, preferences = self._stored()
        whitener = self._whitener
        if whitener is None or self._fitted == self._count:  # it is computed from the Hessian
            whitener = self.theta[:, :0]
        return {
            "theta": to_numpy(copy(self.theta)),
            "duels": to_numpy(copy(duels)),
            "preferences": to_numpy(copy(preferences)),
            "whitener": to_numpy(copy(whitener)),
            "fitted": np.array(self._fitted),
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned."""
        self.theta = self._arrays.make(np.array(state["theta"]))
        whitener = self._arrays.make(np.array(state["whitener"]))
        self._whitener = whitener if whitener.shape[1] else None
        self._count, self._fitted = state["preferences"].shape[1], int(state["fitted"])
        self._duels = self._with_room(state["duels"])
        self._preferences = self._with_room(state["preferences"])

    def _with_room(self, columns: Array) -> Array:
        """Return an array with room for 8, 16, 32, ... columns, as if they were added one by one.

        Rounding errors of products of few columns depend on how far their rows are apart in memory.
        A restored state has the same distances, so that it continues with identical numbers.
        """
        count, room = columns.shape[-1], 8
        while room < count:
            room *= 2
        padded = self._arrays.zeros(*columns.shape[:-1], room)
        padded[..., :count] = self._arrays.make(columns)
        return padded


class PersonalEstimates(OwnEstimates):
    """Estimates of agents with a common prior, ``theta_i ~ N(theta, V)``.

    With ``A`` and ``c`` the sums over the shares of the other agents, ``A`` including ``lambda_0
    I``, agent i's prior and estimate are::

        Q = (A^-1 + V)^-1,  mean = A^-1 c
        theta_i = argmin L_i(theta) + (theta - mean)^T Q (theta - mean) / 2

    Around theta_i, the loss L_i of the agent's own duels is summarised by its Hessian H_i and
    ``b_i = H_i theta_i - grad L_i(theta_i)``. docs/personal.md derives all formulas.

    ``ridge`` is lambda_0 in units of the scale, and ``longest`` bounds m_i: ``|V m_i|`` is at most
    this many times ``sqrt(d / lambda_0)``.
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
        decay: float | None = None,
    ) -> None:
        super().__init__(agents, dimension, 0.0, arrays, refit_ratio=refit_ratio, decay=decay)
        self._settings = "personal_ridge"
        self._remedy = "a larger personal_ridge (with privacy.epsilon, privacy.clip)"
        make = self._arrays.zeros
        self._hessian, self._linear = make(agents, dimension, dimension), make(agents, dimension)
        self._relative_ridge, self._longest = ridge, longest

    def receive(self, prior: CommonPrior, counted: ShareChange, scale: Array) -> None:
        """Use a prior from now on; see :meth:`set_prior`.

        The estimates take one Newton step to their new minimisers, with the summaries of their
        losses; the next answer makes them exact.
        """
        self.set_prior(prior, counted, scale)
        target = times(self._precision, self._mean) + self._linear
        self.theta = solve(self.posterior, target)

    def set_prior(self, prior: CommonPrior, counted: ShareChange, scale: Array) -> None:
        """Compute Q and the mean from the shares of the other agents.

        ``counted`` are the agents' own shares that the sums of the prior contain, (agents, ...),
        and ``scale`` is that of each agent, (agents,).
        """
        make, xp = self._arrays.make, self._arrays.xp
        self._ridge = self._relative_ridge * scale
        self._others = _at_least(make(prior.precision) - counted.precision, self._ridge)
        self._shift = make(prior.shift) - counted.shift
        self._covariance = make(prior.covariance()) / scale[:, None, None]
        eye = self._arrays.eye(self.theta.shape[1])
        precision = xp.linalg.solve(eye + self._others @ self._covariance, self._others)
        self._precision = (precision + xp.matrix_transpose(precision)) / 2.0
        self._mean = solve(self._others, self._shift)
        self._whitener = None
        # V of each hypothesis is diagonal in one basis: (agents, hypotheses, d).
        variances, basis = prior.hypotheses()
        self._deviations = xp.sqrt(make(variances)) / xp.sqrt(scale)[:, None, None]
        self._basis = eye if basis is None else make(basis)

    @property
    def posterior(self) -> Array:
        """The precision of each agent's posterior, ``Q + H_i``, (agents, d, d)."""
        return self._precision + self._hessian

    @property
    def prior_mean(self) -> Array:
        """The mean of each agent's prior, (agents, d)."""
        return self._mean

    def predict(self, differences: Array) -> Array:
        """Return the logits of the probabilities that first arms are preferred, (agents,).

        ``theta_i . x / sqrt(1 + pi / 8 x^T (Q + H_i)^-1 x)``: approximately the mean over the
        posterior (MacKay 1992).
        """
        xp = self._arrays.xp
        seen = (differences[:, None, :] @ self.whitener())[:, 0]
        return _moderated(xp.vecdot(differences, self.theta), xp.vecdot(seen, seen))

    def losses(self, differences: Array, preferences: Array) -> Array:
        """Return the excess log loss of one answer per agent under each V, (agents, hypotheses).

        The excess is over the V with the least loss for this answer. It is at most 1 nat, which
        bounds the influence of one answer on the choice of V.

        The posterior is that of ``theta_i = theta + delta`` with ``delta ~ N(0, V)``. Without the
        answers' part in delta, theta has the precision A + H and the mean z. Then delta has the
        precision ``V^-1 + E`` with ``E = A (A + H)^-1 H``, which does not depend on V.
        """
        xp, d = self._arrays.xp, self.theta.shape[1]
        x, hessian, linear = differences[..., None], self._hessian, self._linear[..., None]
        columns = xp.concat([hessian, x, self._shift[..., None] + linear], axis=2)
        solved = xp.linalg.solve(self._others + hessian, columns)
        z, response = solved[..., d + 1 :], solved[..., d : d + 1]
        turn = xp.matrix_transpose(self._basis)
        left = turn @ (self._others @ solved[..., :d]) @ self._basis  # E
        target, seen = turn @ (linear - hessian @ z), turn @ (self._others @ response)
        scales = self._deviations  # (agents, hypotheses, d)
        scaled = scales[..., :, None] * left[:, None] * scales[..., None, :] + self._arrays.eye(d)
        target, seen = (scales * each[:, None, :, 0] for each in (target, seen))
        found = solve(scaled, seen)
        means = xp.vecdot(x, z, axis=1) + xp.vecdot(found, target)
        variances = xp.vecdot(x, response, axis=1) + xp.vecdot(found, seen)
        each = losses(_moderated(means, variances), preferences[:, None])
        excess = each - xp.min(each, axis=1, keepdims=True)
        return xp.where(excess < MAX_EXCESS, excess, MAX_EXCESS)

    def add_many(self, differences: Array, preferences: Array) -> None:
        """Add n duels of each agent, (agents, n, d) and (agents, n), with one minimisation."""
        self._store(differences, preferences)
        self._update(self._fit)

    def _fit(self) -> None:
        """Set the minimisers, and the expansions there, for all duels."""
        duels, answers = self._stored()
        weights, prior = self._weights(duels, answers), (self._precision, self._mean)
        self.theta = minimise(self.theta, duels, answers, *prior, weights=weights)
        slopes, curvatures = residuals(logits_of(self.theta, duels), answers)
        if weights is not None:
            slopes, curvatures = weights * slopes, weights * curvatures
        self._hessian = hessian_of(duels, curvatures)
        self._linear = times(self._hessian, self.theta) - times(duels, slopes)
        self._fitted, self._whitener = self._count, None

    def _learn(self, differences: Array, preferences: Array) -> None:
        new = learn_duel(self.theta, self.whitener(), differences, preferences)
        weighted = new.curvatures[:, None] * differences
        self._hessian += differences[:, :, None] * weighted[:, None, :]
        self._linear += new.logits[:, None] * weighted - new.slopes[:, None] * differences

    def shares(self) -> tuple[Array, Array, Array]:
        """Return ``M_i = (I + H_i V)^-1 H_i``, ``m_i = (I + H_i V)^-1 b_i`` and the gradient g_i.

        Two bounds limit the influence of one agent: ``0 <= M_i <= V^-1``, and the length of m_i
        (:func:`~fldb_flower.bandit.estimate.longest_shift`). g_i is the gradient of the loss of the
        agent's own duels. Before, theta_i is fitted to all duels.
        """
        if self._fitted < self._count:
            self._update(self._fit)
        xp, d = self._arrays.xp, self.theta.shape[1]
        mixed = self._arrays.eye(d) + self._hessian @ self._covariance
        solved = xp.linalg.solve(mixed, xp.concat([self._hessian, self._linear[..., None]], axis=2))
        precision, shift = solved[..., :d], solved[..., d]
        far = times(self._covariance, shift)
        length, longest = xp.sqrt(xp.vecdot(far, far)), longest_shift(d, self._ridge, self._longest)
        shift = shift * (longest / xp.where(length > longest, length, longest))[:, None]
        gradient = times(self._hessian, self.theta) - self._linear
        return (precision + xp.matrix_transpose(precision)) / 2.0, shift, gradient

    def state(self) -> dict[str, Array]:
        """Return a copy of the state, for :meth:`restore`, without the prior."""
        own = {"hessian": self._hessian, "linear": self._linear}
        return super().state() | {name: to_numpy(copy(array)) for name, array in own.items()}

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned, with the current prior."""
        super().restore(state)
        make = self._arrays.make
        self._hessian, self._linear = (
            make(np.array(state[name])) for name in ("hessian", "linear")
        )


def _at_least(sums: Array, ridge: Array) -> Array:
    """Return ``S + ridge I``, with eigenvalues of at least the ridge, (agents,), or half of it.

    S is positive semi-definite up to rounding errors, unless shares are dishonest.
    """
    xp = namespace(sums)
    floors = ridge[:, None, None] * xp.eye(sums.shape[-1], dtype=sums.dtype)
    try:
        xp.linalg.cholesky(sums + floors / 2.0)
    except (np.linalg.LinAlgError, RuntimeError):
        values, basis = xp.linalg.eigh(sums + floors)
        values = xp.where(values > ridge[:, None], values, ridge[:, None])
        return (basis * values[:, None, :]) @ xp.matrix_transpose(basis)
    return sums + floors


def _moderated(logits: Array, variances: Array) -> Array:
    """Return logits divided by ``sqrt(1 + pi / 8 variance)``."""
    return logits / namespace(logits).sqrt(1.0 + (math.pi / 8.0) * variances)
