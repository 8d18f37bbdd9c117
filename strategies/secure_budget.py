"""The exchanges of a federation with secure sums that its privacy allows."""

from __future__ import annotations

import json
import math

from fldb_flower.errors import CheckpointError
from fldb_flower.federation.history import Counts
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.runs.directory import ResultsDirectory
from fldb_flower.settings import Settings

OPENINGS = "openings.json"
"""File with the number of exchanges that devices were asked for, and their noise multiplier."""


class PlannedExchanges:
    """Counts the exchanges of a federation, which are as many as planned (``devices.rounds``).

    An exchange counts before a device is asked, because devices charge their ledgers then. The
    count is stored first, so a server that is killed makes none more than planned. Exchanges with
    other noise cannot be counted together with those that are planned, so they are refused.

    Parameters
    ----------
    settings : Settings
        Of the run.
    history : Counts
        Counts the exchanges as openings.
    directory : ResultsDirectory
        Where their number is stored.

    Raises
    ------
    CheckpointError
        The number cannot be read, or exchanges had another noise multiplier.
    """

    def __init__(self, settings: Settings, history: Counts, directory: ResultsDirectory) -> None:
        self._history, self._directory = history, directory
        self.plan = ReleasePlan(settings)
        history.openings = self._stored()

    def spend(self) -> None:
        """Count one more exchange, durably.

        Raises
        ------
        PrivacyError
            It is not within the budget.
        """
        self.plan.require(self._history.openings + 1)
        self._history.openings += 1
        content = {
            "openings": self._history.openings,
            "noise_multiplier": self.plan.multiplier,
        }
        self._directory.write(OPENINGS, json.dumps(content).encode())

    def _stored(self) -> int:
        path, multiplier = self._directory.path / OPENINGS, self.plan.multiplier
        try:
            content = json.loads(path.read_bytes())
            count, stored = content["openings"], float(content["noise_multiplier"])
        except FileNotFoundError:
            return 0
        except (OSError, KeyError, TypeError, ValueError) as reason:
            raise CheckpointError(f"{path} cannot be read: {reason}") from None
        if type(count) is not int or count < 0:
            raise CheckpointError(f"{path}: openings={count!r} is not a number of exchanges")
        if count and not math.isclose(stored, multiplier, rel_tol=1e-9):
            raise CheckpointError(
                f"{path}: exchanges had the noise multiplier {stored:g}, and these settings have"
                f" {multiplier:g}: use another directory, or the same privacy-epsilon,"
                " privacy-delta and devices-rounds"
            )
        return count
