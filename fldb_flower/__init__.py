"""Federated linear dueling bandits: the mathematics, the settings and the results."""
