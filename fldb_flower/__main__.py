"""`python -m fldb_flower COMMAND ...`: the command ``fldb``."""

from __future__ import annotations

import importlib

from fldb_flower.system import startup

if __name__ == "__main__":
    startup.begin()
    importlib.import_module("simulations.command").main()  # in a layer above this package
