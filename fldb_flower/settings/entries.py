"""One declared setting: its names, its description, and the check of a value."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import operator
import re
from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import MISSING, dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, get_type_hints

from fldb_flower.errors import SettingsError, shown

AUTO = "auto"
"""A number that is derived from other settings; the help text of the setting gives the rule."""
RAY = "ray"
"""Value of ``engine.workers`` besides numbers."""
NONE = "none"
"""Default of an optional number, which disables its feature."""
MAX_INTEGER = 2**63 - 1
"""Largest integer of Flower's run config."""

Spelling = Literal["attribute", "dotted", "kebab", "keyword"]

ORIGIN: ContextVar[tuple[str, Spelling]] = ContextVar("ORIGIN", default=("Python", "attribute"))
"""Source of the settings being built, and the spelling of names there, for error messages."""

_VALID = {bool: "true or false", str: "a string", int: "a whole number", float: "a number"}
_HELP = re.compile(r"^:(\w+): (.+(?:\n +.+)*)", re.MULTILINE)


class Limits(NamedTuple):
    """Range of a number, inclusive except for an ``excluded`` end, and the reason for it."""

    minimum: float
    maximum: float
    excluded: float | None = None
    why: str = ""

    def contain(self, number: float) -> bool:
        """Whether a number is in the range."""
        return self.minimum <= number <= self.maximum and number != self.excluded

    def __str__(self) -> str:
        least, most = (f"{x:,.0f}" if 1e4 <= x < 1e9 else f"{x:g}" for x in self[:2])
        if self.maximum == MAX_INTEGER:
            return f"at least {least}"
        if self.excluded is None:
            return f"from {least} to {most}"
        low = "above" if self.minimum == self.excluded else "at least"
        high = "below" if self.maximum == self.excluded else "at most"
        return f"{low} {least} and {high} {most}"


MIN_REAL, MAX_REAL = 1e-100, 1e100  # products and squares of two such numbers are finite
MAX_SECONDS = 1e9  # 30 years; operating systems limit waits to little more
COUNT, FROM_ZERO = Limits(1, MAX_INTEGER), Limits(0, MAX_INTEGER)
POSITIVE, NOT_NEGATIVE = Limits(MIN_REAL, MAX_REAL), Limits(0, MAX_REAL)
SHARE = Limits(0, 1, excluded=0)
SECONDS, WAIT = Limits(0, MAX_SECONDS), Limits(0, MAX_SECONDS, excluded=0)


def setting(default: Any, valid: Limits | Collection[str], *words: str) -> Any:
    """Declare a field with limits or with valid names, a collection that may grow.

    Besides numbers, ``words`` and a default such as ``"auto"`` are valid.
    """
    return dataclasses.field(default=default, metadata={"valid": valid, "words": words})


@dataclass(frozen=True)
class Entry:
    """One declared setting: a field of a group's dataclass, or of ``Settings`` (``group=""``).

    ``kind`` is bool, int, float or str; ``words`` are valid besides the numbers in ``limits``.
    """

    group: str
    field: str
    default: Any
    kind: type
    help: str
    limits: Limits
    choices: Collection[str]
    words: tuple[str, ...]

    @property
    def attribute(self) -> str:
        """Python's spelling: ``environment.sigma``, and ``lambda_``."""
        return f"{self.group}.{self.field}" if self.group else self.field

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

    @property
    def path(self) -> tuple[str, ...]:
        """The keys in Hydra's configuration."""
        return tuple(self.dotted.split("."))

    def value(self, settings: Any) -> Any:
        """Return this setting's value."""
        return operator.attrgetter(self.attribute)(settings)

    def check(self, value: Any, key: str, source: str) -> Any:
        """Return a value in the declared type; ``key`` and ``source`` are for the error."""
        valid = _VALID[self.kind]
        if self.choices:
            name = value.replace("-", "_").lower() if isinstance(value, str) else ""
            if name in self.choices:
                return name
            valid = f"one of {', '.join(self.choices)}{suggestion(name, self.choices)}"
        elif self.kind in (bool, str):
            if isinstance(value, self.kind):
                return self.kind(value)
        elif isinstance(value, str) and value in self.words:
            return str(value)
        elif _is_finite(value) and (self.kind is float or value == int(value)):
            value, valid = self.kind(value), str(self.limits)
            if self.limits.contain(value):
                return value
            if value > MAX_INTEGER == self.limits.maximum:
                valid = "at most 9.2e18"
        else:
            words = f", or {' or '.join(self.words)}" if self.words else ""
            valid = f"{valid}, {self.limits}{words}"
        why = f" ({self.limits.why})" if self.limits.why else ""
        raise SettingsError(f"{key}={shown(value)} (from {source}): must be {valid}{why}")


class Checked:
    """Base class of settings dataclasses: values are checked on construction and by ``replace``.

    ``group`` is the key of the group in the Hydra configuration. Docstrings describe the fields.
    """

    group_name = ""

    def __init_subclass__(cls, group: str = "") -> None:
        cls.group_name = group

    def __post_init__(self) -> None:
        source, spelling = ORIGIN.get()
        kind: type = type(self)
        for entry in entries_of(kind):
            if entry.group == self.group_name:
                value = getattr(self, entry.field)
                if value is not entry.default:
                    checked = entry.check(value, getattr(entry, spelling), source)
                    object.__setattr__(self, entry.field, checked)


@functools.cache
def entries_of(cls: Any) -> tuple[Entry, ...]:
    """Return the settings that a dataclass and its groups declare, in the order of declaration."""
    hints, groups, entries = get_type_hints(cls), groups_of(cls), list[Entry]()
    texts = dict(_HELP.findall(inspect.cleandoc(cls.__doc__)))
    for item in dataclasses.fields(cls):
        hint, name = hints[item.name], item.name
        if name in groups:
            entries += entries_of(hint)
            continue
        kind = hint if isinstance(hint, type) else hint.__args__[0]  # `float | str` for auto
        valid, words = item.metadata.get("valid", ()), item.metadata.get("words", ())
        is_number = kind in (int, float)
        entries.append(
            Entry(
                cls.group_name,
                name,
                item.default,
                kind,
                help=" ".join(texts[name.rstrip("_")].split()),
                limits=valid if is_number else FROM_ZERO,
                choices=() if is_number else valid,
                words=(item.default, *words) if isinstance(item.default, str) else words,
            )
        )
    return tuple(entries)


@functools.cache
def groups_of(cls: Any) -> dict[str, type]:
    """Return the groups of a dataclass by the name of their field."""
    hints = get_type_hints(cls)
    return {it.name: hints[it.name] for it in dataclasses.fields(cls) if it.default is MISSING}


def suggestion(name: object, known: Collection[str]) -> str:
    """Return "; did you mean X?" for a known name X similar to this one, or an empty text.

    X is similar if it ends with this name as a whole part, as in ``environment.sigma``, has the
    same letters, or differs in few of them.
    """
    text = str(name)
    ends = [each for each in known if re.fullmatch(rf".+[._-]{re.escape(text)}", each)]
    same = [each for each in known if sorted(each) == sorted(text)]
    close = difflib.get_close_matches(text, known, n=1, cutoff=0.7)
    found = [*(ends if len(ends) == 1 else ()), *same, *close]
    return f"; did you mean {found[0]}?" if found else ""


def _is_finite(value: object) -> bool:
    """Whether a value is a number, not NaN or infinite, within the range of a double."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
