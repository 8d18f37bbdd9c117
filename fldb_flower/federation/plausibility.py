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
    -(t L)^2 I <= change of G <= (t L)^2 I

for t answers of these agents so far. With a learned V, v_0 is the smallest eigenvalue of V so far.
An agent with n_i answers so far has ``M_i <= H_i <= n_i L^2 / 4 I``, and from
``|b_i| <= |H_i theta_i| + |grad L_i|`` follows ``|m_i| <= n_i (L + L^2 R / 4)``, where R is the
largest length of theta_i that r allows. The smaller of two bounds holds.

Without new answers, nothing changes. v and r are in units of the scale of the features, which may
have changed since a share was computed: it may have been twice as large. Until the server knows the
scale, an agent uses its own: k times the scale is then at most ``squares / 10``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fldb_flower.bandit.estimate import MAX_EXCESS, CommonPrior, longest_shift, scale_of
from fldb_flower.bandit.preference import link, logistic
from fldb_flower.federation.exchange import Broadcast, ShareUpload, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.linear import TINY, roots_of_diagonals

_ENTRY, _SLACK = 1e-10, 1e-6  # relative errors that are tolerated in entries and in bounds
_DRIFT = 2.0  # how much larger the scale of the features may have been when a share was computed

_TRACE = (
    "{} is larger than {{n}} duels allow:"
    " trace = {{value:.4g}} > {} = {{bound:.4g}} (L: max-difference)"
)
_GRADIENT = (
    "gradient is longer than {n} duels allow:"
    " |g| = {value:.4g} > n L mu(q) = {bound:.4g} (L: max-difference)"
)
_STEP = (
    "gradient is longer than {n} duels of this W_new allow:"
    " g^T W_new^-1 g = {value:.4g} > n mu(q)^2 = {bound:.4g}"
)
_LOSS = "loss is larger than {n} duels allow: {value:.4g} > n log(1 + e^q) = {bound:.4g}"

Bound = tuple[str, Array, Array]  # reason, and of each upload: value, upper bound


def implausible(
    uploads: Sequence[Upload],
    broadcast: Broadcast,
    longest: float = math.inf,
    *,
    weighted: bool = False,
) -> list[str]:
    """Return for each upload the first bound that it violates, or "" if there is none.

    ``longest`` is L, an upper bound of the length of differences; infinite if it is unknown. With
    the limit on a person (``privacy.unit=person``), duels are ``weighted`` by unknown factors of at
    most 1. Then s does not bound the logits, and only L does.
    """
    reasons = [""] * len(uploads)
    with np.errstate(over="ignore", invalid="ignore"):  # NaN and infinity are violations
        for reason, value, bound in _bounds(uploads, broadcast, longest, weighted=weighted):
            for place in np.flatnonzero(~(value <= bound)).tolist():
                reasons[place] = reasons[place] or reason.format(
                    n=uploads[place].num_duels, value=value[place], bound=bound[place]
                )
    return reasons


class _Sizes(NamedTuple):
    """Of each upload, in units of the features: then the diagonal of W_new is 1."""

    lowest: Array  # eigenvalue of W_new, or entry of a diagonal
    spare: Array  # the (n + 1)-th largest eigenvalue, which is 0 for n duels
    squares: Array  # the largest s
    length: Array  # the smallest g^T W_new^+ g
    compared: Callable[[Array, Array], tuple[Array, Array, Array]]
    """(H, least) -> the lowest eigenvalues or entries of H, W_new / 4 - H and H - least W_new."""


def _bounds(
    uploads: Sequence[Upload], broadcast: Broadcast, longest: float, *, weighted: bool
) -> Iterator[Bound]:
    def array(name: str) -> Array:
        return np.array([getattr(upload, name) for upload in uploads], dtype=np.float64)

    def at_most(each: float | Array) -> Array:
        return duels * each * (1.0 + _SLACK)

    theta, count = broadcast.theta_hat, array("num_duels")
    assert theta is not None
    duels = np.maximum(count, 1.0)  # an upload of 0 duels has a bound of its own
    parts = {name: array(name) for name in ("gradient", "information")}
    parts |= {name: array(name) for name in ("hessian", "loss") if getattr(broadcast, name)}
    gradient, information = parts["gradient"], parts["information"]
    flat = [np.abs(part).reshape(len(count), -1) for part in parts.values()]
    largest_number = np.concatenate(flat, axis=1).max(axis=1)
    yield "numbers other than 0, of no duels", largest_number, np.where(count, np.inf, 0.0)
    rounding = np.full(len(count), theta.size * _ENTRY)  # of an eigenvalue
    of_form = _of_diagonals if information.ndim == 2 else _of_matrices
    sizes = of_form(gradient, information, theta, duels, rounding)
    yield "W_new is not positive semi-definite", -sizes.lowest, rounding
    yield "W_new has more directions than {n} duels", sizes.spare, rounding
    yield _TRACE.format("W_new", "n L^2"), _traces(information), at_most(longest**2)
    is_fresh = broadcast.scope == "fresh"  # W_new is over the same duels as g and H
    norm = float(np.linalg.norm(theta))
    largest = np.full(len(duels), norm * longest if norm else 0.0)  # z_max
    average = largest  # q
    if is_fresh:
        if not weighted:
            largest = np.minimum(largest, np.sqrt(sizes.squares))
        average = np.minimum(average, np.sqrt(sizes.squares / duels))
    residual = logistic(average)
    yield _GRADIENT, np.linalg.norm(gradient, axis=1), at_most(longest * residual)
    if is_fresh:
        yield _STEP, sizes.length, at_most(residual**2)
    if broadcast.hessian:
        lowest, above, below = sizes.compared(parts["hessian"], link(largest)[1])
        yield "Hessian is not positive semi-definite", -lowest, rounding
        if is_fresh:
            yield "Hessian is larger than W_new / 4", -above, rounding
            yield "Hessian is smaller than W_new and theta allow", -below, rounding
        else:
            traces, most = _traces(parts["hessian"]), at_most(longest**2 / 4.0)
            yield _TRACE.format("Hessian", "n L^2 / 4"), traces, most
    if broadcast.loss:
        yield "loss is below 0", -parts["loss"], np.zeros_like(count)
        yield _LOSS, parts["loss"], at_most(np.logaddexp(0.0, average))


def _of_matrices(
    gradient: Array, information: Array, theta: Array, duels: Array, rounding: Array
) -> _Sizes:
    units = roots_of_diagonals(information)
    scaled = _in_units(information, units)
    eigenvalues, vectors = np.linalg.eigh(scaled)
    last = eigenvalues.shape[1] - 1
    place = last - duels.clip(max=last).astype(int)
    spare = np.take_along_axis(eigenvalues, place[:, None], axis=1)[:, 0]
    theta = theta * units
    squares = (theta[:, None, :] @ scaled @ theta[:, :, None])[:, 0, 0]
    parts = ((gradient / units)[:, None, :] @ vectors)[:, 0]
    held = np.maximum(eigenvalues, 0.0) + rounding[:, None]

    def compared(hessian: Array, least: Array) -> tuple[Array, Array, Array]:
        own, other = _in_units(hessian, roots_of_diagonals(hessian)), _in_units(hessian, units)
        below = other - least[:, None, None] * scaled
        return _lowest(own), _lowest(scaled / 4.0 - other), _lowest(below)

    return _Sizes(
        lowest=eigenvalues[:, 0],
        spare=np.where(duels < last + 1, spare, 0.0),
        squares=np.maximum(squares, 0.0) + rounding * (theta**2).sum(axis=1),
        length=(parts**2 / held).sum(axis=1),
        compared=compared,
    )


def _of_diagonals(
    gradient: Array, information: Array, theta: Array, duels: Array, rounding: Array
) -> _Sizes:
    units, held = np.sqrt(np.maximum(information, 0.0)), np.maximum(information, TINY)

    def compared(hessian: Array, least: Array) -> tuple[Array, Array, Array]:
        share = hessian / held
        below = np.where(information > TINY, share - least[:, None], 0.0).min(axis=1)
        return _exact_sign(hessian.min(axis=1)), 0.25 - share.max(axis=1), below

    return _Sizes(
        lowest=_exact_sign(information.min(axis=1)),
        spare=np.zeros_like(duels),  # one duel may have all features
        squares=(1.0 + rounding) * (units @ np.abs(theta)) ** 2,
        length=(gradient**2 / held).max(axis=1),
        compared=compared,
    )


def _traces(matrices: Array) -> Array:
    return matrices.sum(axis=1) if matrices.ndim == 2 else np.trace(matrices, axis1=1, axis2=2)


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
    if upload.scatter is not None:
        values = np.linalg.eigvalsh(upload.scatter)
        most = _product(total, longest) ** 2
        yield "the largest eigenvalue of the change of G", values[-1], most
        yield "the negative of the smallest eigenvalue of the change of G", -values[0], most
    radius = longest_shift(len(upload.shift), ridge * scale) / variance  # r
    each = longest + longest**2 / 4.0 * radius * variance
    length = float(np.linalg.norm(upload.shift))
    most = 2.0 * min(changing * radius, _product(total, each))
    yield "the length of the change of m", length, most


def _product(count: int, bound: float) -> float:
    return count * bound if count else 0.0
