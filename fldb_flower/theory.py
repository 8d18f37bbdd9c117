"""The paper's constants: the exploration width ``beta_t`` and the radius ``r``."""

from __future__ import annotations

import math

from fldb_flower.settings import AUTO, Settings


def beta(t: int, num_agents: int, settings: Settings) -> float:
    r"""Exploration width ``beta_t`` of iteration t (paper, Lemma 1).

    ``beta_t = sqrt(2 log(1/delta) + d log(1 + t N kappa_mu / (d lambda)))``; the setting
    ``beta_scale`` is not in it.

    Parameters
    ----------
    t : int
        Iteration, from 1.
    num_agents : int
        Agents whose duels are in W: N, or 1 for an agent alone.
    settings : Settings
        ``delta``, ``dimension``, ``kappa_mu`` and the ridge are used.
    """
    d = settings.dimension
    growth = math.log1p(t * num_agents * settings.kappa_mu / (d * settings.ridge))
    return math.sqrt(2.0 * math.log(1.0 / settings.delta) + d * growth)


def width(t: int, num_agents: int, settings: Settings) -> float:
    """Factor of the norm in the selection rules: ``beta_scale * beta_t / kappa_mu``."""
    return settings.beta_scale * beta(t, num_agents, settings) / settings.kappa_mu


def radius(settings: Settings) -> float:
    """Radius ``r = beta_T / sqrt(lambda kappa_mu)`` around theta that holds every minimiser.

    Paper, Sec. 3.2 and Lemma 5.
    """
    bound = beta(settings.horizon, settings.num_agents, settings)
    return bound / math.sqrt(settings.ridge * settings.kappa_mu)


def projection_radius(settings: Settings) -> float:
    """Radius of FLDB-OGD's projection ball: ``2 r``, or the setting of that name."""
    chosen = settings.projection_radius
    return 2.0 * radius(settings) if chosen == AUTO else float(chosen)
