"""Nodes that are devices: identified by the id of their store, counted by answer number."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict

from fldb_flower.bandit.features import Features, read_features
from fldb_flower.environments.arms import parse_arms
from fldb_flower.errors import DataError, SettingsError, TooFewAnswersError
from fldb_flower.settings import AUTO, Settings
from fldb_flower.system.files import read_file, reported
from fldb_flower.wire import DeviceUploadHeader, UploadError, decode_upload, unpack_vector
from strategies.channel import Channel, Contribution, rivals

_DEVICE_ID = re.compile(r"[0-9a-f]{32}")
_MOST_BYTES = 2**28  # largest size of the file of features
_NEW = -1  # `upto`: the device decides where its upload ends


class Tally(NamedTuple):
    """What one round counted.

    ``uploads`` has the name of each device and the range of its counted answers: after the first
    number, up to the second. The server of a secure sum does not know them, nor predictions.
    """

    duels: int = 0
    uploads: tuple[tuple[str, int | None, int | None], ...] = ()
    predicted: Any = None  # duels whose preference was predicted, if it is known
    agreed: Any = None  # and those of them where people confirmed the prediction
    held_back: str = ""  # description of the answers that devices hold back for a later upload


class DeviceChannel(Channel):
    """The devices of a federation; their number is unknown and changes.

    Only the device and the server know the id of its store. A device therefore keeps its identity
    if its key, its SuperNode or the SuperLink's database changes, and no other device can take it.
    A device stays at its node while that node is connected and claims no other device.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        chosen = settings.devices.first_duels
        self.features = features_of(settings)
        self._first_duels = 2 * settings.dimension if chosen == AUTO else int(chosen)
        # Device id -> its last counted answer; in secure sums, the exchange that counted it last.
        self.counted: dict[str, int] = {}
        self.duels = 0  # counted, of all devices
        self._claims: dict[int, str] = {}  # node -> device, as it claimed last
        self._devices: dict[int, str] = {}  # node -> device, if undisputed
        self._spans: dict[int, DeviceUploadHeader] = {}  # node -> the answers of this round
        self.tally = Tally()  # what was acknowledged last

    def contents(self, nodes: Sequence[int]) -> list[RecordDict]:
        """Return the content for each node; see ``fldb_flower.wire``."""
        repeats, contents = self.broadcast.play is None, []
        public = {} if self.features is None else {"features": self.features.to_json()}
        for node in nodes:
            device = self.device_at(node)
            own = ConfigRecord({
                **self.config,
                "counted": self.counted.get(device, 0),
                "device": device,
                "upto": self._spans[node].end if repeats else _NEW,
                "duels": self.duels,
                **public,
            })  # fmt: skip
            contents.append(RecordDict({"arrays": self.arrays, "config": own}))
        return contents

    def check(self, node: int, reply: Message) -> Contribution | None:
        """Return a device's upload; None if the device was not known to be at this node."""
        content: Any = reply.content
        try:
            header = DeviceUploadHeader.from_counts(content["config"]["header"])
            device = content["config"]["device"]
            vector = unpack_vector(content["arrays"], self.settings.max_message_mb)
        except (KeyError, TypeError, ValueError) as error:
            raise UploadError.malformed(error) from None
        if not self.claim(node, device):
            return None
        upload = decode_upload(vector, header.num_duels, self.broadcast, self.form)
        span = header._replace(held=0, missing=0)
        self._check_span(node, self.counted.get(device, 0), span)
        self._spans[node] = span
        return Contribution(device, upload, header)

    def _check_span(self, node: int, start: int, header: DeviceUploadHeader) -> None:
        span, most = (header.start, header.end), self.settings.devices.max_duels
        if header.start != start or header.end < start:
            raise UploadError(f"answers {span} instead of those after {start}")
        if self.broadcast.learns and header.num_duels != header.end - header.start:
            raise UploadError(f"{header.num_duels} duels in answers {span}")
        if header.num_duels > most:
            raise UploadError(f"{header.num_duels} duels, more than {most} in a round")
        if self.broadcast.play is None and header != self._spans[node]:
            raise UploadError(f"other answers than before: {span}")
        if not header.agreed <= header.predicted <= header.num_duels:
            raise UploadError(f"inconsistent counts: {tuple(header)}")

    # Which device is at which node.

    def device_at(self, node: int) -> str:
        """Return the device at a node; empty if it is not known, or in dispute."""
        return self._devices.get(node, "")

    def claim(self, node: int, device: object) -> bool:
        """Store which device a node claims to be; return whether that is known already."""
        if not isinstance(device, str) or not _DEVICE_ID.fullmatch(device):
            raise UploadError("the id of its store is not 32 hexadecimal digits")
        self._claims[node] = device
        return self.device_at(node) == device

    def disputes(self, connected: Collection[int]) -> dict[int, str]:
        """Compare which devices the connected nodes claim to be."""
        claims = {node: self._claims[node] for node in sorted(connected) if node in self._claims}
        self._devices = {
            node: known for node, known in self._devices.items() if claims.get(node, known) == known
        }
        owners = {device: node for node, device in self._devices.items() if node in connected}
        refused = rivals(claims, owners)
        moved = {node: claims[node] for node in claims.keys() - refused.keys()}
        arrived = set(moved.values())
        stay = {node: device for node, device in self._devices.items() if device not in arrived}
        self._devices = stay | moved
        return {
            node: f"device {short_name(claims[node])} is claimed by nodes {several}: a store must"
            " not be copied to a second device"
            for node, several in refused.items()
        }

    def name(self, node: int) -> str:
        """Return the name of the device at a node, if it is known."""
        device = self.device_at(node)
        return f"device {short_name(device)}" if device else super().name(node)

    # What is counted.

    def accept(self) -> None:
        """Require one new answer; in the first round ``devices-first-duels`` of them."""
        if self.broadcast.theta_hat is None:
            return
        new = sum(each.upload.num_duels for each in self.contributions.values())
        if new == 0:
            nothing = f"no new answers from {len(self.contributions)} devices"
            raise TooFewAnswersError(self._held_back() or nothing)
        if self.duels == 0 and new < self._first_duels:
            raise TooFewAnswersError(
                f"{new} answers; the first round needs {self._first_duels} (devices-first-duels)"
            )

    def answers(self, contribution: Contribution) -> int:
        """Return the number of the device's last answer."""
        header: DeviceUploadHeader = contribution.claim
        return header.end

    def acknowledge(self) -> None:
        """Count the answers that the contributions cover."""
        spans = [(each.order, each.claim) for each in self.accepted]
        new = [(device, header) for device, header in spans if header.num_duels]
        self.counted |= {device: header.end for device, header in spans}
        self.tally = Tally(
            duels=sum(header.num_duels for _, header in new),
            uploads=tuple((short_name(device), each.start, each.end) for device, each in new),
            predicted=sum(header.predicted for _, header in new),
            agreed=sum(header.agreed for _, header in new),
            held_back=self._held_back(),
        )
        self.duels += self.tally.duels

    def _held_back(self) -> str:
        """Describe the answers that devices hold back, and why; empty if there are none."""
        headers = [each.claim for each in self.contributions.values() if each.claim.held]
        if not headers:
            return ""
        missing = sorted({header.missing for header in headers})
        devices = "" if len(headers) == 1 else f" by {len(headers)} devices"
        pairs = str(missing[0]) if len(missing) == 1 else f"{missing[0]} to {missing[-1]}"
        each = f"{pairs} distinct pairs missing" + (" on each" if len(headers) > 1 else "")
        return f"{sum(header.held for header in headers)} answers held back{devices}, {each}"

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        nodes = {str(node): device for node, device in self._devices.items()}
        return {"counted": self.counted, "duels": self.duels, "nodes": nodes}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.counted, self.duels = dict(state["counted"]), state["duels"]
        self._devices = {int(node): device for node, device in state["nodes"].items()}


def features_of(settings: Settings) -> Features | None:
    """Return the features in the file ``devices.features``, or of its arms; None without a file."""
    if not settings.devices.features:
        return None
    file, name = Path(settings.devices.features), f"devices.features={settings.devices.features!r}"
    if not file.is_absolute():
        raise SettingsError(f"{name}: must be the absolute path of a file")
    with reported(DataError, f"read {file}, the file of devices.features"):
        content = read_file(file, _MOST_BYTES)
    if re.match(rb"(\xef\xbb\xbf)?\s*feature\s*,\s*scale\s", content):
        features = read_features(file)
    else:
        try:
            table = parse_arms(content)
        except DataError as reason:
            raise DataError(f"{file}: {reason}; or the header must be feature,scale") from None
        features = Features.of_arms(table.features, table.names)
    if (count := features.dimension) != settings.dimension:
        raise SettingsError(
            f"{name} has {count} features: must have dimension={settings.dimension} of them"
        )
    return features


def short_name(device: str) -> str:
    """Return the name of a device in logs and results; its id is secret."""
    return hashlib.sha256(device.encode()).hexdigest()[:12]
