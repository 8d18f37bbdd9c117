"""Minimising the federated loss by exchanges: Newton, L-BFGS, gradient descent.

Each solver starts from an upload at ``theta`` and evaluates further points by exchanges.
The objective is ``sum of the duels' losses + ridge/2 ||theta||^2`` (paper, Eq. 1).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fldb_flower.bandit.newton import RESTART, is_too_long, shortened
from fldb_flower.errors import ConvergenceError
from fldb_flower.federation.exchange import Upload
from fldb_flower.linalg.arrays import Array, import_torch, namespace
from fldb_flower.linalg.forms import Full, form_of

Evaluate = Callable[[Array], Upload]
Secants = deque[tuple[Array, Array]]  # steps taken, and by how much each changed the gradient

TOLERANCE = 1e-20
"""Newton decrement per duel, ``g^T H^-1 g / n``, at which the minimiser counts as found.

Twice the loss left to gain by a step: the same whatever the scale of the features. For
features of order 1 it is a gradient norm of 1e-10 per duel.
"""

SINGLE_TOLERANCE = 1e-12
"""The same where numbers travel in single precision, whose rounding errors amount to 1e-15."""

MAX_EXCHANGES = 200
_LOG = logging.getLogger(__name__)
_LBFGS_HISTORY = 10  # steps remembered
_GRADIENT = 1e-10  # norm per duel that L-BFGS aims at,
GRADIENT_AT_MOST = 1e-6  # and must reach,
SINGLE_GRADIENT_AT_MOST = 1e-4  # where losses are sums in single precision, too


@dataclass(frozen=True)
class Minimum:
    """A minimiser, and the last upload evaluated on the way (at it, for ``settled=0``)."""

    theta: Array
    upload: Upload


def newton(
    evaluate: Evaluate,
    start: Upload,
    theta: Array,
    ridge: float,
    *,
    tolerance: float = TOLERANCE,
    settled: float = 0.0,
    at_most: int = MAX_EXCHANGES,
    or_closest: bool = False,
) -> Minimum:
    r"""Minimise by damped Newton steps; uploads carry the Hessian.

    The loss is convex, so the slope along a step tells whether the minimum was passed: then
    the step is shortened to where a straight line through both slopes crosses zero. No loss
    value has to travel, and neither separable duels nor extreme logits make it diverge.

    Where uploads carry the Hessian's diagonal or a sketch of it, steps are those of L-BFGS
    that begins with its inverse: more exchanges, to the same minimiser.

    A warm start may lie where the Hessian has all but vanished and steps are wild. If one has
    to be shortened much, the search begins anew at 0, where every duel's curvature is largest.

    Parameters
    ----------
    evaluate : callable
        One exchange: the upload at theta (d,).
    start : Upload
        The upload at ``theta``.
    theta : Array
        Where to begin, (d,).
    ridge : float
        Above 0.
    tolerance : float
        Decrement per duel at which the minimiser counts as found.
    settled : float
        Decrement per duel below which a step is trusted without an exchange to verify it:
        Newton squares the error.
    at_most : int
        Exchanges to give up after.
    or_closest : bool
        Whether to warn then, and return the point with the smallest decrement, where others
        would get the error. Uploads of nodes that lie, or fail, need not belong to any loss.

    Raises
    ------
    ConvergenceError
        The gradient did not become small enough.
    """
    xp = namespace(theta)
    upload, exchanges = start, 0
    warm = bool(xp.any(theta != 0))
    closest = math.inf, Minimum(theta, upload)
    is_exact = isinstance(form_of(start.hessian), Full)
    secants: Secants = deque(maxlen=0 if is_exact else _LBFGS_HISTORY)
    while True:
        gradient = upload.gradient + ridge * theta
        step = -_direction(gradient, upload.hessian, ridge, secants)
        slope = gradient @ step  # below 0
        decrement = -slope / max(upload.num_duels, 1)
        if decrement <= tolerance:
            return Minimum(theta, upload)
        if decrement <= settled:
            return Minimum(theta + step, upload)
        if decrement < closest[0]:
            closest = decrement, Minimum(theta, upload)
        length = 1.0
        while True:
            if exchanges == at_most:
                error = _not_found(_norm(gradient), upload, at_most)
                if not or_closest:
                    raise error
                _LOG.warning("%s; going on from the closest point", error)
                return closest[1]
            exchanges += 1
            trial = theta + length * step
            answer = evaluate(trial)
            end_slope = (answer.gradient + ridge * trial) @ step
            if not is_too_long(slope, end_slope):
                break
            length = shortened(length, slope, end_slope)
            if warm and length < RESTART:
                warm, trial = False, xp.zeros_like(theta)
                exchanges += 1
                answer = evaluate(trial)
                break
        secants.append((trial - theta, answer.gradient + ridge * trial - gradient))
        theta, upload = trial, answer


def _direction(gradient: Array, hessian: Array, ridge: float, secants: Secants) -> Array:
    """Return ``(H + ridge I)^-1 gradient``, corrected by what steps did to the gradient.

    The two loops of L-BFGS (Nocedal and Wright 2006, Algorithm 7.4), with the inverse of the
    approximate Hessian in the middle.
    """
    usable = [
        (step, change, 1.0 / (step @ change)) for step, change in secants if step @ change > 0
    ]
    shares = []
    for step, change, weight in reversed(usable):
        shares.append(weight * (step @ gradient))
        gradient = gradient - shares[-1] * change
    direction = form_of(hessian).solve(hessian, gradient, ridge)
    for (step, change, weight), share in zip(usable, reversed(shares), strict=True):
        direction = direction + (share - weight * (change @ direction)) * step
    return direction


def gradient_descent(
    evaluate: Evaluate, start: Upload, theta: Array, ridge: float, *, steps: int, step_size: float
) -> Array:
    """Take M steps of size eta (Algorithm 4, lines 2 and 3); the first uses ``start``."""
    upload = start
    for step in range(steps):
        if step:
            upload = evaluate(theta)
        theta = theta - step_size * (upload.gradient + ridge * theta)
    return theta


def lbfgs(
    evaluate: Evaluate,
    start: Upload,
    theta: Array,
    ridge: float,
    *,
    gradient_at_most: float = GRADIENT_AT_MOST,
) -> Array:
    """Minimise with PyTorch's L-BFGS and strong Wolfe line search, as the paper did (Sec. 5).

    Each call of its closure is one exchange; uploads carry the loss.

    Raises
    ------
    SettingsError
        PyTorch is not installed.
    ConvergenceError
        The gradient norm per duel stayed above ``gradient_at_most``.
    """
    torch = import_torch("solver=lbfgs", "solver=newton")
    point = torch.tensor(np.asarray(theta), dtype=torch.float64, requires_grad=True)
    duels = max(start.num_duels, 1)
    optimizer = torch.optim.LBFGS(
        [point],
        max_iter=MAX_EXCHANGES,
        max_eval=MAX_EXCHANGES,
        tolerance_grad=_GRADIENT * duels,
        tolerance_change=0.0,
        history_size=_LBFGS_HISTORY,
        line_search_fn="strong_wolfe",
    )
    best = [math.inf, theta]  # gradient norm, theta
    first = [start]

    def closure() -> float:
        here = point.detach().numpy().copy()
        upload = first.pop() if first else evaluate(here)
        gradient = upload.gradient + ridge * here
        if _norm(gradient) < best[0]:
            best[:] = [_norm(gradient), here]
        point.grad = torch.from_numpy(gradient)
        assert upload.loss is not None
        return upload.loss + 0.5 * ridge * float(here @ here)

    optimizer.step(closure)
    if best[0] > gradient_at_most * duels:
        raise _not_found(best[0], start)
    found: Array = best[1]
    return found


def _norm(vector: Array) -> float:
    return math.sqrt(float(vector @ vector))


def _not_found(gradient: float, upload: Upload, exchanges: int = MAX_EXCHANGES) -> ConvergenceError:
    per_duel = gradient / max(upload.num_duels, 1)
    return ConvergenceError(
        f"no minimiser within {exchanges} exchanges: gradient norm {per_duel:.1e} per duel"
    )
