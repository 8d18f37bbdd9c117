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

**Other forms** (:mod:`fldb_flower.linalg.forms`). Behind a sketch ``B^T B + c I`` of W_new or H
is a matrix between ``B^T B`` and that, with a trace of at least \|B\|^2 + (m + 1) c, and c is 0 of
n <= m duels. Each bound is checked with the end that leaves more room, within the span of the
rows of both sketches, of g and of theta: elsewhere all hold. As these ends need not belong to the
same duels, g is held against H as well: mu'(z_max) W_new <= H, so that
mu'(z_max) g^T H^+ g <= n mu(q)^2. The diagonals say of each feature what matrices say for
d = 1, and that sqrt(s) <= sum_j \|theta_j\| sqrt(w_j).

**What passes.** Whatever full W_new and g are within these bounds are those of some n duels, if
residuals may be as large as mu(q): take X and r with W_new = X^T X and g = X^T r, r in the range
of X, and turn both by an orthogonal Q that makes the entries of Q r equal. (L then bounds their
root mean square length.) So a liar moves FLDB-OGD exactly as far as n such duels might. FLDB-ONS,
with A >= lambda_0 I + H, moves by \|A^-1 g\|_A <= mu(q) sqrt(n / mu'(z_max)), as with n real
duels. (Diagonals say less: there, g may be sqrt(d) times as long in these norms.) Answers turned
round pass, of course: they are what n people could have said.

**Rounding.** With D^2 the diagonal of W_new, all of it is checked for D^-1 W_new D^-1, D^-1 g and
D^-1 H D^-1, so that units of features do not matter. (Sketches are dominated by features in large
units; for them D^2 is the largest entry.) An entry of these is a sum of n terms, wrong by at most
n 2^-53 (1e-10 for a million duels summed one by one): so much is granted to each entry, and a
millionth to each bound. In single precision, where entries are wrong by 1e-7, it is 1e-6 and
a thousandth.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fldb_flower.bandit.preference import logistic
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.forms import TINY, Diagonal, Sketch, form_of, units_of

_CURVATURE_ERROR = 2.0**-50  # of mu' = mu (1 - mu), which far out is all of it
_GRANTED = {"float64": (1e-10, 1e-6), "float32": (1e-6, 1e-3)}  # to an entry, to a bound

Numbers = NDArray[np.float64]
Bound = tuple[str, Numbers, Numbers]  # reason, value, what it must not exceed: one per upload


def implausible(
    uploads: Sequence[Upload],
    broadcast: Broadcast,
    longest: float = math.inf,
    wire: str = "float64",
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
    wire : {"float64", "float32"}
        What the uploads' numbers were rounded to.
    """
    is_diagonal = isinstance(form_of(uploads[0].information), Diagonal)
    kind = _Diagonals if is_diagonal else _Matrices
    reasons = [""] * len(uploads)
    with np.errstate(over="ignore", invalid="ignore"):  # what is absurd may overflow, and is out
        for reason, value, bound in kind(uploads, broadcast, longest, wire).bounds():
            for place in np.flatnonzero(~(value <= bound)).tolist():
                reasons[place] = reasons[place] or reason.format(
                    n=uploads[place].num_duels, value=value[place], bound=bound[place]
                )
    return reasons


class _Claims(ABC):
    """What the uploads say, as arrays whose first axis is the uploads."""

    def __init__(
        self, uploads: Sequence[Upload], broadcast: Broadcast, longest: float, wire: str
    ) -> None:
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
        entry, self._slack = _GRANTED[wire]
        self._rounding = np.full(len(count), self._theta.size * entry)  # of an eigenvalue

    def bounds(self) -> Iterator[Bound]:
        """Yield every bound."""
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
            yield from self._of_hessian(self._hessian, largest, residual)
        if self._loss is not None:
            yield "loss is below 0", -self._loss, np.zeros_like(self._loss)
            yield (
                "loss is larger than {n} duels allow: {value:.4g} > n log(1 + e^q) = {bound:.4g}",
                self._loss,
                self._at_most(np.logaddexp(0.0, average)),
            )

    def _of_hessian(self, hessian: Numbers, largest: Numbers, residual: Numbers) -> Iterator[Bound]:
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
        wins = logistic(largest)
        least = wins * (1.0 - wins)
        above, below = self._lowest_differences(hessian, least)
        yield "Hessian is larger than W_new / 4", -above, self._rounding
        yield "Hessian is smaller than W_new and theta allow", -below, self._rounding
        yield (
            "gradient is longer than {n} duels of this Hessian allow:"
            " mu'(z_max) g^T H^-1 g = {value:.4g} > n mu(q)^2 = {bound:.4g}",
            np.maximum(least - _CURVATURE_ERROR, 0.0) * self._squared_gradient_by(hessian),
            self._at_most(residual**2),
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

    def _at_most(self, each: float | Numbers) -> Numbers:
        return self._duels * each * (1.0 + self._slack)

    @abstractmethod
    def _lowest_information(self) -> Numbers:
        """Return W_new's lowest eigenvalue, or entry, in units of its diagonal."""

    @abstractmethod
    def _spare(self) -> Numbers:
        """Return the largest eigenvalue that is 0 in all matrices of as many duels."""

    @abstractmethod
    def _trace(self, matrices: Numbers) -> Numbers:
        """Return the least trace that the matrices behind these can have."""

    @abstractmethod
    def _squared_logits(self) -> Numbers:
        """Return the most that ``theta^T W_new theta`` can be, rounded up."""

    @abstractmethod
    def _squared_gradient(self) -> Numbers:
        """Return the least that ``g^T W_new^+ g`` can be."""

    def _squared_gradient_by(self, hessian: Numbers) -> Numbers:
        """Return the least that ``g^T H^+ g`` can be; 0 where the other bounds see to it."""
        return np.zeros_like(self._duels)

    @abstractmethod
    def _lowest_hessian(self, hessian: Numbers) -> Numbers:
        """Return the Hessian's lowest eigenvalue, or entry, in units of its diagonal."""

    @abstractmethod
    def _lowest_differences(self, hessian: Numbers, least: Numbers) -> tuple[Numbers, Numbers]:
        """Return how low ``W_new / 4 - H`` and ``H - least W_new`` surely are, in W_new's units."""


class _Diagonals(_Claims):
    """Claims about each feature alone."""

    def _lowest_information(self) -> Numbers:
        return _never_below_0(self._information.min(axis=1))

    def _spare(self) -> Numbers:
        return np.zeros_like(self._duels)  # one duel may be in all directions

    def _trace(self, matrices: Numbers) -> Numbers:
        traces: Numbers = matrices.sum(axis=1)
        return traces

    def _squared_logits(self) -> Numbers:
        units = np.sqrt(np.maximum(self._information, 0.0))
        most: Numbers = (1.0 + self._rounding) * (units @ np.abs(self._theta)) ** 2
        return most

    def _squared_gradient(self) -> Numbers:
        squares: Numbers = (self._gradient**2 / np.maximum(self._information, TINY)).max(axis=1)
        return squares

    def _lowest_hessian(self, hessian: Numbers) -> Numbers:
        return _never_below_0(hessian.min(axis=1))

    def _lowest_differences(self, hessian: Numbers, least: Numbers) -> tuple[Numbers, Numbers]:
        share = hessian / np.maximum(self._information, TINY)
        some = self._information > TINY
        return 0.25 - share.max(axis=1), np.where(some, share - least[:, None], 0.0).min(axis=1)


class _Matrices(_Claims):
    """Claims about matrices, each known to be between two: the same two, unless it is a sketch."""

    def __init__(
        self, uploads: Sequence[Upload], broadcast: Broadcast, longest: float, wire: str
    ) -> None:
        super().__init__(uploads, broadcast, longest, wire)
        form = form_of(uploads[0].information)
        self._sketch = form if isinstance(form, Sketch) else None
        self._basis = None if self._sketch is None else self._span()
        least, most = self._between(self._information)
        self._units = self._units_of(most)
        self._least, self._most = (_in_units(each, self._units) for each in (least, most))
        self._eigenvalues, self._vectors = np.linalg.eigh(self._most)

    def _span(self) -> Numbers:
        """Return an orthonormal basis of what the sketches, g and theta span, (uploads, d, r)."""
        theta = np.broadcast_to(self._theta, self._gradient.shape)
        rows = [self._gradient[:, None], theta[:, None], self._information[:, :-1]]
        if self._hessian is not None:
            rows.append(self._hessian[:, :-1])
        basis: Numbers = np.linalg.qr(np.concatenate(rows, axis=1).swapaxes(1, 2))[0]
        return basis

    def _within(self, vectors: Numbers) -> Numbers:
        """Return vectors (uploads, d) in the basis's coordinates, (uploads, r)."""
        return vectors if self._basis is None else (vectors[:, None, :] @ self._basis)[:, 0]

    def _between(self, matrices: Numbers) -> tuple[Numbers, Numbers]:
        """Return the matrices between which the true ones are, in the basis's coordinates."""
        if self._basis is None:
            return matrices, matrices
        rows = matrices[:, :-1] @ self._basis
        least, constant = rows.swapaxes(1, 2) @ rows, matrices[:, -1, 0]
        return least, least + constant[:, None, None] * np.eye(least.shape[-1])

    def _units_of(self, matrices: Numbers) -> Numbers:
        units = units_of(matrices)
        if self._sketch is not None:
            units[:] = units.max(axis=1, keepdims=True)
        return units

    def _lowest_information(self) -> Numbers:
        lowest: Numbers = self._eigenvalues[:, 0]
        if self._sketch is None:
            return lowest
        return np.minimum(lowest, _never_below_0(self._information[:, -1, 0]))

    def _spare(self) -> Numbers:
        # Of n duels, all eigenvalues but the n largest are 0, unless a sketch left out some.
        last = self._eigenvalues.shape[1] - 1
        counted = last + 1 if self._sketch is None else self._sketch.rank + 1
        spare = last - self._duels.clip(max=last).astype(int)
        largest = np.take_along_axis(self._eigenvalues, spare[:, None], axis=1)[:, 0]
        return np.where(self._duels < counted, largest, 0.0)

    def _trace(self, matrices: Numbers) -> Numbers:
        if self._sketch is None:
            traces: Numbers = np.trace(matrices, axis1=1, axis2=2)
            return traces
        squares: Numbers = (matrices[:, :-1] ** 2).sum(axis=(1, 2))
        return squares + (self._sketch.rank + 1) * matrices[:, -1, 0]

    def _squared_logits(self) -> Numbers:
        theta = self._within(np.broadcast_to(self._theta, self._gradient.shape)) * self._units
        squares = (theta[:, None, :] @ self._most @ theta[:, :, None])[:, 0, 0]
        allowed: Numbers = np.maximum(squares, 0.0) + self._rounding * (theta**2).sum(axis=1)
        return allowed

    def _squared_gradient(self) -> Numbers:
        return self._held_by(self._units, self._eigenvalues, self._vectors)

    def _squared_gradient_by(self, hessian: Numbers) -> Numbers:
        if self._sketch is None:
            return super()._squared_gradient_by(hessian)
        most = self._between(hessian)[1]
        units = self._units_of(most)
        return self._held_by(units, *np.linalg.eigh(_in_units(most, units)))

    def _held_by(self, units: Numbers, eigenvalues: Numbers, vectors: Numbers) -> Numbers:
        gradient = self._within(self._gradient) / units
        parts = (gradient[:, None, :] @ vectors)[:, 0]
        held = np.maximum(eigenvalues, 0.0) + self._rounding[:, None]
        squares: Numbers = (parts**2 / held).sum(axis=1)
        return squares

    def _lowest_hessian(self, hessian: Numbers) -> Numbers:
        if self._sketch is not None:  # B^T B cannot be anything else
            return _never_below_0(hessian[:, -1, 0])
        lowest: Numbers = _lowest(_in_units(hessian, units_of(hessian)))
        return lowest

    def _lowest_differences(self, hessian: Numbers, least: Numbers) -> tuple[Numbers, Numbers]:
        low, high = (_in_units(each, self._units) for each in self._between(hessian))
        return (
            _lowest(self._most / 4.0 - low),
            _lowest(high - least[:, None, None] * self._least),
        )


def _never_below_0(values: Numbers) -> Numbers:
    """Return values that no rounding error makes negative, as they are sums of squares."""
    return np.where(values < 0.0, -np.inf, values)


def _in_units(matrices: Numbers, units: Numbers) -> Numbers:
    """Return ``D^-1 M D^-1``.

    No entry of a matrix that passes exceeds 1 then. What does is cut to 2, which does not pass
    either: LAPACK can fail on entries of 1e200.
    """
    return np.clip(matrices / units[:, :, None] / units[:, None, :], -2.0, 2.0)


def _lowest(matrices: Numbers) -> Array:
    return np.linalg.eigvalsh(matrices)[:, 0]
