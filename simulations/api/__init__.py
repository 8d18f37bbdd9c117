"""The Python API of simulations: what :mod:`fldb_flower` exports, over the engines."""
