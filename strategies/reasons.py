"""Why replies of nodes are not counted: lines for the log and for the results."""

from __future__ import annotations

from collections.abc import Iterable

Reason = tuple[str, str]
"""The name of a node or device, and a reason."""

_MOST_SHOWN = 3  # names in a line of the log


def listed(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Return one line for each node or device, for the results."""
    return tuple(f"{name}: {reason}" for name, reason in reasons)


def grouped(reasons: Iterable[Reason], kind: str = "devices") -> list[str]:
    """Return one line for each different reason, for the log.

    Parameters
    ----------
    reasons : iterable of (str, str)
        Names and reasons.
    kind : str
        What the names denote.

    Examples
    --------
    >>> from strategies.reasons import grouped
    >>> names = [f"device{number}" for number in range(1, 38)]
    >>> grouped([("device99", "no reply"), *((name, "no key") for name in names)])
    ['device99: no reply', '37 devices (device1, device2, device3, ...): no key']
    """
    names = dict[str, list[str]]()
    for name, reason in reasons:
        names.setdefault(reason, []).append(name)
    return [f"{_shown(each, kind)}: {reason}" for reason, each in names.items()]


def _shown(names: list[str], kind: str) -> str:
    if len(names) == 1:
        return names[0]
    more = ["..."] if len(names) > _MOST_SHOWN else []
    return f"{len(names)} {kind} ({', '.join([*names[:_MOST_SHOWN], *more])})"
