"""Hydra's configuration of the settings, and its errors in one line."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import conf
from fldb_flower.errors import SettingsError, extra_missing
from fldb_flower.settings import hydra_entries, suggestion, unflatten

CONF = Path(conf.__path__[0])
_HERE = "(from the command line)"
_SUBMITIT = ("slurm", "hydra_plugins.hydra_submitit_launcher")
_LAUNCHERS = {  # extra and module that each needs
    "joblib": ("joblib", "hydra_plugins.hydra_joblib_launcher"),
    **dict.fromkeys(("slurm", "submitit_local", "submitit_slurm"), _SUBMITIT),
}

_GROUPS = {"experiment", "algorithm", "selection", "environment", "schedule", "engine"}


def store_settings(folders: Sequence[str] = ()) -> None:
    """Give Hydra the settings' defaults, and groups with a choice for each registered name.

    A file of the same name in ``conf/`` or in one of the folders, those of the user, replaces it.
    """
    store, known = ConfigStore.instance(), [CONF, *map(Path, folders)]
    defaults = {entry.dotted: entry.default for entry in hydra_entries()}
    store.store(name="settings", node=unflatten(defaults))
    for entry in hydra_entries():
        group, key = entry.path[0], entry.path[-1]
        if key == "name" or group in {"algorithm", "selection"}:
            package = "_global_" if group == key else group
            for choice in entry.choices:
                if not any((each / group / f"{choice}.yaml").exists() for each in known):
                    store.store(group=group, name=choice, node={key: choice}, package=package)


def check_words(words: Sequence[str]) -> None:
    """Raise a SettingsError if an argument is neither an override nor one of Hydra's options."""
    defaults = {entry.dotted: entry.default for entry in hydra_entries()}
    for word in words:
        plain, _, value = word.lstrip("-").partition("=")
        name = plain.replace("-", "_")
        if name in defaults and (word.startswith("-") or "=" not in word):
            example = f"{name}={value or defaults[name]}"
            raise SettingsError(f"{word} {_HERE}: a setting is written {example}")
        if word[:1] != "~" and (not plain or word[:1] == "-" or "=" not in word):
            kind = "option" if word[:1] == "-" else "setting"
            hint = suggestion(name, tuple(defaults)) or "; --help lists them"
            raise SettingsError(f"{word} {_HERE}: there is no such {kind}{hint}")


def explained(error: Exception, overrides: Sequence[str] = ()) -> str:
    """Return an error of Hydra with the value, its origin and what is valid."""
    text = str(error).partition("\nConfig search path")[0].partition("\nSee https://")[0]
    if isinstance(error, OverrideParseException):
        reason = "a character that needs quotes" if "Lexer" in text else text.splitlines()[0]
        return f"{error.override} {_HERE}: {reason}{quoting(error.override)}"
    if found := re.match(r"(?:Ambiguous value for argument|Sweep parameters) '([^\n]*)'", text):
        reason = f"several values are a sweep, which needs -m or `fldb sweep`{quoting(found[1])}"
        return f"{found[1]} {_HERE}: {reason}"
    if found := re.match(r"Could not override '((?!hydra)[^']*)'", text):
        known = tuple(entry.dotted for entry in hydra_entries())
        hint = suggestion(found[1], known) or "; --help lists them"
        return f"{found[1]} {_HERE}: there is no such setting{hint}"
    if found := re.search(r"Could not find '(.*)/(.*)'", text):
        group, name = found.groups()
        extra, module = _LAUNCHERS.get(name, ("", ""))
        valid = re.findall(r"^\t(.+)$", text, re.MULTILINE)
        one_of = f"must be one of {', '.join(valid)}" if valid else "there is no such file"
        text = f"{group}={name} {_HERE}: {one_of}{suggestion(name, valid)}"
        if group == "hydra/launcher" and extra and not _is_installed(module):
            text = str(extra_missing(f"{group}={name}", extra))
    if found := re.match(r"Config group override must be .* Got (\w+)", text):
        read = {each: OverridesParser.create().parse_override(each).value() for each in overrides}
        named = [each for each in read if each.partition("=")[0].lstrip("+~") in _GROUPS]
        texts = [each for each in named if type(read[each]).__name__ == found[1]] or named
        return f"{' '.join(texts)} {_HERE}: must be a name; --help lists them"
    return " ".join(text.split())


def _is_installed(module: str) -> bool:
    return find_spec("hydra_plugins") is not None and find_spec(module) is not None


def quoting(override: str) -> str:
    """Return the end of an error: the override in quotes for Hydra and the shell, if it is text."""
    key, _, value = override.partition("=")
    texts = {entry.dotted for entry in hydra_entries() if entry.default == "" and not entry.choices}
    if key not in {*texts, "hydra.run.dir", "hydra.sweep.dir"}:
        return ""
    if key not in texts:
        value = os.path.expanduser(value)  # noqa: PTH111 - keeps the path of an unknown user
    inside = QuotedString(value.replace("${", "\\${"), Quote.double).with_quotes()
    for each in (value, inside):
        with suppress(HydraException, OmegaConfBaseException):
            read = OverridesParser.create().parse_override(f"{key}={each}").value()
            if OmegaConf.create([read])[0] == value and each.isprintable():
                return f"; quoted it is {shlex.quote(f'{key}={each}')}"
    return ""


def undecodable(error: UnicodeDecodeError, folders: Sequence[str]) -> str:
    """Return the error for a configuration file that is not UTF-8; it is searched in folders."""
    file: object = "a configuration file"
    for path in (path for each in [*map(Path, folders), CONF] for path in each.rglob("*.yaml")):
        if error.object in (content := path.read_bytes()):
            try:
                content.decode()
            except UnicodeDecodeError as whole:
                file, error = path, whole
                break
    at = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
    return f"{file} is not UTF-8 text ({at}): save it in the encoding UTF-8"
