"""The duels of one device, on its disk."""

from clients.store.duel_store import (
    SCHEMA_VERSION,
    SELECTION_SETTINGS,
    ConflictingAnswerError,
    DuelExpiredError,
    DuelStore,
    Forgotten,
    Proposal,
    Synchronization,
    UnknownDuelError,
)

__all__ = [
    "SCHEMA_VERSION",
    "SELECTION_SETTINGS",
    "ConflictingAnswerError",
    "DuelExpiredError",
    "DuelStore",
    "Forgotten",
    "Proposal",
    "Synchronization",
    "UnknownDuelError",
]
