"""The directions in which people differ most, as weights of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fldb_flower.bandit.estimate import CommonPrior

_NOTABLE = 1.3  # least variance of a reported direction, relative to the mean
_LEAST = 0.3  # least weight of a named feature, relative to the largest in a direction
_LISTED = 5  # features of a direction in one line
_UNSEEN = 1e-6  # of the largest eigenvalue of the information: that of a direction without answers


def directions_of(prior: CommonPrior, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the directions in which theta_i varies more than average; empty if none is known.

    Each has the ``share`` of the variance of theta_i, and by feature its ``weights``, a vector of
    length 1 whose small entries are left out. Features with opposite signs are preferred by
    different people. The weights are for scaled features and do not depend on units.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.bandit.directions import directions_of
    >>> from fldb_flower.bandit.estimate import CommonPrior
    >>> shape = np.array([[1.4, -1.4, 0.0], [-1.4, 1.4, 0.0], [0.0, 0.0, 0.2]])
    >>> prior = CommonPrior(np.eye(3), np.ones(3), 0.5, 1.0, shape, mix=0.0)
    >>> directions_of(prior, ["taxes", "welfare", "peace"])
    [{'share': 0.9333, 'weights': {'taxes': 0.7071, 'welfare': -0.7071}}]
    """
    if prior.shape is None:
        return []
    information, basis = np.linalg.eigh(prior.precision)
    basis = basis[:, information > _UNSEEN * information[-1]]
    variances, vectors = np.linalg.eigh(basis.T @ prior.covariance() @ basis)
    vectors, found = basis @ vectors, []
    for place in reversed(range(len(variances))):
        vector = vectors[:, place]
        order = np.argsort(-np.abs(vector), kind="stable")
        if variances[place] < _NOTABLE * variances.mean():
            break
        largest = vector[order[0]]
        vector = vector * np.sign(largest)
        named = [each for each in order if abs(vector[each]) >= _LEAST * abs(largest)]
        labels = names or [f"feature {each + 1}" for each in range(len(vector))]
        weights = {labels[each]: round(float(vector[each]), 4) for each in named}
        share = round(float(variances[place] / variances.sum()), 4)
        found.append({"share": share, "weights": weights})
    return found


def features_of(direction: Mapping[str, Any]) -> str:
    """Return the features of a direction of :func:`directions_of`, their signs, and its share.

    Examples
    --------
    >>> from fldb_flower.bandit.directions import features_of
    >>> features_of({"share": 0.9333, "weights": {"taxes": 0.7071, "welfare": -0.7071}})
    'taxes (+), welfare (-): 93% of the variance (some prefer more + and less -, some the reverse)'
    """
    signed = [f"{name} ({'+' if each > 0 else '-'})" for name, each in direction["weights"].items()]
    more = f" and {len(signed) - _LISTED} more" if len(signed) > _LISTED else ""
    listed = f"{', '.join(signed[:_LISTED])}{more}: {direction['share']:.0%} of the variance"
    return f"{listed} (some prefer more + and less -, some the reverse)"
