"""The line search of damped Newton steps, for one problem or for a batch of them.

The loss is convex, so its slope along a step shows whether the step passed the minimum. No loss is
evaluated.
"""

from __future__ import annotations

from fldb_flower.linalg.arrays import Array, namespace

RESTART = 0.5
"""A warm start is abandoned, and 0 used, if a step from it is cut to less than this length."""

LARGEST_SLOPE = 0.5
"""Largest slope at the end of a step, in units of the slope at its start."""

_SMALLEST_CUT = 0.1


def is_too_long(slope: Array, end_slope: Array, largest: float = LARGEST_SLOPE) -> Array:
    """Return whether steps end uphill, with more than a share of the (negative) first slope."""
    return ~(end_slope <= largest * abs(slope))  # True for NaN


def shortened(length: Array, slope: Array, end_slope: Array) -> Array:
    """Return lengths of steps that were too long, cut by at most a factor of 10.

    The new length is where the straight line through both slopes crosses zero.
    """
    crossing = slope / (slope - end_slope)
    return length * namespace(crossing).clip(crossing, _SMALLEST_CUT, None)
