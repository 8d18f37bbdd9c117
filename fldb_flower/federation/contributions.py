r"""What one person contributes to an upload, limited for differential privacy (unit=person).

By the triangle inequality, a person's n answers contribute up to n times what one does, for
example ``n L`` to the gradient. But the residuals of a person's answers have both signs, so that
their gradients cancel, and curvatures are below their maximum. Typical sizes at the true theta,
with differences of length L in random directions and the mean curvature mu' = 1/8, are::

    |g| = L sqrt(n / 8),    ||W||_F = L^2 sqrt(n + n (n - 1) / d),    ||H||_F = ||W||_F / 8

The first holds because the residual of an answer has the variance mu'(z), and the second because
two random unit vectors have the squared scalar product 1 / d on average. 1/8 is the mean curvature
that the first step assumes (:data:`fldb_flower.algorithms.base.FIRST_STEP`).

The limit applies to all parts together: a person's gradient, W and Hessian are multiplied by the
same factor c, at most 1, such that::

    w_g |g|^2 / size_g^2 + w_W ||W||^2 / size_W^2 + w_H ||H||^2 / size_H^2 <= 1

for any data, and thus for any adjacent data sets. The person then has the weight c in the loss: the
Newton step remains that of a sum of losses. Separate limits have three times the squared
sensitivity, and distort the step. The weights sum to 1, with that of the gradient twice that of
each matrix, whose noise is averaged over directions (:mod:`fldb_flower.linalg.noisy`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from fldb_flower.bandit import theory
from fldb_flower.bandit.preference import logistic
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.linalg.arrays import Array, namespace
from fldb_flower.linalg.forms import Form, Full
from fldb_flower.settings import Settings

CURVATURE = 1.0 / 8.0
"""Mean of mu' that typical sizes assume."""

UNUSED = 0.01
"""Weight of a part that the algorithm does not use."""

_BATCH = 2**22  # numbers of the matrices of persons that are held at once


def typical_sizes(duels: int, longest: float, dimension: int) -> dict[str, float]:
    """Return the typical norms of a person's parts of an upload, by part.

    Examples
    --------
    One duel of length 2 has W = phi phi^T of norm 4:

    >>> from fldb_flower.federation.contributions import typical_sizes
    >>> typical_sizes(1, 2.0, 5)["information"]
    4.0
    """
    matrix = longest**2 * math.sqrt(duels + duels * (duels - 1) / dimension)
    return {
        "gradient": longest * math.sqrt(CURVATURE * duels),
        "information": matrix,
        "hessian": CURVATURE * matrix,
    }


def weights_of(parts: Iterable[str], unused: Iterable[str] = ()) -> dict[str, float]:
    """Return the shares of parts in the squared length of a person's vector; they sum to 1.

    Examples
    --------
    >>> from fldb_flower.federation.contributions import weights_of
    >>> weights_of(["gradient", "information", "hessian"])
    {'gradient': 0.5, 'information': 0.25, 'hessian': 0.25}
    """
    unused = set(unused)
    shares = {part: 2.0 if part == "gradient" else 1.0 for part in parts}
    used = sum(share for part, share in shares.items() if part not in unused)
    left = 1.0 - UNUSED * len(unused)
    return {
        part: UNUSED if part in unused else left * share / used for part, share in shares.items()
    }


def sizes_and_weights(
    broadcast: Broadcast, settings: Settings
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the typical sizes and the weights of the parts that a broadcast requests.

    The number n of a person's answers is that of the iterations that the broadcast lets it play. A
    person who has more, because a request was lost, has the same limit.
    """
    assert broadcast.play is not None
    assert settings.clip is not None
    parts = ["gradient", "information"] + ["hessian"] * broadcast.hessian
    duels = broadcast.play.last - broadcast.play.first + 1
    sizes = typical_sizes(duels, settings.clip, settings.dimension)
    is_unused = broadcast.hessian and theory.selects_by_curvature(settings)
    weights = weights_of(parts, ["information"] * is_unused)
    return {part: sizes[part] for part in parts}, weights


def units_of(broadcast: Broadcast, settings: Settings) -> dict[str, float]:
    """Return by part what it is divided by in a person's vector, whose length is at most 1."""
    sizes, weights = sizes_and_weights(broadcast, settings)
    return {part: size / math.sqrt(weights[part]) for part, size in sizes.items()}


def limited_statistics(
    broadcast: Broadcast,
    differences: Array,
    preferences: Array,
    agents: int,
    form: Form,
    *,
    units: Mapping[str, float],
) -> Upload:
    """Return the statistics of fresh duels, with the limit on each agent's contribution.

    Parameters
    ----------
    broadcast : Broadcast
        The request, for ``scope="fresh"``, with ``theta_hat`` and without a loss.
    differences, preferences : Array
        A row per agent for the first iteration, then for the second, ...: (n, d) and (n,).
    agents : int
        Number of agents.
    form : Form
        Form of W_new and the Hessian: full or diagonal.
    units : mapping of str to float
        By part, what it is divided by in the vector whose length is at most 1.

    Examples
    --------
    One agent with one duel. With all units 1, its vector is (1/2, 0; 1), of length sqrt(5) / 2:

    >>> import numpy as np
    >>> from fldb_flower.federation.contributions import limited_statistics
    >>> from fldb_flower.federation.exchange import Broadcast, PlayRequest
    >>> from fldb_flower.linalg.forms import Full
    >>> request = Broadcast(PlayRequest(1, 1), np.zeros(2))
    >>> units = {"gradient": 1.0, "information": 1.0}
    >>> x, y = np.array([[1.0, 0.0]]), np.array([0.0])
    >>> upload = limited_statistics(request, x, y, 1, Full(2), units=units)
    >>> upload.gradient.round(3), upload.information[0].round(3)
    (array([0.447, 0.   ]), array([0.894, 0.   ]))
    """
    assert broadcast.theta_hat is not None
    d = form.dimension
    wins = logistic(differences @ broadcast.theta_hat)
    residuals = _by_agent(wins - preferences, agents)
    curvatures = _by_agent(wins * (1.0 - wins), agents) if broadcast.hessian else None
    duels = differences.reshape(-1, agents, d).swapaxes(0, 1)  # (agents, n, d)
    gradient, information = np.zeros(d), form.zeros()
    hessian = form.zeros() if broadcast.hessian else None
    size = max(1, _BATCH // d**2)
    for start in range(0, agents, size):
        rows = slice(start, start + size)
        x = duels[rows]
        parts = {
            "gradient": (residuals[rows, None, :] @ x)[:, 0],
            "information": _grams(x, x, form),
        }
        if curvatures is not None:
            parts["hessian"] = _grams(x, x * curvatures[rows, :, None], form)
        weights = _weights(parts, units)
        gradient = gradient + weights @ parts["gradient"]
        information = information + _total(parts["information"], weights)
        if hessian is not None:
            hessian = hessian + _total(parts["hessian"], weights)
    return Upload(len(preferences), gradient, information, hessian, None, ())


def _by_agent(values: Array, agents: int) -> Array:
    return values.reshape(-1, agents).swapaxes(0, 1)


def _grams(left: Array, right: Array, form: Form) -> Array:
    """Return each agent's sum of ``left right^T`` over duels, (agents, ...) in the form."""
    if isinstance(form, Full):
        return left.swapaxes(1, 2) @ right
    return (left * right).sum(axis=1)


def _weights(parts: Mapping[str, Array], units: Mapping[str, float]) -> Array:
    """Return the factor of each agent, (agents,)."""
    xp = namespace(parts["gradient"])
    squares = 0.0
    for name, part in parts.items():
        flat = part.reshape(len(part), -1) / units[name]
        squares = squares + xp.vecdot(flat, flat)
    lengths = xp.sqrt(squares)
    return 1.0 / xp.where(lengths > 1.0, lengths, 1.0)


def _total(matrices: Array, weights: Array) -> Array:
    return (weights @ matrices.reshape(len(matrices), -1)).reshape(matrices.shape[1:])
