"""Statistics of persons with a limit on what each contributes; see `fldb_flower.bandit.limits`."""

from __future__ import annotations

from collections.abc import Mapping

from fldb_flower.bandit import theory
from fldb_flower.bandit.limits import factors, typical_share_sizes, typical_sizes, weights_of
from fldb_flower.bandit.preference import residuals
from fldb_flower.bandit.prior import CommonPrior, scale_of
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.forms import Form
from fldb_flower.settings import AUTO, Settings

_BATCH = 2**22  # numbers of the matrices of persons that are held at once


def sizes_and_weights(
    broadcast: Broadcast,
    settings: Settings,
    fresh: int | None = None,
    answers: int | None = None,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the typical sizes and the weights of the parts that a broadcast requests.

    By default, the number of a person's answers is that of the iterations that the broadcast lets
    it play. A person who has more, because a request was lost, has the same limit. On devices,
    rounds have no iterations: it is 3 d for each round, the least of an upload.

    Parameters
    ----------
    broadcast : Broadcast
        The request.
    settings : Settings
        Those of the run.
    fresh, answers : int, optional
        The number of a person's new answers, and of all.
    """
    play, clip = broadcast.play, settings.clip
    assert play is not None
    assert clip is not None
    each = 3 * settings.dimension if settings.mode == "devices" else 1
    fresh = fresh or each * (play.last - play.first + 1)
    if broadcast.shares:
        prior = play.estimate
        assert isinstance(prior, CommonPrior)
        variance = max(prior.variance, settings.privacy.min_variance) / float(scale_of(clip**2))
        shares = typical_share_sizes(
            answers or each * play.last, fresh, clip, settings.dimension, variance
        )
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
        With ``scope="fresh"`` and ``theta_hat``; no loss.
    differences, preferences : Array
        A row per agent for the first iteration, then for the second, ...: (n, d) and (n,).
    agents : int
        Number of agents.
    form : Form
        Full or diagonal.
    units : mapping of str to float
        By part, what it is divided by in the vector whose length is at most 1.

    Examples
    --------
    One duel, with all units 1, has the vector (1/2, 0; 1), of length sqrt(5) / 2:

    >>> import numpy as np
    >>> from fldb_flower.federation.contributions import limited_statistics
    >>> from fldb_flower.federation.exchange import Broadcast
    >>> from fldb_flower.linalg.forms import Form
    >>> units = {"gradient": 1.0, "information": 1.0}
    >>> zero, duel = Broadcast(None, np.zeros(2)), (np.array([[1.0, 0.0]]), np.array([0.0]))
    >>> limited_statistics(zero, *duel, 1, Form(2), units=units).gradient.round(3)
    array([0.447, 0.   ])
    """
    rows_of = (differences, *residuals(differences @ broadcast.theta_hat, preferences))
    duels, slopes, curvatures = (_by_agent(each, agents) for each in rows_of)
    size = max(1, _BATCH // form.dimension**2)
    sums: dict[str, Array] = {}
    for rows in (slice(start, start + size) for start in range(0, agents, size)):
        parts = _statistics(duels[rows], slopes[rows], form)
        if broadcast.hessian:
            parts["hessian"] = _grams(duels[rows], duels[rows] * curvatures[rows, :, None], form)
        for name, part in _limited_sums(parts, units).items():
            sums[name] = sums.get(name, 0.0) + part
    vectors = sums["gradient"], sums["information"], sums.get("hessian")
    return Upload(len(preferences), *vectors, None, ())


def _by_agent(values: Array, agents: int) -> Array:
    """Return the rows of each agent: (n, ...) -> (agents, n / agents, ...)."""
    return values.reshape(-1, agents, *values.shape[1:]).swapaxes(0, 1)


def _statistics(duels: Array, slopes: Array, form: Form) -> dict[str, Array]:
    """Return each agent's gradient and W, (agents, ...), by part."""
    gradients = (slopes[:, None, :] @ duels)[:, 0]
    return {"gradient": gradients, "information": _grams(duels, duels, form)}


def _grams(left: Array, right: Array, form: Form) -> Array:
    """Return each agent's sum of ``left right^T`` over duels, (agents, ...) in the form."""
    return (left * right).sum(axis=1) if form.is_diagonal else left.swapaxes(1, 2) @ right


def _limited_sums(parts: Mapping[str, Array], units: Mapping[str, float]) -> dict[str, Array]:
    """Return the sums over agents, each multiplied by its factor."""
    weights = factors(parts, units)
    flat = {name: part.reshape(len(part), -1) for name, part in parts.items()}
    return {name: (weights @ flat[name]).reshape(part.shape[1:]) for name, part in parts.items()}
