r"""The paper's constants and regret bounds.

The bounds are as printed in the paper, for the total regret of all N agents. The experiments do
not satisfy all assumptions, and some steps of the proofs do not hold: see docs/theory.md.
"""

from __future__ import annotations

import math

from fldb_flower.linalg.arrays import Array, namespace
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


def radius(settings: Settings) -> float:
    """Return the radius ``r = beta_T / sqrt(lambda kappa_mu)`` (paper, Sec. 3.2 and Lemma E.1).

    The ball of this radius around theta contains every minimiser.
    """
    bound = beta(settings.horizon, settings.num_agents, settings)
    return bound / math.sqrt(settings.ridge * settings.kappa_mu)


def projection_radius(settings: Settings) -> float:
    """Return the radius of FLDB-OGD's projection: the setting of that name, by default ``2 r``."""
    chosen = settings.projection_radius
    return 2.0 * radius(settings) if chosen == AUTO else float(chosen)


def gd_regret_bound(iterations: Array, settings: Settings) -> Array:
    """Return the bound of FLDB-GD's total regret up to each iteration t (paper, Theorem 4.3).

    ``2 N L + 3 sqrt(2) (beta_t / kappa_mu) sqrt(2 t L)`` with
    ``L = d log(1 + t N kappa_mu / (d lambda))``, summed over the N agents, for iterations of any
    shape. A default lambda is that of the horizon, for all t.
    """
    t = _floats(iterations)
    growth = _growth(t, settings.num_agents, settings)
    return _total_regret(t, settings.num_agents, growth, _estimate_error(growth, settings))


def ogd_regret_bound(iterations: Array, settings: Settings) -> Array:
    """Return the bound of FLDB-OGD's total regret for tau = 1 (paper, Theorem 4.6).

    ``2 N L + 3 sqrt(2) (beta_t / kappa_mu + E_t) sqrt(2 t L)``. Here
    ``E_t = N sqrt(N + lambda / kappa_mu) sqrt(1 + log t) / alpha`` (Lemma 4.5) bounds the distance
    of online gradient descent from the minimiser. The constants are those of Appendix F, because
    the theorem omits them. The setting ``tau`` is ignored, and ``alpha`` must be the strong
    convexity of an iteration's loss.
    """
    return _ogd_bound(_floats(iterations), settings.num_agents, settings.alpha, settings)


def periodic_ogd_regret_bound(iterations: Array, settings: Settings) -> Array:
    """Return the bound of FLDB-OGD's total regret with periodic rounds (paper, Prop. 4.7).

    :func:`ogd_regret_bound` of ``T' = t / tau`` iterations and ``N' = tau N`` agents, with t
    rounded up to the end of its round.

    The proof uses steps ``1 / (alpha' t_c)``, where alpha' is the strong convexity of a round's
    loss. With ``step_index=round``, alpha' is ``alpha`` and this is the proposition as printed:
    ``E_t`` grows as ``tau^1.5``, and its term in the bound as tau. With ``step_index=iteration``
    the step is ``1 / (alpha tau t_c)``, so alpha' is ``tau alpha``: ``E_t`` grows as
    ``sqrt(tau)``, and its term is constant up to logarithms, because T' falls as ``1 / tau``. The
    first term, ``2 N' L``, grows as tau in both cases.
    """
    t = _floats(iterations)
    rounds = namespace(t).ceil(t / settings.tau)
    scale = settings.tau if settings.step_index == "iteration" else 1
    return _ogd_bound(rounds, settings.num_agents * settings.tau, settings.alpha * scale, settings)


def _ogd_bound(t: Array, num_agents: int, alpha: float, settings: Settings) -> Array:
    """Return the bound of Theorem 4.6; Prop. 4.7 replaces the first three arguments."""
    xp = namespace(t)
    growth = _growth(t, num_agents, settings)
    spread = math.sqrt(num_agents + settings.ridge / settings.kappa_mu)
    missed = num_agents * spread / alpha * xp.sqrt(1.0 + xp.log(t))
    return _total_regret(t, num_agents, growth, _estimate_error(growth, settings) + missed)


def _growth(t: Array, num_agents: int, settings: Settings) -> Array:
    """Return ``L = d log(1 + t N kappa_mu / (d lambda))``, which bounds log(det V_t / det V_0)."""
    d = settings.dimension
    return d * namespace(t).log1p(t * num_agents * settings.kappa_mu / (d * settings.ridge))


def _estimate_error(growth: Array, settings: Settings) -> Array:
    """Return ``beta_t / kappa_mu``, a bound of ``||theta - theta_t||_V`` (Lemma 4.2)."""
    squared = 2.0 * math.log(1.0 / settings.delta) + growth
    return namespace(growth).sqrt(squared) / settings.kappa_mu


def _total_regret(t: Array, num_agents: int, growth: Array, error: Array) -> Array:
    """Return the regret of bad iterations, where det V doubles, plus the rest (Appendix D)."""
    xp = namespace(t)
    return 2.0 * num_agents * growth + 3.0 * math.sqrt(2.0) * error * xp.sqrt(2.0 * t * growth)


def _floats(iterations: Array) -> Array:
    xp = namespace(iterations)
    return xp.asarray(iterations, dtype=xp.float64)
