"""Federated linear dueling bandits: the mathematics, the settings and the results."""

from fldb_flower import former_modules

former_modules.install()
