"""`fldb COMMAND ...`, also `python -m fldb_flower`: all commands of this project.

Each command is a module, which `python -m MODULE` runs as well. Only this module is imported.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from fldb_flower.system import startup


class Command(NamedTuple):
    """A command: its module, its line in the help, the words that it adds, and its extra."""

    module: str
    summary: str
    words: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Name of the extra, and the modules in it, if the module imports them."""


GROUPS: dict[str, dict[str, Command]] = {
    "simulations": {
        "run": Command("simulations.run", "run one simulation: fldb run tau=1"),
        "sweep": Command("simulations.run", "run a sweep: fldb sweep tau=1,2 seed=0,1", ("-m",)),
        "figures": Command("simulations.figures", "draw the figures of the paper, and others"),
        "report": Command("simulations.report.__main__", "compare runs on an HTML page"),
        "rank": Command("simulations.rank", "rank items from a file of comparisons"),
        "benchmark": Command("simulations.benchmark", "time the algorithms on this machine"),
    },
    "devices": {
        "demo": Command("simulations.demo", "run a federation of devices on this machine"),
        "keys": Command("fldb_flower.deployment.__main__", "create keys and certificates"),
        "rounds": Command("fldb_flower.deployment.rounds", "check whether a server runs rounds"),
        "check": Command("clients.check", "measure how long this device takes to start a reply"),
        "serve": Command(
            "clients.service.__main__",
            "serve a device's duels over HTTP and on a web page",
        ),
        "backup": Command("clients.backup", "copy a device's store"),
        "helper": Command(
            "clients.helper.__main__",
            "run the helper of secure sums",
            extra=startup.SERVICE_EXTRA,
        ),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def help_text() -> str:
    """Return the text of ``fldb --help``."""
    lines = [
        "usage: fldb COMMAND [ARGUMENT ...]",
        "",
        "Federated linear dueling bandits: simulations, and federations of devices.",
    ]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:12} {command.summary}" for name, command in commands.items()]
    return "\n".join([
        *lines,
        "",
        "options:",
        "  -h, --help   show this help",
        "  --version    show the version",
        "",
        "`fldb COMMAND --help` describes a command.",
    ])  # fmt: skip


def main() -> None:
    """Run the command that the first argument names; exit status 1 if it does not exist."""
    startup.begin()
    _, *words = sys.argv
    if not words or words[0] not in COMMANDS:
        _answer(words)
        return
    name, *rest = words
    command = COMMANDS[name]
    sys.argv = [f"fldb {name}", *command.words, *rest]
    _run(command, f"fldb {name}")


def _run(command: Command, name: str) -> None:
    import importlib  # noqa: PLC0415 - after the signal handlers, like all imports here

    if command.extra:
        startup.require(name, *command.extra)
    importlib.import_module(command.module).main()
    sys.stdout.flush()


def _answer(words: list[str]) -> None:
    """Answer a command line without a known command."""
    from fldb_flower.system.commands import Parser, installed_version  # noqa: PLC0415

    parser = Parser(prog="fldb", add_help=False)
    parser.add_argument("command", choices=COMMANDS, nargs="?")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--version", action="store_true")
    if words and not words[0].startswith("-"):
        from fldb_flower.errors import one_line  # noqa: PLC0415
        from fldb_flower.settings import suggestion  # noqa: PLC0415

        hint = suggestion(words[0], tuple(COMMANDS)) or f"; the commands are {', '.join(COMMANDS)}"
        sys.exit(f"error: {one_line(words[0])}: there is no such command{hint}")
    asked = parser.parse_args(words)
    print(f"fldb-flower {installed_version()}" if asked.version else help_text())


if __name__ == "__main__":
    main()
