r"""Necessary conditions on an upload over any n duels, checked for all uploads at once.

An upload over differences X with logits z and residuals r has ``W_new = X^T X``, ``g = X^T r`` and
``H = X^T diag(mu'(z)) X``. With ``s = theta^T W_new theta`` and ``q = sqrt(s / n)``::

    rank W_new <= n,    trace W_new <= n L^2,    |g| <= n L mu(q),    loss <= n log(1 + e^q)
    g^T W_new^+ g <= n mu(q)^2,    mu'(z_max) W_new <= H <= W_new / 4

docs/plausibility.md derives these bounds, their variants for diagonals, and the tolerances for
rounding errors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from fldb_flower.bandit.preference import link, logistic
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.forms import TINY, roots_of_diagonals

_CURVATURE_ERROR = 2.0**-50  # of mu', largest error that is tolerated
_ENTRY, _SLACK = 1e-10, 1e-6  # relative errors that are tolerated in entries and in bounds

Bound = tuple[str, Array, Array]  # reason, and of each upload: value, upper bound


def implausible(
    uploads: Sequence[Upload],
    broadcast: Broadcast,
    longest: float = math.inf,
    error: float = 0.0,
    *,
    weighted: bool = False,
) -> list[str]:
    """Return for each upload the first bound that it violates, or "" if there is none.

    Parameters
    ----------
    uploads : sequence of Upload
        At least one; their numbers are finite.
    broadcast : Broadcast
        The request that they answer; ``theta_hat`` is not None.
    longest : float
        L, an upper bound of the length of differences; infinite if it is not known.
    error : float
        Upper bound of the absolute error of matrix entries that are sums of integers. Features
        whose sum of squares is below 1e10 times this bound are checked less strictly.
    weighted : bool
        Whether duels have weights of at most 1, which are not known: with the limit on a person
        (``privacy.unit=person``). s is then no bound of a logit, and only L is.
    """
    kind = _DiagonalBounds if uploads[0].information.ndim == 1 else _MatrixBounds
    reasons = [""] * len(uploads)
    with np.errstate(over="ignore", invalid="ignore"):  # NaN and infinity are violations
        checks = kind(uploads, broadcast, longest, error)
        for reason, value, bound in checks.bounds(weighted=weighted):
            for place in np.flatnonzero(~(value <= bound)).tolist():
                reasons[place] = reasons[place] or reason.format(
                    n=uploads[place].num_duels, value=value[place], bound=bound[place]
                )
    return reasons


class _Bounds(ABC):
    """Bounds on uploads, as arrays whose first axis is the uploads."""

    def __init__(
        self,
        uploads: Sequence[Upload],
        broadcast: Broadcast,
        longest: float,
        error: float,
    ) -> None:
        def array(name: str) -> Array:
            return np.array([getattr(upload, name) for upload in uploads], dtype=np.float64)

        count = array("num_duels")
        self._is_empty = count == 0
        self._duels = np.maximum(count, 1.0)  # an upload of 0 duels has a bound of its own
        self._gradient, self._information = array("gradient"), array("information")
        self._hessian = array("hessian") if broadcast.hessian else None
        self._loss = array("loss") if broadcast.loss else None
        assert broadcast.theta_hat is not None
        self._theta: Array = broadcast.theta_hat
        self._longest = longest
        self._is_fresh = broadcast.scope == "fresh"  # W_new is over the same duels as g and H
        entry = _ENTRY
        # In units of at least the root of the floor, the error of an entry is at most `entry`.
        self._floor = max(TINY, error / entry)
        entry *= 2.0 if error else 1.0
        self._rounding = np.full(len(count), self._theta.size * entry)  # of an eigenvalue

    def bounds(self, *, weighted: bool) -> Iterator[Bound]:
        """Yield all bounds."""
        yield (
            "numbers other than 0, of no duels",
            self._absolute(),
            np.where(self._is_empty, 0.0, np.inf),
        )
        yield "W_new is not positive semi-definite", -self._lowest_information(), self._rounding
        yield "W_new has more directions than {n} duels", self._spare(), self._rounding
        yield (
            "W_new is larger than {n} duels allow:"
            " trace = {value:.4g} > n L^2 = {bound:.4g} (L: max-difference)",
            self._trace(self._information),
            self._at_most(self._longest**2),
        )
        largest = average = self._farthest()  # z_max and q
        if self._is_fresh:
            squares = self._squared_logits()  # s
            if not weighted:
                largest = np.minimum(largest, np.sqrt(squares))
            average = np.minimum(average, np.sqrt(squares / self._duels))
        residual = logistic(average)
        yield (
            "gradient is longer than {n} duels allow:"
            " |g| = {value:.4g} > n L mu(q) = {bound:.4g} (L: max-difference)",
            np.linalg.norm(self._gradient, axis=1),
            self._at_most(self._longest * residual),
        )
        if self._is_fresh:
            yield (
                "gradient is longer than {n} duels of this W_new allow:"
                " g^T W_new^-1 g = {value:.4g} > n mu(q)^2 = {bound:.4g}",
                self._squared_gradient(),
                self._at_most(residual**2),
            )
        if self._hessian is not None:
            yield from self._of_hessian(self._hessian, largest)
        if self._loss is not None:
            yield "loss is below 0", -self._loss, np.zeros_like(self._loss)
            yield (
                "loss is larger than {n} duels allow: {value:.4g} > n log(1 + e^q) = {bound:.4g}",
                self._loss,
                self._at_most(np.logaddexp(0.0, average)),
            )

    def _of_hessian(self, hessian: Array, largest: Array) -> Iterator[Bound]:
        yield (
            "Hessian is not positive semi-definite",
            -self._lowest_hessian(hessian),
            self._rounding,
        )
        if not self._is_fresh:
            yield (
                "Hessian is larger than {n} duels allow:"
                " trace = {value:.4g} > n L^2 / 4 = {bound:.4g} (L: max-difference)",
                self._trace(hessian),
                self._at_most(self._longest**2 / 4.0),
            )
            return
        least = link(largest)[1]
        above, below = self._lowest_differences(hessian, least)
        yield "Hessian is larger than W_new / 4", -above, self._rounding
        yield "Hessian is smaller than W_new and theta allow", -below, self._rounding

    def _absolute(self) -> Array:
        parts = (self._gradient, self._information, self._hessian, self._loss)
        flat = [np.abs(part).reshape(len(part), -1) for part in parts if part is not None]
        return np.concatenate(flat, axis=1).max(axis=1)

    def _farthest(self) -> Array:
        """Return ``||theta|| L``, an upper bound of the logits."""
        norm = float(np.linalg.norm(self._theta))
        return np.full(len(self._duels), norm * self._longest if norm else 0.0)

    def _at_most(self, each: float | Array) -> Array:
        return self._duels * each * (1.0 + _SLACK)

    @abstractmethod
    def _lowest_information(self) -> Array:
        """Return the smallest eigenvalue of the scaled W_new, or the smallest entry."""

    @abstractmethod
    def _spare(self) -> Array:
        """Return the (n + 1)-th largest eigenvalue, which is 0 for n duels."""

    @abstractmethod
    def _trace(self, matrices: Array) -> Array:
        """Return the traces."""

    @abstractmethod
    def _squared_logits(self) -> Array:
        """Return the largest ``theta^T W_new theta``, rounded up."""

    @abstractmethod
    def _squared_gradient(self) -> Array:
        """Return the smallest ``g^T W_new^+ g``."""

    @abstractmethod
    def _lowest_hessian(self, hessian: Array) -> Array:
        """Return the smallest eigenvalue of the scaled Hessian, or the smallest entry."""

    @abstractmethod
    def _lowest_differences(self, hessian: Array, least: Array) -> tuple[Array, Array]:
        """Return the smallest eigenvalues of ``W_new / 4 - H`` and ``H - least W_new``, scaled."""


class _DiagonalBounds(_Bounds):
    """Bounds on diagonals, for each feature separately."""

    def _lowest_information(self) -> Array:
        return _exact_sign(self._information.min(axis=1))

    def _spare(self) -> Array:
        return np.zeros_like(self._duels)  # one duel may have all features

    def _trace(self, matrices: Array) -> Array:
        return matrices.sum(axis=1)

    def _squared_logits(self) -> Array:
        units = np.sqrt(np.maximum(self._information, 0.0))
        return (1.0 + self._rounding) * (units @ np.abs(self._theta)) ** 2

    def _squared_gradient(self) -> Array:
        return (self._gradient**2 / np.maximum(self._information, self._floor)).max(axis=1)

    def _lowest_hessian(self, hessian: Array) -> Array:
        return _exact_sign(hessian.min(axis=1))

    def _lowest_differences(self, hessian: Array, least: Array) -> tuple[Array, Array]:
        share = hessian / np.maximum(self._information, self._floor)
        some = self._information > self._floor
        return 0.25 - share.max(axis=1), np.where(some, share - least[:, None], 0.0).min(axis=1)


class _MatrixBounds(_Bounds):
    """Bounds on matrices."""

    def __init__(
        self,
        uploads: Sequence[Upload],
        broadcast: Broadcast,
        longest: float,
        error: float,
    ) -> None:
        super().__init__(uploads, broadcast, longest, error)
        self._units = roots_of_diagonals(self._information, self._floor)
        self._scaled = _in_units(self._information, self._units)
        self._eigenvalues, self._vectors = np.linalg.eigh(self._scaled)

    def _lowest_information(self) -> Array:
        lowest: Array = self._eigenvalues[:, 0]
        return lowest

    def _spare(self) -> Array:
        last = self._eigenvalues.shape[1] - 1
        spare = last - self._duels.clip(max=last).astype(int)
        largest = np.take_along_axis(self._eigenvalues, spare[:, None], axis=1)[:, 0]
        return np.where(self._duels < last + 1, largest, 0.0)

    def _trace(self, matrices: Array) -> Array:
        return np.trace(matrices, axis1=1, axis2=2)

    def _squared_logits(self) -> Array:
        theta = self._theta * self._units
        squares = (theta[:, None, :] @ self._scaled @ theta[:, :, None])[:, 0, 0]
        return np.maximum(squares, 0.0) + self._rounding * (theta**2).sum(axis=1)

    def _squared_gradient(self) -> Array:
        parts = ((self._gradient / self._units)[:, None, :] @ self._vectors)[:, 0]
        held = np.maximum(self._eigenvalues, 0.0) + self._rounding[:, None]
        return (parts**2 / held).sum(axis=1)

    def _lowest_hessian(self, hessian: Array) -> Array:
        return _lowest(_in_units(hessian, roots_of_diagonals(hessian, self._floor)))

    def _lowest_differences(self, hessian: Array, least: Array) -> tuple[Array, Array]:
        scaled = _in_units(hessian, self._units)
        return (
            _lowest(self._scaled / 4.0 - scaled),
            _lowest(scaled - least[:, None, None] * self._scaled),
        )


def _exact_sign(values: Array) -> Array:
    """Return -inf for negative values: rounding errors of sums of squares cannot cause them."""
    return np.where(values < 0.0, -np.inf, values)


def _in_units(matrices: Array, units: Array) -> Array:
    """Return ``D^-1 M D^-1``, clipped to [-2, 2].

    Entries of a valid matrix are at most 1. LAPACK can fail on entries of 1e200.
    """
    return np.clip(matrices / units[:, :, None] / units[:, None, :], -2.0, 2.0)


def _lowest(matrices: Array) -> Array:
    """Return the smallest eigenvalues, NaN for NaN: LAPACK may raise an error."""
    is_finite = np.isfinite(matrices).all(axis=(1, 2))
    lowest = np.linalg.eigvalsh(np.where(is_finite[:, None, None], matrices, 0.0))[:, 0]
    return np.where(is_finite, lowest, np.nan)
