"""The plan of a run: how many releases it has, the noise of each, and what they cost together."""

from __future__ import annotations

import math
from typing import Any

from fldb_flower.algorithms import make_algorithm
from fldb_flower.errors import PrivacyError
from fldb_flower.privacy import accounting
from fldb_flower.secure.protocol import COST
from fldb_flower.settings import Settings


def openings_of(settings: Settings) -> int:
    """Return the number of exchanges that release an upload: with devices, ``devices.rounds``."""
    if settings.mode == "devices":
        return settings.devices.rounds
    return sum(each.learns for each in make_algorithm(settings).rounds())


class ReleasePlan:
    """The releases of one run: their number, their noise and their cost.

    Releases are counted by the number of their exchange. One that runs again with the same number,
    as after a resume from a checkpoint, releases the same numbers with the same noise, and is
    charged once. Every other exchange draws new noise and is charged.

    The noise is calibrated to the number ``planned`` of releases. ``multiplier`` is the standard
    deviation of the noise over the sensitivity.
    """

    def __init__(self, settings: Settings) -> None:
        privacy = settings.privacy
        self._settings, self._delta = settings, privacy.delta
        self.planned = openings_of(settings)
        self.multiplier = accounting.noise_multiplier(
            float(privacy.epsilon), privacy.delta, self._of_unit(self.planned)
        )

    def _of_unit(self, openings: int) -> float:
        """Return how many releases a unit contributes to: an answer to one of them.

        With secure sums, each exchange costs as much as :data:`~fldb_flower.secure.protocol.COST`.
        """
        if self._settings.privacy.unit == "answer":
            return min(openings, 1)
        return openings * (COST if self._settings.secure else 1.0)

    def spent(self, openings: int) -> float:
        """Return epsilon of the first releases, at the delta of the settings.

        For the planned ones, it is at most that of the settings, which the noise is calibrated to.
        """
        spent = accounting.epsilon_of(self.multiplier, self._delta, self._of_unit(openings))
        if openings > self.planned:
            return spent
        return min(spent, float(self._settings.privacy.epsilon))  # without rounding errors

    @property
    def _parties(self) -> int:
        return 2 if self._settings.secure else self._settings.privacy.parties

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of a release over sensitivity: of all parties."""
        return math.sqrt(self._parties) * self.multiplier

    def require(self, number: int) -> None:
        """Raise a PrivacyError if release ``number``, counted from 1, exceeds the budget."""
        if number > self.planned:
            raise PrivacyError(self.exhausted())

    def exhausted(self) -> str:
        """Return one line: why nothing is released after the planned releases."""
        settings = self._settings
        spent = f"privacy.epsilon={settings.privacy.epsilon:g} is spent: the noise covers"
        if settings.mode == "devices":
            return (
                f"{spent} {self.planned} sums (devices-rounds), and as many were opened; a"
                " federation with another output-dir has a new budget"
            )
        return (
            f"{spent} the {self.planned} exchanges of the schedule, and algorithm="
            f"{settings.algorithm} makes more"
        )

    def summary(self, openings: int) -> dict[str, Any]:
        """Return the entry ``privacy`` of ``summary.json`` after the first releases."""
        settings, privacy = self._settings, self._settings.privacy
        note = (
            "the noise is simulated from the seed and protects nobody; the regret beside it is"
            " exact and not private"
        )
        return {
            "epsilon": privacy.epsilon,
            "delta": privacy.delta,
            "unit": privacy.unit,
            "clip": settings.clip,
            "parties": self._parties,
            "openings": openings,
            "noise_multiplier": self.multiplier,
            "spent": self.spent(openings),
            **({} if settings.mode == "devices" else {"note": note}),
        }
