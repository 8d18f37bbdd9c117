"""The duels of one device, on its disk."""

from clients.store.database import SCHEMA_VERSION
from clients.store.duel_store import DuelStore, duel_key
from clients.store.records import (
    ConflictingAnswerError,
    DuelExpiredError,
    Evidence,
    Forgotten,
    Proposal,
    Synchronization,
    UndoError,
    UnknownDuelError,
)

__all__ = [
    "SCHEMA_VERSION",
    "ConflictingAnswerError",
    "DuelExpiredError",
    "DuelStore",
    "Evidence",
    "Forgotten",
    "Proposal",
    "Synchronization",
    "UndoError",
    "UnknownDuelError",
    "duel_key",
]
