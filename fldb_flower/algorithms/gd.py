"""FLDB-GD: the exact minimiser in every iteration, by many exchanges (Algorithms 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterator

from fldb_flower.algorithms.base import Algorithm
from fldb_flower.algorithms.schedules import Round
from fldb_flower.algorithms.solvers import (
    GRADIENT_AT_MOST,
    SINGLE_GRADIENT_AT_MOST,
    SINGLE_TOLERANCE,
    Evaluate,
    gradient_descent,
    lbfgs,
    newton,
)
from fldb_flower.federation.exchange import Broadcast, Federation, PlayRequest, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.settings import AUTO

_SETTLED = 1e-13  # theta's error is about 1e-6 before such a step, 1e-12 after it


class FLDBGD(Algorithm):
    r"""The paper's FLDB-GD.

    In every iteration t the agents play with theta_sync and W_sync, and then::

        theta_sync = argmin  sum of the losses of all duels so far + lambda/2 ||theta||^2
        W_sync    += W_new

    warm-started at theta_sync. The first exchange of an iteration plays it and evaluates
    theta_sync; the others evaluate what the ``solver`` tries.

    Raises
    ------
    ConvergenceError
        ``solver=lbfgs`` did not find a minimiser. (``newton`` goes on from the closest point.)
    SettingsError
        ``solver=lbfgs`` without PyTorch.
    """

    def rounds(self) -> Iterator[Round]:
        """Every iteration is a round."""
        return (Round(t, t, t) for t in range(1, self.settings.horizon + 1))

    def learn(self, federation: Federation, turn: Round) -> None:
        """Minimise the loss of all duels so far."""

        def ask(point: Array, play: PlayRequest | None = None) -> Upload:
            return federation.exchange(
                Broadcast(
                    play,
                    point,
                    scope="all",
                    hessian=self.settings.solver == "newton",
                    loss=self.settings.solver == "lbfgs",
                )
            )

        start = ask(self.theta_sync, self.play(turn))
        information = self.form.total([self.information, start.information])
        self.theta_sync = self._minimum(ask, start, information)
        self.information = information

    def remedy(self) -> str:
        """Name the step size, if it was chosen."""
        size = self.settings.gd_step_size
        if self.settings.solver != "gd" or size == AUTO:
            return super().remedy()
        return f"gd_step_size={size:g} is too large; gd_step_size=auto is always stable"

    def _minimum(self, evaluate: Evaluate, start: Upload, information: Array) -> Array:
        theta, ridge = self.theta_sync, self.settings.ridge
        is_single = self.settings.wire == "float32"
        if self.settings.solver == "newton":
            settled = SINGLE_TOLERANCE if is_single else _SETTLED
            return newton(evaluate, start, theta, ridge, settled=settled, or_closest=True).theta
        if self.settings.solver == "lbfgs":
            at_most = SINGLE_GRADIENT_AT_MOST if is_single else GRADIENT_AT_MOST
            return lbfgs(evaluate, start, theta, ridge, gradient_at_most=at_most)
        step_size = self.settings.gd_step_size
        if step_size == AUTO:
            # mu' <= 1/4, so trace(W) / 4 + lambda bounds the largest curvature.
            step_size = 1.0 / (self.form.trace(information) / 4.0 + ridge)
        return gradient_descent(
            evaluate, start, theta, ridge, steps=self.settings.gd_steps, step_size=float(step_size)
        )
