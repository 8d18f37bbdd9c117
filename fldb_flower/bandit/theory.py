"""Constants of the theory: widths, priors and the radius of the projection.

The experiments do not satisfy all assumptions of the paper's bounds, and some steps of the proofs
do not hold: see docs/theory.md.
"""

from __future__ import annotations

import math

from fldb_flower.settings import AUTO, Settings


def beta(t: int, num_agents: int, settings: Settings) -> float:
    r"""Return the exploration width ``beta_t`` of iteration t (paper, Lemma 4.2).

    ``beta_t = sqrt(2 log(1/delta) + d log(1 + t N kappa_mu / (d lambda)))``, without the setting
    ``beta_scale``. ``num_agents`` is the number of agents whose duels are in W: N, or 1 for an
    independent agent.
    """
    d = settings.dimension
    growth = math.log1p(t * num_agents * settings.kappa_mu / (d * settings.ridge))
    return math.sqrt(2.0 * math.log(1.0 / settings.delta) + d * growth)


def selects_by_curvature(settings: Settings) -> bool:
    """Return whether agents select with FLDB-ONS's Hessian A in place of W_sync.

    They do by default. A number as ``beta_scale`` selects with W_sync and beta_t.
    """
    return settings.algorithm == "fldb_ons" and settings.beta_scale == AUTO


def width(t: int, num_agents: int, settings: Settings) -> float:
    """Return the norm's factor in selection rules.

    It is ``beta_scale * beta_t / kappa_mu`` for the norm of W^-1, where ``auto`` is 1. If agents
    select by curvature, it is ``ons_width`` for the norm of A^-1, whose values are posterior
    standard deviations.
    """
    if selects_by_curvature(settings):
        return settings.ons_width
    scale = 1.0 if settings.beta_scale == AUTO else float(settings.beta_scale)
    return scale * beta(t, num_agents, settings) / settings.kappa_mu


def prior_precision(settings: Settings) -> float:
    """Return c, where ``c I`` is W_sync before the first duel, or A if agents select by it."""
    if selects_by_curvature(settings):
        return settings.ons_ridge
    return settings.ridge / settings.kappa_mu


def width_settings(settings: Settings) -> str:
    """Return the settings that determine the width and its norm, for error messages."""
    if selects_by_curvature(settings):
        return f"ons_width={settings.ons_width:g}, ons_ridge={settings.ons_ridge:g}"
    scale = settings.beta_scale
    shown = scale if scale == AUTO else f"{scale:g}"
    return f"beta_scale={shown}, kappa_mu={settings.kappa_mu:g}, lambda={settings.ridge:g}"


def projection_radius(settings: Settings) -> float:
    """Return the radius of FLDB-OGD's projection: the setting of that name, by default ``2 r``.

    The ball of radius ``r = beta_T / sqrt(lambda kappa_mu)`` around theta contains every minimiser
    (paper, Sec. 3.2 and Lemma E.1).
    """
    if settings.projection_radius != AUTO:
        return float(settings.projection_radius)
    bound = beta(settings.horizon, settings.num_agents, settings)
    return 2.0 * bound / math.sqrt(settings.ridge * settings.kappa_mu)
