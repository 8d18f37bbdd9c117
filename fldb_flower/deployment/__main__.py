"""`fldb keys`: keys and certificates for a federation of devices."""

from __future__ import annotations

if __name__ == "__main__":  # before slow imports
    from fldb_flower.system import startup

    startup.begin()

import argparse
from collections.abc import Sequence
from pathlib import Path

from fldb_flower.deployment import keys
from fldb_flower.system.commands import Parser, ending_in_one_line


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    create = commands.add_parser(
        "credentials",
        help="create a CA, the server's certificate and the devices' keys",
        description=f"Create a CA (valid {keys.CA_DAYS} days), the server's certificate"
        f" ({keys.SERVER_DAYS} days) and devices' keys (no expiry). No file is overwritten.",
    )
    create.add_argument(
        "--host", action="append", required=True, metavar="NAME",
        help="name or IP address of the server, as devices use it; may be repeated",
    )  # fmt: skip
    create.set_defaults(run=lambda a: keys.create(a.folder, a.host, a.devices))
    add = commands.add_parser(
        "add-devices",
        help="create keys of more devices",
        description="Create keys of more devices, numbered after the existing ones.",
    )
    add.set_defaults(run=lambda a: keys.add_devices(a.folder, a.devices))
    for command, number in ((create, 3), (add, 1)):
        command.add_argument(
            "--devices", type=int, default=number, metavar="N",
            help="number of new devices (default: %(default)s)",
        )  # fmt: skip
    renew = commands.add_parser(
        "renew",
        help="create a new server certificate",
        description="Create a new server certificate with the same CA and key. Devices need no"
        " change.",
    )
    renew.add_argument(
        "--host", action="append", default=[], metavar="NAME",
        help="name or IP address of the server (default: those of the old certificate)",
    )  # fmt: skip
    renew.set_defaults(run=lambda a: keys.renew(a.folder, a.host))
    for command in (create, add, renew):
        command.add_argument("folder", type=Path, metavar="DIR", help="folder of the files")
    helper = commands.add_parser(
        "helper",
        help="create the signing key of the helper of secure sums",
        description="Create the signing key of the helper of secure sums, and FILE.pub, which"
        " devices pin. No file is overwritten.",
    )
    helper.add_argument("file", type=Path, metavar="FILE", help="the new private key")
    helper.set_defaults(run=lambda a: keys.create_helper_key(a.file))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; a user error ends it with status 1 and one line on stderr."""
    arguments = _arguments(argv)
    with ending_in_one_line():
        lines: list[Path | str] = arguments.run(arguments)
        for line in lines:
            print(line)


if __name__ == "__main__":
    main()
