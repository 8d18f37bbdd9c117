r"""Necessary conditions on an upload over any n duels, checked for all uploads at once.

An upload over differences X with logits z and residuals r has ``W_new = X^T X``, ``g = X^T r`` and
``H = X^T diag(mu'(z)) X``. With ``s = theta^T W_new theta`` and ``q = sqrt(s / n)``::

    rank W_new <= n,    trace W_new <= n L^2,    |g| <= n L mu(q),    loss <= n log(1 + e^q)
    g^T W_new^+ g <= n mu(q)^2,    mu'(z_max) W_new <= H <= W_new / 4

docs/plausibility.md derives these bounds, their variants for diagonals, and the tolerances for
rounding errors.

Each share of FLDB-Personal satisfies ``0 <= M_i <= I / v`` and ``|m_i| <= r(v)`` with the v of the
broadcast that the agent had received when it computed the share. A predicted answer has an excess
log loss from 0 to 1 nat. The change of the shares of k agents, with n new answers and the smallest
v so far, v_0, therefore satisfies::

    -k I / v_0 <= change of M <= k I / v_0,    |change of m| <= 2 k r(v_0)
    0 <= excess losses <= n,    0 <= squares <= n L^2

An agent with n_i answers so far has ``M_i <= H_i <= n_i L^2 / 4 I``, and from
``|b_i| <= |H_i theta_i| + |grad L_i|`` follows ``|m_i| <= n_i (L + L^2 R / 4)``, where R is the
largest length of theta_i that r allows. The smaller of two bounds holds.

Without new answers, nothing changes. v and r are in units of the scale of the features, which may
have changed since a share was computed: it may have been twice as large. Until the server knows the
scale, an agent uses its own: k times the scale is then at most ``squares / 10``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from fldb_flower.bandit.estimate import MAX_EXCESS, CommonPrior, longest_shift, scale_of
from fldb_flower.bandit.preference import link, logistic
from fldb_flower.federation.exchange import Broadcast, ShareUpload, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.linear import TINY, roots_of_diagonals

_ENTRY, _SLACK = 1e-10, 1e-6  # relative errors that are tolerated in entries and in bounds
_DRIFT = 2.0  # how much larger the scale of the features may have been when a share was computed

Bound = tuple[str, Array, Array]  # reason, and of each upload: value, upper bound


def implausible(
    uploads: Sequence[Upload],
    broadcast: Broadcast,
    longest: float = math.inf,
    *,
    weighted: bool = False,
) -> list[str]:
    """Return for each upload the first bound that it violates, or "" if there is none.

    ``longest`` is L, an upper bound of the length of differences; infinite if it is not known. With
    the limit on a person (``privacy.unit=person``), duels are ``weighted``: by at most 1, which is
    not known. s is then no bound of a logit, and only L is.
    """
    kind = _DiagonalBounds if uploads[0].information.ndim == 1 else _Bounds
    reasons = [""] * len(uploads)
    with np.errstate(over="ignore", invalid="ignore"):  # NaN and infinity are violations
        for reason, value, bound in kind(uploads, broadcast, longest).bounds(weighted=weighted):
            for place in np.flatnonzero(~(value <= bound)).tolist():
                reasons[place] = reasons[place] or reason.format(
                    n=uploads[place].num_duels, value=value[place], bound=bound[place]
                )
    return reasons


class _Bounds:
    """Bounds on uploads, as arrays whose first axis is the uploads."""

    def __init__(self, uploads: Sequence[Upload], broadcast: Broadcast, longest: float) -> None:
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
        self._rounding = np.full(len(count), self._theta.size * _ENTRY)  # of an eigenvalue
        self._decompose()

    def bounds(self, *, weighted: bool) -> Iterator[Bound]:
        """Yield all bounds."""
        parts = (self._gradient, self._information, self._hessian, self._loss)
        flat = [np.abs(part).reshape(len(part), -1) for part in parts if part is not None]
        largest_number = np.concatenate(flat, axis=1).max(axis=1)
        is_any = np.where(self._is_empty, 0.0, np.inf)
        yield "numbers other than 0, of no duels", largest_number, is_any
        yield "W_new is not positive semi-definite", -self._lowest_information(), self._rounding
        yield "W_new has more directions than {n} duels", self._spare(), self._rounding
        yield (
            "W_new is larger than {n} duels allow:"
            " trace = {value:.4g} > n L^2 = {bound:.4g} (L: max-difference)",
            self._trace(self._information),
            self._at_most(self._longest**2),
        )
        norm = float(np.linalg.norm(self._theta))
        largest = np.full(len(self._duels), norm * self._longest if norm else 0.0)  # z_max
        average = largest  # q
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
        lowest = self._lowest_hessian(hessian)
        yield "Hessian is not positive semi-definite", -lowest, self._rounding
        if not self._is_fresh:
            yield (
                "Hessian is larger than {n} duels allow:"
                " trace = {value:.4g} > n L^2 / 4 = {bound:.4g} (L: max-difference)",
                self._trace(hessian),
                self._at_most(self._longest**2 / 4.0),
            )
            return
        above, below = self._lowest_differences(hessian, link(largest)[1])
        yield "Hessian is larger than W_new / 4", -above, self._rounding
        yield "Hessian is smaller than W_new and theta allow", -below, self._rounding

    def _at_most(self, each: float | Array) -> Array:
        return self._duels * each * (1.0 + _SLACK)

    # Of matrices; those of diagonals are below. Eigenvalues are those of matrices in units of the
    # features, whose diagonal is 1.

    def _decompose(self) -> None:
        self._units = roots_of_diagonals(self._information)
        self._scaled = _in_units(self._information, self._units)
        self._eigenvalues, self._vectors = np.linalg.eigh(self._scaled)

    def _lowest_information(self) -> Array:
        """Return the smallest eigenvalue of the scaled W_new, or the smallest entry."""
        lowest: Array = self._eigenvalues[:, 0]
        return lowest

    def _spare(self) -> Array:
        """Return the (n + 1)-th largest eigenvalue, which is 0 for n duels."""
        last = self._eigenvalues.shape[1] - 1
        spare = last - self._duels.clip(max=last).astype(int)
        largest = np.take_along_axis(self._eigenvalues, spare[:, None], axis=1)[:, 0]
        return np.where(self._duels < last + 1, largest, 0.0)

    def _trace(self, matrices: Array) -> Array:
        return np.trace(matrices, axis1=1, axis2=2)

    def _squared_logits(self) -> Array:
        """Return the largest ``theta^T W_new theta``, rounded up."""
        theta = self._theta * self._units
        squares = (theta[:, None, :] @ self._scaled @ theta[:, :, None])[:, 0, 0]
        return np.maximum(squares, 0.0) + self._rounding * (theta**2).sum(axis=1)

    def _squared_gradient(self) -> Array:
        """Return the smallest ``g^T W_new^+ g``."""
        parts = ((self._gradient / self._units)[:, None, :] @ self._vectors)[:, 0]
        held = np.maximum(self._eigenvalues, 0.0) + self._rounding[:, None]
        return (parts**2 / held).sum(axis=1)

    def _lowest_hessian(self, hessian: Array) -> Array:
        """Return the smallest eigenvalue of the scaled Hessian, or the smallest entry."""
        return _lowest(_in_units(hessian, roots_of_diagonals(hessian)))

    def _lowest_differences(self, hessian: Array, least: Array) -> tuple[Array, Array]:
        """Return the smallest eigenvalues of ``W_new / 4 - H`` and ``H - least W_new``, scaled."""
        scaled = _in_units(hessian, self._units)
        return (
            _lowest(self._scaled / 4.0 - scaled),
            _lowest(scaled - least[:, None, None] * self._scaled),
        )


class _DiagonalBounds(_Bounds):
    """Bounds on diagonals, for each feature separately."""

    def _decompose(self) -> None:
        pass

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
        return (self._gradient**2 / np.maximum(self._information, TINY)).max(axis=1)

    def _lowest_hessian(self, hessian: Array) -> Array:
        return _exact_sign(hessian.min(axis=1))

    def _lowest_differences(self, hessian: Array, least: Array) -> tuple[Array, Array]:
        share = hessian / np.maximum(self._information, TINY)
        some = self._information > TINY
        return 0.25 - share.max(axis=1), np.where(some, share - least[:, None], 0.0).min(axis=1)


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


def implausible_shares(
    uploads: Sequence[ShareUpload],
    answers: Sequence[int],
    broadcast: Broadcast,
    *,
    ridge: float,
    longest: float = math.inf,
) -> list[str]:
    """Return for each upload the first bound that it violates, or "" if there is none.

    ``answers`` are all answers so far of the agents of each upload, and ``ridge`` is the setting
    ``personal_ridge``. Uploads of devices have no outcomes; each is of one agent.
    """
    reasons = []
    for upload, count in zip(uploads, answers, strict=True):
        agents = upload.outcomes[0].agents if upload.outcomes else 1
        bounds = _of_shares(upload, agents, count, broadcast, ridge, longest)
        found = (
            f"{name} = {value:.4g}, more than {agents} agents and {upload.num_duels} duels"
            f" allow: {bound:.4g}"
            for name, value, bound in bounds
            if not value <= bound * (1.0 + _SLACK)
        )
        reasons.append(next(found, ""))
    return reasons


def _of_shares(  # noqa: PLR0917
    upload: ShareUpload, agents: int, total: int, broadcast: Broadcast, ridge: float, longest: float
) -> Iterator[tuple[str, float, float]]:
    """Yield names, values and upper bounds."""
    duels, prior = upload.num_duels, broadcast.play and broadcast.play.estimate
    assert isinstance(prior, CommonPrior)
    yield "the mean squared length of differences", -upload.squares, 0.0
    yield "the mean squared length of differences", upload.squares, _product(duels, longest**2)
    yield "the change of members", abs(upload.members), float(agents)
    yield "a log loss", -float(upload.losses.min()), 0.0
    yield "a log loss", float(upload.losses.max()), MAX_EXCESS * duels
    total = total if duels else 0
    changing = agents if duels else 0
    scale = _DRIFT * (prior.scale or float(scale_of(upload.squares)) / agents)
    variance = broadcast.lowest_variance / scale
    values = np.linalg.eigvalsh(upload.precision)
    largest = min(changing / variance, _product(total, longest**2 / 4.0))
    yield "the largest eigenvalue of the change of M", values[-1], largest
    yield "the negative of the smallest eigenvalue of the change of M", -values[0], largest
    radius = longest_shift(len(upload.shift), ridge * scale, variance)  # r
    each = longest + longest**2 / 4.0 * radius * variance
    length = float(np.linalg.norm(upload.shift))
    most = 2.0 * min(changing * radius, _product(total, each))
    yield "the length of the change of m", length, most


def _product(count: int, bound: float) -> float:
    return count * bound if count else 0.0
