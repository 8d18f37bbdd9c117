"""What a federation of many devices costs, computed from measurements and stated assumptions.

The tables of "Plan for many devices" in docs/scaling.md. Measured numbers are the rows of the
result file ``deployment.json``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

DAY = 86_400.0
Rows = Sequence[Mapping[str, Any]]


class Assumptions(NamedTuple):
    """What is assumed and not measured."""

    sample: int = 100_000  # most devices that are asked in a day
    answers: float = 10.0  # of a person in a day
    rounds: int = 24  # in a day
    minutes: float = 10.0  # for which a device connects, if it does not stay connected
    load: float = 0.5  # share of a processor that a SuperLink may use


class Costs(NamedTuple):
    """Measured costs."""

    superlink: float  # processor seconds for one message and its reply
    serverapp: float  # the same
    connected: float  # processor seconds of the SuperLink for one connected node in a second
    message: float  # bytes of one message and its reply, with HTTP's headers
    idle: float  # bytes that a connected node sends and receives in a second without messages


class Way(NamedTuple):
    """How devices connect: what it costs."""

    connected: float  # devices that are connected at the same time
    cores: float  # processors that SuperLinks and ServerApps use
    superlinks: int  # each at most at the load of the assumptions
    levels: int  # of servers: 1 without regions, 2 with regions and a parent, and so on
    bytes: float  # of a device in a day, the mean over all devices


class Plan(NamedTuple):
    """A federation of many devices in one day."""

    devices: int
    asked: int  # devices that are asked
    fraction: float  # share of the devices that is asked in a round
    counted: float  # answers that are counted
    days: float  # between two questions to a device
    always: Way  # if all devices stay connected
    sampled: Way  # if only those that are asked connect

    def standard_error(self, dimension: int) -> float:
        """Return the standard error of theta after the answers of a day, at best.

        A difference of two arms has features of variance 1. Then n answers of d features have the
        information n / 4 in each direction, if the preferences are close to 1/2, and less
        otherwise. It is the norm of the error: sqrt(4 d / n).
        """
        return math.sqrt(4 * dimension / self.counted)


def summary(rows: Rows) -> list[dict[str, Any]]:
    """Return the medians of the repetitions in the rows, in their order."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["database"], row["nodes"], row["app"]), []).append(row)
    return [
        {
            key: value if isinstance(value, str) else median(row[key] for row in group)
            for key, value in group[0].items()
        }
        for group in groups.values()
    ]


def ours(rows: Rows, database: str) -> list[dict[str, Any]]:
    """Return the medians of our app with a database, with more and more nodes."""
    chosen = [row for row in rows if (row["database"], row["app"]) == (database, "ours")]
    return sorted(summary(chosen), key=lambda row: int(row["nodes"]))


def ratio(rows: Rows, database: str, app: str, other: str, *, requests: bool = False) -> float:
    """Return the median ratio of the processor time for a message with two apps, or of requests.

    The time is that of SuperLink and ServerApp. The ratio is that of exchanges one after the other.
    """
    bare = next(row["nodes"] for row in rows if row["app"] != "ours")

    def values(name: str) -> list[float]:
        return [
            row["requests"] if requests else row["SuperLink, ms"] + row["ServerApp, ms"]
            for row in rows
            if (row["database"], row["nodes"], row["app"]) == (database, bare, name)
        ]

    return float(median(a / b for a, b in zip(values(app), values(other), strict=True)))


def costs(rows: Rows, database: str = "memory") -> Costs:
    """Return the costs, from the rows with the most nodes.

    The cost of a connected node is the slope between the fewest nodes and the most.
    """
    several = ours(rows, database)
    least, last = several[0], several[-1]
    slope = (last["idle, ms"] - least["idle, ms"]) / (last["nodes"] - least["nodes"])
    return Costs(
        superlink=last["SuperLink, ms"] / 1000,
        serverapp=last["ServerApp, ms"] / 1000,
        connected=slope / 1000,
        message=last["up, bytes"] + last["down, bytes"],
        idle=last["idle node, bytes"],
    )


def plan(devices: int, cost: Costs, assume: Assumptions | None = None) -> Plan:
    """Return the plan for a number of devices."""
    assume = assume or Assumptions()
    asked = min(devices, assume.sample)
    days = devices / asked
    return Plan(
        devices=devices,
        asked=asked,
        fraction=asked / assume.rounds / devices,
        counted=asked * assume.answers * days,
        days=days,
        always=_way(devices, devices, asked, cost, assume),
        sampled=_way(devices, asked * 60 * assume.minutes / DAY, asked, cost, assume),
    )


def _way(devices: int, connected: float, asked: int, cost: Costs, assume: Assumptions) -> Way:
    link = connected * cost.connected + asked * cost.superlink / DAY
    superlinks = math.ceil(link / assume.load)
    return Way(
        connected=connected,
        cores=link + asked * cost.serverapp / DAY,
        superlinks=superlinks,
        levels=_levels(superlinks, cost, assume),
        bytes=(connected * cost.idle * DAY + asked * cost.message) / devices,
    )


def _levels(servers: int, cost: Costs, assume: Assumptions) -> int:
    """Return the number of levels: each parent has at most so many children as it can carry."""
    each = cost.connected + assume.rounds * cost.superlink / DAY
    most = max(2, math.floor(assume.load / each))
    levels = 1
    while servers > 1:
        servers = math.ceil(servers / most)
        levels += 1
    return levels
