r"""What no honest upload says: bounds that hold for any n duels, checked for all uploads at once.

Let the rows of X be the differences x_i of n duels, z_i = theta . x_i their logits,
r_i = mu(z_i) - y_i with 0 <= y_i <= 1, and c_i = mu'(z_i). An upload over these duels is::

    W_new = X^T X,    g = X^T r,    H = X^T diag(c) X

- W_new is positive semi-definite, with at most n directions. Its trace is the sum of the squared
  lengths: at most n L^2 where no difference is longer than L.
- theta knows more. The squared logits sum to s = theta^T W_new theta; let q = sqrt(s / n). No
  logit exceeds sqrt(s), nor \|theta\| L: let z_max be the smaller of the two.
- \|r_i\| <= mu(\|z_i\|). As mu(sqrt(a))^2 is concave in a, Jensen's inequality gives
  \|r\|^2 <= n mu(q)^2, between n / 4 and n. By Cauchy-Schwarz, for every direction v,
  (v . g)^2 = (X v . r)^2 <= (v^T W_new v) n mu(q)^2: g is in the range of W_new, and
  g^T W_new^+ g <= n mu(q)^2.
- mu'(z) falls with \|z\|: mu'(z_max) W_new <= H <= W_new / 4, as matrices.
- log(1 + exp(sqrt(a))) is concave in a too: the loss is at most n log(1 + exp(q)).

An upload over all duels (FLDB-GD) has the W_new of the fresh ones alone. What remains is
q <= \|theta\| L, and with it \|g\| <= n L mu(q) and trace(H) <= n L^2 / 4; without L, nothing.

**What passes.** Whatever W_new and g are within these bounds are those of some n duels, if
residuals may be as large as mu(q): take X and r with W_new = X^T X and g = X^T r, r in the range
of X, and turn both by an orthogonal Q that makes the entries of Q r equal. (L then bounds their
root mean square length.) So a liar moves FLDB-OGD exactly as far as n such duels might. FLDB-ONS,
with A >= lambda_0 I + H, moves by \|A^-1 g\|_A <= mu(q) sqrt(n / mu'(z_max)), as with n real
duels. Answers turned round pass, of course: they are what n people could have said.

**Rounding.** With D^2 the diagonal of W_new, all of it is checked for D^-1 W_new D^-1, D^-1 g and
D^-1 H D^-1, so that units of features do not matter. An entry of these is a sum of n
terms, wrong by at most n 2^-53 (1e-10 for a million duels summed one by one): so much is
granted to each entry, and a millionth to each bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fldb_flower.arrays import Array
from fldb_flower.federation import Broadcast, Upload
from fldb_flower.preference import logistic

_ROUNDING = 1e-10
_SLACK = 1.0 + 1e-6
_TINY = 1e-150  # no diagonal entry is counted as less

Numbers = NDArray[np.float64]
Bound = tuple[str, Numbers, Numbers]  # reason, value, what it must not exceed: one per upload


def implausible(
    uploads: Sequence[Upload], broadcast: Broadcast, longest: float = math.inf
) -> list[str]:
    """Say of each upload why no honest node sent it; "" if one may have.

    See the module for the bounds and why they hold. Whether the number of duels is the one
    that was asked for is checked elsewhere.

    Parameters
    ----------
    uploads : sequence of Upload
        At least one, decoded: their numbers are finite.
    broadcast : Broadcast
        What they answer; ``theta_hat`` is not None.
    longest : float
        L; infinite if it is not known.
    """
    reasons = [""] * len(uploads)
    with np.errstate(over="ignore", invalid="ignore"):  # what is absurd may overflow, and is out
        for reason, value, bound in _Claims(uploads, broadcast, longest).bounds():
            for place in np.flatnonzero(~(value <= bound)).tolist():
                reasons[place] = reasons[place] or reason.format(
                    n=uploads[place].num_duels, value=value[place], bound=bound[place]
                )
    return reasons


class _Claims:
    """What the uploads say, as arrays whose first axis is the uploads."""

    def __init__(self, uploads: Sequence[Upload], broadcast: Broadcast, longest: float) -> None:
        def array(name: str) -> Numbers:
            return np.array([getattr(upload, name) for upload in uploads], dtype=np.float64)

        count = array("num_duels")
        self._is_empty = count == 0
        self._duels = np.maximum(count, 1.0)  # of no duels, all must be 0 anyway
        self._gradient, self._information = array("gradient"), array("information")
        self._hessian = array("hessian") if broadcast.hessian else None
        self._loss = array("loss") if broadcast.loss else None
        assert broadcast.theta_hat is not None
        self._theta: Array = broadcast.theta_hat
        self._longest = longest
        self._is_fresh = broadcast.scope == "fresh"  # W_new is of the same duels as the others
        self._rounding = np.full(len(count), self._theta.size * _ROUNDING)  # of an eigenvalue

    def bounds(self) -> Iterator[Bound]:
        """Yield every bound."""
        yield (
            "numbers other than 0, of no duels",
            self._absolute(),
            np.where(self._is_empty, 0.0, np.inf),
        )
        units = _units(self._information)
        information = _in_units(self._information, units)
        eigenvalues, vectors = np.linalg.eigh(information)
        yield from self._of_information(eigenvalues)

        largest = average = self._farthest()  # z_max and q
        if self._is_fresh:
            squares = self._squared_logits(information, units)  # s
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
            parts = ((self._gradient / units)[:, None, :] @ vectors)[:, 0]
            held = np.maximum(eigenvalues, 0.0) + self._rounding[:, None]
            yield (
                "gradient is longer than {n} duels of this W_new allow:"
                " g^T W_new^-1 g = {value:.4g} > n mu(q)^2 = {bound:.4g}",
                (parts**2 / held).sum(axis=1),
                self._at_most(residual**2),
            )
        if self._hessian is not None:
            yield from self._of_hessian(self._hessian, information, units, largest)
        if self._loss is not None:
            yield "loss is below 0", -self._loss, np.zeros_like(self._loss)
            yield (
                "loss is larger than {n} duels allow: {value:.4g} > n log(1 + e^q) = {bound:.4g}",
                self._loss,
                self._at_most(np.logaddexp(0.0, average)),
            )

    def _of_information(self, eigenvalues: Numbers) -> Iterator[Bound]:
        yield "W_new is not positive semi-definite", -eigenvalues[:, 0], self._rounding
        # Of n duels, all but the n largest are 0.
        spare = self._theta.size - 1 - self._duels.clip(max=self._theta.size - 1).astype(int)
        largest_spare = np.take_along_axis(eigenvalues, spare[:, None], axis=1)[:, 0]
        yield (
            "W_new has more directions than {n} duels",
            np.where(self._duels < self._theta.size, largest_spare, 0.0),
            self._rounding,
        )
        yield (
            "W_new is larger than {n} duels allow:"
            " trace = {value:.4g} > n L^2 = {bound:.4g} (L: max-difference)",
            np.trace(self._information, axis1=1, axis2=2),
            self._at_most(self._longest**2),
        )

    def _of_hessian(
        self, hessian: Numbers, information: Numbers, units: Numbers, largest: Numbers
    ) -> Iterator[Bound]:
        own = _in_units(hessian, _units(hessian))
        yield "Hessian is not positive semi-definite", -_lowest(own), self._rounding
        if not self._is_fresh:
            yield (
                "Hessian is larger than {n} duels allow:"
                " trace = {value:.4g} > n L^2 / 4 = {bound:.4g} (L: max-difference)",
                np.trace(hessian, axis1=1, axis2=2),
                self._at_most(self._longest**2 / 4.0),
            )
            return
        scaled, wins = _in_units(hessian, units), logistic(largest)
        least = (wins * (1.0 - wins))[:, None, None]
        yield "Hessian is larger than W_new / 4", -_lowest(information / 4 - scaled), self._rounding
        yield (
            "Hessian is smaller than W_new and theta allow",
            -_lowest(scaled - least * information),
            self._rounding,
        )

    def _absolute(self) -> Numbers:
        parts = (self._gradient, self._information, self._hessian, self._loss)
        flat = [np.abs(part).reshape(len(part), -1) for part in parts if part is not None]
        absolute: Numbers = np.concatenate(flat, axis=1).max(axis=1)
        return absolute

    def _farthest(self) -> Numbers:
        """Return ``||theta|| L``, which no logit exceeds."""
        norm = float(np.linalg.norm(self._theta))
        return np.full(len(self._duels), norm * self._longest if norm else 0.0)

    def _squared_logits(self, information: Numbers, units: Numbers) -> Numbers:
        """Return ``theta^T W_new theta``, rounded up."""
        theta = self._theta * units
        squares = (theta[:, None, :] @ information @ theta[:, :, None])[:, 0, 0]
        allowed: Numbers = np.maximum(squares, 0.0) + self._rounding * (theta**2).sum(axis=1)
        return allowed

    def _at_most(self, each: float | Numbers) -> Numbers:
        return self._duels * each * _SLACK


def _units(matrices: Numbers) -> Numbers:
    """Return D: the root of each matrix's diagonal, (uploads, d)."""
    diagonal = np.diagonal(matrices, axis1=1, axis2=2)
    units: Numbers = np.sqrt(np.maximum(diagonal, _TINY))
    return units


def _in_units(matrices: Numbers, units: Numbers) -> Numbers:
    """Return ``D^-1 M D^-1``.

    No entry of a matrix that passes exceeds 1 then. What does is cut to 2, which does not pass
    either: LAPACK can fail on entries of 1e200.
    """
    return np.clip(matrices / units[:, :, None] / units[:, None, :], -2.0, 2.0)


def _lowest(matrices: Numbers) -> Array:
    return np.linalg.eigvalsh(matrices)[:, 0]
