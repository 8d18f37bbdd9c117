"""The server's estimate, with which agents select their arms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fldb_flower.errors import DataError
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.linear import Whitener, whiten


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimate of theta, (d,), and the matrix of the norm that rules select with.

    The matrix is W_sync, or the Hessian A of FLDB-ONS. It is symmetric positive definite: (d, d),
    or its diagonal, (d,).

    Examples
    --------
    With W = diag(4, 1), a vector along the first axis has half its length:

    >>> import numpy as np
    >>> from fldb_flower.bandit.estimate import Estimate
    >>> estimate = Estimate(np.array([1.0, 0.0]), np.diag([4.0, 1.0]))
    >>> np.linalg.norm(np.array([3.0, 0.0]) @ estimate.whitener)
    np.float64(1.5)
    """

    theta_sync: Array
    information: Array

    @cached_property
    def whitener(self) -> Whitener:
        """C with ``||x||_{W^-1} = ||x C||_2`` for the matrix W, computed once for all agents."""
        try:
            return whiten(self.information)
        except np.linalg.LinAlgError:
            raise DataError(
                "W_sync is not positive definite: rounding errors exceed its smallest eigenvalue,"
                " lambda / kappa_mu (FLDB-ONS: ons_ridge); increase it"
            ) from None
