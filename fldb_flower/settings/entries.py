"""One declared setting: its metadata, its names, and the check of a value."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import dataclass
from keyword import iskeyword
from numbers import Real
from typing import Any, ClassVar, Literal, NamedTuple, get_type_hints

from fldb_flower.errors import SettingsError, shown
from fldb_flower.settings.needs import Need

AUTO = "auto"
"""A number that is derived from other settings; the help text of the setting gives the rule."""
RAY = "ray"
"""Value of ``engine.workers`` besides numbers."""
NONE = "none"
"""Default of a number that is not set: what it would turn on is off."""
MAX_INTEGER = 2**63 - 1
"""Largest integer of Flower's run config."""

Spelling = Literal["attribute", "dotted", "kebab", "keyword"]

ORIGIN: ContextVar[tuple[str, Spelling]] = ContextVar("ORIGIN", default=("Python", "attribute"))
"""Source of the settings being built, and the spelling of names there, for error messages."""

_VALID = {bool: "true or false", str: "a text", int: "a whole number", float: "a number"}


class Limits(NamedTuple):
    """Range of a number; ``minimum`` and ``maximum`` are inclusive, ``above`` and ``below`` not."""

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None

    def contain(self, number: float) -> bool:
        """Whether a number is in the range."""
        return (
            (self.minimum is None or number >= self.minimum)
            and (self.above is None or number > self.above)
            and (self.maximum is None or number <= self.maximum)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        words = zip(("at least", "above", "at most", "below"), self, strict=True)
        return " and ".join(
            f"{word} {'9.2e18' if limit == MAX_INTEGER else f'{limit:g}'}"
            for word, limit in words
            if limit is not None
        )


def between(minimum: float, maximum: float) -> Limits:
    """Return the limits of a range with both ends."""
    return Limits(minimum=minimum, maximum=maximum)


MIN_REAL, MAX_REAL = 1e-100, 1e100  # products and squares of two such numbers are finite
MAX_SECONDS = 1e9  # 30 years; operating systems limit waits to little more
COUNT, FROM_ZERO = between(1, MAX_INTEGER), between(0, MAX_INTEGER)
POSITIVE, NOT_NEGATIVE = between(MIN_REAL, MAX_REAL), between(0, MAX_REAL)
SHARE = Limits(above=0, maximum=1)
SECONDS, WAIT = between(0, MAX_SECONDS), Limits(above=0, maximum=MAX_SECONDS)


def setting(
    default: Any,
    help: str,
    limits: Limits | None = None,
    *,
    name: str = "",
    choices: Collection[str] = (),
    words: Collection[str] = (),
    why: str = "",
    needs: Collection[Need] = (),
) -> Any:
    """Declare a setting as a dataclass field.

    ``"auto"`` or ``"none"`` is valid besides numbers if it is the default, and so are ``words``.
    ``name`` is the name that users write, if it differs from the field's (``lambda``). ``choices``,
    a collection that may grow, has the valid names. ``why`` is the reason for the limits, for
    messages. Without one of ``needs``, the setting has no effect.
    """
    metadata = {
        "help": help, "limits": limits, "name": name, "names": choices, "words": words,
        "why": why, "needs": needs,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Entry:
    """One declared setting.

    ``path`` has its keys in Hydra's configuration, ``("environment", "sigma")``. ``field``, the
    name of the dataclass field, differs from the last key for ``lambda_``. ``kind`` is bool, int,
    float or str. The other attributes are those of :func:`setting`.
    """

    path: tuple[str, ...]
    field: str
    default: Any
    kind: type
    help: str
    limits: Limits
    names: Collection[str]
    words: Collection[str]
    why: str
    needs: Collection[Need]

    @property
    def choices(self) -> tuple[str, ...]:
        """The valid names now; empty for numbers and texts."""
        return tuple(self.names)

    @property
    def dotted(self) -> str:
        """Hydra's spelling: ``environment.sigma``."""
        return ".".join(self.path)

    @property
    def attribute(self) -> str:
        """Python's spelling: ``environment.sigma``, and ``lambda_``."""
        return ".".join((*self.path[:-1], self.field))

    @property
    def kebab(self) -> str:
        """Flower's spelling: ``environment-sigma``, and ``environment`` for a group's name."""
        path = self.path[:-1] if self.path[-1] == "name" else self.path
        return "-".join(path).replace("_", "-")

    @property
    def keyword(self) -> str:
        """Spelling of keyword arguments: Flower's in snake_case, and ``lambda_``."""
        name = self.kebab.replace("-", "_")
        return f"{name}_" if iskeyword(name) else name

    def value(self, settings: Any) -> Any:
        """Return this setting's value."""
        return functools.reduce(getattr, (*self.path[:-1], self.field), settings)

    def check(self, value: Any, key: str, source: str) -> Any:
        """Return a value in the declared type; ``key`` and ``source`` are for the error."""
        checked, valid = self._convert(value)
        if valid:
            why = f" ({self.why})" if self.why else ""
            raise SettingsError(f"{key}={shown(checked)} (from {source}): must be {valid}{why}")
        return checked

    def _convert(self, value: Any) -> tuple[Any, str]:
        """Return the value in the declared type, and which values are valid if it is not."""
        if self.choices:
            name = value.replace("-", "_").lower() if isinstance(value, str) else ""
            if name in self.choices:
                return str(name), ""
            return value, f"one of {', '.join(self.choices)}{suggestion(name, self.choices)}"
        if self.kind in (bool, str):
            is_valid = isinstance(value, self.kind)
            return (self.kind(value), "") if is_valid else (value, _VALID[self.kind])
        words = [self.default, *self.words] if isinstance(self.default, str) else []
        if isinstance(value, str) and value in words:
            return str(value), ""
        if not _is_finite(value) or (self.kind is int and value != int(value)):
            return value, " or ".join([f"{_VALID[self.kind]}, {self.limits}", *words])
        number = self.kind(value)
        return number, "" if self.limits.contain(number) else str(self.limits)


class Checked:
    """Base of the settings' dataclasses: values are checked on construction and by ``replace``."""

    GROUP: ClassVar[str] = ""
    """Key of the group in the Hydra configuration; empty for the root."""

    def __post_init__(self) -> None:
        source, spelling = ORIGIN.get()
        kind: type = type(self)
        for entry in entries_of(kind):
            value = getattr(self, entry.field)
            if value is not entry.default:
                checked = entry.check(value, getattr(entry, spelling), source)
                object.__setattr__(self, entry.field, checked)


@functools.cache
def entries_of(cls: Any) -> tuple[Entry, ...]:
    """Return the settings that a dataclass declares, without those of its groups."""
    hints, entries = get_type_hints(cls), []
    for item in dataclasses.fields(cls):
        if item.metadata:
            metadata = dict(item.metadata)
            name = metadata.pop("name") or item.name
            hint = hints[item.name]
            kind = hint if isinstance(hint, type) else hint.__args__[0]  # `float | str` for auto
            path = (cls.GROUP, name) if cls.GROUP else (name,)
            entries.append(Entry(path, item.name, item.default, kind, **metadata))
    return tuple(entries)


@functools.cache
def groups_of(cls: type) -> dict[str, type]:
    """Return the groups of a dataclass by the name of their field."""
    hints = get_type_hints(cls)
    return {item.name: hints[item.name] for item in dataclasses.fields(cls) if not item.metadata}


def suggestion(name: object, known: Collection[str]) -> str:
    """Return "; did you mean X?" for a known name X similar to this one, or an empty text."""
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _is_finite(value: object) -> bool:
    """Whether a value is a number, not NaN or infinite, within the range of a double."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
