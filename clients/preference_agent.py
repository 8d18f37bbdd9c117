"""What an application on a device calls: propose a duel, record who won."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clients.store import SELECTION_SETTINGS, DuelStore, Forgotten
from clients.validation import check_answer, check_answers, check_arms, shortened
from fldb_flower.bandit import preference, theory
from fldb_flower.bandit.selection import find_rule, norms, rewards
from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.errors import DataError, FldbError
from fldb_flower.linalg.forms import Vector, make_form
from fldb_flower.settings import Settings

PREFERENCES = {"first": 1.0, "second": 0.0, "tie": 0.5}
"""What :meth:`PreferenceAgent.record` takes, and the y of the duel."""

EXPIRE_AFTER = 7 * 24 * 3600.0
"""Seconds after which a duel that nobody answered cannot be answered any more."""

MOST_SECONDS = 1e9
"""About 31 years: the latest that a duel may expire."""


@dataclass(frozen=True)
class Duel:
    """Two arms to show.

    Attributes
    ----------
    id : str
        What :meth:`PreferenceAgent.record` takes.
    first, second : int
        Places of the arms among those proposed, from 0; never the same. The first is the
        favourite: show the two in random order, or people's habits become preferences.
    first_key, second_key : str or None
        Their keys, where keys were given.
    predicted : float or None
        P(first preferred) by the estimate in use; None before the first synchronization.
    expires : float
        Until when it can be answered, in seconds since 1970.
    """

    id: str
    first: int
    second: int
    first_key: str | None
    second_key: str | None
    predicted: float | None
    expires: float


class PreferenceAgent:
    """One agent of the federation, on a device: selects duels, keeps the answers.

    Any number of them, in threads and processes, may use one store. Nothing here needs the
    network: the Flower client of the device brings new estimates into the store when it can.

    Parameters
    ----------
    path : str or Path
        The device's store; created if it does not exist.
    expire_after : float
        Seconds within which a duel has to be answered. Seven days by default.
    clock : callable
        Returns the time in seconds since 1970.

    Raises
    ------
    DataError, OutputError
        See :class:`~clients.store.DuelStore`. DataError too if ``expire_after`` is no positive
        number.

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
        self._estimate: _Estimate | None = None

    def close(self) -> None:
        """Close the store; an agent is a context manager too."""
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

        Before the first synchronization theta_sync is 0 and W_0 = (lambda / kappa_mu) I. Where
        the rule selects one arm twice, the second is the best challenger among the others: a
        person cannot prefer an arm to itself.

        Parameters
        ----------
        features : array_like
            phi of each arm, (K, d); K is at least 2 and may differ each time.
        keys : sequence of str, optional
            K names of the application's own, at most 1,000 characters each. They stay on the
            device. Deleted with the answer.
        contents : sequence of dict, optional
            What the page of the local service shows of each arm: ``{"text": ...}``,
            ``{"image": URL}`` or both. A text has at most 10,000 characters; a URL begins with
            ``https://`` or ``data:image/``. Deleted with the answer.

        Raises
        ------
        DataError
            The features are not (K, d) finite numbers, K is below 2, d is not that of the
            store, there are not as many keys or contents as arms, or a content is not what the
            page shows. The service refuses the same values with the same message.
        """
        arms, names, shown = check_arms(features, keys, contents)
        estimate = self._current(arms.shape[1])
        first, second = estimate.select(arms)
        difference = arms[first] - arms[second]
        predicted = float(preference.logistic(estimate.theta @ difference))
        proposal = self.store.propose(
            difference,
            predicted if estimate.synchronized else np.nan,
            keys=(None, None) if names is None else (names[first], names[second]),
            contents=None if shown is None else [shown[first], shown[second]],
            expire_after=self._expire_after,
        )
        return Duel(
            proposal.id,
            first,
            second,
            proposal.first_key,
            proposal.second_key,
            predicted if estimate.synchronized else None,
            proposal.expires,
        )

    def record(self, duel_id: str, preferred: str) -> int:
        """Record what the person preferred; it is on the disk when this returns.

        The same answer may be given again, and duels may be answered in any order.

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
            ``preferred`` is something else, or ``duel_id`` is no text.
        UnknownDuelError, DuelExpiredError, ConflictingAnswerError
            See :mod:`clients.store`.
        """
        check_answer(duel_id, preferred)
        (result,) = self.store.record([(duel_id, PREFERENCES[preferred])])
        if isinstance(result, FldbError):
            raise result
        return result

    def record_many(self, answers: Iterable[tuple[str, str]]) -> list[int | FldbError]:
        """Record several answers in one durable write, which costs little more than one.

        Returns
        -------
        list
            For each answer what :meth:`record` returns, or the error that it would raise.

        Raises
        ------
        DataError
            An answer is no such pair, or its ``preferred`` is none of the three; then nothing is
            recorded.
        """
        checked = check_answers(answers)
        return self.store.record([(duel, PREFERENCES[preferred]) for duel, preferred in checked])

    def forget(self) -> Forgotten:
        """Remove the person's open duels and all answers from this device.

        Answers that the server has counted stay in its sums: that cannot be undone. Answers that
        were sent and not acknowledged yet may be counted too; they are not sent again. No
        file of the store holds texts, keys, features or answers afterwards.

        Returns
        -------
        Forgotten
            How many of each.
        """
        return self.store.forget()

    def status(self) -> dict[str, Any]:
        """Return what the device knows: how many duels, what it learned, when it was told.

        Returns
        -------
        dict
            ``open``, ``answered`` and ``counted`` duels of this device; ``dimension``;
            ``theta`` (list of d numbers), ``round``, ``duels`` (of all devices) and
            ``received`` (seconds since 1970) of the last broadcast, or None.
        """
        last = self.store.synchronized()
        return {
            **self.store.counts(),
            "dimension": self.store.dimension,
            "theta": None if last is None else last.theta.tolist(),
            "round": None if last is None else last.round,
            "duels": None if last is None else last.duels,
            "received": None if last is None else last.received,
        }

    def _current(self, dimension: int) -> _Estimate:
        expected = self.store.dimension
        if expected is not None and expected != dimension:
            raise DataError(f"features of {dimension} numbers each: this device's have {expected}")
        version = self.store.version()
        if (
            self._estimate is None
            or self._estimate.version != version
            or self._estimate.theta.size != dimension
        ):
            self._estimate = _Estimate(self.store, version, dimension)
        return self._estimate


class _Estimate:
    """What one broadcast brought, ready to select with."""

    def __init__(self, store: DuelStore, version: tuple[int, float], dimension: int) -> None:
        self.version = version
        last = store.synchronized()
        self.synchronized = last is not None
        told = {} if last is None else last.parameters  # perhaps by a newer server
        chosen = {name: told[name] for name in SELECTION_SETTINGS if name in told}
        settings = dataclasses.replace(Settings(), dimension=dimension, **chosen)
        form = make_form(settings)
        if last is None:
            self.theta: Vector = np.zeros(dimension)
            information = form.identity(settings.ridge / settings.kappa_mu)
        else:
            self.theta = last.theta
            information = form.unpack(last.information)
        self._whitener = form.whiten(information)
        # t N duels in theory; here the duels that W rests on, and the one about to be fought.
        self._width = theory.width(1 if last is None else last.duels + 1, 1, settings)
        self._rule = find_rule(settings.selection)
        self._streams = AgentStreams(int.from_bytes(os.urandom(8), "little"), range(1))

    def select(self, arms: NDArray[np.float64]) -> tuple[int, int]:
        rule, width = self._rule, self._width
        noise = None if rule.noise is None else rule.noise(self._streams, 1, arms.shape)[:, 0]
        first, second = rule.select(arms[None], self.theta, self._whitener, width, noise)
        if first[0] == second[0]:
            others = np.delete(arms, first[0], axis=0)
            bonus = norms((others - arms[first[0]])[None], self._whitener)
            place = int(np.argmax(rewards(others[None], self.theta) + width * bonus))
            return int(first[0]), place + int(place >= first[0])
        return int(first[0]), int(second[0])
