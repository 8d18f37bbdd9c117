"""`fldb keys roster COMMAND`: the command line of :mod:`fldb_flower.deployment.rosters`."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from fldb_flower.deployment import rosters


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands; ``run`` of the parsed arguments returns the lines to print."""
    commands = parser.add_subparsers(dest="roster_command", required=True, metavar="COMMAND")
    for name, key, function in (
        ("signing-key", "the key pair that signs rosters", rosters.create_signing_key),
        ("device-key", "the key pair of a device", rosters.create_device_key),
    ):
        pair = commands.add_parser(
            name,
            help=f"create {key}",
            description=f"Create {key}. The public key is in FILE.pub. No file is overwritten.",
        )
        pair.add_argument("file", type=Path, metavar="FILE", help="file of the private key")
        pair.set_defaults(run=lambda a, function=function: function(a.file))
    _add_sign(commands.add_parser(
        "sign", help="create a roster", description="Create and sign a roster."
    ))  # fmt: skip
    _add_renew(commands.add_parser(
        "renew",
        help="replace a roster by the next version",
        description="Replace a roster by the next version, signed with the same key. Devices"
        " refuse older versions, and a second roster of the same version.",
    ))  # fmt: skip
    _add_show(commands.add_parser("show", help="print a roster", description="Print a roster."))


def _add_sign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", action="append", required=True, metavar="NAME=FILE",
        help="a device and its public key; may be repeated",
    )  # fmt: skip
    _add_signature(parser, "none", "1; if the file of the last roster is lost, give a greater one")
    parser.set_defaults(
        version=1,
        run=lambda a: [
            rosters.create_roster(a.roster, a.key, a.device, **_dates(a), version=a.version)
        ],
    )


def _add_renew(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--add", action="append", default=[], metavar="NAME=FILE",
        help="a new device and its public key; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--remove", action="append", default=[], metavar="NAME",
        help="a device to remove; may be repeated; with --add, it gets a new key",
    )  # fmt: skip
    _add_signature(parser, "unchanged", "the next one")
    parser.set_defaults(
        run=lambda a: [
            rosters.renew_roster(a.roster, a.key, a.add, a.remove, _dates(a), version=a.version)
        ]
    )


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--signer", type=Path, metavar="FILE",
        help="public key that must have signed it (default: the signature is not checked)",
    )  # fmt: skip
    _add_roster(parser)
    parser.set_defaults(run=lambda a: rosters.describe_roster(a.roster, a.signer))


def _add_signature(parser: argparse.ArgumentParser, dates: str, version: str) -> None:
    parser.add_argument(
        "--key", type=Path, required=True, metavar="FILE", help="private key that signs"
    )
    for option, day in (("--not-before", "first"), ("--not-after", "last")):
        parser.add_argument(
            option, type=_date, default=argparse.SUPPRESS, metavar="DATE",
            help=f"{day} day of validity, like 2027-12-31, or none (default: {dates})",
        )  # fmt: skip
    parser.add_argument(
        "--version", type=int, metavar="N", help=f"its version (default: {version})"
    )
    _add_roster(parser)


def _add_roster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("roster", type=Path, metavar="ROSTER", help="file of the roster")


def _date(text: str) -> datetime.date | None:
    if text == "none":
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a date like 2027-12-31, or none"
        ) from None


def _dates(arguments: argparse.Namespace) -> dict[str, datetime.date | None]:
    return {
        name: getattr(arguments, name)
        for name in ("not_before", "not_after")
        if hasattr(arguments, name)
    }
