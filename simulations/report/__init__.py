"""The report: one page about many runs."""
