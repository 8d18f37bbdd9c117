"""Agents of the federation: simulated nodes over Flower, and devices."""
