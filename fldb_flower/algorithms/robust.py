"""Combining uploads so that a few lies, within what is plausible, weigh less.

docs/security.md has its effect on regret, with liars and without.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fldb_flower.federation.exchange import Upload, total

Numbers = NDArray[np.float64]

_CUT = {"trimmed": 0.1, "median": 0.5 - 2.0**-20}  # of the weight, at each end


def combine(uploads: Sequence[Upload], how: str) -> Upload:
    """Sum uploads, but replace their gradients by what most nodes agree on.

    Coordinate by coordinate, the gradients per duel are sorted, a share of the weight is
    cut off at each end, and the mean of what is left is multiplied by the whole weight. A node's
    weight is its number of duels, at most that of the median node: at least half the nodes weigh
    as much as any, so that nobody holds more than 2 / nodes of the weight, whatever it claims.

    Matrices stay sums. Each lies between 0 and what its duels allow
    (:mod:`fldb_flower.federation.plausibility`), and the median of matrices need not be one.

    Parameters
    ----------
    uploads : sequence of Upload
        At least one, in an order that does not depend on when they arrived.
    how : {"none", "trimmed", "median"}
        Cut nothing; a tenth at each end; all but the middle.
    """
    whole = total(uploads)
    told = [upload for upload in uploads if upload.num_duels]
    if how == "none" or not told:
        return whole
    duels = np.array([upload.num_duels for upload in told], dtype=np.float64)
    weights = np.minimum(duels, np.median(duels))
    gradients = np.array([upload.gradient for upload in told]) / duels[:, None]
    return whole._replace(gradient=weights.sum() * trimmed_mean(gradients, weights, _CUT[how]))


def trimmed_mean(values: Numbers, weights: Numbers, cut: float) -> Numbers:
    """Return the weighted mean of each column without a share of the weight at each end.

    A value on the edge counts for the part of its weight that is inside. With next to a half at
    each end this is the weighted median: one value, or the mean of the two at the middle.

    Parameters
    ----------
    values : ndarray
        (k, d).
    weights : ndarray
        (k,), above 0.
    cut : float
        At least 0, below 1/2.
    """
    order = np.argsort(values, axis=0, kind="stable")
    ends = np.cumsum(weights[order], axis=0)
    begins = np.vstack([np.zeros_like(ends[:1]), ends[:-1]])
    lowest, highest = cut * ends[-1], (1.0 - cut) * ends[-1]
    kept = np.clip(ends, lowest, highest) - np.clip(begins, lowest, highest)
    middle: Numbers = (kept * np.take_along_axis(values, order, axis=0)).sum(0) / kept.sum(0)
    return middle
