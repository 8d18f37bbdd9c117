"""One run: its directory, checkpoints and plot."""
