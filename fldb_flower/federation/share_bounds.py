r"""Necessary conditions on a change of shares, for uploads of FLDB-Personal.

Each share satisfies ``0 <= M_i <= I / v`` and ``|m_i| <= r(v)`` with the v of the broadcast that
the agent had received when it computed the share. A predicted answer has an excess log loss from 0
to 1 nat. The change of the shares of k agents, with n new answers and the smallest v so far, v_0,
therefore satisfies::

    -k I / v_0 <= change of M <= k I / v_0,    |change of m| <= 2 k r(v_0)
    0 <= excess losses <= n,    0 <= squares <= n L^2

An agent with n_i answers so far has ``M_i <= H_i <= n_i L^2 / 4 I``, and from
``|b_i| <= |H_i theta_i| + |grad L_i|`` follows ``|m_i| <= n_i (L + L^2 R / 4)``, where R is the
largest length of theta_i that r allows. The smaller of two bounds holds.

Without new answers, nothing changes. v and r are in units of the scale of the features, which may
have changed since a share was computed: it may have been twice as large. Until the server knows the
scale, an agent uses its own: k times the scale is then at most ``squares / 10``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from fldb_flower.bandit.prior import MAX_EXCESS, CommonPrior, longest_shift, scale_of
from fldb_flower.federation.exchange import Broadcast, Upload

_SLACK = 1e-6

DRIFT = 2.0
"""How much larger the scale of the features may have been when a share was computed."""


def implausible_shares(
    uploads: Sequence[Upload],
    answers: Sequence[int],
    broadcast: Broadcast,
    *,
    ridge: float,
    longest: float = math.inf,
    agents: Sequence[int] | None = None,
) -> list[str]:
    """Return for each upload the first bound that it violates, or "" if there is none.

    Parameters
    ----------
    uploads : sequence of Upload
        With shares; their numbers are finite.
    answers : sequence of int
        All answers so far of the agents of each upload.
    broadcast : Broadcast
        The request that they answer, with a prior.
    ridge : float
        The setting ``personal_ridge``.
    longest : float
        L, an upper bound of the length of differences; infinite if it is not known.
    agents : sequence of int, optional
        Agents of each upload; by default those of its first outcomes, or 1 without outcomes.
    """
    slack = 1.0 + _SLACK
    if agents is None:
        agents = [upload.outcomes[0].agents if upload.outcomes else 1 for upload in uploads]
    return [
        next(
            (
                f"{name} = {value:.4g}, more than {count} agents and {upload.num_duels} duels"
                f" allow: {bound:.4g}"
                for name, value, bound in _bounds(upload, count, total, broadcast, ridge, longest)
                if not value <= bound * slack
            ),
            "",
        )
        for upload, count, total in zip(uploads, agents, answers, strict=True)
    ]


def _bounds(  # noqa: PLR0917
    upload: Upload, agents: int, total: int, broadcast: Broadcast, ridge: float, longest: float
) -> Iterator[tuple[str, float, float]]:
    """Yield names, values and upper bounds."""
    change, duels = upload.shares, upload.num_duels
    assert change is not None
    assert broadcast.play is not None
    prior = broadcast.play.estimate
    assert isinstance(prior, CommonPrior)
    yield "the mean squared length of differences", -change.squares, 0.0
    yield "the mean squared length of differences", change.squares, _product(duels, longest**2)
    yield "the change of members", abs(change.members), float(agents)
    yield "a log loss", -float(change.losses.min()), 0.0
    yield "a log loss", float(change.losses.max()), MAX_EXCESS * duels
    total = total if duels else 0
    changing = agents if duels else 0
    scale = DRIFT * (prior.scale or float(scale_of(change.squares)) / agents)
    variance = broadcast.lowest_variance / scale
    values = np.linalg.eigvalsh(change.precision)
    largest = min(changing / variance, _product(total, longest**2 / 4.0))
    yield "the largest eigenvalue of the change of M", values[-1], largest
    yield "the negative of the smallest eigenvalue of the change of M", -values[0], largest
    radius = longest_shift(len(change.shift), ridge * scale, variance)  # r
    each = longest + longest**2 / 4.0 * radius * variance
    length = float(np.linalg.norm(change.shift))
    most = 2.0 * min(changing * radius, _product(total, each))
    yield "the length of the change of m", length, most


def _product(count: int, bound: float) -> float:
    return count * bound if count else 0.0
