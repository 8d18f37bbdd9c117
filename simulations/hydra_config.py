"""Hydra's configuration of the settings, its errors as one line, and the help text."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import conf
from fldb_flower.errors import SettingsError, extra_missing
from fldb_flower.settings import Entry, hydra_entries, suggestion, unflatten
from fldb_flower.system.commands import program

CONF = Path(conf.__path__[0])
_HERE = "(from the command line)"
_SUBMITIT = ("slurm", "hydra_plugins.hydra_submitit_launcher")
_LAUNCHERS = {  # extra and module that each needs
    "joblib": ("joblib", "hydra_plugins.hydra_joblib_launcher"),
    **dict.fromkeys(("slurm", "submitit_local", "submitit_slurm"), _SUBMITIT),
}

_GROUPS = {"experiment", "algorithm", "selection", "environment", "schedule", "engine"}


def store_settings(folders: Sequence[str] = ()) -> None:
    """Give Hydra the defaults of the settings, and groups with a choice for each registered name.

    A file of the same name in ``conf/`` or in one of the user's ``folders`` replaces a choice.
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
    for word, following in zip(words, [*words[1:], "="], strict=False):
        plain, _, value = word.lstrip("-").partition("=")
        name = plain.replace("-", "_")
        if name in defaults and (word.startswith("-") or "=" not in word):
            value = value or (defaults[name] if "=" in following else following)
            example = f"{name}={value}"
            raise SettingsError(f"{word} {_HERE}: write a setting as {example}")
        if word[:1] != "~" and (not plain or word[:1] == "-" or "=" not in word):
            kind = "option" if word[:1] == "-" else "setting"
            hint = suggestion(name, tuple(defaults)) or "; --help lists them"
            raise SettingsError(f"{word} {_HERE}: there is no such {kind}{hint}")


def explained(error: Exception, overrides: Sequence[str] = ()) -> str:
    """Return the text of an error of Hydra, with the value, its origin and the valid values."""
    text = str(error).partition("\nConfig search path")[0].partition("\nSee https://")[0]
    if isinstance(error, OverrideParseException):
        reason = "a character needs quotes" if "Lexer" in text else text.splitlines()[0]
        return f"{error.override} {_HERE}: {reason}{quoting(error.override)}"
    if found := re.match(r"(?:Ambiguous value for argument|Sweep parameters) '([^\n]*)'", text):
        reason = f"several values need `fldb sweep` or -m{quoting(found[1])}"
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
    """Return the end of an error: the override quoted for Hydra and the shell, if it is text."""
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
                return f"; write it as {shlex.quote(f'{key}={each}')}"
    return ""


def undecodable(error: UnicodeDecodeError, folders: Sequence[str]) -> str:
    """Return the error for a configuration file that is not UTF-8, which is searched for here."""
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


HEADINGS = {  # by the first setting below
    "num_agents": "problem",
    "environment.sigma": "environment",
    "schedule.ratio": "schedule and engine",
    "lambda": "confidence widths",
    "alpha": "FLDB-OGD",
    "solver": "FLDB-GD",
    "ons_ridge": "FLDB-ONS",
    "personal_ridge": "FLDB-Personal",
    "max_difference": "messages and nodes",
    "privacy.epsilon": "differential privacy",
    "fraction_train": "participation",
    "resume": "files of a run",
}
_INDENT = " " * 4


def help_text(config_dir: str | None = None) -> str:
    """Return the usage, the groups with their choices, and the settings with their defaults.

    ``config_dir`` is the folder with the user's configuration groups.
    """
    run = program()
    sweep = "fldb sweep" if run.startswith("fldb ") else f"{run} -m"
    run = run.replace("fldb sweep", "fldb run")
    lines = [
        f"usage: {run} [GROUP=CHOICE ...] [SETTING=VALUE ...]",
        f"       {sweep} [GROUP=CHOICE,CHOICE ...] [SETTING=VALUE,VALUE ...]",
        "",
        "Simulate a federation and write the results to a new folder. A sweep runs all",
        "combinations of the given values and writes tables and a plot of all runs.",
        "",
        "examples:",
        f"  {run} algorithm=fldb_ons tau=1",
        f"  {sweep} tau=1,2,4 'seed=range(3)'",
        "Quote a value with spaces or special characters for Hydra, and again for the shell:",
        f"  {run} environment=movielens 'environment.path=\"~/ml (1).zip\"'",
        "Use --config-dir DIR for your own choices, such as DIR/experiment/mine.yaml:",
        f"  {run} --config-dir DIR experiment=mine",
        "",
        "groups:",
    ]
    folders = [] if config_dir is None else [config_dir]
    store_settings(folders)
    search = [f"hydra.searchpath=['file://{Path(each).resolve()}']" for each in folders]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        groups = [group for group in loader.list_groups("") if group != "hydra"]
        for group in groups:
            choices = "|".join(loader.get_group_options(group, overrides=search))
            lines.append(f"  {group}={choices}")
    lines += ["", "settings, with their defaults:"]
    for entry in hydra_entries():
        if entry.dotted in HEADINGS:
            lines += ["", f"{HEADINGS[entry.dotted]}:"]
        if entry.path[-1] != "name" and entry.dotted not in groups:
            lines.append(_described(entry))
    return "\n".join([
        *lines,
        "",
        "hydra.run.dir=DIR sets the folder of the results; for a sweep, use hydra.sweep.dir=DIR.",
        "--hydra-help shows the options of Hydra.",
    ])  # fmt: skip


def _described(entry: Entry) -> str:
    """Return a setting with its default, and its meaning below."""
    default = str(entry.default).lower() if entry.kind is bool else entry.default
    names = f" One of {', '.join(entry.choices)}." if entry.choices else ""
    width = min(max(shutil.get_terminal_size().columns, 40), 100) - len(_INDENT)
    meaning = textwrap.fill(entry.help + names, width, break_on_hyphens=False)
    shown = default if default != "" else repr("")
    return f"  {entry.dotted}={shown}\n{textwrap.indent(meaning, _INDENT)}"
