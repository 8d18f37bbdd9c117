"""Nodes that are devices: known by the id of their store, counted by the number of the answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, Message, RecordDict

from fldb_flower.errors import RoundAbandonedError
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.linalg.forms import make_form
from fldb_flower.settings import AUTO, Settings
from fldb_flower.wire.codec import BroadcastHeader, UploadError, decode_statistics
from fldb_flower.wire.devices import DeviceUploadHeader
from strategies.nodes import Contribution, Nodes, read_reply, with_acknowledgement

_DEVICE_ID = re.compile(r"[0-9a-f]{32}")
_NEW = -1  # `upto`: the device decides where its upload ends


class CountedSpan(NamedTuple):
    """Whose answers a contribution covers, and which."""

    device: str
    answer: DeviceUploadHeader


class DeviceNodes(Nodes):
    """The devices of a federation; their number is unknown, and they come and go.

    A store's id is known to its device and to the server alone. That is what lets a device keep
    its place when its key, its SuperNode or the SuperLink's database changes, and what keeps
    another device from taking it.

    Parameters
    ----------
    settings : Settings
        Settings of the run.

    Attributes
    ----------
    counted : dict
        Device id -> number of its last answer that is counted.
    duels : int
        Duels counted, of all devices.
    """

    def __init__(self, settings: Settings) -> None:
        self._form, self._wire = make_form(settings), settings.wire
        self._max_mb = settings.max_message_mb
        chosen = settings.devices.first_duels
        self._max_duels = settings.devices.max_duels
        self._first_duels = 2 * settings.dimension if chosen == AUTO else int(chosen)
        self.counted: dict[str, int] = {}
        self.duels = 0
        self._claims: dict[int, str] = {}  # node -> device id, as it said last
        self._devices: dict[int, str] = {}  # node -> device id, where nobody disputes it
        self._asked: dict[int, DeviceUploadHeader] = {}  # node -> the answers this round is about

    def content(
        self, node: int, arrays: ArrayRecord, ask: BroadcastHeader, *, again: bool
    ) -> RecordDict:
        """Return what to send to a node."""
        device = self._devices.get(node, "")
        ask = ask._replace(counted=self.counted.get(device, 0))
        upto = self._asked[node].end if again else _NEW
        return with_acknowledgement(arrays, ask, device=device, upto=upto, duels=self.duels)

    def check(self, node: int, reply: Message, broadcast: Broadcast) -> Contribution | None:
        """Return a device's upload; None if the device was not known to be at this node."""
        try:
            vector, numbers, content = read_reply(
                reply, self._max_mb, len(DeviceUploadHeader._fields)
            )
            answer = DeviceUploadHeader.from_numbers(numbers)
            device = content["device"]["id"]
        except (KeyError, TypeError, ValueError) as error:
            raise UploadError(f"not an upload: {error!r}") from None
        if not isinstance(device, str) or not _DEVICE_ID.fullmatch(device):
            raise UploadError("the id of its store is not 32 hexadecimal digits")
        self._claims[node] = device
        if self._devices.get(node) != device:
            return None
        upload = decode_statistics(vector, answer.num_duels, broadcast, self._form, self._wire)
        self._check_span(node, device, answer, broadcast)
        self._asked[node] = answer
        return Contribution(device, upload, CountedSpan(device, answer))

    def disputes(self, connected: Collection[int]) -> dict[int, str]:
        """Compare which devices the connected nodes claim to be.

        A device stays at its node while that node is connected and claims nothing else. Where
        several other nodes claim the same device, all of them are refused.
        """
        claims = {node: self._claims[node] for node in sorted(connected) if node in self._claims}
        self._devices = {
            n: known for n, known in self._devices.items() if claims.get(n, known) == known
        }
        owners = {device: node for node, device in self._devices.items() if node in connected}
        claimants: dict[str, list[int]] = {}
        for node, device in claims.items():
            if owners.get(device) != node:
                claimants.setdefault(device, []).append(node)
        reasons: dict[int, str] = {}
        for device, nodes in claimants.items():
            rivals = sorted({*nodes, owners.get(device, nodes[0])})
            if len(rivals) > 1:
                reason = (
                    f"device {short_name(device)} is claimed by nodes"
                    f" {', '.join(map(str, rivals))}: a store must not be copied to a second device"
                )
                reasons |= dict.fromkeys(nodes, reason)
            else:
                self._devices = {n: known for n, known in self._devices.items() if known != device}
                self._devices[nodes[0]] = device
        return reasons

    def _check_span(
        self, node: int, device: str, answer: DeviceUploadHeader, broadcast: Broadcast
    ) -> None:
        start, span = self.counted.get(device, 0), (answer.start, answer.end)
        if answer.start != start or answer.end < start:
            raise UploadError(f"answers {span} instead of those after {start}")
        if broadcast.theta_hat is not None and answer.num_duels != answer.end - answer.start:
            raise UploadError(f"{answer.num_duels} duels in answers {span}")
        if answer.num_duels > self._max_duels:
            raise UploadError(f"{answer.num_duels} duels, more than {self._max_duels} in a round")
        if broadcast.play is None and answer != self._asked[node]:
            raise UploadError(f"other answers than before: {span}")
        if not answer.agreed <= answer.predicted <= answer.num_duels:
            raise UploadError(f"counts that make no sense: {tuple(answer)}")

    def expect_enough(self, contributions: Mapping[int, Contribution]) -> None:
        """Want one new answer; in the first round as many as ``devices-first-duels``."""
        new = sum(each.upload.num_duels for each in contributions.values())
        if new == 0:
            raise RoundAbandonedError(f"no new answers from {len(contributions)} devices")
        if self.duels == 0 and new < self._first_duels:
            raise RoundAbandonedError(
                f"{new} answers; the first round needs {self._first_duels} (devices-first-duels)"
            )

    def confirm(self, contributions: Mapping[int, Contribution]) -> None:
        """Count the answers that the contributions cover."""
        for contribution in contributions.values():
            mark: CountedSpan = contribution.mark
            self.counted[mark.device] = mark.answer.end
            self.duels += mark.answer.num_duels

    def state(self) -> dict[str, Any]:
        """Return what must outlive the process, as JSON values."""
        nodes = {str(node): device for node, device in self._devices.items()}
        return {"counted": self.counted, "duels": self.duels, "nodes": nodes}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` returned."""
        self.counted, self.duels = dict(state["counted"]), state["duels"]
        self._devices = {int(node): device for node, device in state["nodes"].items()}


def short_name(device: str) -> str:
    """Return a device's name for logs and results: its id stays between it and the server."""
    return hashlib.sha256(device.encode()).hexdigest()[:12]
