"""Two spellings of the settings: Hydra's nested snake_case and Flower's flat kebab-case."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from os import PathLike, fspath
from typing import Any, Literal, NoReturn

from fldb_flower.errors import SettingsError, one_line
from fldb_flower.settings.declaration import Settings
from fldb_flower.settings.entries import (
    ORIGIN,
    Entry,
    Spelling,
    entries_of,
    groups_of,
    suggestion,
)

_FLOWER_ONLY = ("output_dir", "mode", "devices")
_HYDRA_ONLY = ("engine", "dropout")


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Return every declared setting, groups flattened, in the order of declaration."""
    groups = groups_of(Settings)
    own = {entry.field: entry for entry in entries_of(Settings)}
    return tuple(
        entry
        for name in Settings.__dataclass_fields__
        for entry in (entries_of(groups[name]) if name in groups else (own[name],))
    )


def flower_entries() -> Iterator[Entry]:
    """Yield the settings of Flower's run config."""
    return (entry for entry in entries() if entry.path[0] not in _HYDRA_ONLY)


def hydra_entries() -> Iterator[Entry]:
    """Yield the settings of the Hydra configuration (``hydra.run.dir`` sets the output)."""
    return (entry for entry in entries() if entry.path[0] not in _FLOWER_ONLY)


def check_value(name: str, value: Any) -> Any:
    """Return a value of the setting ``name`` (``"schedule.ratio"``) in the declared type.

    Raises
    ------
    SettingsError
        The type or the range is wrong.

    Examples
    --------
    >>> from fldb_flower.settings import check_value
    >>> check_value("schedule.ratio", 2)
    2.0
    """
    entry = _spelled("dotted")[name]
    return entry.check(value, entry.path[-1], "Python")


def from_flat(values: Mapping[str, Any], source: str) -> Settings:
    """Build settings from Flower's run config: values by kebab-case name.

    Missing settings keep their default. ``source`` is for error messages.

    Raises
    ------
    SettingsError
        A name is unknown, or a value is of the wrong type or out of range.

    Examples
    --------
    >>> from fldb_flower.settings import from_flat
    >>> from_flat({"num-agents": 50, "environment-sigma": 0.3}, "a script").environment.sigma
    0.3
    """
    return _build("kebab", values, source)


def from_nested(values: Mapping[str, Any], source: str) -> Settings:
    """Build settings from nested snake_case keys, as Hydra composes them; see :func:`from_flat`.

    Texts that are numbers, which resolvers such as ``${oc.env:SEED}`` return, are read as numbers.

    Examples
    --------
    >>> from fldb_flower.settings import from_nested
    >>> from_nested({"num_agents": 50, "environment": {"sigma": 0.3}}, "a script").num_agents
    50
    """
    return _build("dotted", {key: _read(key, value) for key, value in _flatten(values)}, source)


def _read(name: str, value: Any) -> Any:
    entry = _spelled("dotted").get(name)
    if isinstance(value, str) and entry is not None and entry.kind is not str:
        with contextlib.suppress(ValueError):
            return json.loads(value.lower())
    return value


def from_keywords(values: Mapping[str, Any], source: str) -> Settings:
    """Build settings from keyword arguments: :func:`keyword_entry` finds the names.

    Paths may be objects like :class:`pathlib.Path`.
    """
    dotted = {
        keyword_entry(key, source).dotted: fspath(value) if isinstance(value, PathLike) else value
        for key, value in values.items()
    }
    return _build("dotted", dotted, source, shown="keyword")


def keyword_entry(key: str, source: str) -> Entry:
    """Return the setting of a keyword, ``environment_sigma``, or of ``environment.sigma``.

    Raises
    ------
    SettingsError
        There is no such setting.
    """
    known = _spelled("keyword")
    entry = known.get(key) or _spelled("dotted").get(key)
    return entry or _unknown(key, source, known)


def default_of(name: str) -> Any:
    """Return the default of a setting by its dotted name."""
    return _dotted()[name].default


def unused(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings without effect on a run, by dotted name, each with the reason.

    Parameters
    ----------
    values : mapping
        Settings by dotted name; those of another version may be missing or have other values.

    Examples
    --------
    >>> from fldb_flower.settings import Settings, to_dotted, unused
    >>> unused(to_dotted(Settings(algorithm="ldb")))["tau"]
    'algorithm=ldb'
    """
    reasons = {
        entry.dotted: next(filter(None, (need(values) for need in entry.needs)), "")
        for entry in entries()
        if entry.dotted in values
    }
    return {name: reason for name, reason in reasons.items() if reason}


def without_effect(chosen: Iterable[Settings]) -> str:
    """Return one line about settings of runs that are given and have no effect; empty if none.

    Examples
    --------
    >>> from fldb_flower.settings import Settings, without_effect
    >>> without_effect([Settings(algorithm="ldb", tau=3)])
    'tau=3: has no effect with algorithm=ldb'
    >>> without_effect(Settings(algorithm=a, tau=t) for a in ("ldb", "fldb_ogd") for t in (3, 4))
    'tau: has no effect with algorithm=ldb'
    """
    found: dict[str, tuple[set[Any], dict[str, None]]] = {}  # values and reasons, by name
    for settings in chosen:
        given = {name: entry.value(settings) for name, entry in _dotted().items()}
        for name, reason in unused(given).items():
            if (value := given[name]) != default_of(name):
                values, reasons = found.setdefault(name.removesuffix(".name"), (set(), {}))
                values.add(value)
                reasons[reason] = None
    groups: dict[str, list[str]] = {}
    for name, (values, reasons) in found.items():
        shown = f"{name}={next(iter(values))!r}" if len(values) == 1 else name
        groups.setdefault(" or ".join(reasons), []).append(shown)
    return "; ".join(
        f"{', '.join(names)}: {'has' if len(names) == 1 else 'have'} no effect with {reason}"
        for reason, names in groups.items()
    )


def to_flat(settings: Settings) -> dict[str, Any]:
    """Return the settings as Flower's run config.

    Examples
    --------
    >>> from fldb_flower.settings import Settings, to_flat
    >>> to_flat(Settings(num_agents=50))["num-agents"]
    50
    """
    return {entry.kebab: entry.value(settings) for entry in flower_entries()}


def to_dotted(settings: Settings) -> dict[str, Any]:
    """Return the settings by dotted name."""
    return {entry.dotted: entry.value(settings) for entry in hydra_entries()}


def to_nested(settings: Settings) -> dict[str, Any]:
    """Return the settings as nested keys for :func:`from_nested` and ``config.yaml``.

    Examples
    --------
    >>> from fldb_flower.settings import Settings, to_nested
    >>> to_nested(Settings())["schedule"]
    {'name': 'periodic', 'ratio': 1.5}
    """
    return _nested({entry.path: entry.value(settings) for entry in hydra_entries()})


def defaults_nested() -> dict[str, Any]:
    """Return all defaults as nested keys."""
    return _nested({entry.path: entry.default for entry in hydra_entries()})


def _nested(values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for (*groups, name), value in values.items():
        node = nested
        for group in groups:
            node = node.setdefault(group, {})
        node[name] = value
    return nested


@functools.cache
def _dotted() -> dict[str, Entry]:
    return {entry.dotted: entry for entry in entries()}


@functools.cache
def _spelled(spelling: Spelling) -> dict[str, Entry]:
    known = flower_entries() if spelling == "kebab" else hydra_entries()
    return {getattr(entry, spelling): entry for entry in known}


def _unknown(key: str, source: str, known: Collection[str]) -> NoReturn:
    """Raise the error for a name that no setting has."""
    hint = suggestion(key, tuple(known)) or "; `fldb run --help` lists the settings"
    raise SettingsError(f"{one_line(key)} (from {source}): there is no such setting{hint}")


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _build(
    spelling: Literal["kebab", "dotted"],
    values: Mapping[str, Any],
    source: str,
    shown: Spelling | None = None,
) -> Settings:
    """Build settings; ``shown`` is the spelling of names in error messages."""
    known = _spelled(spelling)
    given: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        entry = known.get(key) or _unknown(key, source, known)
        group = entry.path[0] if len(entry.path) > 1 else ""
        given.setdefault(group, {})[entry.field] = value
    token = ORIGIN.set((source, shown or spelling))
    try:
        groups = {name: kind(**given.get(name, {})) for name, kind in groups_of(Settings).items()}
        return Settings(**given.get("", {}), **groups)
    finally:
        ORIGIN.reset(token)
