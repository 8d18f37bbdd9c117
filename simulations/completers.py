"""Completion of the settings of ``fldb run`` and ``fldb sweep``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from hydra.plugins.completion_plugin import DefaultCompletionPlugin

from fldb_flower.settings import hydra_entries
from fldb_flower.system.commands import complete
from simulations.overrides import config_loader

_NAMES = {
    entry.dotted: ("true", "false") if entry.kind is bool else entry.choices
    for entry in hydra_entries()
    if entry.kind is bool or entry.choices
}


class _Hydra(DefaultCompletionPlugin):
    """Hydra's completion, without its interface for single shells."""

    def complete(self, words: Sequence[str], prefix: str) -> list[str]:
        """Return the overrides that begin with ``prefix``, after other overrides."""
        return self._query("config", " ".join([*words, prefix]))


def complete_settings(parser: argparse.ArgumentParser) -> None:
    """Print completions of the settings after the options of a parser, and exit."""
    settings: Any = parser.add_argument("overrides", nargs="*")
    settings.completer = complete_setting  # argcomplete reads this attribute
    complete(parser)


def complete_setting(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the groups and settings that begin with ``prefix``, or the values of one.

    A completer of argcomplete. Hydra completes groups, their choices and files; the names that a
    setting takes are ours. In a list of values, the last one is completed.
    """
    name, equals, value = prefix.partition("=")
    earlier, comma, last = value.rpartition(",")
    with config_loader() as loader:
        if equals and name in _NAMES and name not in loader.list_groups(""):
            found = [f"{name}={each}" for each in _NAMES[name] if each.startswith(last)]
        else:
            found = _Hydra(loader).complete(parsed_args.overrides or [], f"{name}{equals}{last}")
    start = len(name) + 1
    return [each[:start] + earlier + comma + each[start:] for each in found] if comma else found
