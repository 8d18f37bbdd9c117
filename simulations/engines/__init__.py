"""Engines, which carry out the exchanges of a run."""

SLOW_START = "node timed out during startup"
"""Words of Ray's error if a new node is not ready after 30 seconds, a limit without a setting."""
STARTS = 3
"""Number of attempts to start Ray on this machine."""
