"""Checks of the overrides of ``python -m simulations.run`` before Hydra starts."""

from __future__ import annotations

import itertools
import os
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import conf
from fldb_flower.errors import SettingsError, extra_missing, one_line
from fldb_flower.settings import defaults_nested, hydra_entries, suggestion

CONF = Path(conf.__path__[0])
_HERE = "(from the command line)"
_COMPARED = 1000  # bytes by which a file is recognised
_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
_SUBMITIT = ("slurm", "hydra_plugins.hydra_submitit_launcher")
_LAUNCHERS = {  # choice: extra and module that it needs
    "joblib": ("joblib", "hydra_plugins.hydra_joblib_launcher"),
    **dict.fromkeys(("slurm", "submitit_local", "submitit_slurm"), _SUBMITIT),
}
_ENTRIES = {entry.dotted: entry for entry in hydra_entries()}

Choices = Callable[[str], list[str]]
"""Returns the names of a configuration group's choices."""


def store_settings(searchpath: Sequence[str] = ()) -> None:
    """Give Hydra the settings' defaults, and groups with a choice for each registered name.

    A file in ``conf/``, or in a folder of the search path (``file://``), replaces the choice.
    """
    folders = [CONF, *(Path(each.removeprefix("file://")) for each in searchpath)]
    store = ConfigStore.instance()
    store.store(name="settings", node=defaults_nested())
    for entry in hydra_entries():
        group = entry.path[0]
        if entry.path[-1] == "name" or group in {"algorithm", "selection"}:
            for choice in entry.choices:
                if not any((folder / group / f"{choice}.yaml").exists() for folder in folders):
                    node = {entry.path[-1]: choice}
                    package = "_global_" if group == entry.path[-1] else group
                    store.store(group=group, name=choice, node=node, package=package)


@contextmanager
def config_groups(searchpath: Sequence[str] = ()) -> Iterator[tuple[list[str], Choices]]:
    """Yield the names of the configuration groups, and a function that returns their files.

    ``searchpath`` is Hydra's search path beside ``conf/``: ``file://`` and ``pkg://`` addresses.
    """
    quoted = ",".join(QuotedString(each, Quote.double).with_quotes() for each in searchpath)
    with config_loader(searchpath) as loader:

        def choices(group: str) -> list[str]:
            return loader.get_group_options(group, overrides=[f"hydra.searchpath=[{quoted}]"])

        yield [group for group in loader.list_groups("") if group != "hydra"], choices


@contextmanager
def config_loader(searchpath: Sequence[str] = ()) -> Iterator[ConfigLoader]:
    """Yield Hydra's loader of the configuration."""
    store_settings(searchpath)
    with initialize_config_dir(str(CONF), version_base="1.3"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Hydra reports a missing folder when it starts
        yield GlobalHydra.instance().config_loader()


def search_path(config_dir: str | None) -> list[str]:
    """Return the addition of ``--config-dir`` to the search path."""
    return [] if config_dir is None else [f"file://{Path(config_dir).absolute()}"]


def check_overrides(
    overrides: Sequence[str], *, config_dir: str | None = None, sweep: bool = False
) -> None:
    """Check that each override names a setting, or a group and one of its choices.

    The errors are one line each, with a suggestion. Hydra's errors have several lines.

    Parameters
    ----------
    overrides : sequence of str
        Arguments such as ``tau=3``.
    config_dir : str, optional
        Folder with the user's configuration groups (``--config-dir``).
    sweep : bool
        Whether a setting may have several values (``-m``).

    Raises
    ------
    SettingsError
        An override cannot be parsed, its name does not exist, or it has no effect; or the folder
        ``config_dir`` does not exist or cannot be read.
    """
    if config_dir is not None and not Path(config_dir).is_dir():
        raise SettingsError(f"--config-dir {config_dir}: there is no such folder")
    if config_dir is not None and not os.access(config_dir, os.R_OK | os.X_OK):
        raise SettingsError(f"--config-dir {config_dir}: cannot be read (Permission denied)")
    parsed = [_parse(text, sweep=sweep) for text in overrides]
    searchpath = search_path(config_dir)
    for override in parsed:
        value = override.value()
        if override.key_or_group == "hydra.searchpath" and isinstance(value, list):
            searchpath += map(str, value)
    with config_groups(searchpath) as (groups, choices):
        for override in parsed:
            _check(override, groups, choices)


def require_settings(words: Sequence[str]) -> None:
    """Refuse arguments that are neither options nor overrides, except deletions (``~NAME``).

    Raises
    ------
    SettingsError
        Names the argument that was probably meant.
    """
    for word in words:
        name = word.lstrip("-").partition("=")[0].replace("-", "_")
        if name in _ENTRIES:
            example = f"{name}={word.partition('=')[2] or _ENTRIES[name].default}"
            raise SettingsError(f"{_named(word)}: a setting is written {example}")
        if not word.startswith("~"):
            kind = "option" if word.startswith("-") else "setting"
            hint = suggestion(name, tuple(_ENTRIES)) or "; --help lists them"
            raise SettingsError(f"{_named(word)}: there is no such {kind}{hint}")


def _parse(text: str, *, sweep: bool) -> Override:
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"{_named(text)}: {reason}{_quote(text, sweep=sweep)}") from None
    if override.is_sweep_override() and not sweep:
        key = override.key_or_group
        one = _quote(text, sweep=False) if _takes_text(key) else ""
        raise SettingsError(
            f"{_named(text)}: several values are a sweep, which needs -m or `fldb sweep`{one}"
        )
    if override.key_or_group == _FOLDERS[not sweep]:
        kind, other = ("a run", "a sweep's") if sweep else ("a sweep", "a run's")
        raise SettingsError(f"{_named(text)}: the folder of {kind}; {other} is {_FOLDERS[sweep]}")
    value = override.value()
    if override.key_or_group in _FOLDERS and _expanded(str(value)) != str(value):
        end = _quote(f"{override.key_or_group}={value}", sweep=False)
        raise SettingsError(f"{_named(text)}: Hydra does not expand ~{end}")
    is_text = isinstance(value, str) or value is None or override.is_sweep_override()
    if _takes_text(override.key_or_group) and not is_text:
        raise SettingsError(f"{_named(text)}: must be a text{_quote(text, sweep=sweep)}")
    return override


def _named(text: str) -> str:
    return f"{one_line(text)} {_HERE}"


def _takes_text(key: str) -> bool:
    """Return whether any text is a valid value of a setting."""
    return key in _FOLDERS or (
        key in _ENTRIES and _ENTRIES[key].default == "" and not _ENTRIES[key].choices
    )


def _quote(text: str, *, sweep: bool) -> str:
    """Return the end of an error: the override with quotes for Hydra and the shell, if any."""
    key, _, value = text.partition("=")
    name = key.lstrip("+")
    if name in _ENTRIES and not _takes_text(name):
        return ""
    if name in _FOLDERS:
        value = _expanded(value)
    parts = value.split(",") if sweep else [value]
    quoted = f"{key}={','.join(map(_quoted, parts))}"
    with suppress(HydraException, OmegaConfBaseException):
        override = OverridesParser.create().parse_override(quoted)
        is_meant = len(parts) > 1 or OmegaConf.create([override.value()])[0] == value
        if is_meant and quoted.isprintable():
            return f"; quoted it is {shlex.quote(quoted)}"
    return ""


def _expanded(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 - keeps the path of an unknown user


def _quoted(value: str) -> str:
    with suppress(HydraException):
        if OverridesParser.create().parse_override(f"x={value}").value() == value:
            return value
    return QuotedString(value.replace("${", "\\${"), Quote.double).with_quotes()


def _check_experiments(names: Sequence[Any]) -> None:
    """Refuse several experiments in one sweep if one of them defines curves and seeds."""
    for name in names:
        file = CONF / "experiment" / f"{name}.yaml"
        if file.is_file() and "sweeper" in file.read_text(encoding="utf-8"):
            raise SettingsError(
                f"experiment={','.join(map(str, names))} {_HERE}: {name} defines"
                f" curves and seeds to sweep: it must be the only one (-m experiment={name}); or"
                f" draw figures with python -m simulations.figures {' '.join(map(str, names))}"
            )


def _check(override: Override, groups: Sequence[str], choices: Choices) -> None:
    key = override.key_or_group
    if not key:
        raise SettingsError(
            f"{_named(str(override.input_line))}: the name of the setting is missing"
        )
    swept = override.is_sweep_override()
    # Values of settings are checked with the jobs; there may be too many to list here.
    limit = 1 if key in _ENTRIES and key not in groups else None
    strings = override.sweep_string_iterator() if swept else [override.value()]
    values = list(itertools.islice(strings, limit))
    if not values:
        text = override.input_line
        raise SettingsError(f"{text} {_HERE}: an empty sweep has no job to run")
    if override.is_add() and not override.is_force_add() and _exists(key):
        plain = str(override.input_line).lstrip("+")
        raise SettingsError(
            f"{_named(str(override.input_line))}: the setting exists and needs no +; write {plain}"
        )
    changes = override.is_delete() or (override.is_add() and key not in groups)
    if key == "experiment" and len(values) > 1:
        _check_experiments(values)
    if key.startswith("hydra."):
        return
    if key in groups or key.startswith("hydra/"):
        if not override.is_delete():
            _check_choice(key, values, choices)
    elif changes and key:  # the user's groups
        if not all(isinstance(value, str) or value is None for value in values):
            raise SettingsError(
                f"{_named(str(override.input_line))}: must name a file of the group {one_line(key)}"
            )
    elif key not in _ENTRIES:
        raise SettingsError(
            f"{one_line(key)} {_HERE}: there is no such setting"
            f"{suggestion(key, (*_ENTRIES, *groups)) or '; --help lists them'}"
        )


def _exists(key: str) -> bool:
    """Return whether a name is that of a setting, or of a group with a choice."""
    return key in _ENTRIES or f"{key}.name" in _ENTRIES or key == "experiment"


def undecodable(error: UnicodeDecodeError, folders: Iterable[str | Path | None]) -> str:
    """Return the error for a configuration file that is not UTF-8; it is searched in folders."""
    what = "a configuration file"
    for folder in [*folders, CONF]:
        for path in sorted(Path(folder).rglob("*.yaml")) if folder is not None else []:
            with suppress(OSError):
                content = path.read_bytes()
                if error.object[:_COMPARED] in content:
                    try:
                        content.decode()
                    except UnicodeDecodeError as whole:
                        what, error = str(path), whole
                        break
    at = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
    return one_line(f"{what} is not UTF-8 text ({at}): save it in the encoding UTF-8")


def _check_choice(group: str, values: Sequence[Any], choices: Choices) -> None:
    for value in values:
        for name in value if isinstance(value, list) else [value]:
            if group == "hydra/launcher" and name in _LAUNCHERS:
                extra, module = _LAUNCHERS[name]
                if find_spec("hydra_plugins") is None or find_spec(module) is None:
                    raise extra_missing(f"{group}={name}", extra)
            folder, _, file = str(name).rpartition("/")
            there = choices(f"{group}/{folder}" if folder else group)
            if file not in there:
                listed = tuple(there or choices(group))
                raise SettingsError(
                    f"{group}={one_line(name)} {_HERE}: must be one of"
                    f" {', '.join(listed)}{suggestion(str(name), listed)}"
                )
