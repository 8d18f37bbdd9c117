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
from fldb_flower.bandit.newton import Loss, hessian_of, logits_of, minimise, times
from fldb_flower.bandit.online import after_duel, learn_duel, next_fit
from fldb_flower.bandit.preference import link, losses
from fldb_flower.errors import ConvergenceError
from fldb_flower.linalg.arrays import Array, Arrays, copy, namespace, to_numpy
from fldb_flower.linalg.linear import shifted_forms, solve, whiten

_DUELS = "duels", "preferences"  # names in a state
_LEAST = 1e-100  # of a variance
_CHUNK = 32  # columns by which arrays of duels grow
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
        # An agent's duels are the columns of a matrix, (d, duels), with their signs changed where
        # the second arm was preferred: most preferences are then 1, and logistic functions faster.
        self._duels = self._with_room(self._arrays.zeros(agents, dimension, 0), 1)
        self._preferences = self._with_room(self._arrays.zeros(agents, 0), 1, 1.0)
        self._all_won, self._squares = True, self._arrays.zeros(agents)
        self._whitener: Array | None = None  # computed when needed, as are the directions of duels
        self._directions = self._arrays.zeros(agents, dimension, 0)

    def add(self, differences: Array, preferences: Array) -> None:
        """Add one duel of each agent, (agents, d) and (agents,), and update the minimisers."""
        self._store(differences[:, None, :], preferences[:, None])
        if self._count < next_fit(self._fitted, self._refit_ratio, self.theta.shape[1]):
            self._update(self._learn, differences, preferences)
        else:
            self._update(self._fit, differences, preferences)

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
        if end > self._preferences.shape[1]:
            duels, answers = self._stored()
            self._duels = self._with_room(duels, end)
            self._preferences = self._with_room(answers, end, 1.0)
        signs = xp.where(preferences < 0.5, -1.0, 1.0)
        answers = xp.where(preferences < 0.5, 1.0 - preferences, preferences)
        self._duels[:, :, self._count : end] = xp.matrix_transpose(signs[..., None] * differences)
        self._preferences[:, self._count : end] = answers
        is_won = (answers == 1.0) | xp.all(differences == 0.0, axis=2)
        self._all_won = self._all_won and bool(xp.all(is_won))
        self._squares = self._squares + xp.sum(differences * differences, axis=(1, 2))
        self._count = end

    def _stored(self) -> tuple[Array, Array]:
        return self._duels[..., : self._count], self._preferences[:, : self._count]

    def _loss(self) -> Loss:
        """Return the losses of all duels. Without a decay, further columns of 0 are included."""
        duels, answers, weights = self._duels, self._preferences, None
        if self._decay is not None:
            duels, answers = self._stored()
            weights = self._weights(duels, answers)
        return Loss(duels, None if self._all_won else answers, weights, self._squares)

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

    def _fit(self, *_: Array) -> None:
        """Set the minimisers for all duels."""
        loss, count, prior = self._loss(), self._count, (self._precision, self._mean)
        self._fitted, self._whitener = count, None
        if count > self.theta.shape[1]:
            self.theta = minimise(self.theta, loss, *prior).point
            return
        basis = self._span(self._stored()[0])
        loss = loss._replace(duels=basis.swapaxes(1, 2) @ loss.duels)
        prior = self._precision[:count, :count], self._mean[:count]
        found = minimise(logits_of(self.theta, basis), loss, *prior)
        self.theta = times(basis, found.point)

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
            _DUELS[0]: to_numpy(copy(duels)),
            _DUELS[1]: to_numpy(copy(preferences)),
            "whitener": to_numpy(copy(whitener)),
            "fitted": np.array(self._fitted),
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what :meth:`state` returned."""
        self.theta = self._arrays.make(np.array(state["theta"]))
        whitener = self._arrays.make(np.array(state["whitener"]))
        self._whitener = whitener if whitener.shape[1] else None
        self._count, self._fitted, self._all_won = 0, int(state["fitted"]), True
        duels, preferences = (self._arrays.make(np.array(state[name])) for name in _DUELS)
        self._store(self._arrays.xp.matrix_transpose(duels), preferences)

    def _with_room(self, columns: Array, end: int, value: float = 0.0) -> Array:
        """Return columns, (agents, ..., count), and others with a value: a multiple of 32 in all.

        Rounding errors of products depend on the number of columns, here on ``end`` only. The rows
        of all agents are contiguous in memory, which halves the time of products with weights.
        """
        *rows, count = columns.shape
        padded = self._arrays.zeros(*rows[::-1], math.ceil(end / _CHUNK) * _CHUNK) + value
        padded = self._arrays.xp.moveaxis(padded, 0, -2)
        padded[..., :count] = columns
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
        whitener = self.whitener()
        self.theta = times(whitener, logits_of(target, whitener))

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
        # V^-1 of each hypothesis is diagonal in one basis: (d, agents, hypotheses).
        variances, basis = prior.hypotheses()
        self._precisions = scale[:, None] / make(np.maximum(variances, _LEAST).T)[:, None]
        self._basis = None if basis is None else make(basis)

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
        xp, d, x = self._arrays.xp, self.theta.shape[1], differences
        center = (self._shift + self._linear)[..., None]
        columns = xp.concat([self._hessian, x[..., None], center], axis=2)
        solved = xp.linalg.solve(self._others + self._hessian, columns)
        z, response = solved[..., d + 1], solved[..., d]
        parts = self._others @ solved[..., : d + 1]  # E, and the vector of x in delta
        left, seen, target = parts[..., :d], parts[..., d], self._linear - times(self._hessian, z)
        if self._basis is not None:
            turn = xp.matrix_transpose(self._basis)
            left, seen, target = turn @ left @ self._basis, seen @ self._basis, target @ self._basis
        squares, products = shifted_forms(left, self._precisions, seen, target)
        means = xp.vecdot(x, z)[:, None] + products
        variances = xp.vecdot(x, response)[:, None] + squares
        each = losses(_moderated(means, variances), preferences[:, None])
        excess = each - xp.min(each, axis=1, keepdims=True)
        return xp.where(excess < MAX_EXCESS, excess, MAX_EXCESS)

    def add_many(self, differences: Array, preferences: Array) -> None:
        """Add n duels of each agent, (agents, n, d) and (agents, n), with one minimisation."""
        self._store(differences, preferences)
        self._update(self._fit)

    def _fit(self, *newest: Array) -> None:
        """Set the minimisers, and the expansions there, for all duels."""
        start = self.theta
        if newest:
            start = after_duel(start, self.whitener(), *newest)
        found = minimise(start, self._loss(), self._precision, self._mean)
        self.theta, self._hessian, self._linear = found
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
