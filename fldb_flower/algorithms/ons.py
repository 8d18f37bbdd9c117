"""FLDB-ONS: online Newton steps, one exchange per round. Not in the paper."""

from __future__ import annotations

from fldb_flower.algorithms.base import Online, State
from fldb_flower.algorithms.schedules import Round
from fldb_flower.algorithms.solvers import Minimum
from fldb_flower.bandit import theory
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.federation.exchange import Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.linear import solve
from fldb_flower.linalg.noisy import observed
from fldb_flower.settings import Settings


class FLDBONS(Online):
    r"""FLDB-ONS, this project's algorithm.

    Agents return the gradient g and the Hessian H of their fresh duels at theta. At t = 1, theta
    is the minimiser of the loss of the first duels with ridge lambda_0 (``ons_ridge``), and
    ``A = lambda_0 I + H_1``. With ``first_round=step``, theta is
    ``-2 (lambda_0 I + W_1 / 4)^-1 g`` with the gradient g at 0, and ``A = lambda_0 I + W_1 / 40``,
    from one exchange. Each round then computes::

        A      += H
        theta  -= A^-1 g
        W_sync += W_new

    Agents select with this theta: theta_hat = theta_sync. A is the curvature of all duels, so a
    round is approximately a full Newton step on the loss of all of them. An upload has
    ``d (d + 1) / 2`` numbers more than with FLDB-OGD.

    A^-1 approximates the covariance of theta given the duels. With ``beta_scale=auto``, agents
    therefore select with A in place of W_sync, and with ``ons_width`` standard deviations in place
    of beta_t. A larger ``ons_width`` explores more. With a number as ``beta_scale`` they select
    with W_sync and ``beta_scale * beta_t / kappa_mu``, as with the paper's algorithms.
    docs/selection.md compares the regret of several widths.

    With privacy, the gradient has noise of variance s^2 in each coordinate. At the true theta, it
    is ``H (theta - theta*)`` plus an error of covariance ``R = H + s^2 I``: that of the answers and
    the noise. A round then adds the precision of this observation, and theta is the mean given all
    observations (the Kalman filter)::

        A      += H R^-1 H
        theta  -= A^-1 H R^-1 g

    Without noise, this is the step above. A round whose H is small relative to s has almost no
    effect. A is then the precision of theta including the noise, and the width accounts for it.
    With a number as ``beta_scale``, the width does not grow with the noise: it is already several
    standard deviations of theta. In measurements, adding the noise of theta to the width increased
    the regret. With much noise, so did bounding W from below by the norm of its noise.

    With ``half_life``, A - lambda_0 I and W_sync - W_0 are multiplied by
    ``0.5 ** (answers per agent / half_life)`` before the matrices of a round are added.

    No regret bound is proved. ``docs/theory.md`` has notes on its regret and the choice of
    lambda_0.

    The state also has ``curvature``, A.
    """

    HESSIAN = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.arrays["curvature"] = self.form.identity(settings.ons_ridge)

    @property
    def estimate(self) -> Estimate:
        """Estimate with which agents select arms: theta_sync, and A or W_sync."""
        by_curvature = theory.selects_by_curvature(self.settings)
        matrix = self.arrays["curvature"] if by_curvature else self.information
        return Estimate(self.theta_sync, matrix)

    @property
    def first_ridge(self) -> float:
        """Ridge lambda_0, which A includes."""
        return self.settings.ons_ridge

    def begin(self, minimum: Minimum) -> State:
        """Add the curvature of the first duels."""
        return {"curvature": self._curvature_with(minimum.upload)}

    def step(self, upload: Upload, round_: Round) -> State:
        """Take a Newton step with the curvature of all duels."""
        if upload.noise is not None:
            variance, hessian = upload.noise.gradient**2, upload.hessian
            precision, linear = observed(hessian, 1.0, upload.gradient, variance)
            upload = upload._replace(hessian=precision, gradient=linear)
        curvature = self._curvature_with(upload)
        theta = self.theta_hat - solve(curvature, upload.gradient)
        return {"theta_hat": theta, "theta_sync": theta, "curvature": curvature}

    def remedy(self) -> str:
        """Return the setting of the ridge."""
        return f"ons_ridge={self.settings.ons_ridge:g} is too small, or {super().remedy()}"

    def _curvature_with(self, upload: Upload) -> Array:
        earlier = self.faded(self.arrays["curvature"], self.settings.ons_ridge, upload)
        return earlier + upload.hessian
