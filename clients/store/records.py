"""What a duel store returns: records of duels and estimates, and its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from fldb_flower.bandit.prior import CommonPrior
from fldb_flower.errors import FldbError
from fldb_flower.linalg.arrays import FloatArray, IntArray

SELECTION_SETTINGS = (
    "algorithm", "selection", "kappa_mu", "delta", "beta_scale", "ons_width", "lambda_",
    "matrix_form", "sketch_rank", "personal_ridge", "personal_width",
)  # fmt: skip
"""Settings of the server's run that a device selects with: ``Synchronization.parameters``."""


class UnknownDuelError(FldbError):
    """The duel was never proposed on this device, or it was removed."""


class DuelExpiredError(FldbError):
    """The duel can no longer be answered."""


class ConflictingAnswerError(FldbError):
    """The duel already has a different answer."""


class UndoError(FldbError):
    """The answer can no longer be undone."""


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
    """The estimate of the last broadcast."""

    received: float  # time of receipt, in seconds since 1970
    round: int  # of the server
    counted: int  # answers of this device that the server has acknowledged
    duels: int  # of all devices, that theta is computed from
    theta: FloatArray  # theta_sync, (d,)
    information: FloatArray  # W_sync, or A of FLDB-ONS, packed in the form of the parameters
    parameters: dict[str, Any]  # the SELECTION_SETTINGS of the run
    prior: CommonPrior | None = None  # of FLDB-Personal


@dataclass(frozen=True)
class Forgotten:
    """Numbers of open duels and answers that were removed, by :meth:`DuelStore.forget`."""

    proposals: int  # open duels
    forgotten: int  # answers that the server had not acknowledged
    may_be_counted: int  # those of them that had been uploaded: the server may have counted them
    counted: int  # answers that the server has counted; only FLDB-Personal's sums lose them


class Evidence(NamedTuple):
    """Answers in the order of their numbers."""

    numbers: IntArray  # (n,)

    differences: FloatArray  # phi(first) - phi(second), (n, d)
    preferences: FloatArray  # 1, 0, or 0.5 for a tie, (n,)
    predicted: FloatArray  # P(first preferred) when proposed, (n,); NaN before the first broadcast

    def after(self, number: int) -> Evidence:
        """Return the answers after a number."""
        later = self.numbers > number
        return Evidence(
            self.numbers[later],
            self.differences[later],
            self.preferences[later],
            self.predicted[later],
        )
