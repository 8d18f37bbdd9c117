"""Hydra configuration: choices among the settings that fldb_flower/settings.py declares."""
