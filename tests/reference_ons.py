"""FLDB-ONS on the duels of each round, with formulas written out."""

import numpy as np


def derivatives(theta, x, y):
    """Return the gradient and the Hessian of the loss."""
    p = 1 / (1 + np.exp(-x @ theta))
    return x.T @ (p - y), (x * (p * (1 - p))[:, None]).T @ x


def minimiser(x, y, ridge):
    """Newton's method; steps that raise the loss are halved."""

    def loss(theta):
        return np.logaddexp(0, x @ theta).sum() - y @ x @ theta + ridge / 2 * theta @ theta

    theta = np.zeros(x.shape[1])
    for _ in range(60):
        gradient, hessian = derivatives(theta, x, y)
        gradient, hessian = gradient + ridge * theta, hessian + ridge * np.eye(len(theta))
        step = np.linalg.solve(hessian, gradient)
        while gradient @ step > 1e-8 and loss(theta - step) > loss(theta):
            step = step / 2
        theta = theta - step
    return theta


def first_step(x, y):
    """Return theta and the curvature after twice Newton's step from 0; a tenth of H is kept."""
    one, zero = np.eye(x.shape[1]), np.zeros(x.shape[1])
    gradient, hessian = derivatives(zero, x, y)  # W_1 / 4
    return -2.0 * np.linalg.solve(one + hessian, gradient), one + hessian / 10.0


def ons(rounds, *, step=False):
    """Return theta after rounds of duels (x, y): ridge 1, and one Newton step in each round.

    The first round minimises the loss, or takes its first ``step``.
    """
    (x, y), *others = rounds
    if step:
        theta, curvature = first_step(x, y)
    else:
        theta = minimiser(x, y, 1.0)
        curvature = np.eye(len(theta)) + derivatives(theta, x, y)[1]
    for x, y in others:
        gradient, hessian = derivatives(theta, x, y)
        curvature = curvature + hessian
        theta = theta - np.linalg.solve(curvature, gradient)
    return theta
