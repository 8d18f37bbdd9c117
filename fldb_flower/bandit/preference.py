r"""The Bradley-Terry-Luce (BTL) preference model: loss, gradient, Hessian, Gram matrix.

A duel shows two arms; ``difference = phi(first) - phi(second)`` and
``P(y = 1) = mu(theta . difference)`` with the logistic link ``mu`` (paper, Sec. 2). All
functions sum over duels and are finite for logits up to at least 1e4.

Shapes: ``theta`` (d,), ``differences`` (n, d), ``preferences`` (n,) with 1 where the
first arm won, 0 where the second did, and 0.5 for a tie (half a win each).
"""

import numpy as np

from fldb_flower.linalg.arrays import Array, FloatArray, namespace
from fldb_flower.linalg.linear import Form

PREFERENCES = {"first": 1.0, "second": 0.0, "tie": 0.5}
"""Preferences by their words in Python and in the HTTP interface of devices."""

_LEAST = -708.0  # exp(708) is finite
_BLOCK = 4096  # duels whose features fit in the cache


def link(logits: Array) -> tuple[Array, Array]:
    """Return the link function ``mu(z) = 1 / (1 + exp(-z))`` and its derivative, of any shape.

    ``mu'(z) = mu(z) mu(-z)``. The relative errors are small also where the values are tiny.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.bandit.preference import link
    >>> wins, curvatures = link(np.array([-100.0, 0.0, 100.0]))
    >>> wins
    array([3.72007598e-44, 5.00000000e-01, 1.00000000e+00])
    >>> curvatures
    array([3.72007598e-44, 2.50000000e-01, 3.72007598e-44])
    """
    wins, losses = _shares(logits)
    return wins, wins * losses


def logistic(logits: Array) -> Array:
    """Return the link function ``mu(z)`` for logits of any shape; see :func:`link`."""
    return link(logits)[0]


def duel_key(difference: FloatArray) -> bytes:
    """Return what identifies a duel: its difference up to the sign."""
    sign = np.sign(difference[difference != 0.0][:1]).sum()
    key: FloatArray = sign * difference + 0.0  # no negative zeros
    return key.tobytes()


def residuals(logits: Array, preferences: Array) -> tuple[Array, Array]:
    """Return ``mu(z) - y`` and ``mu'(z)``: the derivatives of the losses in the logits.

    The relative errors are small also where mu(z) is close to y.
    """
    xp, (wins, losses) = namespace(logits), _shares(logits)
    slopes = 1.0 - preferences
    slopes *= wins
    wins *= losses  # in place, because arrays of all duels do not fit in the cache
    losses *= preferences
    slopes -= losses
    is_shared = preferences * preferences != preferences  # such as ties
    if bool(xp.any(is_shared)):
        middle = (0.5 - preferences) + 0.5 * xp.tanh(0.5 * logits)
        slopes = xp.where(is_shared & (abs(logits) < 1.0), middle, slopes)
    return slopes, wins


def win_residuals(logits: Array) -> tuple[Array, Array]:
    """Return :func:`residuals` of answers that are all 1, in half the time."""
    xp = namespace(logits)
    if not bool(xp.all(logits < -_LEAST)):  # also for NaN
        return residuals(logits, xp.ones_like(logits))
    curvatures = xp.exp(logits)
    slopes = -1.0 / (1.0 + curvatures)
    curvatures *= slopes
    curvatures *= slopes
    return slopes, curvatures


def _shares(logits: Array) -> tuple[Array, Array]:
    """Return mu(z) and mu(-z); mu(z) is 0 below -708."""
    xp = namespace(logits)
    losses = xp.exp(-xp.clip(logits, _LEAST, None))
    wins = 1.0 / (1.0 + losses)
    losses *= wins
    wins *= logits > _LEAST
    return wins, losses


def losses(logits: Array, preferences: Array) -> Array:
    """Return the binary cross-entropies ``log(1 + exp(z)) - y z`` for logits of any shape."""
    xp = namespace(logits)
    linear = xp.where(logits > 0.0, 1.0 - preferences, -preferences) * logits
    return xp.log1p(xp.exp(-xp.abs(logits))) + linear


def loss(theta: Array, differences: Array, preferences: Array) -> Array:
    r"""Return the binary cross-entropy, summed over the duels (paper, Eq. 2 and 5).

    ``sum_i log(1 + exp(z_i)) - y_i z_i`` with ``z = differences @ theta``, shape ().
    """
    return namespace(differences).sum(losses(differences @ theta, preferences))


def gradient(theta: Array, differences: Array, preferences: Array) -> Array:
    """Return the gradient of :func:`loss`, ``sum_i (mu(z_i) - y_i) difference_i``, (d,)."""
    return residuals(differences @ theta, preferences)[0] @ differences


def derivatives(
    theta: Array, differences: Array, preferences: Array, form: Form | None = None
) -> tuple[Array, Array]:
    """Return :func:`gradient` and the Hessian of the loss, (d,) and (d, d), in one pass.

    The Hessian is ``sum_i mu'(z_i) difference_i difference_i^T`` in the shape of
    ``form``, the full matrix by default.
    """
    form = form or Form(differences.shape[1])
    slope, curvatures = 0.0, []
    for start in range(0, max(differences.shape[0], 1), _BLOCK):
        block = differences[start : start + _BLOCK]
        slopes, weights = residuals(block @ theta, preferences[start : start + _BLOCK])
        slope = slope + slopes @ block
        curvatures.append(form.gram(block, weights))
    return slope, sum(curvatures[1:], curvatures[0])


def gram(differences: Array, form: Form | None = None) -> Array:
    """Return the information of duels, ``W_new = sum_i difference_i difference_i^T``, (d, d).

    Algorithm 1, line 9 of the paper. ``form`` is as in :func:`derivatives`.
    """
    return (form or Form(differences.shape[1])).gram(differences)
