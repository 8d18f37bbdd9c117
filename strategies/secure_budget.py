"""The exchanges of a federation with secure sums that its privacy allows."""

from __future__ import annotations

import json
import math

from fldb_flower.errors import CheckpointError, FederationError
from fldb_flower.federation.history import Counts
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.runs.directory import ResultsDirectory
from fldb_flower.settings import Settings

OPENINGS = "openings.json"
"""File with the number of exchanges, their noise multiplier, and the last number of one."""


_MOST_AHEAD = 600_000  # ms: devices accept no exchange that is further ahead of their clocks


def require_clock(last: int, now: int) -> None:
    """Raise FederationError if the last exchange is so late that devices refuse the next one."""
    if last > now + _MOST_AHEAD:
        raise FederationError(
            f"the last exchange is {(last - now) / 1000:.0f} s ahead of the server's clock: devices"
            " refuse exchanges until its time has passed"
        )


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
        history.openings, self._number = self._stored()

    def spend(self, number: int) -> int:
        """Count one more exchange, durably, and return its number.

        Parameters
        ----------
        number : int
            The number, if it is later than that of all exchanges so far; else the next one is used.
            So none is used twice, also after a kill and with a clock that was set back: the server
            would add other noise to the same answer of the helper.

        Raises
        ------
        PrivacyError
            It is not within the budget.
        FederationError
            The last exchange is far ahead of this number, so a clock was wrong.
        """
        require_clock(self._number, number)
        self.plan.require(self._history.openings + 1)
        self._history.openings += 1
        self._number = max(number, self._number + 1)
        content = {
            "openings": self._history.openings,
            "noise_multiplier": self.plan.multiplier,
            "number": self._number,
        }
        self._directory.write(OPENINGS, json.dumps(content).encode())
        return self._number

    def _stored(self) -> tuple[int, int]:
        """Return how many exchanges there were, and the number of the last one."""
        path, multiplier = self._directory.path / OPENINGS, self.plan.multiplier
        try:
            content = json.loads(path.read_bytes())
            count, number = content["openings"], content["number"]
            stored = float(content["noise_multiplier"])
        except FileNotFoundError:
            return 0, 0
        except (OSError, KeyError, TypeError, ValueError) as reason:
            raise CheckpointError(f"{path} cannot be read: {reason}") from None
        for name, value in (("openings", count), ("number", number)):
            if type(value) is not int or value < 0:
                raise CheckpointError(f"{path}: {name}={value!r} is not a whole number")
        if count and not math.isclose(stored, multiplier, rel_tol=1e-9):
            raise CheckpointError(
                f"{path}: exchanges had the noise multiplier {stored:g}, and these settings have"
                f" {multiplier:g}: use another directory, or the same privacy-epsilon,"
                " privacy-delta and devices-rounds"
            )
        return count, number
