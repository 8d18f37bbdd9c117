"""Which device is at which node: each node claims it, and claims can be in dispute."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping


class Identities:
    """The devices at the nodes of a federation.

    A device stays at its node while that node is connected and claims nothing else. If several
    other nodes claim the same device, all of them are refused. The result does not depend on the
    order in which the claims were received.

    Parameters
    ----------
    advice : str
        What the owner of a refused node has to change.
    name : callable
        Returns the name of a device in messages.
    """

    def __init__(self, advice: str, name: Callable[[str], str] = str) -> None:
        self._advice, self._name = advice, name
        self._claims: dict[int, str] = {}  # node -> device, as it claimed last
        self._devices: dict[int, str] = {}  # node -> device, if undisputed

    def claim(self, node: int, device: str) -> None:
        """Store which device a node claims to be."""
        self._claims[node] = device

    def at(self, node: int) -> str:
        """Return the device at a node; empty if it is not known, or in dispute."""
        return self._devices.get(node, "")

    def items(self) -> Iterator[tuple[int, str]]:
        """Yield the nodes whose device is known, and their devices."""
        yield from self._devices.items()

    def disputes(self, connected: Collection[int]) -> dict[int, str]:
        """Compare the claims of all connected nodes; return those refused, and the reasons."""
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
                    f"device {self._name(device)} is claimed by nodes"
                    f" {', '.join(map(str, rivals))}: {self._advice}"
                )
                reasons |= dict.fromkeys(nodes, reason)
            else:
                self._devices = {n: known for n, known in self._devices.items() if known != device}
                self._devices[nodes[0]] = device
        return reasons

    def state(self) -> dict[str, str]:
        """Return the devices whose node is known, as JSON values."""
        return {str(node): device for node, device in self._devices.items()}

    def restore(self, state: Mapping[str, str]) -> None:
        """Restore what :meth:`state` returned."""
        self._devices = {int(node): device for node, device in state.items()}
