"""Whom the server asks after a sum that some device spoilt, so that one device stops no rounds.

A device can send wrong pieces, and a member wrong answers. The parity of the answers shows that a
sum is wrong, and often not by whom. An exchange is never opened for a second set, so each guess is
a new exchange: the search spans rounds, and the answers of a failed sum are sent again later.

1. *A good set.* While no set is known to be good, each exchange leaves out another part of the
   devices, as many as may be missing. One of these parts contains the bad device.
2. *The others.* Each exchange asks the good devices and half of the suspects. A good sum makes this
   half good; a failed one leaves only it. The last suspect is left out.

With one bad device among n that always sends wrong values, and ``w = n - least`` devices to spare,
at most ``ceil(n / w)`` exchanges fail in step 1 (two if half of the devices suffices), and step 2
takes at most ``ceil(log2(n))`` exchanges. Several bad devices are found one after the other; step 1
then leaves out random parts. If ``w = 0``, nothing can be left out: the sum needs all devices
present, and fails until others come.

Each exchange needs ``min_duels`` new answers of a device, so a search lasts while the devices
collect them, and suspects can be silent. If none of them takes part in 10 good sums, they are left
out together.

If a sum fails directly after the last suspect was left out, a good device became a bad one, and the
search starts again.

**Left out, but not for ever.** The next 20 good sums are without the device, then it is asked
again. Each further time doubles the number, up to 1,280. A suspect that returns and fails again
costs one exchange. If too few devices are present without those left out, all are asked.

A device that sends wrong values only at times can have others left out, for that time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fldb_flower.errors import DataError
from fldb_flower.secure.canonical import check_fields, check_integer, check_name, names_of
from fldb_flower.secure.roster import LARGEST_NUMBER

_FIRST_WAIT, _LONGEST_WAIT = 20, 1280
_MOST_SILENT = 10
_FIELDS = ("good", "left_out", "suspects", "tries")


@dataclass(frozen=True)
class Suspects:
    """What the server knows about the devices whose sums failed.

    Attributes
    ----------
    good : frozenset of str
        Devices of good sums since the last search for a good set.
    suspects : frozenset of str
        Devices of which at least one is bad; empty while no search is in progress.
    tries : int
        Exchanges without progress: failed ones in step 1, and in step 2 good ones in which no
        suspect took part. After a failed sum with one suspect, 1 until there is a good sum.
    left_out : mapping of str to (int, int)
        For each device that was left out, the number of good sums until it is asked again, and the
        number of the next time.

    Examples
    --------
    Device c sends wrong pieces, and a sum needs three devices:

    >>> from fldb_flower.secure.suspects import Suspects
    >>> state = Suspects()
    >>> while not state.left_out:
    ...     asked = state.asked("abcdef", least=3)
    ...     state = state.failed(asked) if "c" in asked else state.succeeded(asked)
    >>> state.asked("abcdef", least=3)
    ('a', 'b', 'd', 'e', 'f')
    """

    good: frozenset[str] = frozenset()
    suspects: frozenset[str] = frozenset()
    tries: int = 0
    left_out: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def waiting(self) -> frozenset[str]:
        """The devices that are left out now."""
        return frozenset(name for name, (wait, _) in self.left_out.items() if wait)

    def asked(self, present: Collection[str], least: int) -> tuple[str, ...]:
        """Return the devices that the next exchange asks, sorted.

        Parameters
        ----------
        present : collection of str
            The devices that can be asked.
        least : int
            :meth:`fldb_flower.secure.header.Limits.least_devices`. If fewer are present, the
            result has fewer as well.
        """
        names = frozenset(present)
        others = names - self.waiting
        if len(others) < least:
            return tuple(sorted(names))
        chosen, suspects = others, sorted(self.suspects & others)
        if suspects and not self.good:
            chosen = others - self._part(others, least)
        elif suspects:
            good = others & self.good
            half, start = (len(suspects) + 1) // 2, self.tries % len(suspects)
            turned = suspects[start:] + suspects[:start]  # others if the last ones were silent
            chosen = good | set(turned[: max(half, least - len(good))])
        return tuple(sorted(chosen if len(chosen) >= least else others))

    def failed(self, asked: Collection[str]) -> Suspects:
        """Return the state after an exchange whose sum is wrong.

        Parameters
        ----------
        asked : collection of str
            The devices that it asked (U1). A member that sends wrong answers is one of them, and
            not always in the sum.
        """
        names = frozenset(asked)
        if not self.good:
            return replace(
                self, suspects=self.suspects | names, tries=self.tries + bool(self.suspects)
            )
        found = names - self.good
        if not found or (self.tries and not self.suspects):  # a good device became a bad one
            return replace(self, good=frozenset(), suspects=names, tries=0)
        narrowed = self._with_suspects(found)
        return narrowed if narrowed.suspects else replace(narrowed, tries=1)

    def succeeded(self, devices: Collection[str]) -> Suspects:
        """Return the state after a sum over devices (U3)."""
        left_out = {name: (max(wait - 1, 0), more) for name, (wait, more) in self.left_out.items()}
        state = replace(self, good=self.good | frozenset(devices), left_out=left_out)
        remaining = self.suspects - frozenset(devices)
        if not self.good or remaining != self.suspects:
            return state._with_suspects(remaining)
        if self.suspects and self.tries + 1 < _MOST_SILENT:
            return replace(state, tries=self.tries + 1)
        return state._without(remaining)

    def blamed(self, counts: Mapping[str, int], tolerated: int) -> Suspects:
        """Return the state without the devices whose pieces more than T members cannot open.

        One of these members does not cooperate with the server and the others, so the device is
        bad.

        Parameters
        ----------
        counts : mapping of str to int
            For each device, the number of members that named it in one exchange.
        tolerated : int
            T of the exchange.
        """
        names = frozenset(name for name, count in counts.items() if count > tolerated)
        if names & self.suspects:
            return self._without(names)
        return replace(self._without(names), suspects=self.suspects, tries=self.tries)

    def to_json(self) -> dict[str, Any]:
        """Return the state as values of JSON."""
        return {
            "good": sorted(self.good),
            "left_out": {name: list(waits) for name, waits in sorted(self.left_out.items())},
            "suspects": sorted(self.suspects),
            "tries": self.tries,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Suspects:
        """Return the state of :meth:`to_json`.

        Raises
        ------
        DataError
            A field is unknown, missing or invalid.
        """
        what = "the state of the suspects"
        check_fields(fields, what, _FIELDS)
        check_integer(f"tries of {what}", fields["tries"], 0, LARGEST_NUMBER)
        left_out = fields["left_out"]
        if not isinstance(left_out, dict):
            raise DataError(f"left_out of {what} is not a JSON object")
        sets = {name: names_of(f"{name} of {what}", fields[name]) for name in ("good", "suspects")}
        for name in (*sets["good"], *sets["suspects"], *left_out):
            check_name(f"a device of {what}", name)
        for name, waits in left_out.items():
            if not isinstance(waits, list) or len(waits) != len((_FIRST_WAIT, _LONGEST_WAIT)):
                raise DataError(f"left_out of {what} is not two numbers for {name}")
            for wait in waits:
                check_integer(f"left_out of {what}", wait, 0, _LONGEST_WAIT)
        return cls(
            frozenset(sets["good"]),
            frozenset(sets["suspects"]),
            fields["tries"],
            {name: (waits[0], waits[1]) for name, waits in left_out.items()},
        )

    def _part(self, names: frozenset[str], least: int) -> frozenset[str]:
        """Return the part of the devices that this try leaves out."""
        if (size := min(len(names) - least, (len(names) + 1) // 2)) <= 0:
            return frozenset()
        parts = -(-len(names) // size)
        cycle, place = divmod(self.tries, parts)  # another order in each cycle

        def key(name: str) -> bytes:
            return hashlib.sha256(f"{cycle} {name}".encode()).digest()

        return frozenset(sorted(names, key=key)[place * size : (place + 1) * size])

    def _with_suspects(self, names: frozenset[str]) -> Suspects:
        if len(names) == 1:
            return self._without(names)
        return replace(self, suspects=names, tries=0)

    def _without(self, names: frozenset[str]) -> Suspects:
        """Return the state in which devices are left out and the search is over."""
        left_out = dict(self.left_out)
        for name in names:
            wait = left_out[name][1] if name in left_out else _FIRST_WAIT
            left_out[name] = (wait, min(2 * wait, _LONGEST_WAIT))
        return replace(
            self, good=self.good - names, suspects=frozenset(), tries=0, left_out=left_out
        )
