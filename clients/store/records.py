"""What a duel store returns: records of duels and estimates, and its errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fldb_flower.bandit.estimate import CommonPrior
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.errors import FldbError
from fldb_flower.linalg.arrays import FloatArray, IntArray
from fldb_flower.settings import SELECTION_SETTINGS, Settings

EXTRA = 2
"""Numbers after a difference in the column ``evidence``: preference, predicted preference."""
MAX_ANSWERS = 2**53


class UnknownDuelError(FldbError):
    """The duel was never proposed on this device, or it was removed.

    Examples
    --------
    >>> from clients.store import DuelStore
    >>> DuelStore("duels.db").record([("no-such-duel", 1.0)])
    [UnknownDuelError(...)]
    """


class DuelExpiredError(FldbError):
    """The duel can no longer be answered.

    Examples
    --------
    >>> import numpy as np
    >>> from clients.store import DuelStore
    >>> now = 1000.0
    >>> store = DuelStore("duels.db", clock=lambda: now)
    >>> proposal = store.propose(np.array([1.0, 0.0]), np.nan, expire_after=60.0)
    >>> now = 1061.0
    >>> store.record([(proposal.id, 1.0)])
    [DuelExpiredError(...)]
    """


class ConflictingAnswerError(FldbError):
    """The duel already has a different answer.

    Examples
    --------
    >>> import numpy as np
    >>> from clients.store import DuelStore
    >>> store = DuelStore("duels.db")
    >>> proposal = store.propose(np.array([1.0, 0.0]), np.nan, expire_after=60.0)
    >>> store.record([(proposal.id, 1.0), (proposal.id, 1.0), (proposal.id, 0.0)])
    [1, 1, ConflictingAnswerError(...)]
    """


class UndoError(FldbError):
    """The answer can no longer be undone.

    Examples
    --------
    Only the last answer can be undone; an earlier one, after the later ones:

    >>> import numpy as np
    >>> from clients.store import DuelStore
    >>> store = DuelStore("duels.db")
    >>> ids = [
    ...     store.propose(np.array([1.0, 0.0]), np.nan, expire_after=60.0).id for _ in range(2)
    ... ]
    >>> store.record([(ids[0], 1.0), (ids[1], 0.0)])
    [1, 2]
    >>> store.undo(ids[0], expire_after=60.0)
    Traceback (most recent call last):
    ...
    clients.store.records.UndoError: ...
    """


@dataclass(frozen=True)
class Forgotten:
    """Numbers of open duels and answers that were removed by ``DuelStore.forget``.

    Attributes
    ----------
    proposals : int
        Open duels.
    forgotten : int
        Answers that the server had not acknowledged.
    may_be_counted : int
        Those of them that had been uploaded: the server may have counted them.
    counted : int
        Answers that the server has counted; only FLDB-Personal's sums lose them.

    Examples
    --------
    >>> import numpy as np
    >>> from clients.store import DuelStore
    >>> store = DuelStore("duels.db")
    >>> proposal = store.propose(np.array([1.0, 0.0]), np.nan, expire_after=60.0)
    >>> store.forget()
    Forgotten(proposals=1, forgotten=0, may_be_counted=0, counted=0)
    """

    proposals: int
    forgotten: int
    may_be_counted: int
    counted: int


class Proposal(NamedTuple):
    """A duel without an answer."""

    id: str
    created: float  # seconds since 1970, by the device's clock when it was proposed
    expires: float
    first_key: str | None  # the application's names for the two arms
    second_key: str | None
    contents: Any  # what a page shows of the two arms


class Evidence(NamedTuple):
    """Answers in the order of their numbers."""

    numbers: IntArray  # (n,)
    differences: FloatArray  # phi(first) - phi(second), (n, d)
    preferences: FloatArray  # 1, 0, or 0.5 for a tie, (n,)
    predicted: FloatArray  # P(first preferred) when proposed, (n,); NaN before the first broadcast

    def after(self, number: int) -> Evidence:
        """Return the answers after a number."""
        later = self.numbers > number
        return Evidence._make(column[later] for column in self)


@dataclass(frozen=True)
class Synchronization:
    """The estimate of the last broadcast."""

    received: float  # seconds since 1970
    round: int  # of the server
    counted: int  # answers of this device that the server has acknowledged
    duels: int  # of all devices, that theta is computed from
    theta: FloatArray  # theta_sync, (d,)
    information: FloatArray  # W_sync, or A of FLDB-ONS, packed in the form of the parameters
    parameters: dict[str, Any]  # the SELECTION_SETTINGS of the run
    prior: CommonPrior | None = None  # of FLDB-Personal


def selection_settings(parameters: Mapping[str, Any], dimension: int) -> Settings:
    """Return the settings with which a device selects, from those of a server's run."""
    # A newer server may have other settings.
    chosen = {name: parameters[name] for name in SELECTION_SETTINGS if name in parameters}
    if str(chosen.get("algorithm")) not in ALGORITHMS:  # only registered in the ClientApp's process
        chosen.pop("algorithm", None)
    return replace(Settings(), dimension=dimension, **chosen)
