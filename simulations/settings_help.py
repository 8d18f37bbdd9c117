"""The text of ``fldb run --help``."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra

from fldb_flower.settings import Entry, hydra_entries
from fldb_flower.system.commands import program
from simulations.hydra_config import CONF, store_settings

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
        "combinations of the given values, and writes tables and a plot of all runs.",
        "",
        "examples:",
        f"  {run} algorithm=fldb_ons tau=1",
        f"  {sweep} tau=1,2,4 'seed=range(3)'",
        "A value with spaces or special characters needs quotes, and quotes for the shell:",
        f"  {run} environment=movielens 'environment.path=\"~/ml (1).zip\"'",
        "--config-dir DIR adds your own choices, such as DIR/experiment/mine.yaml:",
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
        "hydra.run.dir=DIR, or hydra.sweep.dir=DIR for a sweep, sets the folder of the results.",
        "--hydra-help prints the options of Hydra.",
    ])  # fmt: skip


def _described(entry: Entry) -> str:
    """Return a setting with its default, and its meaning below."""
    default = str(entry.default).lower() if entry.kind is bool else entry.default
    names = f" One of {', '.join(entry.choices)}." if entry.choices else ""
    width = min(max(shutil.get_terminal_size().columns, 40), 100) - len(_INDENT)
    meaning = textwrap.fill(entry.help + names, width, break_on_hyphens=False)
    shown = default if default != "" else repr("")
    return f"  {entry.dotted}={shown}\n{textwrap.indent(meaning, _INDENT)}"
