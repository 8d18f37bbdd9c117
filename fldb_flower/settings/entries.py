"""One declared setting: its metadata, its names, and the check of a value."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import operator
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal, NamedTuple, get_type_hints

from fldb_flower.errors import SettingsError, shown

AUTO = "auto"
"""A number that is derived from other settings; the help text of the setting gives the rule."""
RAY = "ray"
"""Value of ``engine.workers`` besides numbers."""
NONE = "none"
"""Default of a number that is not set: what it would turn on is off."""
MAX_INTEGER = 2**63 - 1
"""Largest integer of Flower's run config."""

Need = Callable[[Mapping[str, Any]], str]
"""Returns why a setting has no effect (``algorithm=ldb``), from all settings; empty if it has."""

Spelling = Literal["attribute", "dotted", "kebab", "keyword"]

ORIGIN: ContextVar[tuple[str, Spelling]] = ContextVar("ORIGIN", default=("Python", "attribute"))
"""Source of the settings being built, and the spelling of names there, for error messages."""

_VALID = {bool: "true or false", str: "a text", int: "a whole number", float: "a number"}


class Limits(NamedTuple):
    """Range of a number, with both ends, except one that is ``excluded``."""

    minimum: float
    maximum: float
    excluded: float | None = None

    def contain(self, number: float) -> bool:
        """Whether a number is in the range."""
        return self.minimum <= number <= self.maximum and number != self.excluded

    def __str__(self) -> str:
        low = "above" if self.minimum == self.excluded else "at least"
        high = "below" if self.maximum == self.excluded else "at most"
        most = "9.2e18" if self.maximum == MAX_INTEGER else f"{self.maximum:g}"
        return f"{low} {self.minimum:g} and {high} {most}"


MIN_REAL, MAX_REAL = 1e-100, 1e100  # products and squares of two such numbers are finite
MAX_SECONDS = 1e9  # 30 years; operating systems limit waits to little more
COUNT, FROM_ZERO = Limits(1, MAX_INTEGER), Limits(0, MAX_INTEGER)
POSITIVE, NOT_NEGATIVE = Limits(MIN_REAL, MAX_REAL), Limits(0, MAX_REAL)
SHARE = Limits(0, 1, excluded=0)
SECONDS, WAIT = Limits(0, MAX_SECONDS), Limits(0, MAX_SECONDS, excluded=0)


def setting(
    default: Any,
    help: str,
    limits: Limits | None = None,
    *,
    choices: Collection[str] = (),
    words: tuple[str, ...] = (),
    why: str = "",
    needs: tuple[Need, ...] = (),
) -> Any:
    """Declare a setting as a dataclass field.

    A default such as ``"auto"`` is valid besides numbers, and so are ``words``. ``choices``, a
    collection that may grow, has the valid names. ``why`` is the reason for the limits, for
    messages. Without one of ``needs``, the setting has no effect.
    """
    metadata = {
        "help": help, "limits": limits, "choices": choices, "words": words, "why": why,
        "needs": needs,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Entry:
    """One declared setting.

    ``attribute`` is Python's spelling: ``environment.sigma``, and ``lambda_``. ``kind`` is bool,
    int, float or str. The other attributes are those of :func:`setting`.
    """

    attribute: str
    default: Any
    kind: type
    help: str
    limits: Limits
    choices: Collection[str]
    words: tuple[str, ...]
    why: str
    needs: tuple[Need, ...]

    @property
    def dotted(self) -> str:
        """Hydra's spelling: ``environment.sigma``, and ``lambda``."""
        return self.attribute.rstrip("_")

    @property
    def keyword(self) -> str:
        """Spelling of keyword arguments: ``environment_sigma``, and the name of a group alone."""
        return self.attribute.removesuffix(".name").replace(".", "_")

    @property
    def kebab(self) -> str:
        """Flower's spelling: ``environment-sigma``."""
        return self.keyword.rstrip("_").replace("_", "-")

    @functools.cached_property
    def path(self) -> tuple[str, ...]:
        """The keys in Hydra's configuration."""
        return tuple(self.dotted.split("."))

    @functools.cached_property
    def group(self) -> str:
        """The name of the group's field; empty for a setting without a group."""
        return self.attribute.rpartition(".")[0]

    @functools.cached_property
    def field(self) -> str:
        """The name of the dataclass field."""
        return self.attribute.rpartition(".")[2]

    def value(self, settings: Any) -> Any:
        """Return this setting's value."""
        return operator.attrgetter(self.attribute)(settings)

    def check(self, value: Any, key: str, source: str) -> Any:
        """Return a value in the declared type; ``key`` and ``source`` are for the error."""
        valid = _VALID[self.kind]
        if self.choices:
            name = value.replace("-", "_").lower() if isinstance(value, str) else ""
            if name in self.choices:
                return str(name)
            valid = f"one of {', '.join(self.choices)}{suggestion(name, self.choices)}"
        elif self.kind in (bool, str):
            if isinstance(value, self.kind):
                return self.kind(value)
        elif isinstance(value, str) and value in (self.default, *self.words):
            return str(value)
        elif _is_finite(value) and (self.kind is float or value == int(value)):
            value, valid = self.kind(value), str(self.limits)
            if self.limits.contain(value):
                return value
        else:
            words = [self.default, *self.words] if isinstance(self.default, str) else []
            valid = " or ".join([f"{valid}, {self.limits}", *words])
        why = f" ({self.why})" if self.why else ""
        raise SettingsError(f"{key}={shown(value)} (from {source}): must be {valid}{why}")


class Checked:
    """Base of the settings' dataclasses: values are checked on construction and by ``replace``."""

    GROUP: ClassVar[str] = ""
    """Key of the group in the Hydra configuration; empty for the root."""
    NEEDS: ClassVar[tuple[Need, ...]] = ()
    """What all settings of the group need."""

    def __post_init__(self) -> None:
        source, spelling = ORIGIN.get()
        kind: type = type(self)
        for entry in entries_of(kind):
            value = getattr(self, entry.field) if entry.group == self.GROUP else entry.default
            if value is not entry.default:
                checked = entry.check(value, getattr(entry, spelling), source)
                object.__setattr__(self, entry.field, checked)


@functools.cache
def entries_of(cls: Any) -> tuple[Entry, ...]:
    """Return the settings that a dataclass and its groups declare, in the order of declaration."""
    hints, entries = get_type_hints(cls), list[Entry]()
    for item in dataclasses.fields(cls):
        hint = hints[item.name]
        if not item.metadata:
            entries += entries_of(hint)
        else:
            kind = hint if isinstance(hint, type) else hint.__args__[0]  # `float | str` for auto
            attribute = f"{cls.GROUP}.{item.name}".lstrip(".")
            facts = {**item.metadata, "needs": (*cls.NEEDS, *item.metadata["needs"])}
            entries.append(Entry(attribute, item.default, kind, **facts))
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
