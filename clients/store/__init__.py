"""The duels of one device, on its disk."""

from clients.store.duel_store import (
    ConflictingAnswerError,
    DuelExpiredError,
    DuelStore,
    Evidence,
    Forgotten,
    Proposal,
    Synchronization,
    UndoError,
    UnknownDuelError,
)

__all__ = [
    "ConflictingAnswerError",
    "DuelExpiredError",
    "DuelStore",
    "Evidence",
    "Forgotten",
    "Proposal",
    "Synchronization",
    "UndoError",
    "UnknownDuelError",
]
