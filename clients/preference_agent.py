"""The API for applications on a device: propose a duel, record which arm won."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from clients.store import SELECTION_SETTINGS, DuelStore, Forgotten
from clients.validation import check_answer, check_answers, check_arms, shortened
from fldb_flower.bandit import preference, theory
from fldb_flower.bandit.selection import find_rule, norms, rewards
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.catalogue import ALGORITHMS
from fldb_flower.errors import DataError, FldbError
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.forms import make_form
from fldb_flower.settings import Settings

PREFERENCES = {"first": 1.0, "second": 0.0, "tie": 0.5}
"""Values of ``preferred`` in :meth:`PreferenceAgent.record`, and their y."""

EXPIRE_AFTER = 7 * 24 * 3600.0
"""Seconds within which a duel can be answered, by default."""

MOST_SECONDS = 1e9
"""Largest ``expire_after``: about 31 years."""


@dataclass(frozen=True)
class Duel:
    """Two arms to show.

    The first arm is the favourite: show the two in random order, or a preference for a position is
    learned as a preference for an arm.
    """

    id: str  # argument of PreferenceAgent.record
    first: int  # indices of the arms among those proposed, from 0; they differ
    second: int
    first_key: str | None  # their keys, if keys were given
    second_key: str | None
    predicted: float | None  # P(first preferred); None before the first synchronization
    expires: float  # in seconds since 1970


class PreferenceAgent:
    """An agent of the federation on a device: selects duels and stores answers.

    Several agents, in different threads and processes, may use one store. No method needs the
    network: the device's Flower client writes new estimates into the store. An agent is also a
    context manager.

    Parameters
    ----------
    path : str or Path
        The device's store; created if it does not exist.
    expire_after : float
        Seconds within which a duel can be answered. Seven days by default.
    clock : callable
        Returns the time in seconds since 1970.

    Raises
    ------
    DataError, OutputError
        See :class:`~clients.store.DuelStore`. DataError also if ``expire_after`` is invalid.

    Examples
    --------
    >>> agent = PreferenceAgent("duels.db")
    >>> duel = agent.propose([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]], keys=["tea", "coffee", "cocoa"])
    >>> agent.record(duel.id, preferred="second")
    """

    def __init__(
        self,
        path: str | Path,
        *,
        expire_after: float = EXPIRE_AFTER,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if isinstance(expire_after, bool) or not isinstance(expire_after, int | float):
            raise DataError(f"expire_after={shortened(expire_after)}: must be a number of seconds")
        if not 0 < expire_after <= MOST_SECONDS:
            raise DataError(
                f"expire_after={shortened(expire_after)}: must be above 0 and at most"
                f" {MOST_SECONDS:.0f} seconds"
            )
        self.store = DuelStore(path, clock=clock)
        self._expire_after = expire_after
        self._selector: _Selector | None = None

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
        """Select two of K arms to show, by the last synchronized theta_sync and W.

        Before the first synchronization, theta_sync is 0 and W_0 = (lambda / kappa_mu) I. If the
        rule selects the same arm twice, the second arm is the best challenger among the others.

        Parameters
        ----------
        features : array_like
            phi of each arm, (K, d); K is at least 2 and may differ each time.
        keys : sequence of str, optional
            K names, at most 1,000 characters each. They stay on the device, and are deleted when
            the duel is answered.
        contents : sequence of dict, optional
            What the page of the local service shows of each arm: ``{"text": ...}``,
            ``{"image": URL}`` or both. A text has at most 10,000 characters; a URL begins with
            ``https://`` or ``data:image/``. They are deleted when the duel is answered.

        Raises
        ------
        DataError
            The features are not (K, d) finite numbers, K is below 2, d is not the store's, or the
            keys or contents are invalid or not K. The service's messages are the same.
        """
        arms, names, shown = check_arms(features, keys, contents)
        selector = self._current(arms.shape[1])
        first, second = selector.select(arms)
        difference = arms[first] - arms[second]
        predicted = None
        if selector.synchronized:
            predicted = float(preference.logistic(selector.theta @ difference))
        shown_keys: tuple[str | None, str | None] = (None, None)
        if names is not None:
            shown_keys = names[first], names[second]
        proposal = self.store.propose(
            difference,
            np.nan if predicted is None else predicted,
            keys=shown_keys,
            contents=None if shown is None else [shown[first], shown[second]],
            expire_after=self._expire_after,
        )
        return Duel(proposal.id, first, second, *shown_keys, predicted, proposal.expires)

    def record(self, duel_id: str, preferred: str) -> int:
        """Record the person's preference durably.

        The same answer may be repeated, and duels may be answered in any order.

        Parameters
        ----------
        duel_id : str
            ``id`` of a proposed duel.
        preferred : str
            ``"first"``, ``"second"`` or ``"tie"``.

        Returns
        -------
        int
            Number of the answer on this device, from 1.

        Raises
        ------
        DataError
            ``duel_id`` or ``preferred`` is invalid.
        UnknownDuelError, DuelExpiredError, ConflictingAnswerError
            See :mod:`clients.store`.
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

    def forget(self) -> Forgotten:
        """Remove all open duels and answers from this device.

        The server's sums keep the answers that it has counted: this cannot be undone. Answers that
        were uploaded but not acknowledged may also be counted; they are not uploaded again. No file
        of the store contains texts, keys, features or answers afterwards.
        """
        return self.store.forget()

    def status(self) -> dict[str, Any]:
        """Return the numbers of duels and answers, and the last estimate.

        Returns
        -------
        dict
            ``open``, ``answered`` and ``counted`` duels of this device; ``dimension``;
            ``theta`` (list of d numbers), ``round``, ``duels`` (of all devices) and
            ``received`` (seconds since 1970) of the last broadcast, or None.
        """
        last = self.store.synchronized()
        names = ("round", "duels", "received")
        return {
            **self.store.counts(),
            "dimension": self.store.dimension,
            "theta": None if last is None else last.theta.tolist(),
            **{name: None if last is None else getattr(last, name) for name in names},
        }

    def _current(self, dimension: int) -> _Selector:
        expected = self.store.dimension
        if expected is not None and expected != dimension:
            raise DataError(f"features of {dimension} numbers each: this device's have {expected}")
        version = self.store.version()
        current = self._selector
        if current is None or (current.version, current.theta.size) != (version, dimension):
            current = self._selector = _Selector(self.store, version, dimension)
        return current


class _Selector:
    """The selection of pairs by the estimate of one broadcast."""

    def __init__(self, store: DuelStore, version: tuple[int, float], dimension: int) -> None:
        self.version = version
        last = store.synchronized()
        self.synchronized = last is not None
        parameters = {} if last is None else last.parameters  # of a newer server: may have others
        chosen = {name: parameters[name] for name in SELECTION_SETTINGS if name in parameters}
        if chosen.get("algorithm") not in ALGORITHMS:  # only registered in the ClientApp's process
            chosen.pop("algorithm", None)
        settings = dataclasses.replace(Settings(), dimension=dimension, **chosen)
        form = make_form(settings)
        if last is None:
            self.theta: FloatArray = np.zeros(dimension)
            information = form.identity(settings.ridge / settings.kappa_mu)
        else:
            self.theta = last.theta
            information = form.unpack(last.information)
        self._whitener = form.whiten(information)
        # The theory's t N duels: here those that W is computed from, and the next one.
        self._width = theory.width(1 if last is None else last.duels + 1, 1, settings)
        self._rule = find_rule(settings.selection)
        self._streams = AgentStreams(int.from_bytes(os.urandom(8), "little"), range(1))

    def select(self, arms: FloatArray) -> tuple[int, int]:
        """Return the indices of two different arms."""
        rule, width = self._rule, self._width
        noise = None if rule.noise is None else rule.noise(self._streams, 1, arms.shape)[:, 0]
        firsts, seconds = rule.select(arms[None], self.theta, self._whitener, width, noise)
        first, second = int(firsts[0]), int(seconds[0])
        if first == second:
            others = np.delete(arms, first, axis=0)
            bonus = norms((others - arms[first])[None], self._whitener)
            best = int(np.argmax(rewards(others[None], self.theta) + width * bonus))
            second = best + int(best >= first)
        return first, second
