"""Minimising the federated loss by exchanges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fldb_flower.arrays import Array, namespace
from fldb_flower.errors import ConvergenceError
from fldb_flower.federation import Upload

TOLERANCE = 1e-10
"""Gradient norm per duel at which the minimiser counts as found."""

MAX_EXCHANGES = 200


@dataclass(frozen=True)
class Minimum:
    """A minimiser and the upload evaluated there."""

    theta: Array
    upload: Upload


def newton(exchange: Callable[[Array], Upload], start: Upload, theta: Array, ridge: float) -> Minimum:
    r"""Minimise ``sum of losses + ridge/2 ||theta||^2`` by damped Newton steps.

    Each evaluation is one exchange. The loss is convex, so the slope along the step tells
    whether the minimum was passed: then the step is shortened to where a straight line
    through both slopes crosses zero. No loss value has to travel, and separable
    duels or extreme logits cannot make it diverge.

    Parameters
    ----------
    exchange : callable
        Evaluates theta (d,): an upload with gradient and Hessian.
    start : Upload
        The evaluation at ``theta``.
    theta : Array
        Where to begin, (d,).
    ridge : float
        Above 0.

    Raises
    ------
    ConvergenceError
        The gradient did not become small enough within 200 exchanges.
    """
    xp = namespace(theta)
    upload = start
    budget = MAX_EXCHANGES
    while True:
        slope_vector = upload.gradient + ridge * theta
        if float(xp.linalg.vector_norm(slope_vector)) <= TOLERANCE * max(upload.num_duels, 1):
            return Minimum(theta, upload)
        curvature = upload.hessian + ridge * xp.eye(len(theta), dtype=theta.dtype)
        step = -xp.linalg.solve(curvature, slope_vector)
        slope = float(slope_vector @ step)  # below 0
        length = 1.0
        while True:
            if budget == 0:
                raise ConvergenceError(
                    f"no minimiser within {MAX_EXCHANGES} exchanges: gradient norm per duel"
                    f" {float(xp.linalg.vector_norm(slope_vector)) / max(upload.num_duels, 1):.1e}"
                )
            budget -= 1
            trial = theta + length * step
            answer = exchange(trial)
            end_slope = float((answer.gradient + ridge * trial) @ step)
            if end_slope <= 0.5 * abs(slope):
                break
            length *= max(0.1, slope / (slope - end_slope))
        theta, upload = trial, answer
