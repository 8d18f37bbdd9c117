"""`fldb backup`: copy a device's store into a new file, while other processes use it."""

from __future__ import annotations

if __name__ == "__main__":  # before slow imports
    from fldb_flower.system import startup

    startup.begin()

from collections.abc import Sequence
from pathlib import Path

from clients.store import DuelStore
from fldb_flower.errors import DataError
from fldb_flower.system.commands import Parser, ending_in_one_line


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; exit status 1, with an error on stderr, if nothing was copied."""
    parser = Parser(description=__doc__)
    parser.add_argument("store", metavar="STORE", type=Path, help="the store, such as duels.db")
    parser.add_argument("copy", metavar="FILE", type=Path, help="a new file; none is replaced")
    chosen = parser.parse_args(argv)
    with ending_in_one_line():
        if not chosen.store.is_file():
            raise DataError(f"STORE={chosen.store}: there is no such file")
        with DuelStore(chosen.store) as store:
            store.backup(chosen.copy)
            answers = store.last
    print(f"{chosen.copy}: {answers} answers of {chosen.store}")


if __name__ == "__main__":
    main()
