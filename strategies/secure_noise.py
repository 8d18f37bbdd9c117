"""The noise of secure sums, as the server plans it; the devices add it."""

from __future__ import annotations

import json
import math
from logging import INFO, getLogger

from fldb_flower.errors import CheckpointError
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.federation.history import Counts
from fldb_flower.privacy.discrete import honest_devices, noise_of_sum
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.runs.directory import ResultsDirectory
from fldb_flower.secure.header import Header
from fldb_flower.settings import Settings
from fldb_flower.wire.shared_broadcast import SharedNoise

OPENINGS = "openings.json"
"""File with the number of sums that were opened, or may have been, and their noise multiplier."""

_CALIBRATION = 1e-3
"""Relative difference of noise multipliers by two versions of dp-accounting."""

_LOG = getLogger("flwr")


class SumNoise:
    """The noise of the sums of a federation, which are as many as planned (``devices.rounds``).

    A sum counts as opened once its devices are fixed, before a member is asked. The count is
    stored then, so a server that is killed makes no sum more than planned. The devices charge their
    own ledgers for each contribution, also to exchanges without a sum.

    Sums with other noise cannot be counted together with those that are planned, so they are
    refused: the first checkpoint, which has the settings, may be written later than the count.

    Parameters
    ----------
    settings : Settings
        Of the run.
    history : Counts
        Counts the openings.
    directory : ResultsDirectory
        Where their number is stored.

    Raises
    ------
    CheckpointError
        The number cannot be read, or sums were opened with another noise multiplier.
    """

    def __init__(self, settings: Settings, history: Counts, directory: ResultsDirectory) -> None:
        self._settings, self._history = settings, history
        self._directory = directory
        self._plan = ReleasePlan(settings) if settings.is_private else None
        if self._plan is not None:
            history.openings = self._stored(self._plan.multiplier)

    def require(self) -> None:
        """Check that one more sum is within the budget.

        Raises
        ------
        PrivacyError
            It is not.
        """
        if self._plan is not None:
            self._plan.require(self._history.openings + 1)

    def count(self) -> None:
        """Store durably that one more sum may be opened."""
        if self._plan is not None:
            self._history.openings += 1
            content = {
                "openings": self._history.openings,
                "noise_multiplier": self._plan.multiplier,
            }
            self._directory.write(OPENINGS, json.dumps(content).encode())

    def shared(self, broadcast: Broadcast) -> SharedNoise | None:
        """Return the noise that the devices of an exchange add; None without."""
        if self._plan is None or not broadcast.learns:
            return None
        multiplier = self._plan.multiplier
        return SharedNoise(multiplier, noise_of_sum(broadcast, self._settings, multiplier))

    def of_sum(self, upload: Upload, needed: SharedNoise | None, header: Header, n: int) -> Upload:
        """Return the upload of a sum over n devices, with the standard deviations of its noise.

        Each device adds enough for the smallest sum. A larger sum has more noise than needed, and
        the log has the factor. It is larger still if owners assume more colluders than T.
        """
        if needed is None:
            return upload
        factor = math.sqrt(n / honest_devices(header.least_devices, header.min_devices))
        _LOG.log(
            INFO,
            "noise: %.2f times what privacy.epsilon=%g needs, from %d devices of which %d suffice",
            factor, self._settings.privacy.epsilon, n, header.min_devices,
        )  # fmt: skip
        return upload._replace(noise=needed.noise.scaled(factor))

    def _stored(self, multiplier: float) -> int:
        path = self._directory.path / OPENINGS
        try:
            content = json.loads(path.read_bytes())
            count = content["openings"]
            stored = float(content.get("noise_multiplier", multiplier))  # older files have none
        except FileNotFoundError:
            return 0
        except (OSError, KeyError, TypeError, ValueError) as reason:
            raise CheckpointError(f"{path} cannot be read: {reason}") from None
        if type(count) is not int or count < 0:
            raise CheckpointError(f"{path}: openings={count!r} is not a number of sums")
        if count and not math.isclose(stored, multiplier, rel_tol=_CALIBRATION):
            raise CheckpointError(
                f"{path}: sums were opened with the noise multiplier {stored:g}, and these settings"
                f" have {multiplier:g}: use another directory, or the same privacy-epsilon,"
                " privacy-delta and devices-rounds"
            )
        return count
