"""One secure sum on the server: its two trips, who contributed, and who did not and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fldb_flower.errors import CheckpointError, DataError, SecureError
from fldb_flower.federation.history import Participation
from fldb_flower.runs.directory import ResultsDirectory
from fldb_flower.secure.server import Phase, ServerExchange
from fldb_flower.wire.secure_messages import (
    Blamed,
    Collect,
    Declined,
    Open,
    Opened,
    Pieces,
    Refused,
)
from strategies.reasons import Reason, grouped, listed
from strategies.secure_courier import Answer, Failure, short

EXCHANGE = "exchange.bin"
"""File with the exchange whose set is fixed. It contains sealed pieces, and no statistics."""


@dataclass(eq=False)
class SecureExchange:
    """The state of the exchange, and what the devices replied to it.

    Attributes
    ----------
    state : ServerExchange
        The protocol's state.
    declined : set of str
        Devices with too few new answers.
    refused : dict
        Device -> why its reply cannot be used.
    blames : dict
        Member -> devices whose pieces it cannot open.
    tries : int
        Rounds in which members were asked.
    """

    state: ServerExchange
    declined: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    blames: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tries: int = 0
    # Devices that would reply the same again; and the reasons of the first trip.
    _final: set[str] = field(default_factory=set, init=False)
    _earlier: tuple[Reason, ...] = field(default=(), init=False)

    def collect_requests(self, counted: Callable[[str], bytes]) -> dict[str, Collect]:
        """Return the requests to the devices that have not replied.

        Parameters
        ----------
        counted : callable
            Returns the last exchange of a device that is counted.
        """
        header = self.state.header
        content = header.to_bytes()
        done = self._done | self._final
        return {name: Collect(content, counted(name)) for name in header.asked if name not in done}

    def open_requests(self) -> dict[str, Open]:
        """Return the requests to the members that have not replied."""
        content = self.state.header.to_bytes()
        done = self._done | self._final
        return {
            name: Open(content, self.state.pieces_for(name))
            for name in self.state.header.committee
            if name not in done
        }

    def receive(self, name: str, answer: Answer) -> None:
        """Add the reply of a device."""
        try:
            if isinstance(answer, Pieces):
                self.state = self.state.receive(name, answer.sealed)
            elif isinstance(answer, Opened):
                self.state = self.state.answer(name, answer.opening)
            elif isinstance(answer, Blamed):
                self._blame(name, answer)
            elif isinstance(answer, Declined):
                self.declined.add(name)
            elif isinstance(answer, Refused | Failure):
                if name not in self._done:
                    self._refuse(name, answer.reason, final=isinstance(answer, Refused))
                return
        except SecureError as reason:
            self._refuse(name, str(reason), final=True)
            return
        self.refused.pop(name, None)

    def _refuse(self, name: str, reason: str, *, final: bool) -> None:
        self.refused[name] = short(reason)
        if final:
            self._final.add(name)

    @property
    def _done(self) -> set[str]:
        """The devices whose reply in this trip is complete."""
        if self.state.phase is Phase.COLLECT:
            return self.declined.union(self.state.sealed)
        return {*self.state.openings, *self.blames}

    def _blame(self, member: str, answer: Blamed) -> None:
        if others := sorted(set(answer.devices) - set(self.state.chosen)):
            raise SecureError(f"blames {others[0]}, which is not in the sum")
        self.blames[member] = answer.devices

    def collect_again(self) -> None:
        """Let devices be asked again that declined or were refused."""
        self.declined.clear()
        self.refused.clear()
        self._final.clear()

    def choose(self) -> None:
        """Fix the devices of the sum; the caller stores the state before it asks a member.

        Raises
        ------
        SecureError
            Too few devices have contributed.
        """
        self.state = self.state.choose()
        self._earlier = tuple(self.reasons())
        self.refused.clear()
        self._final.clear()

    def ask_again(self) -> None:
        """Count a round of requests to members; those that refused in an earlier one are asked."""
        self.tries += 1
        self._final.clear()

    @property
    def replied(self) -> int:
        """Number of devices that contributed or declined."""
        return len(self.declined.union(self.state.sealed))

    @property
    def is_open(self) -> bool:
        """Whether there are enough answers for the sum."""
        return len(self.state.openings) >= self.state.header.openings

    @property
    def can_open(self) -> bool:
        """Whether there can be enough answers, without the members that cannot open a piece."""
        header = self.state.header
        return len(header.committee) - len(self.blames) >= header.openings

    @property
    def blamed(self) -> Counter[str]:
        """How many members cannot open the pieces of a device."""
        return Counter(name for names in self.blames.values() for name in names)

    def reasons(self) -> Iterator[Reason]:
        """Yield each device or member whose reply cannot be used, and why."""
        yield from dict.fromkeys([*self._earlier, *sorted(self.refused.items())])
        members = len(self.state.header.committee)
        for name, count in sorted(self.blamed.items()):
            yield name, f"{count} of {members} members cannot open its pieces"

    def shortage(self) -> str:
        """Return why there is no sum, for an error."""
        header = self.state.header
        asked, sent, declined = len(header.asked), len(self.state.sealed), len(self.declined)
        if self.state.phase is Phase.COLLECT:
            text = (
                f"{sent} of {asked} devices contributed, {declined} declined (too few new answers),"
                f" and {asked - sent - declined} were refused or did not reply; a secure sum needs"
                f" {header.least_devices}"
            )
        else:
            text = (
                f"{len(self.state.openings)} of {len(header.committee)} members opened the sum of"
                f" {len(self.state.chosen)} devices; it needs {header.openings}"
            )
        return "; ".join([text, *grouped(self.reasons())])

    def participation(
        self, iteration: int, left_out: tuple[Reason, ...], wrong: tuple[str, ...]
    ) -> Participation:
        """Return who took part, for the history.

        Parameters
        ----------
        iteration : int
            The last iteration played.
        left_out : tuple of (str, str)
            Nodes that were not asked, and why.
        wrong : tuple of str
            Members whose answers are wrong.
        """
        header, sealed = self.state.header, self.state.sealed
        answered = ((name, "answered with a wrong sum") for name in wrong)
        lines = listed([*left_out, *self.reasons(), *answered])
        absent = tuple(name for name in header.asked if name not in sealed)
        return Participation(iteration, len(header.asked), self.replied, lines, absent)


class ExchangeFile:
    """The exchange whose set is fixed, in a file of the directory of a federation.

    Parameters
    ----------
    directory : ResultsDirectory
        The directory.

    Examples
    --------
    >>> from pathlib import Path
    >>> from fldb_flower.settings import Settings
    >>> from strategies.device_directory import DeviceDirectory
    >>> from strategies.secure_exchange import ExchangeFile
    >>> settings = Settings(mode="devices", algorithm="fldb_personal")
    >>> ExchangeFile(DeviceDirectory(Path("server"), settings)).load() is None
    True
    """

    def __init__(self, directory: ResultsDirectory) -> None:
        self._directory = directory

    def load(self) -> ServerExchange | None:
        """Return the stored exchange; None without one.

        Raises
        ------
        CheckpointError
            The file is damaged, or cannot be read.
        """
        path = self._directory.path / EXCHANGE
        try:
            return ServerExchange.from_bytes(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, SecureError, DataError) as reason:
            raise CheckpointError(
                f"{path}: {reason}; remove the file to give the exchange up: the devices send their"
                " answers again"
            ) from None

    def save(self, state: ServerExchange) -> None:
        """Store an exchange durably, in place of the last one."""
        self._directory.write(EXCHANGE, state.to_bytes())

    def remove(self) -> None:
        """Remove the stored exchange."""
        with self._directory.writing():
            (self._directory.path / EXCHANGE).unlink(missing_ok=True)
