"""The trips of secure sums: which nodes are asked, and how long replies are waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from logging import WARNING, getLogger

from fldb_flower.errors import FederationError
from fldb_flower.wire.secure_messages import Deliver, Hello, Introduced, Refused, Request
from strategies.grid_federation import GridFederation
from strategies.reasons import Reason, grouped
from strategies.secure_courier import Answer, Courier, Failure, short
from strategies.secure_devices import SecureDevices
from strategies.transport import Patience

_LOG = getLogger("flwr")


class Trips:
    """The trips of a federation.

    Parameters
    ----------
    federation : GridFederation
        With the grid that carries the messages.
    devices : SecureDevices
        The devices and their nodes.

    Attributes
    ----------
    stage : str
        The trip whose replies are waited for.
    left_out : tuple of (str, str)
        The nodes that cannot take part in this exchange, and why.
    """

    def __init__(self, federation: GridFederation, devices: SecureDevices) -> None:
        self._federation, self._devices = federation, devices
        self._courier = Courier(federation.settings, federation.history)
        self.stage = ""
        self.left_out: tuple[Reason, ...] = ()

    def greet(self, *, with_roster: bool) -> None:
        """Let unknown devices introduce themselves, and send the roster to those with an older one.

        A node is asked once: without a reply, it is asked before the next exchange.
        """
        connected, devices = self._federation.wait_for_nodes(), self._devices
        reasons = self._introduced(devices.strangers(connected))
        reasons |= devices.disputes(connected)
        if with_roster:
            reasons |= self._introduced(devices.outdated(connected))
            reasons |= devices.disputes(connected) | devices.ineligible(connected)
        names = {node: f" ({name})" for name, node in devices.at_nodes(connected).items()}
        self.left_out = tuple(
            (f"node {node}{names.get(node, '')}", reasons[node]) for node in sorted(reasons)
        )
        for line in grouped(self.left_out, "nodes"):
            _LOG.log(WARNING, "not asked: %s", line)

    def _introduced(self, requests: Mapping[int, Hello]) -> dict[int, str]:
        """Send introductions; return the nodes that are refused, and the reasons."""
        if not requests:
            return {}
        self._begin("introductions", requests)
        reasons = {}
        for node, answer in self._ask(requests):
            if isinstance(answer, Introduced):
                self._devices.introduce(node, answer)
            elif isinstance(answer, Refused | Failure):
                reasons[node] = short(answer.reason)
        return reasons

    def run(
        self,
        stage: str,
        exchange: bytes,
        requests: Callable[[], Mapping[str, Request]],
        receive: Callable[[str, Answer], None],
        is_enough: Callable[[], bool],
    ) -> None:
        """Ask devices until there is nothing to ask, it is enough, or the patience ends.

        Parameters
        ----------
        stage : str
            Name of the trip.
        exchange : bytes
            Identifier of the exchange. A trip that is continued also receives late replies.
        requests : callable
            Returns the requests to the devices that are still to be asked.
        receive : callable
            Called with the name of a device and its answer.
        is_enough : callable
            Whether the missing answers are not needed.
        """
        self._begin(stage, exchange)
        patience = self._patience()
        while waiting := requests():
            nodes = self._devices.at_nodes(self._federation.connected())
            names = {node: name for name, node in nodes.items()}
            messages = {nodes[name]: each for name, each in waiting.items() if name in nodes}
            if messages:
                for node, answer in self._ask(messages):
                    if node in names:
                        receive(names[node], answer)
            if is_enough() or not patience.wait():
                break

    def deliver(self, broadcast: bytes) -> None:
        """Send an estimate to all known devices; nothing is contributed.

        Raises
        ------
        FederationError
            It did not reach a device.
        """
        self.greet(with_roster=False)
        devices, reasons = self._devices, dict[str, str]()
        waiting: dict[str, Request] = {
            name: Deliver(broadcast, devices.last_counted(name))
            for name in devices.at_nodes(self._federation.connected())
        }

        def receive(name: str, answer: Answer) -> None:
            if name not in waiting:
                return
            reasons.pop(name, None)
            if isinstance(answer, Refused | Failure):
                reasons[name] = short(answer.reason)
            if not isinstance(answer, Failure):
                waiting.pop(name, None)

        self.run("deliveries", broadcast, lambda: waiting, receive, lambda: False)
        silent = dict.fromkeys(waiting, "no reply")
        lines = grouped({**silent, **reasons}.items())
        if self.left_out or lines:
            raise FederationError("; ".join([*grouped(self.left_out, "nodes"), *lines]))

    def _begin(self, stage: str, subject: object) -> None:
        self.stage = stage
        self._courier.begin((stage, subject))

    def _ask(self, requests: Mapping[int, Request]) -> list[tuple[int, Answer]]:
        return self._courier.ask(self._federation.grid, requests, self._federation.watch)

    def _patience(self) -> Patience:
        return Patience(self._federation.grid, self._federation.settings.node_wait)
