"""What a federation of many devices costs, computed from measurements and stated assumptions.

The tables of "Plan for many devices" in docs/scaling.md. Measured numbers are those of the result
files ``deployment.json`` and ``secure.json``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from fldb_flower.secure.sharing import Scheme

DAY = 86_400.0
Rows = Sequence[Mapping[str, Any]]


class Assumptions(NamedTuple):
    """What is assumed and not measured.

    Attributes
    ----------
    sample : int
        Most devices that are asked in a day.
    answers : float
        Answers of a person in a day.
    rounds : int
        Rounds in a day.
    minutes : float
        Time for which a device connects, if it does not stay connected.
    load : float
        Share of a processor that a SuperLink may use.
    """

    sample: int = 100_000
    answers: float = 10.0
    rounds: int = 24
    minutes: float = 10.0
    load: float = 0.5


class Costs(NamedTuple):
    """Measured costs.

    Attributes
    ----------
    superlink, serverapp : float
        Processor seconds for one message and its reply.
    connected : float
        Processor seconds of the SuperLink for one connected node in a second.
    message : float
        Bytes of one message and its reply, with HTTP's headers.
    idle : float
        Bytes that a connected node sends and receives in a second without messages.
    """

    superlink: float
    serverapp: float
    connected: float
    message: float
    idle: float


def costs(rows: Rows, database: str = "memory") -> Costs:
    """Return the costs, from the rows of ``deployment.json`` with the most nodes.

    The cost of a connected node is the slope between the fewest nodes and the most.
    """
    ours = [row for row in rows if row["database"] == database and row["app"] == "ours"]
    few, most = (choose(row["nodes"] for row in ours) for choose in (min, max))
    least, last = (_medians([row for row in ours if row["nodes"] == n]) for n in (few, most))
    return Costs(
        superlink=last["SuperLink, ms"] / 1000,
        serverapp=last["ServerApp, ms"] / 1000,
        connected=(last["idle, ms"] - least["idle, ms"]) / 1000 / (most - few),
        message=last["up, bytes"] + last["down, bytes"],
        idle=last["idle node, bytes"],
    )


def _medians(rows: Rows) -> dict[str, float]:
    numbers = (key for key, value in rows[0].items() if isinstance(value, int | float))
    return {key: median(row[key] for row in rows) for key in numbers}


class Plan(NamedTuple):
    """A federation of many devices in one day.

    Attributes
    ----------
    devices, asked : int
        Devices, and those that are asked.
    fraction : float
        Share of the devices that is asked in a round.
    counted : float
        Answers that are counted.
    days : float
        Time between two questions to a device.
    always, sampled : Way
        If all devices stay connected, and if only those that are asked connect.
    """

    devices: int
    asked: int
    fraction: float
    counted: float
    days: float
    always: Way
    sampled: Way

    def standard_error(self, dimension: int) -> float:
        """Return the standard error of theta after the answers of a day, at best.

        A difference of two arms has features of variance 1. Then n answers of d features have the
        information n / 4 in each direction, if the preferences are close to 1/2, and less
        otherwise. It is the norm of the error: sqrt(4 d / n).
        """
        return math.sqrt(4 * dimension / self.counted)


class Way(NamedTuple):
    """How devices connect: what it costs.

    Attributes
    ----------
    connected : float
        Devices that are connected at the same time.
    cores : float
        Processors that SuperLinks and ServerApps use.
    superlinks : int
        SuperLinks, each at most at the load of the assumptions.
    levels : int
        Levels of servers: 1 without regions, 2 with regions and a parent, and so on.
    bytes : float
        Bytes of a device in a day, the mean over all devices.
    """

    connected: float
    cores: float
    superlinks: int
    levels: int
    bytes: float


def plan(devices: int, cost: Costs, assume: Assumptions | None = None) -> Plan:
    """Return the plan for a number of devices."""
    assume = assume or Assumptions()
    asked = min(devices, assume.sample)
    days = devices / asked
    window = 60 * assume.minutes
    always = _way(devices, devices, asked, cost, assume)
    sampled = _way(devices, asked * window / DAY, asked, cost, assume)
    return Plan(
        devices=devices,
        asked=asked,
        fraction=asked / assume.rounds / devices,
        counted=asked * assume.answers * days,
        days=days,
        always=always,
        sampled=sampled,
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
    most = math.floor(assume.load / each)
    levels = 1
    while servers > 1:
        servers = math.ceil(servers / most)
        levels += 1
    return levels


class SecurePlan(NamedTuple):
    """The secure sums of one day.

    Attributes
    ----------
    row : Mapping
        The row of ``secure.json`` for the sum of one committee.
    scheme : Scheme
        Sizes of the committee.
    sums : int
        Sums in a day.
    messages : float
        Messages to a device that is asked, the mean over all of them.
    up, down : float
        Bytes of pieces that a device sends, and that it receives on average.
    seconds : float
        Processor time of a device, with its mean share of the work of members.
    server : float
        Processors that the server's part uses, beside the messages.
    """

    row: Mapping[str, Any]
    scheme: Scheme
    sums: int
    messages: float
    up: float
    down: float
    seconds: float
    server: float


def secure_plan(asked: int, rows: Rows) -> SecurePlan:
    """Return the plan for secure sums over all devices that are asked, in the largest groups."""
    row = max(rows, key=lambda each: each["N"])
    share = row["c"] / row["N"]  # of the devices that are members
    sums = math.ceil(asked / row["N"])
    return SecurePlan(
        row=row,
        scheme=Scheme.of(row["c"]),
        sums=sums,
        messages=1 + share,
        up=row["up, bytes"],
        down=share * row["to a member, bytes"],
        seconds=(row["collect, ms"] + share * row["open, ms"]) / 1000,
        server=sums * row["server, ms"] / 1000 / DAY,
    )
