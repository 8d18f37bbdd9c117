"""Sweeps: the jobs of `python -m simulations.run -m`, and the tables of their results."""
