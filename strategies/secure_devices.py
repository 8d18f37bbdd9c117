"""The devices of secure sums: their nodes, and the last exchange of each device that is counted.

The server identifies a device by its name in the roster. It does not know how many answers a device
has, or has sent.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fldb_flower.errors import DataError, FederationError, SettingsError
from fldb_flower.secure import roster as rosters
from fldb_flower.secure.header import Header, Limits
from fldb_flower.secure.roster import Roster
from fldb_flower.secure.suspects import Suspects
from fldb_flower.settings import Settings
from fldb_flower.wire.secure_messages import Hello, Introduced
from strategies.device_tally import Tally
from strategies.identities import Identities

BASE_DUELS = 1_000
"""Largest number of answers of a device in one exchange, if the last one was counted.

A device that lies within the bounds of its numbers has the weight of as many answers.
"""

_MOST_SHOWN = 30  # names in a line


class SecureDevices:
    """The devices of a roster.

    Parameters
    ----------
    settings : Settings
        ``devices.roster``, ``devices.min_devices``, ``devices.min_duels`` and
        ``devices.max_duels``.

    Attributes
    ----------
    roster : Roster
        The devices that may take part.
    limits : Limits
        What each exchange satisfies.
    counted : dict
        Device -> identifier of its last exchange that is counted, in hexadecimal.
    duels : int
        Duels counted, of all devices.
    suspects : Suspects
        Devices that may have spoilt a sum, and are not always asked.
    round : int
        Number of the last exchange, see ``fldb_flower.secure.header.Header``.

    Raises
    ------
    SettingsError
        The roster cannot be read.

    Examples
    --------
    >>> from pathlib import Path
    >>> from fldb_flower.deployment import rosters
    >>> from fldb_flower.settings import from_flat
    >>> from strategies.secure_devices import SecureDevices
    >>> _ = rosters.create_signing_key(Path("signer"))
    >>> names = [f"device{number}" for number in range(1, 15)]
    >>> keys = [f"{name}={rosters.create_device_key(Path(name))[1]}" for name in names]
    >>> _ = rosters.create_roster(Path("roster.json"), Path("signer"), keys)
    >>> values = {
    ...     "mode": "devices", "algorithm": "fldb_personal", "dimension": 5, "secure": True,
    ...     "max-difference": 4.0, "devices-roster": str(Path("roster.json").absolute()),
    ... }
    >>> settings = from_flat(values, "an example")
    >>> devices = SecureDevices(settings)
    >>> devices.roster.version, len(devices.roster.keys), devices.limits.min_duels
    (1, 14, 2)
    """

    def __init__(self, settings: Settings) -> None:
        chosen = settings.devices
        self._path, self._stamp = Path(chosen.roster), (0, 0)
        least = settings.min_duels
        most = max(Limits(min_duels=1).max_duels, chosen.max_duels, least)
        self.limits = Limits(least, chosen.min_devices, max_duels=most)
        self._base_duels = max(least, min(chosen.max_duels, BASE_DUELS))
        self._identities = Identities("a device's key must not be copied to a second device")
        self._versions: dict[int, int] = {}  # node -> version of its roster
        self._waiting: dict[str, int] = {}  # device -> exchanges that asked it, none counted
        self._tally = Tally(0, ())
        self.counted: dict[str, str] = {}
        self.duels = 0
        self.suspects = Suspects()
        self.round = 0
        try:
            self.roster, self._signed = self._read()
        except (OSError, DataError) as reason:
            raise SettingsError(
                f"devices-roster={chosen.roster!r} (from Flower's run config): {_why(reason)}"
            ) from None

    def refresh(self) -> None:
        """Read the roster again if its file has changed.

        Raises
        ------
        FederationError
            The file cannot be read, or is older than before.
        """
        try:
            status = self._path.stat()
            if (status.st_mtime_ns, status.st_size) == self._stamp:
                return
            roster, signed = self._read()
        except (OSError, DataError) as reason:
            raise FederationError(f"the roster {self._path}: {_why(reason)}") from None
        if (version := roster.version) < self.roster.version:
            raise FederationError(
                f"the roster {self._path} has version {version}: must be at least"
                f" {self.roster.version}, as before"
            )
        self.roster, self._signed = roster, signed
        self._stamp = status.st_mtime_ns, status.st_size

    def _read(self) -> tuple[Roster, bytes]:
        content = self._path.read_bytes()
        return rosters.read(content)[0], content

    @property
    def least(self) -> int:
        """Smallest number of devices present with which an exchange is possible."""
        return self.limits.least_devices(self.roster)

    def strangers(self, connected: Collection[int]) -> dict[int, Hello]:
        """Return the requests to nodes whose device, or the version of its roster, is not known."""
        return {node: Hello(b"") for node in sorted(connected) if node not in self._versions}

    def outdated(self, connected: Collection[int]) -> dict[int, Hello]:
        """Return the requests to nodes with an older roster: they contain the current one."""
        return {
            node: Hello(self._signed)
            for node, version in sorted(self._versions.items())
            if node in connected and version < self.roster.version
        }

    def introduce(self, node: int, reply: Introduced) -> None:
        """Store what a node claims."""
        self._identities.claim(node, reply.name)
        self._versions[node] = reply.version

    def forget(self, name: str) -> None:
        """Let a device introduce itself again before the next exchange."""
        for node, known in self._identities.items():
            if known == name:
                self._versions.pop(node, None)

    def disputes(self, connected: Collection[int]) -> dict[int, str]:
        """Return the nodes whose claims are refused, and why; see :class:`Identities`."""
        return self._identities.disputes(connected)

    def ineligible(self, connected: Collection[int]) -> dict[int, str]:
        """Return the nodes of devices that are not in the roster or have a newer one, and why."""
        reasons, own = {}, self.roster.version
        for name, node in self.at_nodes(connected).items():
            if (version := self._versions[node]) > own:
                reasons[node] = (
                    f"has version {version} of the roster, newer than {own} on the server: renew"
                    " devices-roster"
                )
            elif name not in self.roster.keys:
                reasons[node] = f"is not in the roster, version {own}"
        return reasons

    def at_nodes(self, connected: Collection[int]) -> dict[str, int]:
        """Return the connected devices and their nodes, whatever the version of their roster."""
        return {
            name: node
            for node, name in self._identities.items()
            if node in connected and node in self._versions
        }

    def present(self, connected: Collection[int]) -> dict[str, int]:
        """Return the devices that can take part, and their nodes."""
        return {
            name: node
            for name, node in self.at_nodes(connected).items()
            if name in self.roster.keys and self._versions[node] == self.roster.version
        }

    def next_round(self) -> int:
        """Return the number of a new exchange: milliseconds since 1970, and always increasing."""
        self.round = max(time.time_ns() // 1_000_000, self.round + 1)
        return self.round

    def max_duels(self, asked: Collection[str]) -> int:
        """Return the largest number of answers of a device in the next exchange.

        After an exchange that was not counted, a device has to send at least ``min_duels`` answers
        more, from the same start. So the number grows with the exchanges since the device was last
        counted; else a device could have to decline for ever.
        """
        longest = max((self._waiting.get(name, 0) for name in asked), default=0)
        most = self._base_duels + longest * self.limits.min_duels
        return min(most, self.limits.max_duels)

    def ask(self, header: Header) -> None:
        """Store that an exchange asks its devices."""
        for name in header.asked:
            self._waiting[name] = self._waiting.get(name, 0) + 1

    def last_counted(self, name: str) -> bytes:
        """Return the identifier of a device's last exchange that is counted; empty without one."""
        return bytes.fromhex(self.counted.get(name, ""))

    def count(self, header: Header, devices: tuple[str, ...], duels: int) -> str:
        """Store that the sum of an exchange over some devices is counted.

        Return which device is left out from now on, for a line; empty if it is none.
        """
        self.counted |= dict.fromkeys(devices, header.exchange.hex())
        for name in devices:
            self._waiting.pop(name, None)
        self.duels += duels
        self._tally = Tally(duels, tuple((name, None, None) for name in devices))
        return self._judge(self.suspects.succeeded(devices))

    def suspect(self, header: Header) -> str:
        """Store that the sum of an exchange is wrong; return what follows, for an error."""
        devices = f"the exchange asked {_listed(header.asked)}"
        return "; ".join(filter(None, [devices, self._judge(self.suspects.failed(header.asked))]))

    def blame(self, header: Header, counts: Mapping[str, int]) -> str:
        """Store that members cannot open the pieces of devices; return what follows, for an error.

        Parameters
        ----------
        header : Header
            The exchange.
        counts : mapping of str to int
            For each device, the number of members.
        """
        if max(counts.values()) > header.colluders:
            return self._judge(self.suspects.blamed(counts, header.colluders))
        return self._judge(self.suspects.failed(header.asked))

    def _judge(self, suspects: Suspects) -> str:
        """Replace the state of the suspects; return the devices that are now left out."""
        waits = {name: wait for name, (wait, _) in suspects.left_out.items() if wait}
        before = {name for name, (wait, _) in self.suspects.left_out.items() if wait}
        self.suspects = suspects
        found = sorted(waits.keys() - before)
        if not found:
            return ""
        return f"left out of the next {waits[found[0]]} sums: {_listed(found)}"

    def tally(self) -> Tally:
        """Return what was counted last."""
        return self._tally

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        return {
            "counted": self.counted,
            "duels": self.duels,
            "nodes": self._identities.state(),
            "round": self.round,
            "suspects": self.suspects.to_json(),
            "versions": {str(node): version for node, version in self._versions.items()},
            "waiting": self._waiting,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.counted, self.duels = dict(state["counted"]), state["duels"]
        self._identities.restore(state["nodes"])
        self.round = max(self.round, state["round"])
        self.suspects = Suspects.from_json(state["suspects"])
        self._versions = {int(node): version for node, version in state["versions"].items()}
        self._waiting = dict(state["waiting"])


def _why(reason: Exception) -> str:
    return reason.strerror or str(reason) if isinstance(reason, OSError) else str(reason)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_SHOWN])
    more = len(names) - _MOST_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
