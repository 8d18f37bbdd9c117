"""Engines: what carries a run's exchanges."""
