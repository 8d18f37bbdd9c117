"""Simulations: the commands, and the engines that they run on."""
