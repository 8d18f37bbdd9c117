"""Experiments: the Hydra entry point, the engines, the benchmark."""
