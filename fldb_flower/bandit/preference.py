r"""The Bradley-Terry-Luce (BTL) preference model: loss, gradient, Hessian, Gram matrix.

A duel shows two arms; ``difference = phi(first) - phi(second)`` and
``P(y = 1) = mu(theta . difference)`` with the logistic link ``mu`` (paper, Sec. 2). All
functions sum over duels and are finite for logits up to at least 1e4.

Shapes: ``theta`` (d,), ``differences`` (n, d), ``preferences`` (n,) with 1 where the
first arm won, 0 where the second did, and 0.5 for a tie (half a win each).
"""

from fldb_flower.linalg.arrays import Array, namespace
from fldb_flower.linalg.forms import Form, Full

_BLOCK = 4096  # duels whose features fit in the cache


def logistic(logits: Array) -> Array:
    """Return the link function ``mu(z) = 1 / (1 + exp(-z))`` for logits of any shape."""
    xp = namespace(logits)
    # mu(z) = (1 + tanh(z / 2)) / 2 does not overflow.
    return 0.5 + 0.5 * xp.tanh(0.5 * logits)


def loss(theta: Array, differences: Array, preferences: Array) -> Array:
    r"""Return the binary cross-entropy, summed over the duels (paper, Eq. 2 and 5).

    ``sum_i log(1 + exp(z_i)) - y_i z_i`` with ``z = differences @ theta``, shape ().
    """
    xp = namespace(differences)
    logits = differences @ theta
    softplus = xp.where(logits > 0, logits, 0.0) + xp.log1p(xp.exp(-xp.abs(logits)))
    return xp.sum(softplus - preferences * logits)


def gradient(theta: Array, differences: Array, preferences: Array) -> Array:
    """Return the gradient of :func:`loss`, ``sum_i (mu(z_i) - y_i) difference_i``, (d,)."""
    return (logistic(differences @ theta) - preferences) @ differences


def derivatives(
    theta: Array, differences: Array, preferences: Array, form: Form | None = None
) -> tuple[Array, Array]:
    """Return :func:`gradient` and the Hessian of the loss, (d,) and (d, d), in one pass.

    The Hessian is ``sum_i mu'(z_i) difference_i difference_i^T`` with ``mu' = mu (1 - mu)``. Its
    shape is that of ``form``, :class:`~fldb_flower.linalg.forms.Full` by default.
    """
    form = form or Full(differences.shape[1])
    slope, curvatures = 0.0, []
    for start in range(0, max(differences.shape[0], 1), _BLOCK):
        block = differences[start : start + _BLOCK]
        wins = logistic(block @ theta)
        slope = slope + (wins - preferences[start : start + _BLOCK]) @ block
        curvatures.append(form.gram(block, wins * (1.0 - wins)))
    return slope, form.total(curvatures)


def gram(differences: Array, form: Form | None = None) -> Array:
    """Return the information of duels, ``W_new = sum_i difference_i difference_i^T``, (d, d).

    Algorithm 1, line 9 of the paper. ``form`` is as in :func:`derivatives`.
    """
    return (form or Full(differences.shape[1])).gram(differences)
