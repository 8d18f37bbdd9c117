"""Agents that do not collaborate: LDB, and pairs drawn uniformly."""

from __future__ import annotations

import numpy as np

from fldb_flower.arrays import Array
from fldb_flower.federation import Broadcast, Federation, Play
from fldb_flower.settings import Settings

_REPORTS = 50  # of the regret so far, in a run


def alone(federation: Federation, settings: Settings) -> Array:
    """Let every agent play by itself to the horizon; only the regret is collected."""
    stride = -(-settings.horizon // _REPORTS)
    for first in range(1, settings.horizon + 1, stride):
        last = min(first + stride - 1, settings.horizon)
        federation.exchange(Broadcast(Play(first, last), None))
        federation.acknowledge()
    return np.zeros(settings.dimension)
