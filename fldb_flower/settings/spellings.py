"""Two spellings of the settings: Hydra's nested snake_case and Flower's flat kebab-case."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike, fspath
from typing import Any

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


def entries() -> tuple[Entry, ...]:
    """Return every declared setting, those of groups too, in the order of declaration."""
    return entries_of(Settings)


def flower_entries() -> list[Entry]:
    """Return the settings of Flower's run config."""
    return [entry for entry in entries() if entry.path[0] not in _HYDRA_ONLY]


def hydra_entries() -> list[Entry]:
    """Return the settings of the Hydra configuration (``hydra.run.dir`` sets the output)."""
    return [entry for entry in entries() if entry.path[0] not in _FLOWER_ONLY]


@functools.cache
def _spelled(spelling: Spelling) -> dict[str, Entry]:
    known = flower_entries() if spelling == "kebab" else hydra_entries()
    return {getattr(entry, spelling): entry for entry in known}


def check_value(name: str, value: Any) -> Any:
    """Return a value of a setting (``"schedule.ratio"``) in the declared type."""
    entry = _spelled("dotted")[name]
    return entry.check(value, entry.path[-1], "Python")


def default_of(name: str) -> Any:
    """Return the default of a setting by its dotted name."""
    return _spelled("dotted")[name].default


# --- building settings -----------------------------------------------------------------------


def from_flat(values: Mapping[str, Any], source: str) -> Settings:
    """Build settings from Flower's run config: values by kebab-case name.

    Missing settings keep their default. ``source`` is for error messages.
    """
    return _build(values, source, "kebab")


def from_nested(values: Mapping[str, Any], source: str) -> Settings:
    """Build settings from nested snake_case keys, as Hydra composes them; see :func:`from_flat`.

    Texts that are numbers, which resolvers such as ``${oc.env:SEED}`` return, are read as numbers.
    """
    dotted, known = dict(flatten(values)), _spelled("dotted")
    for key, value in dotted.items():
        if isinstance(value, str) and key in known and known[key].kind is not str:
            with contextlib.suppress(ValueError):
                dotted[key] = json.loads(value.lower())
    return _build(dotted, source, "dotted")


def from_keywords(values: Mapping[str, Any], source: str) -> Settings:
    """Build settings from keywords, see :func:`keyword_entry`; a path may be a Path."""
    texts = {
        keyword_entry(key, source).keyword: fspath(value) if isinstance(value, PathLike) else value
        for key, value in values.items()
    }
    return _build(texts, source, "keyword")


def keyword_entry(key: str, source: str) -> Entry:
    """Return the setting of a keyword, ``environment_sigma``, or of ``environment.sigma``."""
    return _spelled("dotted").get(key) or _entry("keyword", key, source)


def _entry(spelling: Spelling, key: str, source: str) -> Entry:
    if found := _spelled(spelling).get(key):
        return found
    hint = suggestion(key, tuple(_spelled(spelling))) or "; `fldb run --help` lists the settings"
    raise SettingsError(f"{one_line(key)} (from {source}): there is no such setting{hint}")


def _build(values: Mapping[str, Any], source: str, spelling: Spelling) -> Settings:
    given: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        entry = _entry(spelling, key, source)
        given.setdefault(entry.group, {})[entry.field] = value
    token = ORIGIN.set((source, spelling))
    try:
        groups = {name: kind(**given.get(name, {})) for name, kind in groups_of(Settings).items()}
        return Settings(**given.get("", {}), **groups)
    finally:
        ORIGIN.reset(token)


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested mappings with dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# --- writing settings ------------------------------------------------------------------------


def to_flat(settings: Settings) -> dict[str, Any]:
    """Return the settings as Flower's run config."""
    return {entry.kebab: entry.value(settings) for entry in flower_entries()}


def to_dotted(settings: Settings) -> dict[str, Any]:
    """Return the settings by dotted name."""
    return {entry.dotted: entry.value(settings) for entry in hydra_entries()}


def to_nested(settings: Settings) -> dict[str, Any]:
    """Return the settings as nested keys for :func:`from_nested` and ``config.yaml``."""
    return _nested(to_dotted(settings))


def defaults_nested() -> dict[str, Any]:
    """Return all defaults as nested keys."""
    return _nested({entry.dotted: entry.default for entry in hydra_entries()})


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for dotted, value in values.items():
        group, _, key = dotted.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[key] = value
    return nested


# --- settings without effect -----------------------------------------------------------------


def unused(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings without effect on a run, by dotted name, each with the reason.

    ``values`` are settings by dotted name, as a file may have them: some may be missing or invalid.
    """
    reasons = {
        entry.dotted: next(filter(None, (need(values) for need in entry.needs)), "")
        for entry in entries()
        if entry.dotted in values
    }
    return {name: reason for name, reason in reasons.items() if reason}


def without_effect(chosen: Iterable[Settings]) -> str:
    """Return one line about settings of runs that are given and have no effect; empty if none.

    ``tau=3: has no effect with algorithm=ldb``
    """
    found: dict[str, tuple[set[Any], dict[str, None]]] = {}  # values and reasons, by name
    for settings in chosen:
        given = {entry.dotted: entry.value(settings) for entry in entries()}
        reasons_of = unused(given)
        for entry in entries():
            name, value = entry.dotted, given[entry.dotted]
            if name in reasons_of and value != entry.default:
                values, reasons = found.setdefault(name.removesuffix(".name"), (set(), {}))
                values.add(value)
                reasons[reasons_of[name]] = None
    groups: dict[str, list[str]] = {}
    for name, (values, reasons) in found.items():
        shown = f"{name}={next(iter(values))!r}" if len(values) == 1 else name
        groups.setdefault(" or ".join(reasons), []).append(shown)
    return "; ".join(
        f"{', '.join(names)}: {'has' if len(names) == 1 else 'have'} no effect with {reason}"
        for reason, names in groups.items()
    )
