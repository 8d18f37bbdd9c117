"""Statistics of persons with a limit on what each contributes; see `fldb_flower.bandit.limits`."""

from __future__ import annotations

from collections.abc import Mapping

from fldb_flower.bandit import theory
from fldb_flower.bandit.estimate import CommonPrior, scale_of
from fldb_flower.bandit.limits import factors, typical_share_sizes, typical_sizes, weights_of
from fldb_flower.bandit.preference import residuals
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.linear import Form
from fldb_flower.settings import AUTO, Settings

_BATCH = 2**22  # numbers of the matrices of persons that are held at once


def sizes_and_weights(
    broadcast: Broadcast,
    settings: Settings,
    fresh: int | None = None,
    answers: int | None = None,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the typical sizes and the weights of the parts that a broadcast requests.

    ``fresh`` and ``answers`` are the numbers of a person's new answers, and of all. By default,
    they are those of the iterations that the broadcast lets it play. A person who has more, because
    a request was lost, has the same limit. On devices, rounds have no iterations: it is 3 d for
    each round, the least of an upload.
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

    Differences (n, d) and preferences (n,) have a row per agent for the first iteration, then for
    the second, ... ``units`` is by part what it is divided by in the vector whose length is at most
    1. The broadcast has ``theta_hat``, the scope "fresh", and requests no loss.
    """
    rows_of = (differences, *residuals(differences @ broadcast.theta_hat, preferences))
    duels, slopes, curvatures = (  # (n, ...) -> (agents, n / agents, ...)
        rows.reshape(-1, agents, *rows.shape[1:]).swapaxes(0, 1) for rows in rows_of
    )
    size = max(1, _BATCH // form.dimension**2)
    sums: dict[str, Array] = {}
    for batch in (slice(start, start + size) for start in range(0, agents, size)):
        x = duels[batch]
        parts = {
            "gradient": (slopes[batch][:, None, :] @ x)[:, 0],
            "information": _grams(x, x, form),
        }
        if broadcast.hessian:
            parts["hessian"] = _grams(x, x * curvatures[batch, :, None], form)
        weights = factors(parts, units)
        for name, part in parts.items():
            total = (weights @ part.reshape(len(part), -1)).reshape(part.shape[1:])
            sums[name] = sums.get(name, 0.0) + total
    return Upload(len(preferences), sums["gradient"], sums["information"], sums.get("hessian"))


def _grams(left: Array, right: Array, form: Form) -> Array:
    """Return each agent's sum of ``left right^T`` over duels, (agents, ...) in the form."""
    if form.is_diagonal:
        return (left * right).sum(axis=1)
    return left.swapaxes(1, 2) @ right
