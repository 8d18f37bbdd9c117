"""Nodes of devices in secure sums: the server reads noisy sums of their reports."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fldb_flower.bandit.limits import units_of
from fldb_flower.errors import DataError, FederationError, RoundAbandonedError, SettingsError
from fldb_flower.federation.contributions import sizes_and_weights
from fldb_flower.federation.exchange import Broadcast, Upload, statistics
from fldb_flower.linalg.arrays import FloatArray, IntArray
from fldb_flower.privacy.discrete import discrete_gaussian
from fldb_flower.secure.keys import HelperKey
from fldb_flower.secure.report import (
    LARGEST_SIGMA,
    LEAST_SIGMA,
    MOST_NUMBERS,
    SCALE,
    Header,
    Report,
)
from fldb_flower.settings import Settings
from fldb_flower.wire.codec import UploadError
from fldb_flower.wire.secure_request import (
    ESTIMATE,
    HELLO,
    REFUSED,
    REPORT,
    Reply,
    Request,
    Shared,
    encode_shared,
)
from fldb_flower.wire.secure_vector import DUELS, count_of, parts_of, size_of, upload_of
from strategies.channel import Contribution
from strategies.devices import DeviceChannel, Tally, short_name
from strategies.noisy_sums import Claimed, Helper, NoisySums
from strategies.secure_budget import require_clock

KEY = "secure"
"""Name of the entry with the bytes of a message."""

FIRST_RATE = 10.0
"""Answers of a device in a round that are expected before the first sum; also their deviation."""

RECENT = 30
"""Exchanges after which a device that is not counted no longer belongs to the federation."""

COUNT_WEIGHT = 0.05
"""Share of the number of duels in the squared length of a report."""

_STEP = 2.0  # largest factor of the rate in one exchange
_LOG = getLogger("flwr")


class SecureNodes(DeviceChannel):
    """The devices of a federation with secure sums.

    An exchange that cannot be finished is given up. Its number is not used again, so no answer of
    the helper is read twice, with other noise of the server. The devices send their answers again,
    under another number.

    Parameters
    ----------
    settings : Settings
        With ``secure`` and ``privacy.epsilon``.
    helper : Helper
        The helper.
    task : bytes
        Of ``fldb_flower.secure.report.task_of``.
    multiplier : float
        The noise multiplier of one exchange.
    spend : callable
        Called with the number of an exchange before its devices are asked, who charge their ledgers
        for it. It returns the number to use, which no earlier exchange had, and raises PrivacyError
        if the budget of the run is spent.
    noise : callable
        Returns integers with the discrete Gaussian distribution for an array of scales.

    Attributes
    ----------
    counted : dict
        Device id -> number of the last exchange in which its report was counted.
    duels : int
        About the number of duels counted, of all devices: sums have noise, and reports that are
        shortened count for less.

    Raises
    ------
    SettingsError
        The multiplier is above 4 million.
    """

    sees_uploads: ClassVar[bool] = False

    def __init__(  # noqa: PLR0917
        self,
        settings: Settings,
        helper: Helper,
        task: bytes,
        multiplier: float,
        spend: Callable[[int], int],
        noise: Callable[[FloatArray], IntArray] = discrete_gaussian,
    ) -> None:
        super().__init__(settings)
        self._helper, self._task = helper, task
        self._sigma = max(LEAST_SIGMA, math.ceil(multiplier * SCALE))
        if self._sigma > LARGEST_SIGMA:
            raise SettingsError(
                f"privacy.epsilon={settings.privacy.epsilon:g} with devices.rounds="
                f"{settings.devices.rounds} needs noise of {multiplier:.3g} times a report: must be"
                f" at most {LARGEST_SIGMA // SCALE}; use a larger epsilon, or fewer rounds"
            )
        self._spend, self._noise = spend, noise
        self._number = 0
        self._rate = (FIRST_RATE, FIRST_RATE**2)  # mean and variance
        self._recent: list[int] = []  # numbers of the last exchanges that were counted
        self._header: Header | None = None
        self._key: HelperKey | None = None
        self._broadcast = b""
        self._units: dict[str, float] = {}
        self._included: tuple[str, ...] = ()  # devices whose reports are in the last sum
        self._new_duels = 0  # about as many are in it

    # One exchange: what is sent and received.

    def begin(self, broadcast: Broadcast) -> None:
        """Fix what the devices are asked.

        Raises
        ------
        FederationError
            The helper does not reply.
        PrivacyError
            The budget of privacy is spent.
        """
        self._header, self._included = None, ()
        self._units = self._units_for(broadcast) if broadcast.learns else {}
        shared = Shared(broadcast, self.settings, self.duels, self._units)
        self._broadcast = encode_shared(shared)
        if not broadcast.learns:
            return
        size = size_of(broadcast, self.form)
        if size > MOST_NUMBERS:
            raise FederationError(
                f"dimension={self.settings.dimension}: a report would have {size} values, and at"
                f" most {MOST_NUMBERS} are possible; use matrix_form=diagonal"
            )
        self._key = self._helper.key()
        now = int(time.time() * 1000)
        require_clock(self._number, now)
        self._number = self._spend(max(self._number + 1, now))
        self._header = Header(
            task=self._task,
            number=self._number,
            numbers=size,
            sigma=self._sigma,
            key=self._key.key,
            broadcast=hashlib.sha256(self._broadcast).digest(),
        )

    def contents(
        self, nodes: Sequence[int], number: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> list[RecordDict]:
        """Return the request for each node; a device that is not known has to introduce itself."""
        contents = []
        for node in nodes:
            device = self.device_at(node)
            counted = self.counted.get(device, 0)
            if self._header is None:
                request = Request(ESTIMATE, counted=counted, broadcast=self._broadcast)
            elif device:
                request = Request(REPORT, self._header, self._key, counted, self._broadcast)
            else:
                request = Request(HELLO)
            contents.append(RecordDict({"config": ConfigRecord({KEY: request.to_bytes()})}))
        return contents

    def check(
        self, node: int, reply: Message, number: int, broadcast: Broadcast
    ) -> Contribution | None:
        """Return a device's report; None if the device only introduced itself."""
        try:
            content: Any = reply.content
            answer = Reply.from_bytes(content["config"][KEY])
        except (KeyError, TypeError, DataError) as error:
            raise UploadError.malformed(error) from None
        if answer.kind == REFUSED:
            refusal = UploadError(answer.reason or "refused without a reason")
            refusal.is_final = True
            raise refusal
        is_known = self.claim(node, answer.device)
        if self._header is None:
            return Contribution(answer.device, self._nothing(), None)
        if answer.kind == HELLO or not is_known:
            return None
        if answer.digest != self._header.digest:
            raise UploadError("a report for another exchange")
        try:
            report = Report.from_bytes(answer.report, self._header.numbers)
        except DataError as error:
            raise UploadError(str(error)) from None
        return Contribution(answer.device, self._nothing(), Claimed(answer.device, report))

    def accept(self, contributions: Mapping[int, Contribution], broadcast: Broadcast) -> None:
        """Require one report."""
        if broadcast.learns and not contributions:
            raise RoundAbandonedError("no device sent a report")

    def answers(self, contribution: Contribution) -> int:
        """Return 0: the server does not know them."""
        return 0

    # The sum.

    def total(self, contributions: Sequence[Contribution], broadcast: Broadcast) -> Upload:
        """Return the sum of the reports, with the noise of both parties.

        Raises
        ------
        RoundAbandonedError
            No report is within range.
        FederationError
            The helper does not reply, or refuses the request.
        """
        if self._header is None:
            return self._nothing()
        sums = NoisySums(self._helper, self._header, self._noise)
        values, included = sums.total([each.claim for each in contributions])
        self._included = tuple(each.device for each in included)
        upload = upload_of(values, sums.deviation(), broadcast, self._units, self.form)
        reports = len(included)
        deviation = sums.deviation() * self._units[DUELS]
        self._observe(count_of(values, self._units) / reports, deviation / reports, broadcast)
        if upload.shares is not None:
            upload = self._of_all(upload, reports, broadcast)
        self._new_duels = upload.num_duels
        return upload

    def _of_all(self, upload: Upload, reports: int, broadcast: Broadcast) -> Upload:
        """Return shares with the number of new duels, and of new members, of all devices."""
        present = self._present()
        members = len(present | set(self._included))
        duels = max(0, round(members * self._rate[0] * self._rounds(broadcast)) - self.duels)
        clip, shares = self.settings.clip, upload.shares
        assert clip is not None
        assert shares is not None
        new = float(len(set(self._included) - self.counted.keys()))
        shares = shares._replace(squares=clip**2 * duels, members=new)
        return upload._replace(num_duels=duels, shares=shares, coverage=reports / members)

    def _present(self) -> set[str]:
        """Return the devices that were counted in one of the last :data:`RECENT` exchanges."""
        since = self._recent[0] if self._recent else 0
        return {device for device, number in self.counted.items() if number >= since}

    # How many answers a device has.

    def _observe(self, count: float, deviation: float, broadcast: Broadcast) -> None:
        """Update the rate of answers by the mean number in the reports, which has noise.

        A report is shortened as a whole to length 1, so devices with many answers count for less.
        """
        rounds = self._rounds(broadcast)
        count, variance = count / rounds, (deviation / rounds) ** 2 + 1.0
        mean, known = self._rate
        gain = known / (known + variance)
        found = mean + gain * (count - mean)
        # One liar, whom noise hides, then changes it slowly.
        found = min(max(mean / _STEP, found), mean * _STEP)
        most = float(self.settings.devices.max_duels)
        self._rate = (min(max(1.0, found), most), known * (1.0 - gain) + 1.0)

    def _units_for(self, broadcast: Broadcast) -> dict[str, float]:
        """Return the units of the parts, for as many answers as a device is expected to have."""
        fresh = max(1, round(self._rate[0]))
        answers = fresh * self._rounds(broadcast)
        sizes, weights = sizes_and_weights(broadcast, self.settings, fresh, answers)
        weights = {part: (1.0 - COUNT_WEIGHT) * weight for part, weight in weights.items()}
        sizes[DUELS], weights[DUELS] = float(answers), COUNT_WEIGHT
        units = units_of(sizes, weights)
        return {part: units[part] for part in parts_of(broadcast)}

    def _rounds(self, broadcast: Broadcast) -> int:
        """Return how many rounds the number of duels in a report is of: all, with shares."""
        play = broadcast.play
        return play.last if broadcast.shares and play is not None else 1

    def _nothing(self) -> Upload:
        none = np.zeros((0, self.settings.dimension))
        return statistics(Broadcast(None, None), none, np.zeros(0), none, self.form)

    # The state.

    def acknowledge(self, contributions: Mapping[int, Contribution]) -> None:
        """Count the reports in the last sum; the next request to each device names the exchange."""
        if self._header is None:
            return
        self.counted |= dict.fromkeys(self._included, self._header.number)
        self._recent = [*self._recent, self._header.number][-RECENT:]
        self.duels += self._new_duels
        names = sorted(short_name(device) for device in self._included)
        self.tally = Tally(self._new_duels, tuple((name, None, None) for name in names))

    def name(self, node: int) -> str:
        """Return the name of the device at a node, if it is known."""
        device = self.device_at(node)
        return f"device {short_name(device)}" if device else super().name(node)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        return {
            **super().state(),
            "number": self._number,
            "rate": list(self._rate),
            "recent": self._recent,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        super().restore(state)
        self._number = max(self._number, state["number"])
        self._rate = tuple(state["rate"])
        self._recent = list(state["recent"])
