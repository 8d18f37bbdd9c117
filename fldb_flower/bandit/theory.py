r"""The paper's constants and regret bounds.

The bounds are what the paper states, constants included, for the total regret of all N
agents: divide by N for the average that tables and plots show. They are **not** guarantees
for the experiments, which leave the theory in these places:

- *Bounded arms.* Assumption 2.1 wants ``||phi(x) - phi(x')|| <= 1``; arms drawn from
  N(0, I_d) differ by about ``sqrt(2 d)``. The proof also charges an agent at most 2 for an
  iteration, which needs ``||theta|| <= 1`` besides; theta ~ N(0, I_d) breaks it.
- *kappa_mu* is the infimum of mu' over pairs of arms, at most 1/4 for the logistic link and
  near 0 for unbounded arms. The experiments set it to 1.
- *lambda.* Lemma D.1 chooses ``kappa_mu / lambda <= 1`` (it needs ``x <= 2 log(1 + x)``);
  ``lambda = 1 / T`` makes it ``T kappa_mu``.
- *Many agents.* Prop. 4.4 wants ``N >= 2 alpha / (kappa_mu lambda_f)`` and more, so that
  the loss of an iteration is alpha-strongly convex. With bounded arms the trace of its
  Hessian is at most N / 4: alpha cannot exceed ``N / (4 d)``, which is 5 for N = 100 and
  d = 5, not the 1000 that sets the step size.

The proofs have gaps of their own, and the bounds are as printed all the same:

- *Theorems 4.3, 4.6:* Cauchy-Schwarz over the T N norms gives ``sqrt(T N * 2 d log(...))``,
  not ``sqrt(T * 2 d log(...))``. The second terms lack a factor ``sqrt(N)``; the average
  regret of FLDB-GD then falls with N as ``d + d sqrt(T / N) / kappa_mu``, not as ``1 / N``.
- *Theorem 4.3:* there are at most ``log_2`` bad iterations, not ``log``: the first term
  lacks a factor ``1 / log 2 = 1.44``.
- *Lemma 4.2:* ``G_t(theta) = lambda theta``, not 0: ``beta_t`` lacks
  ``sqrt(lambda kappa_mu) ||theta||``. And mu' is evaluated between theta and theta_t,
  where the infimum over pairs of arms at theta does not bound it; Prop. 4.4 needs it on a
  ball of radius 3r.
- *Lemma 4.5:* what is called Jensen's inequality, ``sum_s f_s(theta_hat^(s)) >= sum_s
  f_s(mean)``, holds for one function f, not for different ones each at its own iterate
  (in one dimension, with step 1/(2 s): f_1 = (x-1)^2, f_2 = (x+1)^2, f_3 = (x+1)^2 from
  x = 1 gives 5 on the left and 5.67 on the right). Strong convexity is wanted in all T
  rounds at once, and is shown for one.
- *Theorem 4.6:* step (c) of the regret's chain needs the second arm to be selected with the
  same width that bounds the estimate, ``beta_t / kappa_mu`` plus Lemma 4.5's term.
  Algorithm 1 selects with ``beta_t / kappa_mu``.
"""

from __future__ import annotations

import math

from fldb_flower.linalg.arrays import Array, namespace
from fldb_flower.settings import AUTO, Settings


def beta(t: int, num_agents: int, settings: Settings) -> float:
    r"""Exploration width ``beta_t`` of iteration t (paper, Lemma 4.2).

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

    Paper, Sec. 3.2 and Lemma E.1.
    """
    bound = beta(settings.horizon, settings.num_agents, settings)
    return bound / math.sqrt(settings.ridge * settings.kappa_mu)


def projection_radius(settings: Settings) -> float:
    """Radius of FLDB-OGD's projection ball: ``2 r``, or the setting of that name."""
    chosen = settings.projection_radius
    return 2.0 * radius(settings) if chosen == AUTO else float(chosen)


def gd_regret_bound(iterations: Array, settings: Settings) -> Array:
    r"""Bound of FLDB-GD's total regret up to each iteration t (paper, Theorem 4.3).

    ``2 N L + 3 sqrt(2) (beta_t / kappa_mu) sqrt(2 t L)`` with
    ``L = d log(1 + t N kappa_mu / (d lambda))``.

    See the module for what the experiments do not satisfy and what the proof lacks.

    Parameters
    ----------
    iterations : Array
        Iterations t, at least 1, of any shape. The bound of one run holds for all t at
        once; lambda stays that of the run, also where it is derived from the horizon.
    settings : Settings
        ``num_agents``, ``dimension``, ``delta``, ``kappa_mu`` and the ridge are used.

    Returns
    -------
    Array
        Sum over the N agents, same shape.
    """
    t = _floats(iterations)
    growth = _growth(t, settings.num_agents, settings)
    return _total_regret(t, settings.num_agents, growth, _estimate_error(growth, settings))


def ogd_regret_bound(iterations: Array, settings: Settings) -> Array:
    r"""Bound of FLDB-OGD's total regret up to each iteration t, tau = 1 (paper, Theorem 4.6).

    ``2 N L + 3 sqrt(2) (beta_t / kappa_mu + E_t) sqrt(2 t L)``, where
    ``E_t = N sqrt(N + lambda / kappa_mu) sqrt(1 + log t) / alpha`` (Lemma 4.5) is what
    online gradient descent misses of the minimiser. The constants are those of Appendix F,
    not of the theorem, which ignores them. ``tau`` is taken as 1 whatever the settings say.

    Parameters
    ----------
    iterations, settings
        As :func:`gd_regret_bound`; ``alpha`` is used too, and has to be the strong
        convexity of an iteration's loss for the bound to hold.

    Returns
    -------
    Array
        Sum over the N agents, same shape as ``iterations``.
    """
    return _ogd_bound(_floats(iterations), settings.num_agents, settings.alpha, settings)


def periodic_ogd_regret_bound(iterations: Array, settings: Settings) -> Array:
    r"""Bound of FLDB-OGD's total regret with a round every tau iterations (paper, Prop. 4.7).

    :func:`ogd_regret_bound` of ``T' = t / tau`` iterations and ``N' = tau N`` agents; t is
    rounded up to the end of its round.

    The proof runs Algorithm 2 with steps ``1 / (alpha' t_c)``, where alpha' is the strong
    convexity of a round's loss. Where the setting ``step_index`` is ``round``, alpha' is
    ``alpha`` and this is the proposition as printed: its last term grows with tau. With
    ``iteration`` the step is ``1 / (alpha tau t_c)``, so alpha' is ``tau alpha``: the last
    term no longer depends on tau, and the first still makes the regret grow with it.

    Parameters
    ----------
    iterations, settings
        As :func:`ogd_regret_bound`; ``tau`` and ``step_index`` are used too. The schedule
        is taken to be periodic.

    Returns
    -------
    Array
        Sum over the N agents, same shape as ``iterations``.
    """
    t = _floats(iterations)
    rounds = namespace(t).ceil(t / settings.tau)
    scale = settings.tau if settings.step_index == "iteration" else 1
    return _ogd_bound(rounds, settings.num_agents * settings.tau, settings.alpha * scale, settings)


def average_bound(iterations: Array, settings: Settings) -> Array | None:
    """Bound that applies to a run, divided by N as plots need it; None if the paper has none.

    Parameters
    ----------
    iterations : Array
        Iterations t, (n,).
    settings : Settings
        Settings of the run; see the module for what our experiments leave unmet.
    """
    if settings.schedule.name != "periodic" or settings.algorithm not in ("fldb_gd", "fldb_ogd"):
        return None
    if settings.algorithm == "fldb_gd":
        return gd_regret_bound(iterations, settings) / settings.num_agents
    return periodic_ogd_regret_bound(iterations, settings) / settings.num_agents


def _ogd_bound(t: Array, num_agents: int, alpha: float, settings: Settings) -> Array:
    """Bound of Theorem 4.6 with everything that Prop. 4.7 replaces as an argument."""
    xp = namespace(t)
    growth = _growth(t, num_agents, settings)
    spread = math.sqrt(num_agents + settings.ridge / settings.kappa_mu)
    missed = num_agents * spread / alpha * xp.sqrt(1.0 + xp.log(t))
    return _total_regret(t, num_agents, growth, _estimate_error(growth, settings) + missed)


def _growth(t: Array, num_agents: int, settings: Settings) -> Array:
    """``L = d log(1 + t N kappa_mu / (d lambda))``, which bounds log(det V_t / det V_0)."""
    d = settings.dimension
    return d * namespace(t).log1p(t * num_agents * settings.kappa_mu / (d * settings.ridge))


def _estimate_error(growth: Array, settings: Settings) -> Array:
    """``beta_t / kappa_mu``, which bounds ``||theta - theta_t||_V`` (Lemma 4.2)."""
    squared = 2.0 * math.log(1.0 / settings.delta) + growth
    return namespace(growth).sqrt(squared) / settings.kappa_mu


def _total_regret(t: Array, num_agents: int, growth: Array, error: Array) -> Array:
    """Regret of the bad iterations, where det V doubles, and of the good ones (Appendix D)."""
    xp = namespace(t)
    return 2.0 * num_agents * growth + 3.0 * math.sqrt(2.0) * error * xp.sqrt(2.0 * t * growth)


def _floats(iterations: Array) -> Array:
    xp = namespace(iterations)
    return xp.asarray(iterations, dtype=xp.float64)
