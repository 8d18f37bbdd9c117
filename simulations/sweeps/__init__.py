"""Sweeps: the jobs of `fldb sweep`, and the tables of their results."""
