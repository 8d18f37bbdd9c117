"""`fldb completion SHELL`: completion of commands, options and settings.

Prints the definition for the shell. Put one of these lines into the file that your shell reads when
it starts:

    eval "$(fldb completion bash)"        ~/.bashrc
    eval "$(fldb completion zsh)"         ~/.zshrc, after compinit
    fldb completion fish | source         ~/.config/fish/config.fish
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fldb_flower.errors import FldbError, extra_missing, one_line
from fldb_flower.system.commands import Parser

SHELLS = ("bash", "zsh", "fish")


def shell_code(shell: str) -> str:
    """Return the definition of the completion of ``fldb`` for a shell.

    Raises
    ------
    SettingsError
        argcomplete is not installed.
    """
    try:
        from argcomplete.shell_integration import shellcode  # noqa: PLC0415
    except ImportError:
        raise extra_missing("completion", "completion") from None
    return str(shellcode(["fldb"], shell=shell))


def main(argv: Sequence[str] | None = None) -> None:
    """Print the definition of the completion for a shell."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shell", choices=SHELLS, help="your shell")
    asked = parser.parse_args(argv)
    try:
        print(shell_code(asked.shell))
    except FldbError as error:
        sys.exit(f"error: {one_line(error)}")
