"""Federated linear dueling bandits: run, sweep, read back, extend, and learn from duels.

Examples
--------
>>> import fldb_flower as fldb
>>> result = fldb.run(algorithm="fldb_ons", num_agents=10, horizon=20, tau=1, seed=0)
>>> result.regret.columns.to_list()
['iteration', 'cumulative_regret', 'exchanges']
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # commands install signal handlers before slow imports such as typing
if TYPE_CHECKING:
    from typing import Any

    from fldb_flower.bandit.learner import DuelingBandit, NotFittedError
    from fldb_flower.catalogue import (
        register_algorithm,
        register_environment,
        register_selection,
    )
    from fldb_flower.errors import (
        CheckpointError,
        ConvergenceError,
        DataError,
        FederationError,
        FldbError,
        OutputError,
        PrivacyError,
        SettingsError,
    )
    from simulations.api.ranking import Ranking, rank_items
    from simulations.api.runs import Callback, Result, load, run
    from simulations.api.sweeps import SweepError, sweep

# Imported on first use: `import fldb_flower` is in every process of Flower.
_MODULES = {
    "fldb_flower.bandit.learner": ("DuelingBandit", "NotFittedError"),
    "simulations.api.ranking": ("Ranking", "rank_items"),
    "fldb_flower.catalogue": ("register_algorithm", "register_environment", "register_selection"),
    "fldb_flower.errors": (
        "CheckpointError",
        "ConvergenceError",
        "DataError",
        "FederationError",
        "FldbError",
        "OutputError",
        "PrivacyError",
        "SettingsError",
    ),
    "simulations.api.runs": ("Callback", "Result", "load", "run"),
    "simulations.api.sweeps": ("SweepError", "sweep"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Callback", "CheckpointError", "ConvergenceError", "DataError", "DuelingBandit",
    "FederationError", "FldbError", "NotFittedError", "OutputError", "PrivacyError", "Ranking",
    "Result", "SettingsError", "SweepError", "load", "rank_items", "register_algorithm",
    "register_environment", "register_selection", "run", "sweep",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_MODULE_OF[name])
    except ImportError:
        from fldb_flower.system.startup import shadowed  # noqa: PLC0415

        if reason := shadowed(_MODULE_OF[name].partition(".")[0]):
            raise ImportError(reason) from None
        raise
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
