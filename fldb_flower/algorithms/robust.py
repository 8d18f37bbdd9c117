"""Robust combination of uploads, against plausible but false ones.

docs/security.md shows its effect on regret, with and without such uploads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fldb_flower.federation.exchange import Upload, total
from fldb_flower.linalg.arrays import FloatArray

_CUT = 0.1  # share of the weight removed at each end


def combine(uploads: Sequence[Upload], how: str) -> Upload:
    """Sum uploads, with the sum of gradients replaced by a trimmed mean.

    In each coordinate, the gradients per duel are sorted, a tenth of the weight is removed at
    each end, and the mean of the rest is multiplied by the total weight. A node's weight is its
    number of duels, capped at the median over nodes. No node therefore has more than 2 / nodes of
    the total weight, whatever number it claims.

    Matrices are summed: :mod:`fldb_flower.federation.plausibility` bounds each one.
    """
    whole = total(uploads)
    nonempty = [upload for upload in uploads if upload.num_duels]
    if how == "none" or not nonempty:
        return whole
    duels = np.array([upload.num_duels for upload in nonempty], dtype=np.float64)
    weights = np.minimum(duels, np.median(duels))
    gradients = np.array([upload.gradient for upload in nonempty]) / duels[:, None]
    return whole._replace(gradient=weights.sum() * trimmed_mean(gradients, weights, _CUT))


def trimmed_mean(values: FloatArray, weights: FloatArray, cut: float) -> FloatArray:
    """Return the weighted mean of each column with a share of the weight removed at each end.

    A value at a boundary counts with the part of its weight inside. ``values`` is (k, d),
    ``weights`` (k,), above 0, and ``cut`` at least 0 and below 1/2.
    """
    order = np.argsort(values, axis=0, kind="stable")
    ends = np.cumsum(weights[order], axis=0)
    begins = np.vstack([np.zeros_like(ends[:1]), ends[:-1]])
    lowest, highest = cut * ends[-1], (1.0 - cut) * ends[-1]
    kept = np.clip(ends, lowest, highest) - np.clip(begins, lowest, highest)
    middle: FloatArray = (kept * np.take_along_axis(values, order, axis=0)).sum(0) / kept.sum(0)
    return middle
