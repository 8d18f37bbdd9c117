"""The local HTTP service of a device: duels for programs, and a page for people."""
