"""The duels of one device, on its disk."""

from clients.store.answers import duel_key
from clients.store.duel_store import DuelStore
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
from clients.store.schema import SCHEMA_VERSION

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
