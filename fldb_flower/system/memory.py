"""Sizes are compared with the machine's memory before anything is allocated."""

from __future__ import annotations

import functools
import math
import os
import sys

from fldb_flower.errors import SettingsError
from fldb_flower.settings import Settings

_NUMBER = 8  # bytes
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def require_memory(count: int, what: str) -> None:
    """Check that an array fits in the memory of this machine, used or not.

    Parameters
    ----------
    count : int
        Bytes. A lower bound, so that nothing is refused that fits.
    what : str
        Settings that it depends on, and what it holds: ``"horizon=5: its regret"``.

    Raises
    ------
    SettingsError
        It does not fit.
    """
    available = machine_memory()
    if count > available:
        raise SettingsError(
            f"{what} would take at least {size_text(count)} of memory, and this machine has"
            f" {size_text(available)}"
        )


@functools.cache
def machine_memory() -> int:
    """Return the bytes of main memory; without a limit where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize


def size_text(count: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    power = min((len(str(count)) - 1) // 3, len(_UNITS) - 1)
    return f"{count / 10 ** (3 * power):.3g} {_UNITS[power]}"


def require_agents(settings: Settings, agents: int, block: int) -> None:
    """Check that simulated agents fit: what each keeps, and what one block of them sees at once.

    An estimate from below. Kept are the duels until they are counted (FLDB-GD and LDB: to the
    horizon) and LDB's matrices; seen are the arms of one iteration, once as they are and once
    relative to the first arm, or the norms of all pairs.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    agents : int
        How many there are.
    block : int
        How many are played at once.

    Raises
    ------
    SettingsError
        They do not fit.
    """
    if settings.backend not in {"numpy", "cpu"}:
        return  # the memory is a GPU's
    arms, d = settings.num_arms, settings.dimension
    kept = _duels_kept(settings) * (d + 1)
    if settings.algorithm == "ldb":
        kept += d * d
    seen = 2 * arms * d
    if settings.selection in {"maxinp", "maxpairucb"} and settings.algorithm != "random":
        seen += arms * (arms + 1) // 2
    names = ("num_agents", "horizon", "num_arms", "dimension")
    given = ", ".join(f"{name}={getattr(settings, name)}" for name in names)
    require_memory((agents * kept + block * seen) * _NUMBER, f"{given}: {agents} agents")


def _duels_kept(settings: Settings) -> int:
    """Return how many duels of one agent are in memory at once, at least."""
    horizon = settings.horizon
    if settings.algorithm in {"fldb_gd", "ldb"}:
        return horizon
    if settings.algorithm == "random":
        return 1
    if settings.schedule.name == "periodic":
        return min(settings.tau, horizon)
    return max(1, math.floor(horizon * (1.0 - 1.0 / settings.schedule.ratio)) - 1)
