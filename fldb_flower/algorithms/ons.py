"""FLDB-ONS, ours: an online Newton step, one exchange a round with the regret of FLDB-GD."""

from __future__ import annotations

from fldb_flower.algorithms.base import Online
from fldb_flower.algorithms.schedules import Round
from fldb_flower.algorithms.solvers import Minimum
from fldb_flower.federation.exchange import Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.settings import Settings


class FLDBONS(Online):
    r"""FLDB-ONS: an online Newton step a round. Not in the paper.

    Agents return the Hessian H of the fresh duels beside their gradient g,
    both at theta. At t = 1 theta is the minimiser of the first duels' loss with ridge lambda_0
    (``ons_ridge``), found by exchanges, and ``A = lambda_0 I + H_1``. Then, in each round::

        A      += H
        theta  -= A^-1 g
        W_sync += W_new

    The agents select with this theta: theta_hat = theta_sync. A is the curvature of all duels so
    far, so each round is nearly a full Newton step on the loss of all of them; its error
    shrinks with the information, where FLDB-OGD's step size 1 / (alpha t) knows nothing of it.

    On the wire: d + d (d + 1) numbers up, d (d + 1) / 2 more than FLDB-OGD; as many down
    as FLDB-OGD.

    Of its regret: no bound is proved here. Online Newton steps have logarithmic regret for
    exp-concave losses (Hazan et al. 2007), which the logistic loss is on a bounded set, and a
    projection keeps the iterates in it. We leave the projection out; the ridge lambda_0 and the
    exact start take its place in practice. Measured (N = 100, T = 500, 20 seeds), it is 1.10 times
    FLDB-GD's with lambda_0 = 1 and 1.08 times with 0.6, for features of order 1: lambda_0 is in
    their units, so scale them. With lambda_0 below 0.5 and fewer than ten agents,
    separable first duels can put the start so far out that H vanishes and steps explode.
    """

    HESSIAN = True
    STATE = (*Online.STATE, "curvature")

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.curvature: Array = self.form.identity(settings.ons_ridge)  # A

    @property
    def first_ridge(self) -> float:
        """Ridge lambda_0, which is in A from then on."""
        return self.settings.ons_ridge

    def begin(self, minimum: Minimum) -> None:
        """Add the curvature of the first duels."""
        self.curvature = self.form.total([self.curvature, minimum.upload.hessian])

    def remedy(self) -> str:
        """Name the ridge."""
        return f"ons_ridge={self.settings.ons_ridge:g} is too small, or {super().remedy()}"

    def step(self, upload: Upload, turn: Round) -> None:
        """Take a Newton step with the curvature of all duels so far."""
        self.curvature = self.form.total([self.curvature, upload.hessian])
        self.theta_hat = self.theta_hat - self.form.solve(self.curvature, upload.gradient)
        self.theta_sync = self.theta_hat
