"""FLDB-GD: the exact minimiser in every iteration, by many exchanges (Algorithms 3 and 4)."""

from __future__ import annotations

import numpy as np

from fldb_flower.algorithms.estimation import Evaluate, gradient_descent, lbfgs, newton
from fldb_flower.algorithms.rounds import first_information
from fldb_flower.arrays import Array
from fldb_flower.federation import Broadcast, Federation, Play, Upload
from fldb_flower.settings import AUTO, Settings

_SETTLED = 1e-13  # theta's error is about 1e-6 before such a step, 1e-12 after it


def fldb_gd(federation: Federation, settings: Settings) -> Array:
    r"""Run FLDB-GD and return the final theta_sync, (d,).

    In every iteration t the agents play with theta_sync and W_sync, and then::

        theta_sync = argmin  sum of the losses of all duels so far + lambda/2 ||theta||^2
        W_sync    += W_new

    warm-started at theta_sync. The first exchange of an iteration plays it and evaluates
    theta_sync; the others evaluate what the ``solver`` tries.

    Raises
    ------
    ConvergenceError
        A minimiser was not found.
    SettingsError
        ``solver=lbfgs`` without PyTorch.
    """
    information = first_information(settings)
    theta = np.zeros(settings.dimension)

    def ask(point: Array, play: Play | None) -> Upload:
        return federation.exchange(
            Broadcast(
                play,
                point,
                scope="all",
                hessian=settings.solver == "newton",
                loss=settings.solver == "lbfgs",
            )
        )

    for t in range(1, settings.horizon + 1):
        start = ask(theta, Play(t, t, theta, information))
        federation.acknowledge()
        information = information + start.information
        theta = _minimise(settings, lambda point: ask(point, None), start, theta, information)
    return theta


def _minimise(
    settings: Settings, evaluate: Evaluate, start: Upload, theta: Array, information: Array
) -> Array:
    ridge = settings.ridge
    if settings.solver == "newton":
        return newton(evaluate, start, theta, ridge, settled=_SETTLED).theta
    if settings.solver == "lbfgs":
        return lbfgs(evaluate, start, theta, ridge)
    step_size = settings.gd_step_size
    if step_size == AUTO:
        # mu' <= 1/4, so trace(W) / 4 + lambda bounds the largest curvature.
        step_size = 1.0 / (float(np.trace(information)) / 4.0 + ridge)
    return gradient_descent(
        evaluate, start, theta, ridge, steps=settings.gd_steps, step_size=float(step_size)
    )
