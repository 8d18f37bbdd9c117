"""What is recorded of each iteration besides its duels: regret, and how answers were predicted."""

from __future__ import annotations

from fldb_flower.linalg.arrays import Array, FloatArray, namespace, to_numpy

OUTCOMES = ("regret", "log_loss", "predicted", "decided", "correct")
"""The sums over agents that are recorded of an iteration.

``predicted`` duels have a predicted answer, and ``log_loss`` is the sum of their losses. Of these,
``decided`` duels are no ties, and ``correct`` of them were predicted correctly. A logit of 0 is
half correct.
"""


def prediction_sums(
    logits: Array, preferences: Array, differences: Array, iterations: int
) -> FloatArray:
    """Compare predictions with answers, and return sums over the agents.

    The log loss of an answer y is ``-y log p - (1 - y) log(1 - p)`` with ``p = mu(logit)``. Duels
    of equal arms (a difference of 0) are not predicted.

    Parameters
    ----------
    logits, preferences : Array
        Predicted logits and answers, (iterations * agents,), in order of iteration.
    differences : Array
        Differences of the duels, (iterations * agents, d).
    iterations : int
        Number of iterations.

    Returns
    -------
    FloatArray
        The columns of :data:`OUTCOMES` after the regret, (iterations, 4).
    """
    xp = namespace(logits)
    scores = xp.empty((4, *logits.shape), dtype=logits.dtype, device=logits.device)
    sides = preferences - 0.5
    margins, sizes = sides * logits, xp.abs(logits)
    scores[0] = xp.log1p(xp.exp(-sizes)) + (0.5 * sizes - margins)  # softplus(z) - y z
    scores[1] = 1.0
    scores[2] = sides != 0
    scores[3] = scores[2] * (0.5 + 0.5 * xp.sign(margins))
    scores *= differences.any(axis=1)
    sums: FloatArray = to_numpy(scores.reshape(4, iterations, -1).sum(axis=2)).T
    return sums
