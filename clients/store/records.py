"""What a duel store returns: records of duels and estimates, and its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from fldb_flower.errors import FldbError
from fldb_flower.linalg.arrays import FloatArray

SELECTION_SETTINGS = (
    "selection", "kappa_mu", "delta", "beta_scale", "lambda_", "matrix_form", "sketch_rank",
)  # fmt: skip
"""Settings of the server's run that a device selects with: ``Synchronization.parameters``."""


class UnknownDuelError(FldbError):
    """The duel was never proposed on this device, or it was removed."""


class DuelExpiredError(FldbError):
    """The duel can no longer be answered."""


class ConflictingAnswerError(FldbError):
    """The duel already has a different answer."""


class Proposal(NamedTuple):
    """A duel without an answer; ``contents`` is what a page shows of its two arms."""

    id: str
    created: float
    expires: float
    first_key: str | None
    second_key: str | None
    contents: Any


@dataclass(frozen=True)
class Synchronization:
    """The estimate of the last broadcast.

    Attributes
    ----------
    received : float
        Time of receipt, in seconds since 1970.
    round : int
        The server's round.
    counted : int
        Answers of this device that the server has acknowledged.
    duels : int
        Duels of all devices that ``theta`` is computed from.
    theta : ndarray
        theta_sync, (d,).
    information : ndarray
        W_sync, packed in the form that ``parameters`` name.
    parameters : dict
        The :data:`SELECTION_SETTINGS` of the run.
    """

    received: float
    round: int
    counted: int
    duels: int
    theta: FloatArray
    information: FloatArray
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Forgotten:
    """Result of :meth:`DuelStore.forget`.

    Attributes
    ----------
    proposals : int
        Open duels that were removed.
    forgotten : int
        Answers that were removed before the server acknowledged them.
    may_be_counted : int
        Those of ``forgotten`` that had been uploaded: the server may have counted them.
    counted : int
        Answers that the server has counted. Its sums keep them; their copies on this device are
        removed.
    """

    proposals: int
    forgotten: int
    may_be_counted: int
    counted: int


class Evidence(NamedTuple):
    """Consecutive answers.

    Attributes
    ----------
    differences : ndarray
        phi(first) - phi(second), (n, d).
    preferences : ndarray
        1, 0, or 0.5 for a tie, (n,).
    predicted : ndarray
        P(first preferred) when the duel was proposed, (n,); NaN before the first broadcast.
    """

    differences: FloatArray
    preferences: FloatArray
    predicted: FloatArray
