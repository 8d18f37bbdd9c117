"""Nodes that are devices: identified by the id of their store, counted by answer number."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fldb_flower.errors import RoundAbandonedError
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.linalg.forms import make_form
from fldb_flower.settings import AUTO, Settings
from fldb_flower.wire.codec import BroadcastHeader, UploadError, decode_statistics
from fldb_flower.wire.devices import DeviceUploadHeader
from fldb_flower.wire.records import unpack_vector
from strategies.device_tally import Tally
from strategies.identities import Identities
from strategies.nodes import Contribution, Nodes

_DEVICE_ID = re.compile(r"[0-9a-f]{32}")
_NEW = -1  # `upto`: the device decides where its upload ends


class CountedSpan(NamedTuple):
    """The answers of one device that a contribution covers."""

    device: str
    header: DeviceUploadHeader


class DeviceNodes(Nodes):
    """The devices of a federation; their number is unknown and changes.

    Only the device and the server know the id of its store. So a device keeps its identity
    when its key, its SuperNode or the SuperLink's database changes, and another device cannot
    take it.

    Parameters
    ----------
    settings : Settings
        ``devices.first_duels`` and ``devices.max_duels``.

    Attributes
    ----------
    counted : dict
        Device id -> number of its last answer that is counted.
    duels : int
        Duels counted, of all devices.

    Examples
    --------
    >>> from fldb_flower.settings import Settings
    >>> from strategies.device_nodes import DeviceNodes
    >>> nodes = DeviceNodes(Settings(mode="devices", algorithm="fldb_personal"))
    >>> nodes.duels, nodes.counted
    (0, {})
    """

    def __init__(self, settings: Settings) -> None:
        self._form = make_form(settings)
        self._max_mb = settings.max_message_mb
        chosen = settings.devices.first_duels
        self._max_duels = settings.devices.max_duels
        self._first_duels = 2 * settings.dimension if chosen == AUTO else int(chosen)
        self.counted: dict[str, int] = {}
        self.duels = 0
        self._identities = device_identities()
        self._asked: dict[int, DeviceUploadHeader] = {}  # node -> the answers of this round
        self._last: list[CountedSpan] = []  # acknowledged last
        self._held_back = ""  # by the devices that were acknowledged last

    def contents(
        self, nodes: Sequence[int], number: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> list[RecordDict]:
        """Return the content for each node; see ``fldb_flower.wire.devices``."""
        numbers: Any = config["header"]
        repeats = BroadcastHeader(*numbers).last == 0
        contents = []
        for node in nodes:
            device = self._identities.at(node)
            own = ConfigRecord({
                **config,
                "counted": self.counted.get(device, 0),
                "device": device,
                "upto": self._asked[node].end if repeats else _NEW,
                "duels": self.duels,
            })  # fmt: skip
            contents.append(RecordDict({"arrays": arrays, "config": own}))
        return contents

    def check(
        self, node: int, reply: Message, number: int, broadcast: Broadcast
    ) -> Contribution | None:
        """Return a device's upload; None if the device was not known to be at this node."""
        content: Any = reply.content
        try:
            header = DeviceUploadHeader.from_counts(content["config"]["header"])
            device = content["config"]["device"]
            vector = unpack_vector(content["arrays"], self._max_mb)
        except (KeyError, TypeError, ValueError) as error:
            raise UploadError.malformed(error) from None
        self._identities.claim(node, checked_id(device))
        if self._identities.at(node) != device:
            return None
        upload = decode_statistics(vector, header.num_duels, broadcast, self._form)
        self._check_span(node, device, header, broadcast)
        self._asked[node] = header._replace(held=0, missing=0)
        return Contribution(device, upload, CountedSpan(device, header))

    def disputes(self, connected: Collection[int]) -> dict[int, str]:
        """Compare which devices the connected nodes claim to be; see :class:`Identities`."""
        return self._identities.disputes(connected)

    def _check_span(
        self, node: int, device: str, header: DeviceUploadHeader, broadcast: Broadcast
    ) -> None:
        start, span = self.counted.get(device, 0), (header.start, header.end)
        if header.start != start or header.end < start:
            raise UploadError(f"answers {span} instead of those after {start}")
        if broadcast.learns and header.num_duels != header.end - header.start:
            raise UploadError(f"{header.num_duels} duels in answers {span}")
        if header.num_duels > self._max_duels:
            raise UploadError(f"{header.num_duels} duels, more than {self._max_duels} in a round")
        if broadcast.play is None and header._replace(held=0, missing=0) != self._asked[node]:
            raise UploadError(f"other answers than before: {span}")
        if not header.agreed <= header.predicted <= header.num_duels:
            raise UploadError(f"inconsistent counts: {tuple(header)}")

    def accept(self, contributions: Mapping[int, Contribution], broadcast: Broadcast) -> None:
        """Require one new answer; in the first round ``devices-first-duels`` of them."""
        if broadcast.theta_hat is None:
            return
        new = sum(each.upload.num_duels for each in contributions.values())
        if new == 0:
            nothing = f"no new answers from {len(contributions)} devices"
            raise RoundAbandonedError(_held_back(contributions) or nothing)
        if self.duels == 0 and new < self._first_duels:
            raise RoundAbandonedError(
                f"{new} answers; the first round needs {self._first_duels} (devices-first-duels)"
            )

    def answers(self, contribution: Contribution) -> int:
        """Return the number of the device's last answer."""
        span: CountedSpan = contribution.claim
        return span.header.end

    def acknowledge(self, contributions: Mapping[int, Contribution]) -> None:
        """Count the answers that the contributions cover."""
        spans: list[CountedSpan] = [each.claim for each in contributions.values()]
        for span in spans:
            self.counted[span.device] = span.header.end
            self.duels += span.header.num_duels
        self._last = sorted(span for span in spans if span.header.num_duels)
        self._held_back = _held_back(contributions)

    def tally(self) -> Tally:
        """Return what was acknowledged last."""
        headers = [span.header for span in self._last]
        return Tally(
            duels=sum(each.num_duels for each in headers),
            predicted=sum(each.predicted for each in headers),
            agreed=sum(each.agreed for each in headers),
            held_back=self._held_back,
            uploads=tuple(
                (short_name(span.device), span.header.start, span.header.end) for span in self._last
            ),
        )

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        nodes = self._identities.state()
        return {"counted": self.counted, "duels": self.duels, "nodes": nodes}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.counted, self.duels = dict(state["counted"]), state["duels"]
        self._identities.restore(state["nodes"])


def _held_back(contributions: Mapping[int, Contribution]) -> str:
    """Return in words which answers devices hold back and why; empty if there are none."""
    headers = [header for each in contributions.values() if (header := each.claim.header).held]
    if not headers:
        return ""
    missing = sorted({header.missing for header in headers})
    devices = "" if len(headers) == 1 else f" by {len(headers)} devices"
    pairs = str(missing[0]) if len(missing) == 1 else f"{missing[0]} to {missing[-1]}"
    each = f"{pairs} distinct pairs missing" + (" on each" if len(headers) > 1 else "")
    return f"{sum(header.held for header in headers)} answers held back{devices}, {each}"


def device_identities() -> Identities:
    """Return the identities of devices, which are known by the ids of their stores."""
    return Identities("a store must not be copied to a second device", short_name)


def checked_id(device: object) -> str:
    """Return the id of a store that a device states; raise UploadError if it is none."""
    if not isinstance(device, str) or not _DEVICE_ID.fullmatch(device):
        raise UploadError("the id of its store is not 32 hexadecimal digits")
    return device


def short_name(device: str) -> str:
    """Return the name of a device in logs and results; its id is secret."""
    return hashlib.sha256(device.encode()).hexdigest()[:12]
