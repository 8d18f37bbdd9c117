"""What the rounds of a federation of devices need from its devices: counts, and a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Tally:
    """What one round counted.

    Attributes
    ----------
    duels : int
        Number of duels.
    uploads : tuple of (str, int or None, int or None)
        For each device, its name and the answers counted: those after the first number, up to the
        second. The server of a secure sum does not know them.
    predicted : int, optional
        Number of duels whose preference was predicted, if it is known.
    agreed : int, optional
        Number of predicted preferences that people confirmed.
    held_back : str
        Which answers devices hold back for a later upload, in words; empty if there are none.
    """

    duels: int
    uploads: tuple[tuple[str, int | None, int | None], ...]
    predicted: int | None = None
    agreed: int | None = None
    held_back: str = ""

    @property
    def agreement(self) -> float | None:
        """Share of the predicted preferences that people confirmed; None if there are none."""
        if not self.predicted or self.agreed is None:
            return None
        return self.agreed / self.predicted


class Devices(Protocol):
    """The devices of a federation, as its rounds and its directory see them."""

    duels: int
    """Duels counted, of all devices."""

    @property
    def counted(self) -> Mapping[str, Any]:
        """The devices of which answers are counted."""

    def tally(self) -> Tally:
        """Return what was acknowledged last."""

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
