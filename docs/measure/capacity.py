"""What a federation of many devices costs, computed from measurements and stated assumptions.

The tables of docs/capacity.md. Measured numbers are the rows of the
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


def costs(rows: Rows) -> Costs:
    """Return the costs with the database in memory, from the rows with the most nodes.

    The cost of a connected node is the slope between the fewest nodes and the most.
    """
    several = ours(rows, "memory")
    least, last = several[0], several[-1]
    slope = (last["idle, ms"] - least["idle, ms"]) / (last["nodes"] - least["nodes"])
    return Costs(
        superlink=last["SuperLink, ms"] / 1000,
        serverapp=last["ServerApp, ms"] / 1000,
        connected=slope / 1000,
        message=last["up, bytes"] + last["down, bytes"],
        idle=last["idle node, bytes"],
    )


def plan(devices: int, cost: Costs, assume: Assumptions | None = None) -> dict[str, Any]:
    """Return a federation of many devices in one day.

    ``asked`` devices, the ``fraction`` of all in a round, give the answers that are ``counted``,
    with ``days`` between two questions to a device. ``always`` is the way in which all devices stay
    connected, and ``sampled`` that in which only those connect that are asked.
    """
    assume = assume or Assumptions()
    asked = min(devices, assume.sample)
    return {
        "devices": devices,
        "asked": asked,
        "fraction": asked / assume.rounds / devices,
        "counted": devices * assume.answers,
        "days": devices / asked,
        "always": _way(devices, devices, asked, cost, assume),
        "sampled": _way(devices, asked * 60 * assume.minutes / DAY, asked, cost, assume),
    }


def standard_error(dimension: int, answers: float) -> float:
    """Return the standard error of theta after n answers, the norm, at best: sqrt(4 d / n).

    A difference of two arms has features of variance 1. Then n answers of d features have the
    information n / 4 in each direction, if the preferences are close to 1/2, and less otherwise.
    """
    return math.sqrt(4 * dimension / answers)


def _way(
    devices: int, connected: float, asked: int, cost: Costs, assume: Assumptions
) -> dict[str, float]:
    """Return what a way to connect costs: ``bytes`` of a device in a day, processors, servers.

    A SuperLink has at most the load of the assumptions, and each parent at most so many children as
    it can carry: there are ``levels`` of servers, 1 without regions.
    """
    link = connected * cost.connected + asked * cost.superlink / DAY
    most = math.floor(assume.load / (cost.connected + assume.rounds * cost.superlink / DAY))
    servers = superlinks = math.ceil(link / assume.load)
    levels = 1
    while servers > 1:
        servers = math.ceil(servers / max(2, most))
        levels += 1
    return {
        "connected": connected,
        "cores": link + asked * cost.serverapp / DAY,
        "superlinks": superlinks,
        "levels": levels,
        "bytes": (connected * cost.idle * DAY + asked * cost.message) / devices,
    }
