"""Modules by the names that they had before version 0.2.

Their names are valid for one release. An import by a former name gives the current module, with a
FutureWarning that names it.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec

from fldb_flower.errors import warn_renamed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_MOVED = {  # package: modules that moved into it from fldb_flower
    "bandit": ("duels", "policies", "preference", "selection", "streams", "theory"),
    "deployment": ("processes",),
    "federation": ("agents", "history"),
    "linalg": ("arrays", "forms", "linear"),
    "runs": ("checkpoints", "experiment", "plots", "results"),
    "algorithms": ("robust", "schedules"),
    "system": ("commands", "files", "memory", "pages", "signals", "startup"),
    "wire": ("devices", "records"),
}
MODULES = {
    **{
        f"fldb_flower.{name}": f"fldb_flower.{package}.{name}"
        for package, names in _MOVED.items()
        for name in names
    },
    "fldb_flower.local": "fldb_flower.bandit.local_estimates",
    "fldb_flower.messages": "fldb_flower.wire.codec",
    "fldb_flower.plausible": "fldb_flower.federation.plausibility",
    "fldb_flower.selection.rules": "fldb_flower.bandit.selection.rules",
    "fldb_flower.selection.scores": "fldb_flower.bandit.selection.scores",
    "fldb_flower.selection.selector": "fldb_flower.bandit.selection.selector",
    "fldb_flower.selection.whiteners": "fldb_flower.linalg.whiteners",
    "fldb_flower.algorithms.alone": "fldb_flower.algorithms.independent",
    "fldb_flower.algorithms.estimation": "fldb_flower.algorithms.solvers",
}
"""Current names by former name."""


class Finder:
    """Finds and loads modules by their former names."""

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module with a former name, else None."""
        return ModuleSpec(name, self) if name in MODULES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create an empty module, which :meth:`exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and put the current module in the place of this one."""
        current = MODULES[module.__name__]
        warn_renamed(f"the module {module.__name__}", current)
        sys.modules[module.__name__] = importlib.import_module(current)


def install() -> None:
    """Make the former names importable."""
    # First: Python would find the modules of a package with a former name a second time.
    sys.meta_path.insert(0, Finder())
