"""FLDB-GD: the exact minimiser in every iteration, by many exchanges (Algorithms 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterator

from fldb_flower.algorithms.base import Algorithm, State
from fldb_flower.algorithms.schedules import Round
from fldb_flower.algorithms.solvers import Evaluate, gradient_descent, lbfgs, newton
from fldb_flower.federation.exchange import Broadcast, Federation, PlayRequest, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.linear import trace
from fldb_flower.settings import AUTO

_SETTLED = 1e-13  # theta's error is about 1e-6 before a step of this decrement, 1e-12 after it


class FLDBGD(Algorithm):
    r"""The paper's FLDB-GD.

    In every iteration t the agents play with theta_sync and W_sync, and then::

        theta_sync = argmin  sum of the losses of all duels so far + lambda/2 ||theta||^2
        W_sync    += W_new

    with a warm start at theta_sync. The first exchange of an iteration plays it and evaluates
    theta_sync; the others evaluate the points of the ``solver``. If no minimiser is found,
    ``solver=lbfgs`` raises a ConvergenceError; ``newton`` uses the closest point.

    With ``schedule=geometric``, not in the paper, only the rounds of the schedule minimise.
    """

    def rounds(self) -> Iterator[Round]:
        """Yield every iteration as a round, or the rounds of the geometric schedule."""
        if self.settings.schedule.name == "geometric":
            return super().rounds()
        return (Round(t, t, t) for t in range(1, self.settings.horizon + 1))

    def learn(self, federation: Federation, round_: Round) -> State:
        """Minimise the loss of all duels so far."""
        solver = self.settings.solver

        def evaluate(point: Array, play: PlayRequest | None = None) -> Upload:
            hessian, loss = solver == "newton", solver == "lbfgs"
            broadcast = Broadcast(play, point, scope="all", hessian=hessian, loss=loss)
            upload: Upload = federation.exchange(broadcast)
            return upload

        start = evaluate(self.theta_sync, self.play(round_))
        information = self.information + start.information
        theta = self._minimum(evaluate, start, information)
        return {"theta_sync": theta, "information": information}

    def remedy(self) -> str:
        """Return the step size, if it is set."""
        size = self.settings.gd_step_size
        if self.settings.solver != "gd" or size == AUTO:
            return super().remedy()
        return f"gd_step_size={size:g} is too large; gd_step_size=auto is always stable"

    def _minimum(self, evaluate: Evaluate, start: Upload, information: Array) -> Array:
        settings, theta, ridge = self.settings, self.theta_sync, self.settings.ridge
        if settings.solver == "newton":
            found = newton(evaluate, start, theta, ridge, information=information, settled=_SETTLED)
            return found.theta
        if settings.solver == "lbfgs":
            return lbfgs(evaluate, start, theta, ridge, information)
        step_size = settings.gd_step_size
        if step_size == AUTO:
            # mu' <= 1/4, so trace(W) / 4 + lambda bounds the largest curvature.
            step_size = 1.0 / (trace(information) / 4.0 + ridge)
        return gradient_descent(
            evaluate, start, theta, ridge, steps=settings.gd_steps, step_size=float(step_size)
        )
