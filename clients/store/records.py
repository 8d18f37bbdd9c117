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


class Proposal(NamedTuple):
    """A duel without an answer.

    Attributes
    ----------
    id : str
        Identifies the duel.
    created, expires : float
        In seconds since 1970, by the device's clock when it was proposed.
    first_key, second_key : str or None
        The application's names for the two arms.
    contents : Any
        What a page shows of the two arms.

    Examples
    --------
    >>> import numpy as np
    >>> from clients.store import DuelStore
    >>> store = DuelStore("duels.db", clock=lambda: 1000.0)
    >>> difference = np.array([1.0, 0.0])
    >>> proposal = store.propose(difference, 0.5, keys=("tea", "coffee"), expire_after=60.0)
    >>> proposal.first_key, proposal.expires
    ('tea', 1060.0)
    """

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
        Round of the server.
    counted : int
        Answers of this device that the server has acknowledged.
    duels : int
        Duels of all devices that theta is computed from.
    theta : ndarray
        theta_sync, (d,).
    information : ndarray
        W_sync, or A of FLDB-ONS, packed in the form of the parameters.
    parameters : dict
        The ``SELECTION_SETTINGS`` of the run.
    prior : CommonPrior or None
        Prior of FLDB-Personal.

    Examples
    --------
    There is none before the first broadcast:

    >>> from clients.store import DuelStore
    >>> DuelStore("duels.db").synchronized() is None
    True
    """

    received: float
    round: int
    counted: int
    duels: int
    theta: FloatArray
    information: FloatArray
    parameters: dict[str, Any]
    prior: CommonPrior | None = None


def selection_settings(parameters: Mapping[str, Any], dimension: int) -> Settings:
    """Return the settings with which a device selects, from those of a server's run."""
    chosen = {name: parameters[name] for name in SELECTION_SETTINGS if name in parameters}
    if str(chosen.get("algorithm")) not in ALGORITHMS:  # only registered in the ClientApp's process
        chosen.pop("algorithm", None)
    return replace(Settings(), dimension=dimension, **chosen)


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


class Evidence(NamedTuple):
    """Answers in the order of their numbers.

    Attributes
    ----------
    numbers : ndarray
        Numbers of the answers, (n,).
    differences : ndarray
        phi(first) - phi(second), (n, d).
    preferences : ndarray
        1, 0, or 0.5 for a tie, (n,).
    predicted : ndarray
        P(first preferred) when proposed, (n,); NaN before the first broadcast.

    Examples
    --------
    >>> import numpy as np
    >>> from clients.store import DuelStore
    >>> store = DuelStore("duels.db")
    >>> for difference, preference in [([1.0, 0.0], 1.0), ([0.0, 2.0], 0.0)]:
    ...     proposal = store.propose(np.array(difference), np.nan, expire_after=60.0)
    ...     numbers = store.record([(proposal.id, preference)])
    >>> store.answers().preferences
    array([1., 0.])
    >>> store.answers().after(1).differences
    array([[0., 2.]])
    """

    numbers: IntArray

    differences: FloatArray
    preferences: FloatArray
    predicted: FloatArray

    def after(self, number: int) -> Evidence:
        """Return the answers after a number."""
        later = self.numbers > number
        return Evidence(
            self.numbers[later],
            self.differences[later],
            self.preferences[later],
            self.predicted[later],
        )
