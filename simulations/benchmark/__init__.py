"""Timings of the algorithms, the engines and the devices."""
