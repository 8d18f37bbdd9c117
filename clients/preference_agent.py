"""The API for applications on a device: propose a duel, record which arm won."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from clients.selection import PairSelector
from clients.store import DuelStore, Forgotten, Proposal
from clients.validation import (
    Table,
    check_answer,
    check_answers,
    check_arms,
    check_features,
    check_names,
    read_row,
    read_table,
    shortened,
)
from fldb_flower.bandit.directions import directions_of
from fldb_flower.bandit.preference import PREFERENCES, duel_key, logistic
from fldb_flower.bandit.selection.informative import PURPOSES
from fldb_flower.errors import DataError, FldbError
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.settings import NONE, Settings
from fldb_flower.system.process import one_blas_thread

__all__ = ["Duel", "PreferenceAgent", "Weights"]

EXPIRE_AFTER = 7 * 24 * 3600.0
"""Seconds within which a duel can be answered, by default."""

RECENT = 50
"""Answers whose predictions are counted by :meth:`PreferenceAgent.predictions`."""

MOST_SECONDS = 1e9
"""Largest ``expire_after``: about 31 years."""


@dataclass(frozen=True)
class Duel:
    """Two arms to show.

    The first arm is the favourite. Show the two in random order. Otherwise, a preference for a
    position is learned as a preference for an arm.

    Attributes
    ----------
    id : str
        Argument of :meth:`~clients.preference_agent.PreferenceAgent.record`.
    first, second : int
        Indices of the arms among those proposed, from 0; they differ.
    first_key, second_key : str or None
        Their keys, if keys were given.
    predicted : float or None
        P(first preferred); None before the first answer and broadcast.
    expires : float
        In seconds since 1970.

    Examples
    --------
    >>> from clients.preference_agent import PreferenceAgent
    >>> with PreferenceAgent("duels.db") as agent:
    ...     duel = agent.propose([[0.1, 0.9], [0.8, 0.2]], keys=["tea", "coffee"])
    >>> sorted([duel.first_key, duel.second_key]), duel.predicted
    (['coffee', 'tea'], None)
    """

    id: str
    first: int
    second: int
    first_key: str | None
    second_key: str | None
    predicted: float | None
    expires: float


@dataclass(frozen=True)
class Weights:
    """What was learned: the estimate of theta and its uncertainty.

    Attributes
    ----------
    weights : list of float
        The d coefficients of theta, per unit of each feature. The indicators of a text column, such
        as ``colour=red``, have weights relative to their mean.
    deviations : list of float
        The standard deviation of each weight.
    names : list of str or None
        Names of the features, if they have names.
    own : bool
        True: the person's own theta, updated after each answer. False: the server's estimate.
    scales : list of float
        A typical deviation of each feature. A weight times its scale does not depend on the unit of
        the feature.
    directions : list of dict
        FLDB-Personal: the directions in which people differ most, each with its ``share`` of the
        variance and its ``weights`` by feature; empty if the server does not estimate them.

    Examples
    --------
    Nothing is known before the first duel:

    >>> from clients.preference_agent import PreferenceAgent
    >>> PreferenceAgent("duels.db").explain()
    Weights(weights=[], deviations=[], names=None, own=True, scales=[], directions=[])
    """

    weights: list[float]
    deviations: list[float]
    names: list[str] | None
    own: bool
    scales: list[float]
    directions: list[dict[str, Any]]


class PreferenceAgent:
    """An agent on a device: selects duels, stores answers and learns from them.

    Answers take effect immediately, with or without a server. If the device joins a federation
    later, its earlier answers are uploaded too. Several agents, in different threads and processes,
    may use one store. No method needs the network: the device's Flower client writes new estimates
    into the store. An agent is also a context manager.

    Parameters
    ----------
    path : str or Path
        The device's store; created if it does not exist.
    expire_after : float
        Seconds within which a duel can be answered, seven days by default. Only time in which the
        device runs counts, so setting its clock does not make a duel expire.
    purpose : {"suggest", "rank"}
        Purpose of the duels. ``"suggest"``: find the best arm, showing good arms only. ``"rank"``:
        rank all arms well after few duels, which show bad arms as well.
    clock : callable
        Returns the time in seconds since 1970.
    half_life : float, optional
        Number of later answers after which an answer has half its weight, from 0.01 to 1e9, for
        tastes that change. By default, all answers have the same weight. After the first broadcast,
        the server's setting ``half_life`` applies instead.

    Raises
    ------
    DataError, OutputError
        See :class:`~clients.store.DuelStore`. DataError also if ``expire_after`` or ``purpose`` is
        invalid, and SettingsError if ``half_life`` is.

    Examples
    --------
    Coffee is preferred to tea once, so the first feature has a positive weight:

    >>> from clients.preference_agent import PreferenceAgent
    >>> agent = PreferenceAgent("duels.db")
    >>> duel = agent.propose([[0.1, 0.9], [0.8, 0.2]], keys=["tea", "coffee"])
    >>> agent.record(duel.id, "first" if duel.first_key == "coffee" else "second")
    1
    >>> agent.rank([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]])
    [1, 2, 0]
    >>> agent.predict([0.8, 0.2], [0.1, 0.9]) > 0.5
    True
    >>> agent.explain().weights[0] > 0
    True
    """

    def __init__(
        self,
        path: str | Path,
        *,
        expire_after: float = EXPIRE_AFTER,
        purpose: str = "suggest",
        clock: Callable[[], float] = time.time,
        half_life: float | None = None,
    ) -> None:
        is_number = isinstance(expire_after, int | float) and not isinstance(expire_after, bool)
        if not is_number or not 0 < expire_after <= MOST_SECONDS:
            raise DataError(
                f"expire_after={shortened(expire_after)}: must be a number of seconds above 0, at"
                f" most {MOST_SECONDS:.0f}"
            )
        if purpose not in PURPOSES:
            raise DataError(f"purpose={shortened(purpose)}: must be {' or '.join(PURPOSES)}")
        chosen = NONE if half_life is None else half_life
        self._half_life = Settings(algorithm="fldb_personal", half_life=chosen).half_life
        self.store = DuelStore(path, clock=clock)
        self._expire_after, self._purpose = expire_after, purpose
        self._skipped: Counter[bytes] = Counter()
        self._selector: PairSelector | None = None

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __enter__(self) -> PreferenceAgent:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def propose(
        self,
        features: ArrayLike,
        keys: Sequence[str] | None = None,
        contents: Sequence[Any] | None = None,
    ) -> Duel:
        """Select two of K arms to show.

        The selection uses the last broadcast and all answers on this device: with FLDB-Personal
        and before the first broadcast, the person's own theta; with FLDB-ONS and FLDB-OGD,
        theta_sync, and W with the answers that are not yet in it (``clients.selection``).

        Parameters
        ----------
        features : array_like or DataFrame
            phi of each arm, (K, d); K is at least 2 and may differ each time. Columns of a data
            frame are matched by name; the first one names the features if they have no names.
        keys : sequence of str, optional
            K names, at most 1,000 characters each; by default the labels of a data frame. They stay
            on the device, and are deleted when the duel is answered.
        contents : sequence of dict, optional
            What the page of the local service shows of each arm: ``{"text": ...}``,
            ``{"image": URL}`` or both. A text has at most 10,000 characters; a URL begins with
            ``https://`` or ``data:image/``. They are deleted when the duel is answered.

        Raises
        ------
        DataError
            The features are not (K, d) finite numbers, K is below 2, d is not the store's, or the
            keys, contents or columns are invalid or not K. The service's messages are the same.
        """
        table = self._table(features)
        keys = table.keys if keys is None else keys
        arms, names, shown = check_arms(table.numbers, keys, contents)
        self._offer(arms, table.columns)
        selector = self._current(arms.shape[1])
        first, second = selector.select(arms)
        difference = arms[first] - arms[second]
        predicted = selector.predict(difference) if selector.is_informed else None
        pair: tuple[str | None, str | None] = (None, None)
        if names is not None:
            pair = names[first], names[second]
        proposal = self.store.propose(
            difference,
            np.nan if predicted is None else predicted,
            keys=pair,
            contents=None if shown is None else [shown[first], shown[second]],
            expire_after=self._expire_after,
        )
        return Duel(proposal.id, first, second, *pair, predicted, proposal.expires)

    def _offer(self, arms: FloatArray, columns: list[str] | None) -> None:
        self._expect(arms.shape[1])
        if columns is not None and self.store.feature_names is None:
            self.name_features(columns)
        self.store.offer(arms)

    def record(self, duel_id: str, preferred: str) -> int:
        """Record the person's preference durably.

        The same answer may be repeated, and duels may be answered in any order.

        Parameters
        ----------
        duel_id : str
            ``id`` of a proposed duel.
        preferred : {"first", "second", "tie"}
            Which arm won.

        Returns
        -------
        int
            Number of the answer on this device, from 1.

        Raises
        ------
        DataError, UnknownDuelError, DuelExpiredError, ConflictingAnswerError
            An argument is invalid, or the duel cannot be answered in this way.
        """
        check_answer(duel_id, preferred)
        (result,) = self.store.record([(duel_id, PREFERENCES[preferred])])
        if isinstance(result, FldbError):
            raise result
        return result

    def record_many(self, answers: Iterable[tuple[str, str]]) -> list[int | FldbError]:
        """Record several answers in one durable write.

        Returns for each answer the result of :meth:`record` or the error that it would raise. If an
        answer is invalid, :class:`DataError` is raised and nothing is recorded.
        """
        checked = check_answers(answers)
        return self.store.record([(duel, PREFERENCES[preferred]) for duel, preferred in checked])

    def undo(self, duel_id: str, *, shown: Proposal | None = None) -> str:
        """Remove the last answer. Its duel is open again under a new id, which is returned.

        The answer no longer affects the estimate. It can be undone until it is part of an upload to
        the server (UndoError). The duel has neither keys nor contents, which were deleted when it
        was answered: the application shows the two arms again, and records the answer with the new
        id. A repeated request changes nothing and returns the same id. ``shown`` is used by the
        local service, whose page shows the duel again: its proposal, with keys and contents.
        """
        check_answer(duel_id)
        return self.store.undo(duel_id, expire_after=self._expire_after, shown=shown)

    def skip(self, duel_id: str) -> None:
        """Remove an open duel without an answer; nothing is learned from it.

        As long as this agent is open, it proposes other duels first. A tie, in contrast, is an
        answer: the person compared the two arms and likes both equally.
        """
        check_answer(duel_id)
        self._skipped[duel_key(self.store.skip(duel_id))] += 1

    def name_features(self, names: Sequence[str] | None) -> None:
        """Set the names of the d features; None removes them.

        They are distinct strings of 1 to 1,000 characters, which :meth:`explain` returns and the
        page of the local service shows. While their number is not d, the features have no names. If
        the federation has names, others are refused: a device with other features cannot take part.
        """
        self.store.name_features(check_names(names, self.store.dimension))

    def rank(self, features: ArrayLike) -> list[Any]:
        """Return the indices of K arms, (K, d), best first; of a data frame, its row labels.

        Arms are sorted by ``theta . x``. Equal arms keep their order. The estimate is that of
        :meth:`propose`.
        """
        return self._ranked(self._table(features))[0]

    def favourites(self, features: ArrayLike, most: int = 5) -> list[Any]:
        """Return the indices, or labels, of the ``most`` best arms, best first.

        Unlike :meth:`rank`, it returns none if the arms are predicted to be equally good.
        """
        order, rewards = self._ranked(self._table(features))
        return order[:most] if np.ptp(rewards) > 0 else []

    def _ranked(self, table: Table) -> tuple[list[Any], FloatArray]:
        """Return the indices or labels of arms, best first, and the rewards of the arms."""
        rewards = self._rewards(table.numbers)
        order: list[int] = np.argsort(-rewards, kind="stable").tolist()
        return order if table.labels is None else [table.labels[arm] for arm in order], rewards

    def _table(self, features: Any) -> Table:
        return read_table(features, self.store.feature_names)

    def against_average(self, features: ArrayLike) -> FloatArray:
        """Return the probability that each arm is preferred to the average arm, with an interval.

        Parameters
        ----------
        features : array_like
            phi of each arm, (K, d).

        Returns
        -------
        ndarray of shape (K, 3)
            The estimated probability, and the ends of its 95% interval: 1.96 standard deviations
            of the difference in reward, with the deviations of :meth:`explain`.

        Examples
        --------
        >>> from clients.preference_agent import PreferenceAgent
        >>> agent = PreferenceAgent("duels.db")
        >>> number = agent.record(agent.propose([[0.0], [1.0]]).id, "tie")
        >>> agent.against_average([[0.0], [1.0]])[:, 0]
        array([0.5, 0.5])
        """
        arms = check_features(features)
        selector = self._current(arms.shape[1])
        learner, centred = selector.learner, selector.features.scaled(arms - arms.mean(axis=0))
        logits, margins = centred @ learner.theta, 1.96 * learner.deviations(centred)
        ends = np.stack([logits, logits - margins, logits + margins], axis=1)
        probabilities: FloatArray = logistic(ends)
        return probabilities

    def _rewards(self, features: ArrayLike) -> FloatArray:
        arms = check_features(features)
        return self._current(arms.shape[1]).rewards(arms)

    def predict(self, first: ArrayLike, second: ArrayLike) -> float:
        """Return the probability that the first of two arms is preferred.

        With the person's own theta, it is averaged over the posterior, so it is close to 1/2 where
        little is known. ``first`` and ``second`` are the features of the arms, (d,) each.
        """
        names = self.store.feature_names
        pair: Any = [read_row(arm, names) for arm in (first, second)]
        arms = check_features(pair)
        return self._current(arms.shape[1]).predict(arms[0] - arms[1])

    def explain(self) -> Weights:
        """Return the weight of each feature in the reward of an arm, with standard deviations.

        With FLDB-ONS and FLDB-OGD, the weights are theta_sync, and the deviations follow from W
        (``clients.learning.CommonLearner.deviations``). All lists are empty before the first
        duel and broadcast.
        """
        dimension, names = self.store.dimension, self.store.feature_names
        if dimension is None:
            return Weights([], [], names, own=True, scales=[], directions=[])
        selector = self._current(dimension)
        learner, features = selector.learner, selector.features
        rows = features.contrasts(names)
        numbers = rows @ learner.theta, learner.deviations(rows), features.scales
        weights, deviations, scales = (each.tolist() for each in numbers)
        last = self.store.synchronized()
        differ = directions_of(last.prior, names) if last and last.prior else []
        return Weights(weights, deviations, names, selector.is_own, scales, differ)

    def forget(self) -> Forgotten:
        """Remove all open duels and answers from this device.

        With FLDB-ONS and FLDB-OGD, the server's sums keep the answers that it has counted. With
        FLDB-Personal, the next round subtracts the device's share from the sums; the log losses of
        predictions stay in theirs. Answers that were uploaded but not acknowledged may also be
        counted; they are not uploaded again. Afterwards, no file of the store has contents, keys,
        features or answers. The last share, a sum over answers, stays until it is subtracted.
        """
        return self.store.forget()

    def status(self) -> dict[str, Any]:
        """Return the numbers of duels and answers, and the last estimate.

        ``open``, ``answered`` and ``counted`` are numbers of duels of this device. ``sent`` is the
        number of the last answer that is part of an upload. ``undoable`` is the id of the duel
        whose answer can be undone, or None. ``needed`` is the number of distinct duels that the
        next upload lacks, None before the first request. ``minimum`` is the number that it must
        have, absent before the first request. ``theta`` (d numbers), ``round``, ``duels`` (of all
        devices) and ``received`` (seconds since 1970) are those of the last broadcast, or None.
        """
        store, last = self.store, self.store.synchronized()
        found: dict[str, Any] = {**store.counts(), "sent": store.sent, "needed": store.needed}
        if store.minimum is not None:
            found["minimum"] = store.minimum
        found |= {
            "undoable": store.undoable,
            "dimension": store.dimension,
            "theta": None
            if last is None
            else store.features(last.theta.size).per_unit(last.theta).tolist(),
        }
        names = ("round", "duels", "received")
        return found | {name: None if last is None else getattr(last, name) for name in names}

    def predictions(self) -> dict[str, Any]:
        """Return how many of the last 50 answers were predicted correctly.

        ``answers`` is how many of them are left on the device. ``predicted`` of these had a
        prediction when the duel was proposed, and are no ties. ``right`` predictions were correct,
        and ``expected`` is the number that the estimate itself expected to be correct, the sum of
        ``max(p, 1 - p)``. Duels are selected to be close, so it is far below ``predicted``.
        """
        store = self.store
        with store.reading():
            latest = store.answers(max(0, store.last - RECENT))
        decided = np.isfinite(latest.predicted) & (latest.preferences != 0.5)
        chances, won = latest.predicted[decided], latest.preferences[decided] > 0.5
        return {
            "answers": len(latest.numbers),
            "predicted": len(chances),
            "right": int(((chances > 0.5) == won).sum()),
            "expected": float(np.maximum(chances, 1.0 - chances).sum()),
        }

    def _expect(self, dimension: int) -> None:
        expected = self.store.dimension
        if expected is not None and expected != dimension:
            raise DataError(f"features of {dimension} numbers each: this device's have {expected}")

    def _current(self, dimension: int) -> PairSelector:
        self._expect(dimension)
        current, version = self._selector, self.store.version()
        if current is not None and (current.version, current.dimension) == (version, dimension):
            current.update()
            return current
        with one_blas_thread():
            current = PairSelector(
                self.store, dimension, self._purpose, self._skipped, self._half_life
            )
        self._selector = current
        return current
