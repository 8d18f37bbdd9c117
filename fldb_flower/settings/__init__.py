"""Every setting of a run: declaration, spellings and checks.

The checks are our own rather than pydantic's: importing pydantic and building the model takes
0.13 s of CPU time, and the process that answers one message of a device takes 0.48 s in total.
"""

from fldb_flower.settings.declaration import (
    MAX_DIMENSION,
    DevicesSettings,
    EngineSettings,
    EnvironmentSettings,
    PrivacySettings,
    ScheduleSettings,
    Settings,
)  # fmt: skip
from fldb_flower.settings.entries import (
    AUTO,
    NONE,
    RAY,
    Entry,
    suggestion,
)  # fmt: skip
from fldb_flower.settings.rules import (
    ENVIRONMENT_OF,
    MOVIELENS_DIMENSIONS,
    MOVIELENS_ITEMS,
    SELECTION_SETTINGS,
    takes_one_exchange,
)  # fmt: skip
from fldb_flower.settings.spellings import (
    check_value,
    default_of,
    defaults_nested,
    entries,
    flower_entries,
    from_flat,
    from_keywords,
    from_nested,
    hydra_entries,
    keyword_entry,
    to_dotted,
    to_flat,
    to_nested,
    unused,
    without_effect,
)  # fmt: skip

__all__ = [
    "AUTO", "ENVIRONMENT_OF", "MAX_DIMENSION", "MOVIELENS_DIMENSIONS",
    "MOVIELENS_ITEMS", "NONE", "RAY", "SELECTION_SETTINGS", "DevicesSettings",
    "EngineSettings", "Entry", "EnvironmentSettings", "PrivacySettings", "ScheduleSettings",
    "Settings", "check_value", "default_of", "defaults_nested", "entries", "flower_entries",
    "from_flat", "from_keywords", "from_nested", "hydra_entries", "keyword_entry",
    "suggestion", "takes_one_exchange", "to_dotted", "to_flat", "to_nested", "unused",
    "without_effect",
]  # fmt: skip
