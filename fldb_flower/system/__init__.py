"""The process and its machine: start-up, signals, memory, files."""
