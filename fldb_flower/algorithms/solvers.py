"""Minimisation of the federated loss by exchanges: Newton, L-BFGS, gradient descent.

Each solver starts from the upload at ``theta`` and evaluates further points by exchanges. The
objective is ``sum of the duels' losses + ridge/2 ||theta||^2`` (paper, Eq. 1).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fldb_flower.bandit.newton import RESTART, is_too_long, shortened
from fldb_flower.errors import ConvergenceError
from fldb_flower.federation.exchange import Upload
from fldb_flower.linalg.arrays import Array, import_torch
from fldb_flower.linalg.linear import form_of, solve, times, trace

Evaluate = Callable[[Array], Upload]
"""Exchanges once and returns the upload at theta, (d,)."""

TOLERANCE = 1e-20
"""Newton decrement per duel, ``g^T H^-1 g / n``, below which a point counts as the minimiser.

It is the mean of ``mu'(z_i) e_i^2`` plus the ridge term, where e are the changes of the logits z in
the next step: twice the remaining decrease of the loss, for any scale of the features. Where mu' is
tiny, n is replaced by 1000 times the sum of ``mu'(z_i) (1 + z_i^2)`` if that is smaller.
"""

MAX_GRADIENT = 1e-6  # largest gradient norm per duel and unit of a minimiser by L-BFGS
MAX_EXCHANGES = 200
_SMALL = 1e3
_LOG = logging.getLogger(__name__)
_LBFGS_HISTORY = 10  # number of past steps
_LBFGS_GRADIENT = 1e-10  # gradient norm per duel and unit at which PyTorch's L-BFGS stops


class Minimum(NamedTuple):
    """A minimiser, and the last upload before it (for ``settled=0``, the upload at it)."""

    theta: Array
    upload: Upload


def newton(
    evaluate: Evaluate,
    start: Upload,
    theta: Array,
    ridge: float,
    *,
    information: Array | None = None,
    tolerance: float = TOLERANCE,
    settled: float = 0.0,
    max_exchanges: int = MAX_EXCHANGES,
) -> Minimum:
    """Minimise by damped Newton steps (:mod:`fldb_flower.bandit.newton`).

    ``start`` is the upload at ``theta``. Uploads carry the Hessian; no loss is needed. With
    diagonals of Hessians, the steps are those of L-BFGS with their inverse as initial
    approximation. ``information`` is W of all duels, by default that of ``start``. With a decrement
    per duel below ``tolerance``, a point counts as the minimiser; below ``settled``, a step is
    taken without an exchange to verify it. After ``max_exchanges``, a warning is logged and the
    point with the smallest decrement is returned: uploads of faulty nodes need not belong to any
    loss.
    """
    information = start.information if information is None else information
    search = _Newton(evaluate, start, theta, ridge, trace(information))
    smallest, closest = math.inf, Minimum(theta, start)
    while True:
        here = Minimum(search.theta, search.upload)
        gradient = here.upload.gradient + ridge * here.theta
        step = -search.direction(gradient)
        slope = gradient @ step  # below 0
        decrement, unit = -slope, search.unit(here.theta + step)
        if decrement <= tolerance * unit:
            return here
        if decrement <= settled * unit:
            return Minimum(here.theta + step, here.upload)
        if decrement < smallest:
            smallest, closest = decrement, here
        if not search.advance(gradient, step, slope, max_exchanges):
            error = _not_found(_norm(gradient), here.upload, max_exchanges)
            _LOG.warning("%s; the closest point is used", error)
            return closest


class _Newton:
    """A search for a minimiser: the current point, the upload there, and past steps."""

    def __init__(
        self, evaluate: Evaluate, start: Upload, theta: Array, ridge: float, total: float
    ) -> None:
        self._evaluate, self._ridge, self._trace = evaluate, ridge, total  # of W
        self.theta, self.upload, self._exchanges = theta, start, 0
        self._may_restart = bool(np.any(theta != 0))
        history = _LBFGS_HISTORY if form_of(start.hessian).is_diagonal else 0
        # Pairs of a step and its change of the gradient.
        self._secants: deque[tuple[Array, Array]] = deque(maxlen=history)

    def unit(self, theta: Array) -> float:
        """Return the number of duels, or less if the Hessian here is tiny."""
        hessian = self.upload.hessian
        mean = trace(hessian) / self._trace if self._trace else 0.0
        square = theta @ (times(hessian, theta) + self._ridge * theta)
        duels = max(self.upload.num_duels, 1)
        return min(_SMALL * (mean * duels + float(square)), duels)

    def advance(self, gradient: Array, step: Array, slope: Array, max_exchanges: int) -> bool:
        """Move along a step, or to 0; return False if no exchange is left."""
        length, trial, restarts = 1.0, self.theta + step, False
        while self._exchanges < max_exchanges:
            self._exchanges += 1
            upload = self._evaluate(trial)
            end_gradient = upload.gradient + self._ridge * trial
            end_slope = end_gradient @ step
            if restarts or not is_too_long(slope, end_slope):
                self._secants.append((trial - self.theta, end_gradient - gradient))
                self.theta, self.upload = trial, upload
                return True
            length = shortened(length, slope, end_slope)
            restarts = self._may_restart and bool(length < RESTART)
            self._may_restart &= not restarts
            trial = np.zeros_like(self.theta) if restarts else self.theta + length * step
        return False

    def direction(self, gradient: Array) -> Array:
        """Return ``(H + ridge I)^-1 gradient``, corrected by past steps.

        The two loops of L-BFGS (Nocedal and Wright 2006, Algorithm 7.4), with the inverse of the
        Hessian's form in the middle.
        """
        hessian = self.upload.hessian
        usable = [
            (step, change, 1.0 / (step @ change))
            for step, change in self._secants
            if step @ change > 0
        ]
        shares = []
        for step, change, weight in reversed(usable):
            shares.append(weight * (step @ gradient))
            gradient = gradient - shares[-1] * change
        direction = solve(hessian, gradient, self._ridge)
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
    evaluate: Evaluate, start: Upload, theta: Array, ridge: float, information: Array
) -> Array:
    """Minimise with PyTorch's L-BFGS and strong Wolfe line search, as in the paper (Sec. 5).

    Each call of its closure is one exchange; uploads carry the loss. The unit of features is a
    power of 2, about the root mean square of the duels' lengths by W, ``information``.
    """
    torch = import_torch("solver=lbfgs", "solver=newton")
    duels = max(start.num_duels, 1)
    square = trace(information) / duels
    unit = 2.0 ** round(math.log2(square) / 2.0) if square else 1.0
    point = torch.tensor(unit * np.asarray(theta), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [point], max_iter=MAX_EXCHANGES, max_eval=MAX_EXCHANGES,
        tolerance_grad=_LBFGS_GRADIENT * duels, tolerance_change=0.0,
        history_size=_LBFGS_HISTORY, line_search_fn="strong_wolfe",
    )  # fmt: skip
    best = [math.inf, theta]  # gradient norm, theta
    first = [start]

    def closure() -> float:
        here = point.detach().numpy() / unit
        upload = first.pop() if first else evaluate(here)
        gradient = (upload.gradient + ridge * here) / unit
        if _norm(gradient) < best[0]:
            best[:] = [_norm(gradient), here]
        point.grad = torch.from_numpy(gradient)
        assert upload.loss is not None
        return upload.loss + 0.5 * ridge * float(here @ here)

    optimizer.step(closure)
    if best[0] > MAX_GRADIENT * duels:
        raise _not_found(best[0], start, MAX_EXCHANGES)
    found: Array = best[1]
    return found


def _norm(vector: Array) -> float:
    return math.sqrt(float(vector @ vector))


def _not_found(gradient: float, upload: Upload, exchanges: int) -> ConvergenceError:
    per_duel = gradient / max(upload.num_duels, 1)
    return ConvergenceError(
        f"no minimiser within {exchanges} exchanges: gradient norm {per_duel:.1e} per duel"
    )
