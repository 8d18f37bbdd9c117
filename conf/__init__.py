"""Hydra configuration: choices among the settings declared in fldb_flower/settings."""
