"""Statistics of persons with a limit on what each contributes; see `fldb_flower.bandit.limits`."""

from __future__ import annotations

from collections.abc import Mapping

from fldb_flower.bandit import theory
from fldb_flower.bandit.limits import factors, typical_share_sizes, typical_sizes, weights_of
from fldb_flower.bandit.preference import logistic
from fldb_flower.bandit.prior import CommonPrior, scale_of
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.forms import Form, Full
from fldb_flower.settings import AUTO, Settings

_BATCH = 2**22  # numbers of the matrices of persons that are held at once


def sizes_and_weights(
    broadcast: Broadcast, settings: Settings
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the typical sizes and the weights of the parts that a broadcast requests.

    The number of a person's answers is that of the iterations that the broadcast lets it play. A
    person who has more, because a request was lost, has the same limit. On devices, rounds have no
    iterations: it is ``devices.min_duels`` for each round.
    """
    play, clip = broadcast.play, settings.clip
    assert play is not None
    assert clip is not None
    each = settings.min_duels if settings.mode == "devices" else 1
    fresh = each * (play.last - play.first + 1)
    if broadcast.shares:
        prior = play.estimate
        assert isinstance(prior, CommonPrior)
        variance = max(prior.variance, settings.privacy.min_variance) / float(scale_of(clip**2))
        shares = typical_share_sizes(each * play.last, fresh, clip, settings.dimension, variance)
        unused = [] if settings.personal_variance == AUTO else ["losses"]
        return shares, weights_of(shares, unused)
    parts = ["gradient", "information"] + ["hessian"] * broadcast.hessian
    sizes = typical_sizes(fresh, clip, settings.dimension)
    is_unused = broadcast.hessian and theory.selects_by_curvature(settings)
    return {part: sizes[part] for part in parts}, weights_of(parts, ["information"] * is_unused)


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
    duels = differences.reshape(-1, agents, form.dimension).swapaxes(0, 1)  # (agents, n, d)
    answers = preferences.reshape(-1, agents).swapaxes(0, 1)
    sums: dict[str, Array] = {}
    size = max(1, _BATCH // form.dimension**2)
    for start in range(0, agents, size):
        rows = slice(start, start + size)
        parts = _statistics(broadcast, duels[rows], answers[rows], form)
        weights = factors(parts, units)
        for name, part in parts.items():
            sums[name] = sums.get(name, 0.0) + _total(part, weights)
    return Upload(len(preferences), **{"hessian": None, **sums}, loss=None, outcomes=())


def _statistics(broadcast: Broadcast, duels: Array, answers: Array, form: Form) -> dict[str, Array]:
    """Return the statistics of each agent, from its duels (agents, n, d) and answers."""
    wins = logistic(duels @ broadcast.theta_hat)
    parts = {
        "gradient": ((wins - answers)[:, None, :] @ duels)[:, 0],
        "information": _grams(duels, duels, form),
    }
    if broadcast.hessian:
        parts["hessian"] = _grams(duels, duels * (wins * (1.0 - wins))[..., None], form)
    return parts


def _grams(left: Array, right: Array, form: Form) -> Array:
    """Return each agent's sum of ``left right^T`` over duels, (agents, ...) in the form."""
    if isinstance(form, Full):
        return left.swapaxes(1, 2) @ right
    return (left * right).sum(axis=1)


def _total(parts: Array, weights: Array) -> Array:
    return (weights @ parts.reshape(len(parts), -1)).reshape(parts.shape[1:])
