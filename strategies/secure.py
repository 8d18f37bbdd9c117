"""Nodes of devices in secure sums: the server reads noisy sums of their reports."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from logging import WARNING, getLogger
from typing import Any, ClassVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from fldb_flower.bandit.limits import units_of
from fldb_flower.errors import (
    CheckpointError,
    DataError,
    FederationError,
    RoundAbandonedError,
    SettingsError,
)
from fldb_flower.federation.exchange import (
    Broadcast,
    ShareUpload,
    Upload,
    sizes_and_weights,
    statistics,
)
from fldb_flower.federation.history import Counts
from fldb_flower.linalg.arrays import FloatArray, IntArray
from fldb_flower.privacy.discrete import discrete_gaussian
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.runs.directory import ResultsDirectory
from fldb_flower.secure import KEY
from fldb_flower.secure.protocol import (
    AHEAD_SECONDS,
    ESTIMATE,
    HELLO,
    KINDS,
    LARGEST_SIGMA,
    LEAST_SIGMA,
    MOST_NUMBERS,
    REFUSED,
    REPORT,
    SCALE,
    Header,
    HelperKey,
    Reply,
    Report,
    Request,
    SumRequest,
    sha256,
)
from fldb_flower.secure.statistics import DUELS, Shared, parts_of, size_of, upload_of
from fldb_flower.settings import Settings
from fldb_flower.wire import UploadError
from strategies.channel import Contribution
from strategies.devices import DeviceChannel, Tally, short_name
from strategies.helper_client import HelperClient

OPENINGS = "openings.json"
"""File with the number of exchanges, their noise multiplier, and the last number of one."""

FIRST_RATE = 10.0
"""Answers of a device in a round that are expected before the first sum; also their deviation."""

RECENT = 30
"""Exchanges after which a device that is not counted no longer belongs to the federation."""

COUNT_WEIGHT = 0.05
"""Share of the number of duels in the squared length of a report."""

MOST_PARTS = 2**18
"""Number of values in the answer ``parts`` up to which each report is a group of its own."""

FAR = 8.0
"""Standard deviations of noise beyond which a sum is out of range: one in 10^15 values."""

_MOST_NAMES = 3  # names in a line of the log
_STEP = 2.0  # largest factor of the rate in one exchange
_LOG = getLogger("flwr")


class PlannedExchanges:
    """Counts the exchanges of a federation, which are as many as planned (``devices.rounds``).

    An exchange is counted before a device is asked, because devices then charge their ledgers. The
    count is stored first, so a killed server never exceeds the plan. Exchanges with other noise
    cannot be counted together with planned ones and are refused.
    """

    def __init__(self, settings: Settings, history: Counts, directory: ResultsDirectory) -> None:
        self._history, self._directory = history, directory
        self._plan = ReleasePlan(settings)
        self.multiplier = self._plan.multiplier
        path = directory.path / OPENINGS
        try:
            content = json.loads(path.read_bytes())
            history.openings, self._number = int(content["openings"]), int(content["number"])
            stored = float(content["noise_multiplier"])
        except FileNotFoundError:
            history.openings, self._number = 0, 0
            return
        except (OSError, KeyError, TypeError, ValueError) as reason:
            raise CheckpointError(f"{path} cannot be read: {reason}") from None
        if not math.isclose(stored, self.multiplier, rel_tol=1e-9):
            raise CheckpointError(
                f"{path}: exchanges had the noise multiplier {stored:g}, and these settings have"
                f" {self.multiplier:g}: use another directory, or the same privacy-epsilon,"
                " privacy-delta and devices-rounds"
            )

    def spend(self, number: int) -> int:
        """Count one more exchange, durably, and return its number; PrivacyError if none is left.

        It is the given number, or the next one if an exchange so far has a later number. No number
        is therefore used twice, even after a kill or with a clock that was set back. Otherwise, the
        server would add other noise to the same answer of the helper.
        """
        ahead = self._number - number
        if ahead > 1000 * AHEAD_SECONDS:
            raise FederationError(
                f"the last exchange is {ahead / 1000:.0f} s ahead of the server's clock: devices"
                " refuse exchanges until its time has passed"
            )
        self._plan.require(self._history.openings + 1)
        self._history.openings += 1
        self._number = max(number, self._number + 1)
        content = {
            "openings": self._history.openings,
            "noise_multiplier": self.multiplier,
            "number": self._number,
        }
        self._directory.write(OPENINGS, json.dumps(content).encode())
        return self._number


class NoisySums:
    """The sums of the reports of one exchange.

    The server adds noise of the same size to each answer of the helper before it uses it. The
    helper knows its own noise and can shift an answer. Without the server's noise, it could compute
    exact numbers from the published estimates.
    """

    def __init__(
        self, helper: HelperClient, header: Header, noise: Callable[[FloatArray], IntArray]
    ) -> None:
        self._helper, self._header, self._noise = helper, header, noise

    def total(self, reports: list[Contribution]) -> tuple[FloatArray, list[Contribution]]:
        """Return the sum of the reports in units of length, and those that are in it.

        Reports that are larger than honest ones can be are left out; RoundAbandonedError if none is
        left. The sum is shortened to the maximum length for this number of reports.
        """
        (values,), included = self._ask("sum", [self._in_range(reports)])
        length = float(np.linalg.norm(values))
        longest = len(included) + self.deviation() * (math.sqrt(len(values)) + FAR)
        return (values * (longest / length) if length > longest else values), included

    def deviation(self, kind: str = "sum") -> float:
        """Return the standard deviation of both parties' noise, in units of length."""
        return math.sqrt(2.0) * KINDS[kind] * self._header.multiplier

    def _in_range(self, reports: list[Contribution]) -> list[Contribution]:
        """Return the reports without groups whose sum is further out than honest ones can be."""
        (trial,), opened = self._ask("trial", [reports])
        if self._is_possible(trial, len(opened), "trial"):
            return opened
        groups, kept = self._groups(opened), list[Contribution]()
        sums, _ = self._ask("parts", groups)
        for group, values in zip(groups, sums, strict=True):
            if self._is_possible(values, len(group), "parts"):
                kept += group
            else:
                _LOG.log(WARNING, "not counted: reports out of range of %s", _names(group))
        if not kept:
            raise RoundAbandonedError("no group of reports is within range")
        return sorted(kept, key=lambda each: each.order)

    def _groups(self, reports: list[Contribution]) -> list[list[Contribution]]:
        """Return groups of equal size, each report alone if the answer is not too large."""
        least = math.isqrt(len(reports)) + 1
        count = min(len(reports), max(least, MOST_PARTS // self._header.numbers))
        drawn = np.random.default_rng().permutation(len(reports))
        return [[reports[place] for place in part] for part in np.array_split(drawn, count)]

    def _ask(
        self, kind: str, groups: list[list[Contribution]]
    ) -> tuple[list[FloatArray], list[Contribution]]:
        """Return the noisy sum of each group, in units of length, and the reports in the sums."""
        reports = [each for group in groups for each in group]
        sealed = tuple(each.claim.sealed for each in reports)
        request = SumRequest(self._header, kind, tuple(map(len, groups)), sealed)
        shape = len(groups), self._header.numbers
        # Drawn before the answer is there, so that nothing is done with an answer without it.
        own = self._noise(np.full(shape, float(self._header.sigma * KINDS[kind])))
        answer = self._helper.sums(request)
        sums, refused = answer.sums + own.astype(np.uint64), set(answer.refused)
        included, places = list[Contribution](), np.repeat(np.arange(len(groups)), request.sizes)
        for number, (place, report) in enumerate(zip(places, reports, strict=True)):
            if number not in refused:
                sums[place] += report.claim.masked
                included.append(report)
        if refused:
            text = "not counted: %d reports that the helper cannot open, or has twice: %s"
            names = _names([reports[number] for number in answer.refused])
            _LOG.log(WARNING, text, len(refused), names)
        if not included:
            raise RoundAbandonedError("the helper could open no report")
        return [each.view(np.int64).astype(np.float64) / SCALE for each in sums], included

    def _is_possible(self, values: FloatArray, reports: int, kind: str) -> bool:
        """Whether honest reports can have a sum, given its noise."""
        return float(np.abs(values).max()) <= reports + FAR * self.deviation(kind)


def _names(reports: list[Contribution]) -> str:
    """Return the names of some devices for a line of the log."""
    names = ", ".join(short_name(each.order) for each in reports[:_MOST_NAMES])
    more = len(reports) - _MOST_NAMES
    return f"{names} and {more} more" if more > 0 else names


class SecureChannel(DeviceChannel):
    """The devices of a federation with secure sums: the server reads noisy sums of their reports.

    An exchange that cannot be finished is abandoned. Its number is not used again: no answer of the
    helper is read twice with different noise of the server. The devices send their answers again
    under another number.

    ``task`` is that of ``fldb_flower.secure.protocol.task_of``. ``noise`` returns discrete Gaussian
    integers for an array of scales.
    """

    sees_uploads: ClassVar[bool] = False

    def __init__(
        self,
        settings: Settings,
        helper: HelperClient,
        task: bytes,
        planned: PlannedExchanges,
        noise: Callable[[FloatArray], IntArray] = discrete_gaussian,
    ) -> None:
        super().__init__(settings)
        self._helper, self._task = helper, task
        self._planned, self._noise = planned, noise
        self._sigma = max(LEAST_SIGMA, math.ceil(planned.multiplier * SCALE))
        if self._sigma > LARGEST_SIGMA:
            raise SettingsError(
                f"privacy.epsilon={settings.privacy.epsilon:g} with devices.rounds="
                f"{settings.devices.rounds} needs noise of {planned.multiplier:.3g} times a report:"
                f" must be at most {LARGEST_SIGMA // SCALE}; use a larger epsilon, or fewer rounds"
            )
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
        """Prepare the request to the devices; PrivacyError if the budget is spent."""
        self._header, self._included = None, ()
        self._units = self._units_for(broadcast) if broadcast.learns else {}
        asked = Shared(broadcast, self.settings, self.duels, self._units, self.features)
        self._broadcast = asked.to_bytes()
        if not broadcast.learns:
            return
        size = size_of(broadcast, self.form)
        if size > MOST_NUMBERS:
            raise FederationError(
                f"dimension={self.settings.dimension}: a report would have {size} values, and at"
                f" most {MOST_NUMBERS} are possible; use matrix_form=diagonal"
            )
        self._key = self._helper.key()
        self._header = Header(
            task=self._task,
            number=self._planned.spend(int(time.time() * 1000)),
            numbers=size,
            sigma=self._sigma,
            key=self._key.key,
            broadcast=sha256(self._broadcast),
        )

    def contents(self, nodes: Sequence[int]) -> list[RecordDict]:
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

    def check(self, node: int, reply: Message) -> Contribution | None:
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
        return Contribution(answer.device, self._nothing(), report)

    def accept(self) -> None:
        """Require one report."""
        if self.broadcast.learns and not self.contributions:
            raise RoundAbandonedError("no device sent a report")

    def answers(self, contribution: Contribution) -> int:
        """Return 0: the server does not know them."""
        return 0

    # The sum.

    def total(self) -> Any:
        """Return the sum of the reports, with the noise of both parties."""
        if self._header is None:
            return self._nothing()
        broadcast, sums = self.broadcast, NoisySums(self._helper, self._header, self._noise)
        values, included = sums.total(self.accepted)
        self._included = tuple(each.order for each in included)
        upload = upload_of(values, sums.deviation(), broadcast, self._units, self.form)
        reports, unit = len(included), self._units[DUELS]
        mean, deviation = (unit * each / reports for each in (float(values[-1]), sums.deviation()))
        self._observe(mean, deviation, broadcast)
        if isinstance(upload, ShareUpload):
            upload = self._of_all(upload, reports, broadcast)
        self._new_duels = upload.num_duels
        return upload

    def _of_all(self, upload: ShareUpload, reports: int, broadcast: Broadcast) -> ShareUpload:
        """Return shares with the number of new duels, and of new members, of all devices."""
        since = self._recent[0] if self._recent else 0
        present = {device for device, number in self.counted.items() if number >= since}
        members = len(present | set(self._included))
        duels = max(0, round(members * self._rate[0] * self._rounds(broadcast)) - self.duels)
        clip = self.settings.clip
        assert clip is not None
        new = float(len(set(self._included) - self.counted.keys()))
        return upload._replace(
            num_duels=duels, squares=clip**2 * duels, members=new, coverage=reports / members
        )

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
        """Return the number of rounds that the duels in a report cover: all, with shares."""
        play = broadcast.play
        return play.last if broadcast.shares and play is not None else 1

    def _nothing(self) -> Upload:
        none = np.zeros((0, self.settings.dimension))
        return statistics(Broadcast(None, None), none, np.zeros(0), none, self.form)

    # The state.

    def acknowledge(self) -> None:
        """Count the reports in the last sum; the next request to each device names the exchange."""
        if self._header is None:
            return
        self.counted |= dict.fromkeys(self._included, self._header.number)
        self._recent = [*self._recent, self._header.number][-RECENT:]
        self.duels += self._new_duels
        names = sorted(short_name(device) for device in self._included)
        self.tally = Tally(self._new_duels, tuple((name, None, None) for name in names))

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        return {
            **super().state(),
            "rate": list(self._rate),
            "recent": self._recent,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        super().restore(state)
        self._rate = tuple(state["rate"])
        self._recent = list(state["recent"])
